"""The table of holes in README.md stays true: what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from planted_bugs import BUGS

TESTS = Path(__file__).parents[1]
TABLE = [
    line for line in (Path(__file__).parent / "README.md").read_text().splitlines() if line.startswith("| H")
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.split()[1].strip(","))
def test_what_shows_a_hole_closed_exists(row: str) -> None:
    """A test that was renamed would leave a claim without its proof."""
    files = list(TESTS.rglob("test_*.py"))
    tests = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}
    shown = row.rstrip(" |").rpartition(" | ")[2]
    named, _, planted = shown.partition("planted: ")

    assert set(re.findall(r"`(test_\w+)`", named)) <= tests | {path.stem for path in files}
    assert set(planted.split(", ") if planted else ()) <= {bug.name for bug in BUGS}
    assert shown, "nothing shows it, and nothing says so"
