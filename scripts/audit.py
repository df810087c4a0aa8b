"""Say which engines cannot be measured and why, and fail if there are any."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import _repository  # noqa: F401

from ladder.files import read_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verdicts", type=Path, nargs="*", help="what the audits of engines let through, *.pass.json")
    arguments = parser.parse_args()
    found = {path: read_json(path) for path in arguments.verdicts}
    bad = {path: record for path, record in found.items() if record["status"] != "ok" or record["verdict"] == "exclude"}
    for path, record in bad.items():
        engine = f"{path.name.removesuffix('.pass.json')} of {path.parent.name}"
        print(f"{engine}: {record.get('stage', 'audit')}: {record['reason']}")
    if bad:
        sys.exit(f"{len(bad)} of {len(found)} engines cannot be measured.")
    print(f"{len(found)} engines built and audited: results/<platform>/audit/<model>/<engine>.json", flush=True)


if __name__ == "__main__":
    main()
