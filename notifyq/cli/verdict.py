"""What stands in the way of the mail: pure words about the facts of ``notifyq status``.

The headline is the page's, `notifyq.headline`; here are the lines below it. *facts* is what
``notifyq status --json`` prints; durations are seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from notifyq.advice import advice
from notifyq.cli.display import span
from notifyq.headline import FAILED_DAYS, LATE, Facts

__all__ = ["Trouble", "gate_troubles", "gate_words", "needs_person", "summary", "troubles"]

STUCK: Final = 900.0
"""Due for longer than this although nothing stands in the way: a person looks."""

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One line of what is wrong. *stops*: no mail goes out. *person*: it does not mend by itself."""

    text: str
    person: bool = True
    stops: bool = False


def needs_person(found: list[Trouble]) -> bool:
    """Tell whether something waits for a person."""
    return any(trouble.person for trouble in found)


def troubles(facts: Status, judged: Facts) -> list[Trouble]:
    """All that is wrong, the worst first.

    Example: ``troubles(facts, judged)[0].text == "5 emails are due and no worker is connected"``
    """
    emails = facts["emails"]
    found = [
        *gate_troubles(facts),
        *_workers(facts, judged),
        *_emails(emails),
        *_dead_for_days(emails, facts["tasks"], judged),
        *_names(facts),
    ]
    return sorted(found, key=lambda trouble: (not trouble.stops, not trouble.person))


def gate_words(gate: Status) -> str:
    """One line for the gate of one account.

    Example: ``"gate  postmark:0123: open"``
    """
    name = f"gate     {gate['account']}"
    because = f", because {gate['reason']}" if gate["reason"] else ""
    wait = gate["wait"] or 0
    match gate["state"]:
        case "open" if gate["pace"] is not None:
            return f"{name}: recovering, at about {max(gate['pace'], 1):.0f} emails a second and rising"
        case "open":
            failures = f" ({gate['failures']} failures in a row)" if gate["failures"] else ""
            return f"{name}: open{failures}"
        case "closed" if wait > 0:
            return f"{name}: closed for {span(wait)} more{because}"
        case _ if gate["forsaken"]:
            return f"{name}: was {gate['state']}{because}; no worker uses this account now"
        case "closed":
            return f"{name}: closed{because}; the next due email is a probe"
        case _:
            look = f"in {span(wait)}" if wait > 0 else "now"
            return f"{name}: blocked{because}; {advice(gate['reason'])}; the next look is {look}"


def summary(facts: Status, judged: Facts) -> list[str]:
    """What there is, in a few lines."""
    emails, tasks = facts["emails"], facts["tasks"]
    expiring = f"; {emails['expiring']} pending expire within an hour" if emails["expiring"] else ""
    return [
        f"emails   {emails['pending']} pending{_waiting(emails)}, {emails['processing']} under way, "
        f"{emails['doubt']} in doubt{_since(emails['doubt_for'])}, {emails['held']} held, {_dead(emails)}",
        f"sent     {emails['sent_last_hour']} in the last hour, {emails['sent_last_day']} in the last day"
        + expiring,
        f"tasks    {tasks['pending']} pending{_waiting(tasks)}, {tasks['processing']} running, "
        f"{_dead(tasks)}, {tasks['done_last_hour']} done in the last hour, "
        f"{tasks['done_last_day']} in the last day",
        f"workers  {_worker_words(facts, judged.workers)}",
        f"schema   version {facts['schema']}",
    ]


def _dead(lane: Status) -> str:
    """How many are dead and why; of very many only the newest were counted by reason."""
    reasons = lane["dead_by_reason"]
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    counted = sum(reasons.values())
    of_newest = f"of the newest {counted}: " if counted < lane["dead"] else ""
    return f"{lane['dead']} dead" + (f" ({of_newest}{listed})" if listed else "")


def _waiting(lane: Status) -> str:
    """How long the oldest has been due, or when the next will be."""
    if lane["due"]:
        oldest = f", email {lane['oldest_due']}" if lane.get("oldest_due") else ""
        return f" ({lane['due']} due, the oldest for {span(lane['due_for'])}{oldest})"
    return f" (the next in {span(lane['due_for'])})" if lane["due_for"] is not None else ""


def _since(seconds: float | None) -> str:
    return "" if seconds is None else f" (the oldest for {span(seconds)})"


def _worker_words(facts: Status, count: int) -> str:
    if not count:
        return "none is connected"
    at_work = facts["emails"]["at_work"] + facts["tasks"]["at_work"]
    deaf = sum(not worker["listening"] for worker in facts["workers"])
    return f"{count} connected, {at_work} at work" + (f", {deaf} only polling" if deaf else "")


def gate_troubles(facts: Status) -> Iterator[Trouble]:
    """The gates that are shut. One that no worker looks at is nobody's, and no trouble."""
    for gate in facts["gates"]:
        if gate["state"] == "open" or gate["forsaken"]:
            continue
        words = gate_words(gate).removeprefix("gate     ")
        yield Trouble(text=f"the gate of {words}", person=gate["state"] == "blocked", stops=True)


def _workers(facts: Status, judged: Facts) -> Iterator[Trouble]:
    emails = facts["emails"]
    due = emails["due"] + facts["tasks"]["due"]
    if due and not judged.workers:
        yield Trouble(text=f"{due} due and no worker is connected: start `notifyq worker`", stops=True)
    elif emails["due"] and emails["due_for"] > LATE:
        text = f"{emails['due']} emails are due, the oldest for {span(emails['due_for'])}"
        yield Trouble(text=text, person=emails["due_for"] > STUCK)
    if (emails["lease_over_for"] or 0) > LATE:
        text = f"an email's claim ended {span(emails['lease_over_for'])} ago and no worker takes it over"
        yield Trouble(text=text)


def _emails(emails: Status) -> Iterator[Trouble]:
    if emails["held"]:
        shown = ", ".join(map(str, emails["examples"]))
        more = ", …" if emails["held"] > len(emails["examples"]) else ""
        yield Trouble(
            text=f"{emails['held']} held, the oldest for {span(emails['held_for'])}: may have been sent, and "
            f"a person decides (`notifyq show ID`, then retry, resolve or cancel): {shown}{more}"
        )
    for group in emails["misconfigured_because"]:
        yield Trouble(
            text=f"{group['emails']} wait because they are not set up, such as email {group['example']}: "
            f"{group['error']}"
        )
    if emails["sent_more_than_once"]:
        ids = ", ".join(map(str, emails["sent_more_than_once"]))
        yield Trouble(text=f"sent more than once, within the last day: emails {ids}")
    for reason in ("exhausted", "unrenderable"):
        if count := emails[f"{reason}_last_day"]:
            text = f"{count} died within the last day ({reason}): `notifyq list --reason {reason}`"
            yield Trouble(text=text)
    if (emails["doubt_for"] or 0) > STUCK:
        text = f"{emails['doubt']} in doubt, the oldest for {span(emails['doubt_for'])}: is a worker asking?"
        yield Trouble(text=text, person=False)


def _dead_for_days(emails: Status, tasks: Status, judged: Facts) -> Iterator[Trouble]:
    """Tasks that died, and what died before today: it has been told, so it wakes nobody."""
    if count := tasks["dead_last_day"]:
        text = f"{_many(count, 'task')} died within the last day: `notifyq list tasks --status dead`"
        yield Trouble(text=text)
    told = emails["exhausted_last_day"] + emails["unrenderable_last_day"]
    older = {"email": judged.failed - told, "task": judged.tasks_failed - tasks["dead_last_day"]}
    for lane, count in older.items():
        if count > 0:
            listed = f"`notifyq list {lane}s --status dead`"
            text = f"{_many(count, lane)} more died within {FAILED_DAYS} days: {listed}"
            yield Trouble(text=text, person=False)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _names(facts: Status) -> Iterator[Trouble]:
    """Work whose name no worker knows; only where the workers say what they know."""
    if not facts["workers"]:
        return
    for name in facts["unserved_names"]:
        kind = "task" if name["lane"] == "task" else "builder"
        yield Trouble(text=f"{name['rows']} wait, and no worker knows the {kind} {name['name']!r}")
