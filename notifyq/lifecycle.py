"""The states of an email, who moves a row between them, and the decision after each attempt.

Everything here is pure: `after_send` and `after_ask` take what is known (the claim, the provider's
answer, the settings, one random number) and return a *transition*, a value that one SQL function
carries out (``email_sent``, ``email_dead``, ``email_pending``, ``email_doubt``, ``email_held``).

The protocol of doubt. Postmark has no idempotency key, so a POST whose answer is lost is neither sent
nor not sent. The row goes to ``doubt``, and the provider is asked for the uid that each message carries:

* at once, when only a hit counts;
* from *settle* on, when a miss counts too, and again half a *settle* later; two misses are "no".

*settle* runs from the last byte that may have left (``doubt_since``) and no ask restarts it. A search
that failed, or cannot be conclusive, is never a "no".
"""

from __future__ import annotations

from typing import Final, TypeAlias, assert_never
from uuid import UUID

import msgspec
from msgspec.structs import replace

from notifyq import backoff
from notifyq.provider import (
    Accepted,
    Blocked,
    Deferred,
    Finding,
    Found,
    Inconclusive,
    Misconfigured,
    Missing,
    Outcome,
    Rejected,
    Suppressed,
    Throttled,
    Unknown,
    Unstarted,
)
from notifyq.settings import WorkerSettings

__all__ = [
    "Claim",
    "Dead",
    "Doubt",
    "EMAIL_TRANSITIONS",
    "GateSignal",
    "Held",
    "Pending",
    "Sent",
    "Transition",
    "after_ask",
    "after_send",
    "builder_failed",
    "gate_signal",
    "unrenderable",
]

MISSES_FOR_NO: Final = 2
SENT_BEFORE: Final = "an earlier POST, whose answer was lost, may have been accepted (the daily audit looks)"
"""Told of what ends although policy ``resend`` never learnt how its first POST ended."""

ASKS_LIMIT: Final = 10
"""Searches in a row, from *settle* on, that proved nothing, until a person is asked."""

# The state table: (from, event, to). A test walks every row of it on a real database, and the picture
# in the README is drawn from it.
EMAIL_TRANSITIONS: Final[tuple[tuple[str, str, str], ...]] = (
    ("-", "enqueued", "pending"),
    ("pending", "claimed when due", "processing"),
    ("pending", "past send_before", "dead: expired"),
    ("doubt", "claimed when due", "processing"),
    ("processing (sending)", "accepted", "sent"),
    ("processing (sending)", "rejected", "dead: rejected"),
    ("processing (sending)", "suppressed", "dead: suppressed"),
    ("processing (sending)", "deferred", "pending"),
    ("processing (sending)", "deferred, attempts spent", "dead: exhausted"),
    ("processing (sending)", "throttled, blocked or misconfigured", "pending"),
    ("processing (sending)", "cannot be rendered", "dead: unrenderable"),
    ("processing (sending)", "given back before a byte left", "pending"),
    ("processing (sending)", "fate unknown", "doubt"),
    ("processing (sending)", "lease ended", "doubt"),
    ("processing (asking)", "found", "sent"),
    ("processing (asking)", "too early, inconclusive or failed", "doubt"),
    ("processing (asking)", "lease ended", "doubt"),
    ("processing (asking)", "conclusive no", "pending"),
    ("processing (asking)", "conclusive no, past send_before", "dead: expired"),
    ("processing (asking)", "conclusive no, attempts spent", "dead: exhausted"),
    ("processing (asking)", "conclusive no, policy hold", "held"),
    ("processing (asking)", "inconclusive to the end", "held"),
    ("doubt", "nobody can ask", "held"),
    ("held", "operator: retry", "pending"),
    ("dead", "operator: retry", "pending"),
    ("held", "operator: it was sent", "sent"),
    ("held", "operator: cancel", "dead: cancelled"),
    ("pending", "operator: cancel", "dead: cancelled"),
    ("doubt", "operator: cancel", "doubt"),
    ("any but sent", "a receipt turns up", "sent"),
)


class Claim(msgspec.Struct, frozen=True):
    """What the database said of a row when it was claimed. Times are seconds, seen at the claim.

    A struct, as all values here: some are made for each email, and one costs a fifth of a frozen dataclass.
    """

    id: int
    uid: UUID
    key: str
    claim_seq: int
    attempts: int
    max_attempts: int = 10
    asking: bool = False
    probing: bool = False
    stream: str = "outbound"
    on_doubt: str = "ask"
    expires_in: float | None = None
    misses: int = 0
    asks: int = 0
    resent: bool = False
    ordered: bool = False
    waits: int = 0
    doubt_age: float = 0.0
    waited: float = 0.0


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """→ ``sent``. *copies* holds further message ids that carry the same uid: it was sent twice."""

    message_id: str
    event: str = "accepted"
    copies: tuple[str, ...] = ()


class Dead(msgspec.Struct, frozen=True, kw_only=True):
    """→ ``dead``."""

    reason: str
    error: str
    event: str


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """→ ``pending``, due again in *delay* seconds."""

    delay: float
    event: str
    error: str | None = None
    charged: bool = True
    postponed: bool = False
    waiting: bool = False
    resending: bool = False


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """→ ``doubt``, asked about in *delay* seconds. *fresh*: settle starts now."""

    delay: float
    event: str
    error: str | None = None
    charged: bool = True
    fresh: bool = False
    misses: int = 0
    asks: int = 0


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """→ ``held``: a person decides."""

    error: str
    event: str = "held"


Transition: TypeAlias = Sent | Dead | Pending | Doubt | Held


class GateSignal(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt says about the provider: it works, it fails, it throttles, it refuses the account."""

    kind: str  # "success" | "failure" | "throttled" | "blocked"
    reason: str = ""
    retry_after: float | None = None
    probe: bool = False


def after_send(
    claim: Claim, outcome: Outcome, settings: WorkerSettings, roll: float, *, repeats_safely: bool = False
) -> Transition:
    """Decide what follows one POST.

    With *repeats_safely* (the provider refuses a repeated message by itself) an unknown fate is simply
    tried again.
    """
    transition = _after_send(claim, outcome, settings, roll, repeats_safely=repeats_safely)
    if claim.resent and isinstance(transition, Dead):
        return replace(transition, error=f"{transition.error}; {SENT_BEFORE}")
    return transition


def _after_send(
    claim: Claim, outcome: Outcome, settings: WorkerSettings, roll: float, *, repeats_safely: bool
) -> Transition:
    match outcome:
        case Accepted(message_id):
            return Sent(message_id=message_id)
        case Rejected(error):
            return Dead(reason="rejected", error=error, event="rejected")
        case Suppressed(error):
            return Dead(reason="suppressed", error=error, event="suppressed")
        case Deferred(error):
            return _deferred(claim, error, settings, roll)
        case Throttled(error):
            # Due at once: the gate, not the row, knows when the provider wants more.
            return Pending(delay=0, event="throttled", error=error, charged=False, postponed=True)
        case Blocked(error):
            return Pending(delay=0, event="blocked", error=error, charged=False, postponed=True)
        case Misconfigured(error):
            delay = backoff.misconfigured(claim.waits, roll)
            return Pending(delay=delay, event="misconfigured", error=error, charged=False, waiting=True)
        case Unstarted(reason):
            return _unstarted(reason)
        case Unknown(error):
            if repeats_safely:
                return _deferred(claim, error, settings, roll)
            return Doubt(delay=0, event="unknown", error=error, charged=not claim.probing, fresh=True)
        case _:
            assert_never(outcome)


def after_ask(
    claim: Claim,
    finding: Finding,
    settings: WorkerSettings,
    roll: float,
    *,
    elapsed: float = 0.0,
    gate_open: bool = True,
) -> Transition:
    """Decide what follows one search, *elapsed* seconds after its claim."""
    if isinstance(finding, Found):
        *newer, oldest = finding.message_ids
        return Sent(message_id=oldest, event="found", copies=tuple(newer))
    age = claim.doubt_age + elapsed
    expired = claim.expires_in is not None and claim.expires_in <= elapsed
    if age < settings.settle:
        return _too_early(claim, finding, settings.settle - age, expired)
    if isinstance(finding, Missing):
        return _missing(claim, settings, expired)
    return _inconclusive(claim, finding, settings, roll, age, gate_open)


def unrenderable(error: str) -> Dead:
    """The stored message is not one that could be sent. Final.

    Example: ``unrenderable("subject: holds a line break")``
    """
    return Dead(reason="unrenderable", error=error, event="unrenderable")


def builder_failed(claim: Claim, error: str, settings: WorkerSettings, roll: float) -> Transition:
    """The builder of a deferred email raised. Nothing was sent; a bug may be mended, so it is tried again."""
    transition = _deferred(claim, error, settings, roll)
    if isinstance(transition, Pending):
        return replace(transition, event="builder failed", postponed=False)
    return transition


def gate_signal(claim: Claim, outcome: Outcome) -> GateSignal | None:
    """What *outcome* says about the provider as a whole; None if it says nothing.

    A rejection is a success here: the provider is up and read the message.
    """
    probe = claim.probing
    match outcome:
        case Accepted() | Rejected() | Suppressed() | Misconfigured():
            return GateSignal(kind="success", probe=probe)
        case Deferred(error) | Unknown(error):
            return GateSignal(kind="failure", reason=error, probe=probe)
        case Throttled(error, retry_after):
            return GateSignal(kind="throttled", reason=error, retry_after=retry_after, probe=probe)
        case Blocked(error):
            return GateSignal(kind="blocked", reason=error, probe=probe)
        case Unstarted():
            return None
        case _:
            assert_never(outcome)


def _deferred(claim: Claim, error: str, settings: WorkerSettings, roll: float) -> Transition:
    charged = not claim.probing
    if charged and claim.attempts >= claim.max_attempts:
        return Dead(reason="exhausted", error=error, event="exhausted")
    delay = backoff.send_again(claim.attempts, roll, base=settings.backoff, cap=settings.backoff_cap)
    return Pending(delay=delay, event="deferred", error=error, charged=charged, postponed=True)


def _unstarted(reason: str) -> Transition:
    if reason == "expired":
        return Dead(reason="expired", error="its send_before passed before a byte left", event="expired")
    return Pending(delay=0, event="released", charged=False)


def _too_early(claim: Claim, finding: Missing | Inconclusive, wait: float, expired: bool) -> Transition:
    """Before *settle* only a hit counts. Policy ``resend`` does not wait, once in the row's life."""
    error = finding.error if isinstance(finding, Inconclusive) else None
    may_resend = claim.on_doubt == "resend" and not (claim.resent or claim.ordered or expired)
    if may_resend and claim.attempts < claim.max_attempts:
        return Pending(
            delay=0, event="resent", error="sent again, perhaps twice (policy resend)", resending=True
        )
    return Doubt(delay=wait, event="too early", error=error, misses=claim.misses, asks=claim.asks)


def _missing(claim: Claim, settings: WorkerSettings, expired: bool) -> Transition:
    misses = claim.misses + 1
    if misses < MISSES_FOR_NO:
        return Doubt(delay=0.5 * settings.settle, event="not found", misses=misses)
    if expired:
        return Dead(reason="expired", error="it was not sent before its send_before", event="expired")
    if claim.attempts >= claim.max_attempts:
        return Dead(
            reason="exhausted", error="it was not sent, and its attempts are spent", event="exhausted"
        )
    if claim.on_doubt == "hold" and not claim.ordered:
        return Held(error="the answer to its POST was lost, and the provider does not show it")
    return Pending(delay=0, event="not sent")


def _inconclusive(
    claim: Claim, finding: Inconclusive, settings: WorkerSettings, roll: float, age: float, gate_open: bool
) -> Transition:
    again = Doubt(
        delay=backoff.ask_again(claim.asks, roll, settle=settings.settle),
        event="inconclusive",
        error=finding.error,
        misses=claim.misses,
        asks=claim.asks + 1,
    )
    if finding.failed and not gate_open:
        # The provider is away for everybody: that is no evidence about this row.
        return replace(again, delay=min(again.delay, 0.5 * settings.settle), asks=claim.asks)
    hold_now = claim.on_doubt == "hold" and not finding.failed and age >= 1.5 * settings.settle
    if hold_now or claim.asks + 1 >= ASKS_LIMIT:
        return Held(error=f"it may have been sent, and the provider cannot say: {finding.error}")
    return again
