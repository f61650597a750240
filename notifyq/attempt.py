"""One attempt: one POST, carried from the claimed row to the decision about it.

The last look at the clock happens in the provider, when a connection is ready and nothing has been
written yet (`LastLook`): before it, nothing was sent; after it, everything is possible.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from notifyq.cleaning import without_quotes
from notifyq.lifecycle import Claim, GateSignal, Transition, after_send, gate_signal
from notifyq.message import Email
from notifyq.provider import Accepted, Outcome, Provider, Unknown, Unstarted
from notifyq.settings import WorkerSettings
from notifyq.task_lifecycle import TaskClaim, TaskTransition

__all__ = ["Decision", "LastLook", "decide", "interrupted", "roll", "send", "steady_clock"]

log = logging.getLogger("notifyq")

# CLOCK_MONOTONIC stands still while a machine is suspended; a lease does not (H7).
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)


def steady_clock() -> float:
    """Seconds that only go forward, also while the machine sleeps."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a claimed row, and what it says about the provider."""

    claim: Claim | TaskClaim
    transition: Transition | TaskTransition
    signal: GateSignal | None = None


class LastLook:
    """May the bytes still leave? Asked by the provider at the last moment; remembers that it said yes.

    *claimed_at* is the steady clock before the claim was asked for, so that every error is on the safe side.
    """

    __slots__ = ("_draining", "_expires_at", "_post_by", "passed")

    def __init__(
        self, claim: Claim, claimed_at: float, settings: WorkerSettings, draining: Callable[[], bool]
    ) -> None:
        self._post_by = claimed_at + settings.lease - settings.post_budget
        self._expires_at = None if claim.expires_in is None else claimed_at + claim.expires_in
        self._draining = draining
        self.passed = False

    def __call__(self) -> str | None:
        """None: go on. Else the reason why nothing may leave."""
        now = steady_clock()
        if self._expires_at is not None and now >= self._expires_at:
            return "expired"
        if self._draining():
            return "shutting down"
        if now >= self._post_by:
            return "late"
        self.passed = True
        return None


async def send(
    claim: Claim, email: Email, provider: Provider, settings: WorkerSettings, last_look: LastLook
) -> Decision:
    """Make one attempt. Never raises, except for cancellation, which `interrupted` then judges."""
    outcome = await provider.send(
        email, uid=claim.uid, claim=claim.claim_seq, budget=settings.post_budget, still_ours=last_look
    )
    return decide(claim, _without_quotes(outcome, email), provider, settings)


def _without_quotes(outcome: Outcome, email: Email) -> Outcome:
    """A refusal may quote the email, and with it a token that lies in no table."""
    if isinstance(outcome, Accepted | Unstarted):
        return outcome
    sources = (
        email.subject,
        email.text or "",
        email.html or "",
        *email.headers.values(),
        *email.metadata.values(),
    )
    return replace(outcome, error=without_quotes(outcome.error, sources))


def interrupted(claim: Claim, provider: Provider, settings: WorkerSettings, last_look: LastLook) -> Decision:
    """The decision about an attempt that was cancelled: unknown once bytes may have left, else given back."""
    outcome: Outcome = Unstarted("shutting down")
    if last_look.passed:
        outcome = Unknown("the worker stopped before the answer came")
    return decide(claim, outcome, provider, settings)


def decide(claim: Claim, outcome: Outcome, provider: Provider, settings: WorkerSettings) -> Decision:
    """The pure decision, with its one random number."""
    return Decision(
        claim=claim,
        transition=after_send(claim, outcome, settings, roll(), repeats_safely=provider.repeats_safely),
        signal=gate_signal(claim, outcome),
    )


def roll() -> float:
    """The one random number of a decision."""
    return random.random()  # noqa: S311 (jitter, not a secret)
