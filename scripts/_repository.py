"""Put the repository's root on the import path, so that each script runs by hand from any folder."""

import io
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ladder.process import die_with_parent  # noqa: E402

if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode shows "?" for what it cannot
die_with_parent()  # killing the workflow must leave no step behind that goes on and writes its result
# Ctrl-C ends a step without a traceback; what it had begun is not trusted and runs again
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
