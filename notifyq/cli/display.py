"""Show things: tables for a terminal, plain aligned text for a pipe, JSON for a script."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["STYLES", "clean", "say", "show_json", "span", "stamp", "table"]

# A key or an error text comes from strangers; an escape sequence in it must not drive the terminal.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

STYLES: Final[Mapping[str, str]] = {
    "sent": "green",
    "done": "green",
    "pending": "cyan",
    "processing": "cyan",
    "doubt": "yellow",
    "held": "bold yellow",
    "dead": "red",
}


def console() -> Console:
    """The terminal as it is now: its width, whether it has colours (``NO_COLOR`` is honoured)."""
    return Console(highlight=False)


def say(text: str, style: str = "") -> None:
    """Print one line, which may hold a stranger's text; *style* is for a terminal only."""
    out = console()
    if out.is_terminal:
        out.print(Text(clean(text), style=style), soft_wrap=True)
    else:
        click.echo(clean(text))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print *rows*; a cell that is a status gets its colour.

    Example: ``table(["id", "status"], [(7, "sent")])``
    """
    cells = [[clean("" if cell is None else str(cell)) for cell in row] for row in rows]
    out = console()
    if not out.is_terminal:
        _plain(columns, cells)
        return
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        # Numbers and words stay whole; what is long folds.
        drawn.add_column(column, no_wrap=column in ("id", "status", "when"), overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    out.print(drawn)


def show_json(value: object) -> None:
    """Print *value* as JSON; times in ISO 8601."""
    click.echo(json.dumps(value, default=_spelt, ensure_ascii=False, indent=2))


def clean(text: str) -> str:
    """Make *text* safe for a terminal and for one line."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text).replace("\n", " ").replace("\t", " ")


def span(seconds: float) -> str:
    """A length of time in words, two units at most.

    Example: ``span(7500) == "2 h 5 min"``
    """
    whole = round(abs(seconds))
    if whole < 1:
        return "a moment"
    for size, unit, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def stamp(when: datetime | None) -> str:
    """A time as the person's own clock shows it.

    Example: ``2030-01-31 09:00:00``
    """
    return "" if when is None else when.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _plain(columns: Sequence[str], cells: list[list[str]]) -> None:
    lines = [list(columns), *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _spelt(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
