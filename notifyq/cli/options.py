"""What a person types, made into values. Everything here is pure; misuse is a `click.BadParameter`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

__all__ = [
    "ADDRESS",
    "DURATION",
    "PAIR",
    "REASONS",
    "ROW",
    "STATUSES",
    "TIME",
    "RowId",
    "check_word",
    "json_or_text",
    "one_of",
    "pairs",
    "row_id",
]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LANES: Final = {"": "email", "email": "email", "task": "task"}
MAX_ID: Final = 2**63 - 1

# The words that the tables know, by lane.
STATUSES: Final[Mapping[str, tuple[str, ...]]] = {
    "email": ("pending", "processing", "doubt", "sent", "held", "dead"),
    "task": ("pending", "processing", "done", "dead"),
}
REASONS: Final[Mapping[str, tuple[str, ...]]] = {
    "email": ("rejected", "suppressed", "exhausted", "expired", "cancelled", "unrenderable"),
    "task": ("exhausted", "gave_up", "cancelled", "invalid"),
}


@dataclass(frozen=True, slots=True)
class RowId:
    """A row as a person names it: ``7`` is an email, ``task:7`` a task."""

    lane: str
    id: int

    def __str__(self) -> str:
        return f"{self.lane} {self.id}"


class Typed(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A parameter that *read* makes of a text; its ValueError is the message."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read *value*, unless it was read already."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            return self.fail(str(error), param, ctx)


def row_id(text: str) -> RowId:
    """Read an ID.

    Example: ``row_id("task:7") == RowId("task", 7)``
    """
    lane, _, number = text.rpartition(":")
    if lane not in _LANES or not (number.isascii() and number.isdigit()) or not 0 < int(number) <= MAX_ID:
        raise ValueError("an ID is an email's number, or task:7 (`notifyq show KEY` tells it)")
    return RowId(_LANES[lane], int(number))


def one_of(words: Mapping[str, tuple[str, ...]]) -> click.Choice:  # type: ignore[type-arg]  # as above
    """A word of any lane; `check_word` looks at the lane.

    Example: ``@click.option("--status", type=one_of(STATUSES))``
    """
    return click.Choice(tuple(dict.fromkeys(word for known in words.values() for word in known)))


def check_word(option: str, word: str | None, lane: str, words: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a word that no row of *lane* can have, and name those that it can.

    Example: ``check_word("--status", "sent", "task", STATUSES)`` raises a `click.BadParameter`.
    """
    if word is not None and word not in words[lane]:
        allowed = ", ".join(words[lane])
        raise click.BadParameter(f"{word!r} is not one of {allowed} (of {lane}s)", param_hint=option)


def moment(text: str, now: datetime | None = None) -> datetime:
    """Read a time: ``+10m`` from now (s, m, h, d), or ISO 8601 with its offset.

    Example: ``moment("2030-01-01T09:00+01:00")``
    """
    if match := re.fullmatch(r"\+(\d{1,6}(?:\.\d{1,3})?)([smhd])", text):
        return (now or datetime.now(UTC)) + timedelta(seconds=float(match[1]) * _UNITS[match[2]])
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        read = None
    if read is None or read.tzinfo is None:
        raise ValueError("a time is +90s, +10m, +2h, +1d, or like 2030-01-31T09:00+01:00, with its offset")
    return read


def duration(text: str) -> float:
    """Read a number of seconds above 0; fractions are allowed."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError("a duration is a number of seconds above 0, such as 10 or 2.5")
    return seconds


def host_port(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; an IPv6 host stands in brackets.

    Example: ``host_port("[::1]:8025") == ("::1", 8025)``
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("an address is HOST:PORT, such as 127.0.0.1:8025")
    return host.removeprefix("[").removesuffix("]"), int(port)


def pair(text: str) -> tuple[str, str]:
    """Read ``name=value``; the value may hold more equals signs, or nothing."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError("must be name=value")
    return name, value


def pairs(option: str, given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Make one mapping; a name that comes twice is a mistake, not an order to overwrite."""
    result: dict[str, str] = {}
    for name, value in given:
        if name in result:
            raise click.UsageError(f"{option} gives {name!r} twice")
        result[name] = value
    return result


def json_or_text(text: str) -> Any:
    """A value that parses as JSON is JSON, anything else is itself.

    Example: ``json_or_text("7") == 7`` and ``json_or_text("seven") == "seven"``
    """
    try:
        return json.loads(text, parse_constant=_no_json)
    except ValueError:
        return text


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


ROW: Final = Typed("ID", row_id)
TIME: Final = Typed("TIME", moment)
DURATION: Final = Typed("SECONDS", duration)
ADDRESS: Final = Typed("HOST:PORT", host_port)
PAIR: Final = Typed("NAME=VALUE", pair)
