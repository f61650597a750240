"""What the fake has seen: every POST, every message it accepted, every search.

It is the only proof of "once": the counts here come from the provider's side of the wire. Waiting is
by event: each change wakes the waiters whose condition has come true.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from notifyq.testing.addresses import parse_addresses
from notifyq.testing.rules import Payload, mailboxes, stream_of

__all__ = ["File", "Ledger", "Message", "Post", "Search", "uid_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One attachment of a `Message`; *content* is what the reader gets, decoded."""

    name: str
    content_type: str
    content: bytes = field(repr=False)
    content_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One accepted message. *accepted_at* is monotonic, *accepted_epoch* the fake's clock; both in seconds.

    *uid* is the metadata field ``notifyq``, or None. *to* holds the addresses of To alone,
    *recipients* those of To, Cc and Bcc. *payload* is the JSON as it came, for all that has no name here.

    Example: ``fake.accepted[0].subject == "Your order"``
    """

    message_id: str
    uid: str | None
    payload: Payload = field(repr=False)
    to: tuple[str, ...] = field(repr=False)
    recipients: tuple[str, ...] = field(repr=False)
    stream: str
    tag: str | None
    metadata: dict[str, str]
    accepted_at: float
    accepted_epoch: float

    @property
    def subject(self) -> str:
        """The subject; ``""`` without one."""
        return self.payload.get("Subject") or ""

    @property
    def text(self) -> str | None:
        """The plain text, or None."""
        return self.payload.get("TextBody") or None

    @property
    def html(self) -> str | None:
        """The HTML, or None."""
        return self.payload.get("HtmlBody") or None

    @property
    def from_(self) -> str:
        """The sender's address, without its name."""
        return self._addresses("From")[0]

    @property
    def cc(self) -> tuple[str, ...]:
        """The addresses of Cc."""
        return self._addresses("Cc")

    @property
    def bcc(self) -> tuple[str, ...]:
        """The addresses of Bcc."""
        return self._addresses("Bcc")

    @property
    def reply_to(self) -> tuple[str, ...]:
        """The addresses of Reply-To."""
        return self._addresses("ReplyTo")

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the message brings by itself, by name."""
        return {item["Name"]: item["Value"] for item in self.payload.get("Headers") or ()}

    @property
    def attachments(self) -> tuple[File, ...]:
        """The attachments, in order."""
        return tuple(
            File(
                name=item["Name"],
                content_type=item["ContentType"],
                content=base64.b64decode(item["Content"]),
                content_id=item.get("ContentID") or None,
            )
            for item in self.payload.get("Attachments") or ()
        )

    def _addresses(self, name: str) -> tuple[str, ...]:
        return tuple(box.address for box in parse_addresses(self.payload.get(name) or ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One POST, refused ones included. *arrived_at* is monotonic, *arrived_epoch* the fake's clock.

    *uids* are those of its messages. *answer* is what was given: ``"200"``, ``"422/300"``, or the name
    of a fault such as ``"reset"``; None while it is under way. *message_ids* are what it made.
    """

    path: str
    uids: tuple[str, ...] = ()
    arrived_at: float
    arrived_epoch: float
    answer: str | None = None
    message_ids: tuple[str, ...] = ()

    @property
    def uid(self) -> str | None:
        """The uid of its first message, or None."""
        return self.uids[0] if self.uids else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search: the *query* with its names in lower case, and the *answer* as in `Post`."""

    query: dict[str, str]
    arrived_at: float
    answer: str | None = None


class Ledger:
    """The book of one fake. All of it belongs to the fake's event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.accepted: list[Message] = []
        self._posts: dict[int, Post] = {}
        self._searches: dict[int, Search] = {}
        self._next = 0
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    @property
    def posts(self) -> list[Post]:
        """Every POST, in the order of arrival."""
        return list(self._posts.values())

    @property
    def searches(self) -> list[Search]:
        """Every search, in the order of arrival."""
        return list(self._searches.values())

    @property
    def post_count(self) -> int:
        """How many POSTs arrived."""
        return len(self._posts)

    def posts_by_uid(self) -> Counter[str]:
        """How many POSTs carried each uid."""
        return Counter(uid for post in self._posts.values() for uid in post.uids)

    def accepted_by_uid(self) -> Counter[str]:
        """How many messages were accepted for each uid: above one means sent twice."""
        return Counter(message.uid for message in self.accepted if message.uid is not None)

    def arrive(self, path: str) -> int:
        """Note that a POST's head has come; its number is for `note` and `conclude`."""
        self._next += 1
        self._posts[self._next] = Post(path=path, arrived_at=time.monotonic(), arrived_epoch=self.clock())
        self.changed()
        return self._next

    def note(self, number: int, **what: Any) -> None:
        """Add to a POST or a search; unknown numbers are those from before a `reset`."""
        if number in self._posts:
            self._posts[number] = replace(self._posts[number], **what)
        elif number in self._searches:
            self._searches[number] = replace(self._searches[number], **what)
        self.changed()

    def look(self, query: dict[str, str]) -> int:
        """Note a search; its number is for `note`."""
        self._next += 1
        self._searches[self._next] = Search(query=query, arrived_at=time.monotonic())
        self.changed()
        return self._next

    def accept(self, message_id: str, payload: Payload) -> Message:
        """Store a message that passed every check."""
        boxes = mailboxes(payload)
        message = Message(
            message_id=message_id,
            uid=uid_of(payload),
            payload=payload,
            to=tuple(box.address for box in mailboxes({"To": payload.get("To")})),
            recipients=tuple(box.address for box in boxes),
            stream=stream_of(payload),
            tag=payload.get("Tag") or None,
            metadata={key: str(value) for key, value in (payload.get("Metadata") or {}).items()},
            accepted_at=time.monotonic(),
            accepted_epoch=self.clock(),
        )
        self.accepted.append(message)
        self.changed()
        return message

    def reset(self) -> None:
        """Forget everything."""
        self.accepted.clear()
        self._posts.clear()
        self._searches.clear()
        self.changed()

    def changed(self) -> None:
        """Wake the waiters whose condition holds now."""
        for condition, future in self._waiters:
            if not future.done():
                try:
                    if condition():
                        future.set_result(None)
                except Exception as error:  # a broken condition is the waiter's own news
                    future.set_exception(error)

    async def wait_for(self, condition: Callable[[], bool], timeout: float) -> None:
        """Return as soon as *condition* holds. Raises TimeoutError after *timeout* seconds."""
        if condition():
            return
        waiter = (condition, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter[1]
        except TimeoutError:
            seen = f"{len(self.accepted)} accepted, {len(self._posts)} POSTs, {len(self._searches)} searches"
            raise TimeoutError(f"nothing came within {timeout} s: the fake has seen {seen}") from None
        finally:
            self._waiters.remove(waiter)


def uid_of(payload: object) -> str | None:
    """The metadata field ``notifyq`` of anything that may be a message."""
    metadata = payload.get("Metadata") if isinstance(payload, dict) else None
    uid = metadata.get("notifyq") if isinstance(metadata, dict) else None
    return uid if isinstance(uid, str) else None
