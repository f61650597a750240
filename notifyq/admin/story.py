"""The story of one row: what happened to it, what it waits for, what a person can do. Pure.

Each event of ``notifyq.history`` has one sentence; the row itself gives the beginning and the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from notifyq.admin.words import ago, clock, duration

__all__ = ["Step", "Story", "tell_email", "tell_task"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened, or the same thing *times* in a row from *first* on.

    *tone*: start, good, wait, doubt, bad, person.
    """

    at: datetime
    tone: str
    title: str
    detail: str = ""
    actor: str = ""
    after: str = ""
    claim: int | None = None
    times: int = 1
    first: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """*headline*: how it stands; *meaning*: what that means and what follows; *steps*: how it came to it."""

    tone: str
    headline: str
    meaning: str
    steps: tuple[Step, ...]


# event -> (tone, sentence). The detail of the history stands below the sentence.
_EMAIL_EVENTS: Final[dict[str, tuple[str, str]]] = {
    "accepted": ("good", "Sent: the provider accepted it"),
    "found": ("good", "Asked the provider: it has this email. It was sent"),
    "receipt": ("good", "A receipt turned up late: an earlier attempt had been accepted"),
    "duplicate": ("bad", "SENT TWICE: the provider has another copy of this email"),
    "rejected": ("bad", "The provider refused this email for good"),
    "suppressed": ("wait", "The provider does not send to this address (it bounced or complained before)"),
    "exhausted": ("bad", "Given up: all its attempts are spent"),
    "expired": ("bad", "Too late: its time to be sent had passed"),
    "unrenderable": ("bad", "It cannot be made into an email that could be sent"),
    "deferred": ("wait", "Not sent, for certain; it is tried again later"),
    "builder failed": ("bad", "Not sent: its builder failed; it is tried again later"),
    "throttled": ("wait", "Not sent: the provider asked us to slow down. It does not count as an attempt"),
    "blocked": ("wait", "Not sent: the provider refuses the whole account. It does not count as an attempt"),
    "misconfigured": ("wait", "Not sent: its sender or its stream is not set up with the provider"),
    "released": ("wait", "Given back unsent: the worker was stopping, or the email was no longer its own"),
    "unknown": ("doubt", "The answer was lost: it may have been sent, or not"),
    "too early": ("doubt", "Asked the provider: nothing yet, and too early to be sure"),
    "not found": ("doubt", "Asked the provider: not there. Asked once more before that counts"),
    "inconclusive": ("doubt", "Asked the provider: the answer proves nothing"),
    "not sent": ("good", "Asked the provider again: not there. It was not sent, so it goes out now"),
    "resent": ("wait", "Sent again without waiting for proof, as its policy says (perhaps twice)"),
    "held": ("person", "Held: only a person can decide this"),
    "lease ended": ("doubt", "The worker was lost while it worked on this email: it may have been sent"),
    "retried": ("person", "An operator said: send it"),
    "cancelled": ("person", "An operator said: do not send it"),
    "resolved": ("person", "An operator said: it was sent"),
    "copied": ("person", "An operator had a copy sent"),
    "copy": ("person", "Made by an operator as a copy of another email"),
    "sent again": ("person", "An operator sent this again, as a new email"),
    "again": ("person", "Made by an operator, to send another email again"),
}

_TASK_EVENTS: Final[dict[str, tuple[str, str]]] = {
    "done": ("good", "Done"),
    "failed": ("wait", "It failed; it runs again later"),
    "postponed": ("wait", "It asked to be run again later"),
    "stopped": ("wait", "Stopped: the worker was shut down. It runs again"),
    "exhausted": ("bad", "Given up: all its attempts are spent"),
    "gave up": ("bad", "It gave up by itself"),
    "invalid": ("bad", "Its arguments do not fit the task"),
    "released": ("wait", "Given back before it started: the worker was stopping"),
    "lease ended": ("wait", "The worker was lost while it ran this call: it runs again"),
    "retried": ("person", "An operator said: run it again"),
    "cancelled": ("person", "An operator said: do not run it"),
}

_DEAD: Final[dict[str, tuple[str, str]]] = {
    "rejected": (
        "Not sent: the provider refused this email",
        "The message itself is at fault, so trying again gives the same answer. "
        "Mend what the provider names below, then retry or enqueue it anew.",
    ),
    "suppressed": (
        "Not sent: the address is on the provider's suppression list",
        "It bounced or complained before. Reactivate the address with the provider, then retry.",
    ),
    "exhausted": (
        "Not sent: all its attempts are spent",
        "The provider could not take it each time. If it works again now, retry.",
    ),
    "expired": (
        "Not sent: it would have been too late",
        "Its send_before passed while it waited. A retry sends it all the same.",
    ),
    "cancelled": ("Not sent: it was cancelled", "A person decided. A retry sends it all the same."),
    "unrenderable": (
        "Not sent: it could not be made into an email",
        "Its builder failed, or what it made cannot be sent. Mend the program, then retry.",
    ),
    "gave_up": ("It gave up by itself", "The task decided that trying again is of no use."),
    "invalid": (
        "It cannot run: its arguments do not fit",
        "The program that enqueued it and the one that runs it differ. Mend it, then retry.",
    ),
}


def tell_email(email: Mapping[str, Any], history: Iterable[Mapping[str, Any]]) -> Story:
    """The story of an email: a row of ``page_email`` and its ``page_history``."""
    steps = _steps(email, history, _EMAIL_EVENTS)
    tone, headline, meaning = _EMAIL_ENDS[email["status"]](email)
    if any(step.title.startswith("SENT TWICE") for step in steps):
        tone, headline = "bad", "This email was sent twice"
        meaning = "The provider shows more than one message of it; their ids stand below."
    return Story(tone=tone, headline=headline, meaning=meaning, steps=steps)


def tell_task(task: Mapping[str, Any], history: Iterable[Mapping[str, Any]]) -> Story:
    """The story of one call of a task: a row of ``page_task`` and its ``page_history``."""
    steps = _steps(task, history, _TASK_EVENTS)
    tone, headline, meaning = _TASK_ENDS[task["status"]](task)
    return Story(tone=tone, headline=headline, meaning=meaning, steps=steps)


def _steps(
    row: Mapping[str, Any], history: Iterable[Mapping[str, Any]], events: Mapping[str, tuple[str, str]]
) -> tuple[Step, ...]:
    start = "Enqueued"
    if (row["run_after"] - row["created_at"]).total_seconds() > 1 and not row["claim_seq"]:
        start = f"Enqueued, to go out at {clock(row['run_after'], row['now'])}"
    steps = [Step(at=row["created_at"], tone="start", title=start)]
    for happened in history:
        event = happened["event"]
        tone, title = events.get(event, ("wait", event[:1].upper() + event[1:]))
        steps.append(
            Step(
                at=happened["at"],
                tone=tone,
                title=title,
                detail=happened["detail"] or "",
                actor=happened["actor"] or "",
                after=_after(happened["at"], steps[-1].at),
                claim=happened["claim_seq"] or None,
            )
        )
    return tuple(_folded(steps))


def _folded(steps: Iterable[Step]) -> Iterator[Step]:
    """Three or more of the same in a row are one step: ten refusals are read as one."""
    for _, same in groupby(steps, key=lambda step: (step.title, step.detail, step.actor)):
        run = list(same)
        if len(run) < 3:
            yield from run
        else:
            span = f"over {duration((run[-1].at - run[0].at).total_seconds())}"
            yield replace(run[-1], times=len(run), first=run[0].at, after=span)


def _after(at: datetime, before: datetime) -> str:
    gap = (at - before).total_seconds()
    return f"{duration(gap)} later" if gap > 0 else ""


def _tries(row: Mapping[str, Any]) -> str:
    return f"attempt {row['attempts']} of {row['max_attempts']}"


def _pending_email(email: Mapping[str, Any]) -> tuple[str, str, str]:
    waits = (email["run_after"] - email["now"]).total_seconds()
    if email["waits"]:
        return (
            "bad",
            "Waiting: its sender or its stream is not set up",
            "Set it up with the provider. It is tried again by itself "
            f"{ago(email['run_after'], email['now'])}.",
        )
    if email["postponed"] and email["gate"] not in (None, "open"):
        return (
            "wait",
            "Waiting: the provider does not take mail now",
            f"The gate is {email['gate']}. This email is safe and goes out by itself when it opens.",
        )
    if waits > 0 and email["attempts"]:
        return (
            "wait",
            f"Not sent yet: the next try is {ago(email['run_after'], email['now'])}",
            f"{email['attempts']} of {email['max_attempts']} attempts are spent. Nothing needs to be done.",
        )
    if waits > 0:
        return (
            "wait",
            f"Scheduled: it goes out {ago(email['run_after'], email['now'])}",
            "Nothing needs to be done.",
        )
    asked = " The provider is asked once more first, whether it has it already." if email["misses"] else ""
    return "wait", "Waiting to be sent: it is due now", f"The next free worker takes it.{asked}"


def _processing_email(email: Mapping[str, Any]) -> tuple[str, str, str]:
    left = f"Its claim ends {ago(email['lease_until'], email['now'])}."
    if email["doubt_since"] is not None:
        return "doubt", "Asking the provider about it right now", f"It may have been sent already. {left}"
    return "wait", "A worker is sending it right now", f"This is {_tries(email)}. {left}"


def _doubtful_email(email: Mapping[str, Any]) -> tuple[str, str, str]:
    policies = {
        "ask": "If it is not there for certain, it is sent again by itself.",
        "resend": "If it is not there, it is sent again by itself.",
        "hold": "If it is not there, a person decides.",
    }
    return (
        "doubt",
        "Nobody knows yet whether it was sent",
        f"The answer to its POST was lost {ago(email['doubt_since'], email['now'])}. The provider is asked "
        f"{ago(email['run_after'], email['now'])}. {policies[email['on_doubt']]}",
    )


def _sent_email(email: Mapping[str, Any]) -> tuple[str, str, str]:
    took = (email["sent_at"] - email["created_at"]).total_seconds()
    return (
        "good",
        "Sent",
        f"The provider accepted it {ago(email['sent_at'], email['now'])}, "
        f"{duration(max(took, 0))} after it was enqueued.",
    )


def _held_email(_email: Mapping[str, Any]) -> tuple[str, str, str]:
    return (
        "person",
        "Held: you decide",
        "It may have been sent, and nobody can say. Look for it in the provider's activity. If it is there, "
        "say so with its message id; if not, send it.",
    )


def _dead(row: Mapping[str, Any]) -> tuple[str, str, str]:
    headline, meaning = _DEAD[row["reason"]]
    return ("wait" if row["reason"] in ("cancelled", "suppressed") else "bad"), headline, meaning


def _dead_task(task: Mapping[str, Any]) -> tuple[str, str, str]:
    if task["reason"] == "exhausted":
        return (
            "bad",
            "Failed: all its attempts are spent",
            "Its last error stands below. Mend it, then retry.",
        )
    if task["reason"] == "cancelled":
        return "wait", "Cancelled", "A person decided that it does not run."
    return _dead(task)


def _pending_task(task: Mapping[str, Any]) -> tuple[str, str, str]:
    if task["run_after"] > task["now"]:
        said = "The next try is" if task["attempts"] else "Scheduled: it runs"
        return (
            "wait",
            f"{said} {ago(task['run_after'], task['now'])}",
            f"{task['attempts']} of {task['max_attempts']} attempts are spent. Nothing needs to be done.",
        )
    return "wait", "Waiting to run: it is due now", "The next free worker that knows this task takes it."


_EMAIL_ENDS: Final = {
    "pending": _pending_email,
    "processing": _processing_email,
    "doubt": _doubtful_email,
    "sent": _sent_email,
    "held": _held_email,
    "dead": _dead,
}

_TASK_ENDS: Final = {
    "pending": _pending_task,
    "processing": lambda task: (
        "wait",
        "A worker is running it right now",
        f"This is {_tries(task)}. Its claim ends {ago(task['lease_until'], task['now'])}, "
        "unless it is renewed.",
    ),
    "done": lambda task: (
        "good",
        "Done",
        f"It ended {ago(task['finished_at'], task['now'])}.",
    ),
    "dead": _dead_task,
}
