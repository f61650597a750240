"""Users' code under mypy --strict: what must pass passes, and each mistake is found on its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")

HERE = Path(__file__).parent
EXPECTED = re.compile(r"# error: ([\w\-, ]+)$")
FOUND = re.compile(r"^(?:.*[\\/])?(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, set[str]]]:
    """The codes that mypy gives for each line of each file."""
    cache = tmp_path_factory.mktemp("mypy")
    options = [
        "--strict",
        "--config-file=",
        f"--cache-dir={cache}",
        "--no-error-summary",
        "--hide-error-context",
    ]
    out, err, _status = api.run([*options, str(HERE / "accepted.py"), str(HERE / "refused.py")])
    assert not err
    files: dict[str, dict[int, set[str]]] = {"accepted": {}, "refused": {}}
    for line in out.splitlines():
        if match := FOUND.match(line):
            files.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(match[3])
    return files


def expected(name: str) -> dict[int, set[str]]:
    """The codes that the comments of a file announce."""
    lines = (HERE / f"{name}.py").read_text("utf-8").splitlines()
    marks = ((number, EXPECTED.search(line)) for number, line in enumerate(lines, 1))
    return {number: set(mark[1].split(", ")) for number, mark in marks if mark}


def test_what_users_write_is_accepted(found: dict[str, dict[int, set[str]]]) -> None:
    """Nothing to ignore and nothing to cast."""
    assert found["accepted"] == {}


def test_each_mistake_is_found_on_its_line_and_nothing_else_is(
    found: dict[str, dict[int, set[str]]],
) -> None:
    """A wrong name or type of an argument is an error before anything runs."""
    assert len(expected("refused")) > 15
    assert found["refused"] == expected("refused")


def test_the_library_itself_is_not_what_was_found(found: dict[str, dict[int, set[str]]]) -> None:
    """An error inside the package would hide those in the users' code."""
    assert set(found) == {"accepted", "refused"}
