"""Does mail flow? What the overview says of a pulse, and the answer of ``/healthz``. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urlencode

from notifyq.admin.live import Pulse
from notifyq.admin.reads import Row
from notifyq.admin.words import ago, amount, duration
from notifyq.headline import FAILED_DAYS, headline, shut_gate

__all__ = ["Need", "Verdict", "gate_words", "illness", "judge", "needs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """*tone*: good, wait, person or bad. *headline* in a few words, *meaning* in a sentence or two."""

    tone: str
    headline: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One line of what a person has to look at: *what* there is, *why*, and the list that shows it."""

    tone: str
    what: str
    why: str
    href: str


def judge(pulse: Pulse) -> Verdict:
    """The first thing that is wrong, or that nothing is.

    Example: ``judge(pulse).headline == "Mail flows"``
    """
    said = headline(pulse.facts)
    meaning = _MEANINGS[said.words](pulse, _waits(pulse.row))
    return Verdict(tone=said.tone, headline=said.words, meaning=meaning)


def needs(pulse: Pulse, not_set_up: str) -> list[Need]:
    """What waits for a person, each with its list: rows to set up (*not_set_up*: why), held, dead, names
    that nobody knows.

    Example: ``needs(pulse, "")[0].href == "emails?status=held"``
    """
    facts, row = pulse.facts, pulse.row
    dead = f"Dead in the last {FAILED_DAYS} days"
    found = [
        (facts.held, "person", "held", "They may have been sent: a person decides", "emails?status=held"),
        (facts.to_set_up, "doubt", "to be set up", not_set_up or "No sender, or no such stream", SET_UP),
        (facts.failed, "bad", _plural(facts.failed, "email") + " not sent", dead, FAILED),
        (facts.tasks_failed, "bad", _plural(facts.tasks_failed, "task") + " failed", dead, FAILED_TASKS),
    ]
    listed = [
        Need(tone=tone, what=f"{amount(count)} {what}", why=why, href=href)
        for count, tone, what, why, href in found
        if count
    ]
    builders, tasks = row["unserved_builders"], row["unserved_tasks"]
    return [*listed, *_unserved(builders, "builder"), *_unserved(tasks, "task")]


SET_UP: Final = "emails?status=pending&reason=setup"
FAILED: Final = "emails?status=dead&reason=failed"
FAILED_TASKS: Final = "tasks?status=dead&reason=failed"
_LISTS: Final = {"builder": ("emails", "builder", "Emails wait"), "task": ("tasks", "name", "Calls wait")}


def illness(pulse: Pulse, *, account: str | None = None) -> str:
    """Why this is not healthy, "" if it is. Tells nothing but that.

    Example: ``illness(pulse) == "the gate is closed"``
    """
    if not pulse.facts.heard:
        return "no listener is proven"
    shut = shut_gate(gate for gate in pulse.gates if account is None or gate["account"] == account)
    return "" if shut is None else f"the gate is {shut['state']}"


def gate_words(gate: Row, now: datetime) -> str:
    """One gate as a sentence."""
    if gate["state"] == "open":
        if gate["pace"] is not None:
            return f"Open, and getting up to speed ({gate['pace']:.0f} emails a second)"
        return f"Open, although the last {gate['failures']} failed" if gate["failures"] else "Open"
    if gate["forsaken"]:
        return f"{gate['state'].capitalize()}, but no worker uses this account now"
    said = "Closed; one email is tried" if gate["state"] == "closed" else "Blocked; the account is looked at"
    return f"{said} {_later(gate['until'], now)}"


def _blocked(pulse: Pulse, waits: str) -> str:
    return (
        f"The provider refuses the account: {_reason(pulse, 'it does not say why')} {waits} Nothing is lost; "
        "when the account is mended, everything goes out by itself."
    )


def _away(pulse: Pulse, waits: str) -> str:
    shut = shut_gate(pulse.gates)
    when = "soon" if shut is None else _later(shut["until"], pulse.row["now"])
    reason = _reason(pulse, "it does not answer")
    return (
        f"{reason[:1].upper()}{reason[1:]} It is tried again {when}. {waits} "
        "Everything goes out by itself when it is back."
    )


def _look(pulse: Pulse, waits: str) -> str:
    facts = pulse.facts
    told = [
        _count(facts.held, "email is held", "emails are held"),
        _count(facts.to_set_up, "email waits to be set up", "emails wait to be set up"),
        _count(facts.unserved, "name is known to no worker", "names are known to no worker"),
        _count(facts.failed, "email was not sent", "emails were not sent"),
        _count(facts.tasks_failed, "task failed", "tasks failed"),
    ]
    told = [one for one in told if one]
    listed = " and ".join(filter(None, (", ".join(told[:-1]), told[-1])))
    return f"{listed[:1].upper()}{listed[1:]}: see below. Everything else goes out. {waits}"


_MEANINGS: Final[dict[str, Callable[[Pulse, str], str]]] = {
    "Mail does not flow": _blocked,
    "No worker is running": lambda _, waits: f"{waits} Start one: notifyq worker.",
    "The provider is away": _away,
    "Mail is late": lambda pulse, waits: (
        f"The oldest email that is due has waited {duration(pulse.facts.late)}. {waits} "
        "The workers are behind."
    ),
    "Something needs a look": _look,
    "Tasks are late": lambda pulse, waits: (
        f"Mail flows, but the oldest call that is due has waited {duration(pulse.facts.tasks_late)}. {waits}"
    ),
    "Mail flows, a little late": lambda _, waits: (
        f"No listener has proven that it hears the bell, so workers look every few seconds. {waits}"
    ),
    "Mail flows": lambda _, waits: waits,
}


def _unserved(names: list[str], kind: str) -> list[Need]:
    page, filter_, why = _LISTS[kind]
    return [
        Need(
            tone="doubt",
            what=f"No worker knows the {kind} {name}",
            why=f"{why} until one does: is it deployed?",
            href=f"{page}?{urlencode({'status': 'pending', filter_: name})}",
        )
        for name in names
    ]


def _waits(row: Row) -> str:
    count = row["pending"]
    if not count:
        return "Nothing waits."
    many = "One email waits" if count == 1 else f"{amount(count)} emails wait"
    if row["oldest_due"] is None:
        return f"{many} for later; nothing is due."
    return f"{many} to be sent."


def _count(count: int, one: str, many: str) -> str:
    return "" if not count else f"one {one}" if count == 1 else f"{amount(count)} {many}"


def _plural(count: int, what: str) -> str:
    return what if count == 1 else f"{what}s"


def _later(until: datetime, now: datetime) -> str:
    return ago(until, now) if until > now else "any moment"


def _reason(pulse: Pulse, otherwise: str) -> str:
    shut = shut_gate(pulse.gates)
    text = str((shut or {}).get("reason") or otherwise).strip().rstrip(".")
    return f"{text}."
