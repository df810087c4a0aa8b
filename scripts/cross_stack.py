"""Set the results of several hosts side by side: tables and a page. Nothing is measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import _repository  # noqa: F401

from ladder import locks, tables
from ladder.aggregate import write_table
from ladder.cross_stack import compare, read_source, refusal
from ladder.errors import StepError
from ladder.files import write_text
from ladder.report.cross_stack import cross_stack_page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folders", nargs="*", required=True, help="folders or URLs of results, as configured")
    parser.add_argument("--own", nargs="*", required=True, help="those of them that are this host's own")
    parser.add_argument("--results", type=Path, nargs="*", required=True, help="results.csv of each of the others")
    parser.add_argument("--reference", help="platform that the others are compared with; the first if left out")
    parser.add_argument("--caption", type=Path, required=True, help="how to read the page (.rst)")
    parser.add_argument("--output", type=Path, required=True, help="the table (CSV)")
    parser.add_argument("--refused", type=Path, required=True, help="what is not in it, and why (CSV)")
    parser.add_argument("--page", type=Path, required=True, help="the page (HTML)")
    parser.add_argument("--log", type=Path, required=True, help="what is said, kept where nothing can be compared too")
    arguments = parser.parse_args()
    brought = iter(arguments.results)
    places = [(Path(each) if each in arguments.own else next(brought).parent, each) for each in arguments.folders]
    made = (arguments.page, arguments.output, arguments.refused)
    waiting = "cross_stack: waiting, another workflow of this host is measuring"
    with locks.host_lock(exclusive=False, waiting=waiting):
        try:
            sources = [read_source(*place) for place in places]
            found = compare(sources, arguments.reference)
            page = cross_stack_page(found, arguments.caption)
        except StepError as error:
            for earlier in made:
                earlier.unlink(missing_ok=True)
            said = f"{error}\nThere is no page now: {', '.join(map(str, made))} of an earlier call are removed\n"
            write_text(arguments.log, said)
            sys.exit(f"{said}This is kept in {arguments.log}")
        write_table(arguments.output, tables.CROSS_STACK, found.rows)
        write_table(arguments.refused, tables.CROSS_STACK_REFUSED, found.refused)
        write_text(arguments.page, page)
    said = "".join(f"{line}\n" for line in [*found.notes, *map(refusal, found.refused)])
    write_text(arguments.log, said)
    sys.stderr.write(said)
    print(f"Cross-stack: {arguments.page}, {arguments.output}", flush=True)


if __name__ == "__main__":
    main()
