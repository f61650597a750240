"""What the spectator sees: lines as things happen, and on a terminal a live table below them.

`Lines` needs nothing; `Table` is the same with colours and the table, and needs rich (extra ``embedded``).
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import IO, Final, Protocol, Self

from notifyq.demo.board import Row, milliseconds
from notifyq.demo.verdict import Ending

__all__ = ["Lines", "Screen", "ScreenGone", "choose_screen"]

WIDTH: Final = 100
"""Longer lines are hard to read, however wide the terminal is."""

NARROWEST: Final = 30
"""Columns. Below it there is no room for a table."""

# Every sign that is not ASCII, and what stands for it where the output cannot show it.
PLAIN: Final = str.maketrans({"✓": "ok", "✗": "!!", "→": "->", "·": "-", "×": "x"})


class ScreenGone(Exception):
    """Nobody reads what we write any more."""


class Screen(AbstractContextManager["Screen"], Protocol):
    """Where the story is shown."""

    paced: bool
    """True if a person reads along, so that the story waits for their eyes."""

    def say(self, text: str, *, style: str = "", indent: int = 0) -> None:
        """Show a paragraph."""

    def verbatim(self, text: str) -> None:
        """Show a line that is to be copied: never broken, never coloured."""

    def rows(self, rows: Sequence[Row]) -> None:
        """Show what became of the emails."""


def choose_screen(out: IO[str], env: Mapping[str, str]) -> Screen:
    """A live table if *out* is a terminal that can show one and rich is installed, else lines.

    Example: ``with choose_screen(sys.stdout, os.environ) as screen: ...``
    """
    if not out.isatty() or env.get("TERM") == "dumb":
        return Lines(out)
    if shutil.get_terminal_size().columns < NARROWEST:
        return Lines(out, paced=True)
    try:
        from notifyq.demo.table import Table
    except ImportError:  # rich comes with the extra
        return Lines(out, paced=True)
    return Table(out)


class Lines:
    """Plain lines, one for each step of each email, as it happens."""

    def __init__(self, out: IO[str] = sys.stdout, *, paced: bool = False) -> None:
        self.paced = paced
        self._out = out
        self._fits = out.isatty()
        self._encoding = getattr(out, "encoding", None) or "utf-8"
        self._shown: dict[tuple[str, int], Row] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put back."""

    def say(self, text: str, *, style: str = "", indent: int = 0) -> None:
        width = min(shutil.get_terminal_size().columns, WIDTH) if self._fits else WIDTH
        margin = " " * indent
        # A narrow terminal gets short lines, and a long word (a path) its own.
        self._write(
            textwrap.fill(
                text,
                max(width, NARROWEST),
                initial_indent=margin,
                subsequent_indent=margin,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )

    def verbatim(self, text: str) -> None:
        self._write(text)

    def rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            before = self._shown.get((row.lane, row.id))
            self._shown[row.lane, row.id] = row
            steps = row.journey[len(before.journey) if before else 0 :]
            if steps:
                self._write(f"   · {row.name}: {' → '.join([*steps, summary(row)])}")

    def _write(self, text: str) -> None:
        try:
            self._out.write(showable(text, self._encoding) + "\n")
            self._out.flush()
        except (OSError, ValueError) as error:
            raise ScreenGone from error


def summary(row: Row) -> str:
    """Where a row is now, and how fast it was. Example: ``"sent (POST 4.2 ms after the commit)"``"""
    if row.latency is None or row.posts != 1 or not row.is_over:
        return row.state  # of several POSTs, the first says little
    return f"{row.state} (POST {milliseconds(row.latency)} after the commit)"


def showable(text: str, encoding: str) -> str:
    """The text as *encoding* can show it. Example: ``showable("✓", "ascii") == "ok"``"""
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return text.translate(PLAIN).encode("ascii", "replace").decode()
    return text


def sentence(ending: Ending) -> tuple[str, str]:
    """A scene's last line and its style."""
    if ending.as_told:
        return f"✓ {ending.line}", "green"
    return f"✗ Not as told: {'; '.join(ending.untrue)} - untrue.", "bold red"
