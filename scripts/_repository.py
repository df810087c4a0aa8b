"""Put the repository's root on the import path, so that each script runs by hand from any folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
