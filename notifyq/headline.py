"""Does mail flow? One answer for the page and for ``notifyq status``, from one query. Pure.

*row* is the row of ``page_pulse``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

__all__ = ["FAILED_DAYS", "LATE", "Facts", "Headline", "gates_of", "headline", "read_facts", "shut_gate"]

LATE: Final = 60.0
"""Seconds. What has been due for longer, although a worker serves it, is late."""
FAILED_DAYS: Final = 7
"""What died longer ago is nobody's task any more; ``page_pulse`` counts by it. What is held stays one."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the headline is judged by. Counts of rows; *late* and *tasks_late* in seconds.

    *gate*: the state of the worst gate that a worker uses. *unserved*: names that no worker knows.
    *failed*, *tasks_failed*: dead within `FAILED_DAYS`, but for suppressions and cancellations.
    """

    gate: str
    workers: int
    heard: bool
    late: float
    tasks_late: float
    to_set_up: int
    unserved: int
    held: int
    failed: int
    tasks_failed: int

    @property
    def needs_a_look(self) -> bool:
        """True if anything waits that only a person can mend."""
        return any((self.to_set_up, self.unserved, self.held, self.failed, self.tasks_failed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """*tone*: good, wait, person or bad. *words* in the fewest there are. *flows*: mail goes out."""

    tone: str
    words: str
    flows: bool = True


# The first that is true is said.
_LADDER: Final[tuple[tuple[Callable[[Facts], bool], Headline], ...]] = (
    (lambda f: f.gate == "blocked", Headline(tone="bad", words="Mail does not flow", flows=False)),
    (lambda f: not f.workers, Headline(tone="bad", words="No worker is running", flows=False)),
    (lambda f: f.gate == "closed", Headline(tone="bad", words="The provider is away", flows=False)),
    (lambda f: f.late > LATE, Headline(tone="wait", words="Mail is late")),
    (lambda f: f.needs_a_look, Headline(tone="person", words="Something needs a look")),
    (lambda f: f.tasks_late > LATE, Headline(tone="wait", words="Tasks are late")),
    (lambda f: not f.heard, Headline(tone="wait", words="Mail flows, a little late")),
    (lambda _: True, Headline(tone="good", words="Mail flows")),
)


def headline(facts: Facts) -> Headline:
    """The first thing that is wrong, or that nothing is.

    Example: ``headline(read_facts(row)).words == "Mail flows"``
    """
    return next(said for holds, said in _LADDER if holds(facts))


def read_facts(row: Row, *, beside: bool | None = None) -> Facts:
    """The facts of a pulse. *beside*: there is a worker in this process, and whether it hears the bell."""
    shut = shut_gate(gates_of(row))
    alive = row["sessions"] > 0 or row["hidden"] or row["seated"]
    workers = max(row["workers"], int(row["seated"])) if alive else 0
    return Facts(
        gate="open" if shut is None else shut["state"],
        workers=workers if beside is None else max(workers, 1),
        heard=row["seated"] or (alive and row["heard_at"] is not None) or beside is True,
        late=_since(row["oldest_due"], row["now"]),
        tasks_late=_since(row["oldest_task"], row["now"]),
        to_set_up=row["to_set_up"],
        unserved=len(row["unserved_builders"]) + len(row["unserved_tasks"]),
        held=row["held"],
        failed=row["failed"],
        tasks_failed=row["tasks_failed"],
    )


def gates_of(row: Row) -> tuple[dict[str, Any], ...]:
    """The gates of a pulse, those that are shut first."""
    return tuple(
        {**gate, **{name: _time(gate[name]) for name in ("until", "changed_at")}}
        for gate in json.loads(row["gates"])
    )


def shut_gate(gates: Iterable[Row]) -> Row | None:
    """The gate that matters: blocked before closed, and none that its workers have left."""
    shut = [gate for gate in gates if gate["state"] != "open" and not gate["forsaken"]]
    return min(shut, key=lambda gate: str(gate["state"]), default=None)


def _since(at: datetime | None, now: datetime) -> float:
    return 0.0 if at is None else (now - at).total_seconds()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
