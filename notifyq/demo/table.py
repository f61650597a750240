"""The screen of a terminal: the story above, a live table of every email below it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import IO, Final, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from notifyq.demo.board import Row, milliseconds
from notifyq.demo.screen import WIDTH, ScreenGone, showable

__all__ = ["Table"]

STYLES: Final = {"sent": "green", "done": "green", "dead": "red", "held": "yellow", "doubt": "magenta"}
NARROW: Final = 76
"""Columns. Below it the table leaves out how it came about."""

TIGHT: Final = 48
"""Below it the times, too: which email it is and how it stands come first."""

FRAME: Final = 5
"""Lines of the table that are no rows."""


class Table:
    """See `notifyq.demo.screen.Screen`."""

    def __init__(self, out: IO[str]) -> None:
        self.paced = True
        self._console = Console(file=out, highlight=False, emoji=False, markup=False)
        # Drawn when something has changed, by us: no thread of its own that could disturb a latency.
        self._live = Live(
            console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._live.stop()
        except OSError:
            return  # the terminal is gone, and its cursor with it

    def say(self, text: str, *, style: str = "", indent: int = 0) -> None:
        """Show a paragraph above the table."""
        line = Padding(Text(self._showable(text), style=style), (0, 0, 0, indent))
        self._print(line)

    def verbatim(self, text: str) -> None:
        """Show a line to copy."""
        self._print(Text(self._showable(text)), soft_wrap=True)

    def rows(self, rows: Sequence[Row]) -> None:
        """Draw the table anew."""
        try:
            self._live.update(Group("", self._grid(rows)), refresh=True)
        except OSError as error:
            raise ScreenGone from error

    def _grid(self, rows: Sequence[Row]) -> Grid:
        wide, tight = self._console.width >= NARROW, self._console.width < TIGHT
        grid = Grid(expand=False, box=SIMPLE_HEAD, header_style="bold")
        grid.add_column("email or task", overflow="fold", min_width=10, max_width=28)
        if wide:
            grid.add_column("what happened", overflow="fold", ratio=1)
        grid.add_column("now", overflow="ellipsis", no_wrap=True)
        if not tight:
            grid.add_column("first POST", justify="right", no_wrap=True)
        if wide:
            grid.add_column("copies", justify="right", no_wrap=True)
        lines = max(6, self._console.height - FRAME)
        for row in rows[-(lines // 2 if wide else lines) :]:  # how it came about may need two lines
            grid.add_row(*self._cells(row, wide)[: len(grid.columns)])
        return grid

    def _cells(self, row: Row, wide: bool) -> list[Text]:
        name, state = Text(row.name), Text(row.state, style=STYLES.get(row.status, "cyan"))
        latency = Text("" if row.latency is None else milliseconds(row.latency))
        if not wide:
            return [name, state, latency]
        journey = Text(self._showable(" → ".join(row.journey)), style="dim")
        sent = Text(
            f"{row.messages}×" if row.lane == "email" else "", style="bold red" if row.messages > 1 else ""
        )
        return [name, journey, state, latency, sent]

    def _showable(self, text: str) -> str:
        return showable(text, self._console.encoding)

    def _print(self, what: Padding | Text, *, soft_wrap: bool = False) -> None:
        width = None if soft_wrap else min(self._console.width, WIDTH)
        try:
            self._console.print(what, width=width, soft_wrap=soft_wrap)
        except OSError as error:
            raise ScreenGone from error
