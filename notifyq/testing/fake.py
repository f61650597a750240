"""`FakePostmark`: Postmark's side of the wire, on a real socket, with a ledger and with faults.

It knows nothing of this package's own messages or client: it sees bytes, as Postmark does.
``python -m notifyq.testing`` runs it as a process of its own (see `notifyq.testing.control`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from operator import attrgetter
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from aiohttp import web

from notifyq.testing.control import add_control
from notifyq.testing.desk import MAX_REQUEST, Desk
from notifyq.testing.faultbook import FaultBook
from notifyq.testing.faults import CloseOnAccept, Fault, Target
from notifyq.testing.ledger import Ledger, Message, Post, Search
from notifyq.testing.listener import Listener
from notifyq.testing.rules import Account, Refusal
from notifyq.testing.service import Service

__all__ = ["FakePostmark"]

T = TypeVar("T")


class _Of(Generic[T]):
    """An attribute that lives on a part of the fake."""

    def __init__(self, part: str) -> None:
        self._part = attrgetter(part)

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, fake: object, _owner: type | None = None) -> T:
        value: T = getattr(self._part(fake), self._name)
        return value

    def __set__(self, fake: object, value: T) -> None:
        setattr(self._part(fake), self._name, value)


class FakePostmark:
    """A Postmark to test against.

    *senders*: who may send (addresses and domains), None for anyone. *search_lag*: seconds until an
    accepted message is found, None for never. *clock* gives epoch seconds. The attributes below may be
    changed at any time.

    Example::

        async with FakePostmark() as fake:
            fake.fault(faults.Close(record=True))      # the next answer is lost
            ...                                        # send through fake.url with fake.token
            await fake.wait_accepted(1)
            assert fake.accepted_by_uid()[uid] == 1
    """

    token = _Of[str]("_desk")
    clock = _Of[Callable[[], float]]("_desk")
    search_lag = _Of[float | None]("_desk")
    retention_days = _Of[float]("_desk")
    zulu = _Of[bool]("_desk")
    partial = _Of[Literal["serve", "refuse_but_serve"]]("_desk")
    server_id = _Of[int]("_desk")
    senders = _Of[Collection[str] | None]("_desk.account")
    streams = _Of[dict[str, bool]]("_desk.account")
    answer_delay = _Of[float]("_service")
    known_fields_only = _Of[bool]("_desk.account")

    def __init__(
        self,
        *,
        token: str = "test-token",  # noqa: S107 - a well-known token for a fake account
        port: int = 0,
        senders: Collection[str] | None = None,
        search_lag: float | None = 0.0,
        answer_delay: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = Ledger(lambda: self.clock())
        account = Account(senders=senders)
        self._desk = Desk(
            token=token, ledger=self._ledger, account=account, clock=clock, search_lag=search_lag
        )
        self._faults = FaultBook()
        self._service = Service(self._desk, self._ledger, self._faults, answer_delay=answer_delay)
        app = web.Application(client_max_size=MAX_REQUEST + 1024 * 1024)
        add_control(app, self)
        app.router.add_route("*", "/{path:.*}", self._service.handle)
        self._listener = Listener(app, port=port, slam=lambda: self._faults.take_early(CloseOnAccept))

    # Life

    async def __aenter__(self) -> Self:
        await self._listener.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._service.stop_outliving()
        await self._listener.close()
        await self._ledger.wait_for(lambda: not self._service.under_way, timeout=10)

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        return f"http://127.0.0.1:{self._listener.port}"

    def env(self) -> dict[str, str]:
        """The environment that points notifyq at this fake."""
        return {"POSTMARK_API_URL": self.url, "POSTMARK_SERVER_TOKEN": self.token}

    async def down(self, *, hard: bool = True) -> None:
        """Refuse connections, on a port that stays ours. *hard* cuts requests under way; else they finish."""
        await self._listener.down(None if hard else list(self._service.under_way))

    async def up(self) -> None:
        """Listen again."""
        await self._listener.up()

    def reset(self) -> None:
        """Forget messages, POSTs, searches and faults, and release what hangs. Settings stay."""
        self._faults.clear()
        self._ledger.reset()
        self.release()

    # Faults

    def fault(
        self,
        fault: Fault,
        *,
        times: int | None = 1,
        when: Callable[[dict[str, Any]], bool] | None = None,
        uid: str | None = None,
        on: Target | None = None,
    ) -> None:
        """Let *fault* meet the next *times* requests (None: all) that fit *when* and *uid*.

        *when* is given the message (the query, for *on* ``"search"``). The oldest fault that fits is used;
        one request meets one fault. Raises ValueError for a fault that cannot choose by content.
        """
        self._faults.add(fault, times=times, when=when, uid=uid, on=on)

    def clear_faults(self) -> None:
        """Forget the faults that have not happened yet."""
        self._faults.clear()

    def release(self) -> None:
        """Let go of everything that hangs."""
        self._service.release()

    def account_fault(self, code: int | None, message: str = "Refused by the fake.") -> None:
        """Refuse every message with 422 and *code* (405, 412, 413, …) until called with None."""
        self._desk.account.refusal = None if code is None else Refusal(code, message)

    def suppress(self, address: str, *, stream: str = "outbound") -> None:
        """Put an address on the suppression list of a stream."""
        self._desk.account.suppressed.setdefault(stream, set()).add(address.lower())

    def unsuppress(self, address: str, *, stream: str = "outbound") -> None:
        """Take it off again."""
        self._desk.account.suppressed.get(stream, set()).discard(address.lower())

    def rate_limit(self, per_second: float | None) -> None:
        """Answer 429 with ``Retry-After: 1`` to POSTs above *per_second*; None for no limit."""
        self._desk.rate = per_second

    # What was seen

    @property
    def accepted(self) -> list[Message]:
        """The accepted messages, in order."""
        return self._ledger.accepted

    @property
    def posts(self) -> list[Post]:
        """Every POST of email, refused ones included, in order of arrival."""
        return self._ledger.posts

    @property
    def searches(self) -> list[Search]:
        """Every search, in order of arrival."""
        return self._ledger.searches

    @property
    def requests_in_flight(self) -> int:
        """How many requests have come and have no answer yet."""
        return len(self._service.under_way)

    @property
    def connections_made(self) -> int:
        """How many connections were made, since the beginning."""
        return self._listener.connections_made

    def posts_by_uid(self) -> Counter[str]:
        """How many POSTs carried each uid."""
        return self._ledger.posts_by_uid()

    def accepted_by_uid(self) -> Counter[str]:
        """How many messages were accepted for each uid; above one means sent twice."""
        return self._ledger.accepted_by_uid()

    async def wait_accepted(self, count: int, *, timeout: float = 10) -> None:
        """Return once *count* messages are accepted. Raises TimeoutError after *timeout* seconds."""
        await self.wait_for(lambda: len(self._ledger.accepted) >= count, timeout=timeout)

    async def wait_posts(self, count: int, *, timeout: float = 10) -> None:
        """Return once *count* POSTs have arrived; their bodies may be still on the way."""
        await self.wait_for(lambda: self._ledger.post_count >= count, timeout=timeout)

    async def wait_for(self, condition: Callable[[], bool], *, timeout: float = 10) -> None:
        """Return once *condition* holds; it is looked at whenever the fake has seen something new."""
        await self._ledger.wait_for(condition, timeout)
