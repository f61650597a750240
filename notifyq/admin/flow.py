"""Does mail flow? The first sentence of the overview, and the answer of ``/healthz``. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from notifyq.admin.live import Pulse
from notifyq.admin.reads import Row
from notifyq.admin.words import ago, amount, duration

__all__ = ["Ear", "Verdict", "ear_of_the_database", "gate_words", "illness", "judge"]

LATE: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ear:
    """The listeners: whether one has proven that it hears, when, and how many workers there are."""

    proven: bool
    workers: int
    proved_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """*tone*: good, wait or bad. *headline* in four words, *meaning* in a sentence or two."""

    tone: str
    headline: str
    meaning: str


def ear_of_the_database(row: Row) -> Ear:
    """What the database knows of listeners: a row of ``page_listeners``."""
    alive = row["sessions"] > 0 or row["hidden"]
    proven = row["seated"] or (alive and row["heard_at"] is not None)
    workers = row["workers"] if alive else 0
    return Ear(proven=proven, workers=max(workers, int(row["seated"])), proved_at=row["heard_at"])


def judge(pulse: Pulse, ear: Ear) -> Verdict:
    """The first thing that is wrong, or that nothing is."""
    now = pulse.row["now"]
    shut = _shut(pulse.gates)
    waits = _waits(pulse.row)
    if shut is not None and shut["state"] == "blocked":
        return Verdict(
            tone="bad",
            headline="Mail does not flow",
            meaning=f"The provider refuses the account: {shut['reason']}. {waits} Nothing is lost; "
            "when the account is mended, everything goes out by itself.",
        )
    if not ear.workers:
        return Verdict(
            tone="bad",
            headline="No worker is running",
            meaning=f"{waits} Start one: notifyq worker.",
        )
    if shut is not None:
        return Verdict(
            tone="bad",
            headline="The provider is away",
            meaning=f"{_sentence(shut['reason'] or 'it does not answer')} It is tried again "
            f"{_later(shut['until'], now)}. {waits} Everything goes out by itself when it is back.",
        )
    return _open(pulse.row, ear, waits)


def illness(pulse: Pulse, ear: Ear, *, account: str | None = None) -> str:
    """Why this is not healthy, "" if it is. Tells nothing but that.

    Example: ``illness(pulse, ear) == "the gate is closed"``
    """
    if not ear.proven:
        return "no listener is proven"
    gates = [gate for gate in pulse.gates if account is None or gate["account"] == account]
    shut = _shut(gates)
    return "" if shut is None else f"the gate is {shut['state']}"


def gate_words(gate: Row, now: datetime) -> str:
    """One gate as a sentence."""
    if gate["state"] == "open":
        if gate["pace"] is not None:
            return f"Open, and getting up to speed ({gate['pace']:.0f} emails a second)"
        return f"Open, although the last {gate['failures']} failed" if gate["failures"] else "Open"
    if gate["forsaken"]:
        return f"{gate['state'].capitalize()}, and no worker has tried since {ago(gate['until'], now)}"
    said = "Closed; one email is tried" if gate["state"] == "closed" else "Blocked; the account is looked at"
    return f"{said} {_later(gate['until'], now)}"


def _open(row: Row, ear: Ear, waits: str) -> Verdict:
    due = row["oldest_due"]
    late = 0.0 if due is None else (row["now"] - due).total_seconds()
    if late > LATE:
        return Verdict(
            tone="wait",
            headline="Mail is late",
            meaning=f"The oldest email that is due has waited {duration(late)}. {waits} "
            "The workers are behind, or none knows its builder.",
        )
    if not ear.proven:
        return Verdict(
            tone="wait",
            headline="Mail flows, a little late",
            meaning="No listener has proven that it hears the bell, so workers look every few seconds.",
        )
    return Verdict(tone="good", headline="Mail flows", meaning=waits)


def _shut(gates: Iterable[Row]) -> Row | None:
    """The gate that matters: blocked before closed, and none that its workers have left."""
    shut = [gate for gate in gates if gate["state"] != "open" and not gate["forsaken"]]
    return min(shut, key=lambda gate: gate["state"], default=None)


def _waits(row: Row) -> str:
    count = row["pending"]
    if not count:
        return "Nothing waits."
    if row["oldest_due"] is None:
        return f"{_emails(count)} for a later time; nothing is due."
    return f"{_emails(count)} to be sent."


def _emails(count: int) -> str:
    return "One email waits" if count == 1 else f"{amount(count)} emails wait"


def _later(until: datetime, now: datetime) -> str:
    return ago(until, now) if until > now else "any moment"


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
