"""Make a stack's Python environment from its lock file, or list one that is already there."""

from __future__ import annotations

import argparse
from pathlib import Path

import _repository  # noqa: F401

from ladder import environment
from ladder.files import write_json
from ladder.step import step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--lock", type=Path, help="requirements file, every version pinned")
    source.add_argument("--python", type=Path, help="an interpreter to use as it is")
    parser.add_argument("--folder", type=Path, help="where the environment is made (with --lock)")
    parser.add_argument("--output-id", type=Path, required=True, help="what is in it, JSON")
    parser.add_argument("--log", type=Path, required=True, help="where the messages go")
    arguments = parser.parse_args()
    with step("environment", arguments.output_id, log=arguments.log):
        if arguments.lock:
            listing = environment.make(arguments.lock, arguments.folder)
        else:
            listing = environment.existing(arguments.python)
        write_json(arguments.output_id, {"status": "ok", "packages": listing.splitlines()})


if __name__ == "__main__":
    main()
