"""The long run: everything that `tests/faults` and `tests/model` can break, at length. Prints the figures.

``python bench/long_run.py`` takes about an hour on two cores. ``--skip-planted`` leaves out the planted bugs;
``--only WORD`` runs the tests whose names hold the word, and nothing else: ``--only kill`` is the kill loop,
about a quarter of an hour, which tells every 30 s how far it is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURES = (
    "kill loop", "points,", "cases in", "boundaries", "terminations", "states", "probes", "POSTs a second",
    "planted", "passed", "failed", "caught", "FAILED", "Falsifying",
)  # fmt: skip


def main() -> int:
    """Run the short form of each suite, its long form, and the planted bugs; answer 0 if all held."""
    options = argparse.ArgumentParser(description="The long run of the fault tests.")
    options.add_argument("--skip-planted", action="store_true")
    options.add_argument("--only", metavar="WORD")
    chosen = options.parse_args()
    began = time.monotonic()
    pytest = [
        sys.executable,
        "-u",
        "-m",
        "pytest",
        "-s",
        "-q",
        "--no-header",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
    ]
    words = ["-k", chosen.only] if chosen.only else []
    ends = [
        _run("short", [*pytest, *words, "tests/faults", "tests/model"]),
        _run("long", [*pytest, *words, "-m", "long", "tests/faults"]),
    ]
    if not (chosen.skip_planted or chosen.only):
        ends.append(_run("planted", [sys.executable, "-u", "tests/faults/planted.py"]))
    held = not any(ends)
    print(f"long run: {'all held' if held else 'NOT all held'}, {time.monotonic() - began:.0f} s")
    return 0 if held else 1


def _run(name: str, command: list[str]) -> int:
    """Run *command*, showing the lines that hold a figure."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if any(word in line for word in FIGURES) or line.startswith("E  "):
                print(f"{name}: {line.strip()}", flush=True)
    # 5: no test has the word.
    return 0 if run.returncode in (0, 5) else run.returncode


if __name__ == "__main__":
    raise SystemExit(main())
