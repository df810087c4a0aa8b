"""Write down what the host of a declared platform is. Runs there, where the platform's jobs run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import _repository  # noqa: F401

from ladder import fingerprint, progress
from ladder.errors import StepError
from ladder.files import write_json, write_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda", "rocm"), required=True, help="what its ladders run on")
    parser.add_argument("--output", type=Path, required=True, help="the declaration, JSON")
    parser.add_argument("--log", type=Path, required=True, help="where the answer is written down for people")
    arguments = parser.parse_args()
    platform = arguments.output.parent.name
    try:
        declared = fingerprint.declaration(arguments.device)
    except StepError as error:
        said = f"fingerprint {platform}: failed: {error}"
    else:
        write_json(arguments.output, declared)
        said = f"fingerprint {platform}: {declared['host']}, {fingerprint.in_words(declared['fingerprint'])}"
    write_text(arguments.log, said + "\n")
    progress.say(said)
    sys.exit(not arguments.output.is_file())


if __name__ == "__main__":
    main()
