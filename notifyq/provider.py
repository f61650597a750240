"""What notifyq asks of a provider, and what a provider may answer.

A provider has two verbs. **send** makes one attempt and answers with one *outcome*. **find** asks
whether a message of ours was accepted, by the uid that every message carries, and answers with one
*finding*. Neither raises: whatever happens on a network is one of the values below, and everything
that is not surely something else is `Unknown`.

To add a provider, write a class with the members of `Provider`. Three rules carry the promise of the
README:

1. Answer `Accepted` only with the provider's own message id in hand.
2. Answer `Rejected`, `Suppressed`, `Deferred`, `Blocked` or `Misconfigured` only when the message was
   *certainly not* accepted. In doubt, answer `Unknown`.
3. Call ``still_ours`` at the last moment at which nothing has been written yet, and answer
   `Unstarted` with what it says if it says anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias
from uuid import UUID

from notifyq.message import Email

__all__ = [
    "Accepted",
    "Blocked",
    "Deferred",
    "Finding",
    "Found",
    "Health",
    "Inconclusive",
    "Listed",
    "Misconfigured",
    "Missing",
    "Outcome",
    "Provider",
    "Rejected",
    "StillOurs",
    "Suppressed",
    "Throttled",
    "Unknown",
    "Unstarted",
]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider has the message; *message_id* is its name there."""

    message_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The message itself can never be sent. Final."""

    error: str


@dataclass(frozen=True, slots=True)
class Suppressed:
    """The recipient is on the provider's suppression list. Final, and no alarm."""

    error: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """Certainly not accepted, for a reason that may pass (maintenance, refused connection, DNS, TLS)."""

    error: str


@dataclass(frozen=True, slots=True)
class Throttled:
    """Certainly not accepted: too many requests. *retry_after*: seconds, or None if it did not say."""

    error: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    """Certainly not accepted: the account may not send (bad token, suspended, out of credits)."""

    error: str


@dataclass(frozen=True, slots=True)
class Misconfigured:
    """Certainly not accepted: this row's own sender or stream is not set up. Other rows may go."""

    error: str


@dataclass(frozen=True, slots=True)
class Unstarted:
    """No byte was written: *reason* is what ``still_ours`` said."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The message may have been accepted. The provider will be asked."""

    error: str


Outcome: TypeAlias = (
    Accepted | Rejected | Suppressed | Deferred | Throttled | Blocked | Misconfigured | Unstarted | Unknown
)
"""What one attempt may come to."""

StillOurs: TypeAlias = Callable[[], str | None]
"""Called when bytes are about to leave: None to go on, or the reason to stop (``"late"``, ``"expired"``)."""


@dataclass(frozen=True, slots=True)
class Found:
    """The provider has a message that carries our uid in its own metadata.

    *message_ids* are all of them, newest first: more than one means that it was sent twice.
    """

    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """The search worked and shows no message of ours. By itself this proves nothing: searches lag."""


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """The search cannot answer: it failed (*failed*), ignored its filter, or shows only a part."""

    error: str
    failed: bool = False


Finding: TypeAlias = Found | Missing | Inconclusive
"""What a search may come to."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One look at the newest messages of a stream.

    *messages* maps each uid of ours to the provider's ids that carry it. *since* is the epoch second
    from which the listing is complete; None says that it is complete altogether.
    """

    messages: dict[UUID, tuple[str, ...]] = field(default_factory=dict)
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """What the provider says of our account: *blocked* holds its reason, or None.

    *server* is the provider's own stable name of the account (it outlives a change of token).
    """

    blocked: str | None = None
    server: str | None = None


class Provider(Protocol):
    """The edge to one account at one provider. All its methods may be called at the same time."""

    @property
    def name(self) -> str:
        """A short name, such as ``"postmark"``."""

    @property
    def account(self) -> str:
        """The account's stable name for the database: the provider and a hash, never the token."""

    @property
    def repeats_safely(self) -> bool:
        """True where the provider refuses a repeated message by itself: then nothing is in doubt."""

    async def open(self) -> None:
        """Get ready to send (connections are made ahead of need). Raises only for a wrong configuration."""

    async def close(self) -> None:
        """Let go of everything. May be called twice."""

    async def send(
        self, email: Email, *, uid: UUID, claim: int, budget: float, still_ours: StillOurs
    ) -> Outcome:
        """Make one attempt within *budget* seconds. Never raises, except for cancellation.

        *uid* and *claim* travel with the message so that `find` can prove a hit.
        """

    async def find(self, uid: UUID, *, stream: str, budget: float) -> Finding:
        """Ask whether a message with *uid* was accepted, within *budget* seconds. Never raises."""

    async def listing(self, *, stream: str, since: float, budget: float) -> Listed | Inconclusive:
        """List our accepted messages, newest first, back to the epoch second *since* if affordable."""

    async def health(self, *, budget: float) -> Health | Inconclusive:
        """Ask about the account, without sending anything."""
