"""The decision after each run of a task's call. Pure; the states are few:

``pending → processing → done | dead`` (``exhausted, gave_up, cancelled, invalid``), and back to ``pending``
for another try. Every *started* run is charged, so a call that kills its process cannot loop for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from notifyq import backoff

__all__ = [
    "TASK_TRANSITIONS",
    "Ending",
    "Failed",
    "GaveUp",
    "Invalid",
    "NotStarted",
    "Postponed",
    "Returned",
    "RetryPolicy",
    "Stopped",
    "TaskClaim",
    "TaskDead",
    "TaskDone",
    "TaskPending",
    "TaskTransition",
    "after_run",
    "attempts_allowed",
]

UNSAID: Final = 10
"""What a row's ``max_attempts`` is when it was enqueued without a number: the column's default."""

TASK_TRANSITIONS: Final[tuple[tuple[str, str, str], ...]] = (
    ("-", "enqueued", "pending"),
    ("pending", "claimed when due", "processing"),
    ("processing", "returned", "done"),
    ("processing", "failed or timed out", "pending"),
    ("processing", "failed, attempts spent", "dead: exhausted"),
    ("processing", "asked to retry later", "pending"),
    ("processing", "asked to retry later, attempts spent", "dead: exhausted"),
    ("processing", "gave up", "dead: gave_up"),
    ("processing", "arguments do not fit", "dead: invalid"),
    ("processing", "stopped by a shutdown", "pending"),
    ("processing", "stopped by a shutdown, attempts spent", "dead: exhausted"),
    ("processing", "shutdown before it was started", "pending"),
    ("processing", "lease ended", "pending"),
    ("processing", "lease ended, attempts spent", "dead: exhausted"),
    ("pending", "operator: cancel", "dead: cancelled"),
    ("dead", "operator: retry", "pending"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskClaim:
    """What the database said of a call when it was claimed."""

    id: int
    name: str
    key: str | None
    claim_seq: int
    attempts: int
    max_attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long a failed run waits, in seconds: ``base × 2^attempts``, at most *cap*, ± 20 %."""

    base: float = 60.0
    cap: float = 7200.0


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The function raised, or ran out of time."""

    error: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """The function asked to be run again in *delay* seconds."""

    delay: float
    error: str


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The function gave up."""

    error: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """The stored arguments do not fit the function."""

    error: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker ended the run, for the reason *error*."""

    error: str


@dataclass(frozen=True, slots=True)
class NotStarted:
    """A shutdown came before the function was called."""


Ending: TypeAlias = Returned | Failed | Postponed | GaveUp | Invalid | Stopped | NotStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDone:
    """→ ``done``."""

    event: str = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDead:
    """→ ``dead``."""

    reason: str
    error: str
    event: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPending:
    """→ ``pending``, due again in *delay* seconds."""

    delay: float
    event: str
    error: str | None = None
    charged: bool = True


TaskTransition: TypeAlias = TaskDone | TaskDead | TaskPending


def attempts_allowed(stored: int, declared: int) -> int:
    """How often a call may run: as its row says, or as its task declares if the row was given no number.

    Example: ``attempts_allowed(10, declared=3) == 3`` and ``attempts_allowed(5, declared=3) == 5``
    """
    return declared if stored == UNSAID else stored


def after_run(claim: TaskClaim, ending: Ending, policy: RetryPolicy, roll: float) -> TaskTransition:
    """Decide what follows one run.

    Example: ``after_run(claim, Returned(), RetryPolicy(), 0.5) == TaskDone()``
    """
    match ending:
        case Returned():
            return TaskDone()
        case Failed(error):
            delay = backoff.send_again(claim.attempts, roll, base=policy.base, cap=policy.cap)
            return _again(claim, delay, "failed", error)
        case Postponed(delay, error):
            return _again(claim, max(delay, 0.0), "postponed", error)
        case GaveUp(error):
            return TaskDead(reason="gave_up", error=error, event="gave up")
        case Invalid(error):
            return TaskDead(reason="invalid", error=error, event="invalid")
        case Stopped(error):
            return _again(claim, 0.0, "stopped", error)
        case NotStarted():
            return TaskPending(delay=0.0, event="released", charged=False)
        case _:
            assert_never(ending)


def _again(claim: TaskClaim, delay: float, event: str, error: str) -> TaskTransition:
    if claim.attempts >= claim.max_attempts:
        return TaskDead(reason="exhausted", error=error, event="exhausted")
    return TaskPending(delay=delay, event=event, error=error)
