"""Wait for a lock on a file that the parent has open: it holds the lock afterwards, and this wait dies with it."""

import fcntl
import sys

import _repository  # noqa: F401


def main() -> None:
    descriptor, kind = map(int, sys.argv[1:])
    fcntl.flock(descriptor, kind)


if __name__ == "__main__":
    main()
