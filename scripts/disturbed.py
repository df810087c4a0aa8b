"""Print the records of the rounds that something disturbed, for ``snakemake -R``; why, on stderr."""

from __future__ import annotations

import sys
from pathlib import Path

import _repository  # noqa: F401

from ladder import config
from ladder.disturbed import disturbed
from ladder.errors import ConfigError, StepError
from ladder.files import read_json
from ladder.progress import STATE
from ladder.report.read import read_table
from ladder.tables import FLAGS, RESULTS


def main() -> None:
    of_the_call = STATE / "config.json"  # what the tables were made with
    try:
        flags = config.load(read_json(of_the_call)).telemetry.exclude if of_the_call.is_file() else FLAGS
        found = disturbed(read_table(Path("results/results.csv"), RESULTS), flags)
    except (ConfigError, StepError) as error:
        sys.exit(str(error))
    for record, grounds in found.items():
        print(record)
        print(f"{record}: {'; '.join(grounds)}", file=sys.stderr)
    print(f"disturbed rounds: {len(found)}", file=sys.stderr)


if __name__ == "__main__":
    main()
