"""What the questions share: a server, child processes, a sink, statistics, plots and the report.

Importing it puts the checkout's root on the path, so that every question runs from a clone as it is.
"""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent
SYSTEMS = BENCH / "systems"
ENVIRONMENT = BENCH / ".env"
RESULTS = BENCH / "results"
PLOTS = BENCH / "plots"

for folder in (SYSTEMS, BENCH, ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
