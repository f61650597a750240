"""What happened to a row, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from notifyq.cli.display import span

__all__ = ["event_words", "now_words", "when_words"]

# event → words; {} is the detail. An event that is not here is shown as it is.
_EMAIL: Final[Mapping[str, str]] = {
    "accepted": "sent: the provider took it as {}",
    "found": "sent: found at the provider as {}",
    "receipt": "a late answer: the provider had taken it as {}",
    "duplicate": "SENT TWICE: the provider also has it as {}",
    "rejected": "dead: the provider rejected it: {}",
    "suppressed": "dead: the recipient is on the provider's suppression list: {}",
    "exhausted": "dead: its attempts are spent: {}",
    "expired": "dead: its send_before had passed: {}",
    "unrenderable": "dead: it cannot be made into an email: {}",
    "builder failed": "its builder failed, to be tried again: {}",
    "deferred": "not sent, to be tried again: {}",
    "throttled": "not sent: the provider wants fewer at a time: {}",
    "blocked": "not sent: the provider account may not send: {}",
    "misconfigured": "not sent, waits to be set up: {}",
    "unknown": "in doubt: it may have been sent: {}",
    "lease ended": "in doubt: the worker that had it was lost",
    "too early": "asked the provider: not there yet, and too early to tell: {}",
    "not found": "asked the provider: not there; to be asked once more: {}",
    "inconclusive": "asked the provider: no clear answer: {}",
    "not sent": "asked the provider: it was not sent, so it goes out now",
    "resent": "sent again without waiting for proof: {}",
    "released": "given back before a byte left",
    "held": "held for a person: {}",
    "retried": "a person said: send it",
    "cancelled": "a person said: do not send it",
    "resolved": "a person said: it was sent, as {}",
}
_TASK: Final[Mapping[str, str]] = {
    "done": "done",
    "lease ended": "the worker that ran it was lost",
    "released": "given back before it started",
    "exhausted": "dead: its attempts are spent: {}",
    "gave up": "dead: it gave up: {}",
    "invalid": "dead: its arguments do not fit the function: {}",
    "failed": "it failed, to be tried again: {}",
    "postponed": "it asked to be run later: {}",
    "stopped": "stopped: {}",
    "retried": "a person said: run it",
    "cancelled": "a person said: do not run it",
}
_WORDS: Final = {"email": _EMAIL, "task": _TASK}


def event_words(lane: str, event: str, detail: str | None, actor: str | None) -> str:
    """One event of the history.

    Example: ``event_words("email", "accepted", "id-1", None) == "sent: the provider took it as id-1"``
    """
    known = _WORDS[lane].get(event)
    if known is None:
        words = f"{event}: {detail}" if detail else event
    elif detail:
        words = known.replace("{}", detail) if "{}" in known else f"{known}: {detail}"
    else:
        words = known.removesuffix("{}").rstrip().removesuffix(":").removesuffix(" as")
    return f"{words} (by {actor})" if actor else words


def when_words(row: Mapping[str, Any]) -> str:
    """When something happened or will happen to *row*, for a table: ``due in 3 min``."""
    seen = row["seen_at"]
    match row["status"]:
        case "pending":
            wait = (row["run_after"] - seen).total_seconds()
            return f"due in {span(wait)}" if wait > 0 else f"due for {span(wait)}"
        case "doubt":
            wait = (row["run_after"] - seen).total_seconds()
            return f"asked in {span(wait)}" if wait > 0 else "asked now"
        case "processing":
            return f"{span((row['lease_until'] - seen).total_seconds())} left"
        case "held":
            return f"for {span((seen - row['doubt_since']).total_seconds())}"
        case _:
            return f"{span((seen - row['finished_at']).total_seconds())} ago"


def now_words(row: Mapping[str, Any]) -> str:
    """How *row* stands now.

    Example: ``"pending, due in 3 min (attempt 2 of 10 failed last)"``
    """
    status = row["status"] + (f" ({row['reason']})" if row["reason"] else "")
    return f"{status}, {when_words(row)}, {row['attempts']} of {row['max_attempts']} attempts used"
