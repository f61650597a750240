"""`Postmark` against real sockets: what leaves, what does not, and what each failure is taken for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from notifyq.attachment import Attachment
from notifyq.errors import InvalidSettings
from notifyq.message import Email
from notifyq.postmark import Postmark
from notifyq.provider import (
    Accepted,
    Blocked,
    Deferred,
    Found,
    Health,
    Inconclusive,
    Listed,
    Misconfigured,
    Missing,
    Outcome,
    Provider,
    Rejected,
    Throttled,
    Unknown,
    Unstarted,
)

UID = UUID("11111111-2222-4333-8444-555555555555")
TOKEN = "c0ffee00-secret-token"
EMAIL = Email(key="k", to="ann@example.com", subject="s", text="t", from_="shop@example.com")

Behave = Callable[["Peer"], Awaitable[None]]


def answer(
    status: int = 200, content: bytes | dict[str, Any] = b"", *extra: str, length: int | None = None
) -> bytes:
    """Write an HTTP answer; *length* lies about the body."""
    data = json.dumps(content).encode() if isinstance(content, dict) else content
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data) if length is None else length}", *extra]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


OK = answer(200, {"ErrorCode": 0, "Message": "OK", "MessageID": "id-1"})


class Peer:
    """One accepted connection: what it received, and its pen."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.first = b""
        self.received = b""
        self.ended = False

    async def spoken_to(self) -> None:
        """Wait for the first byte: a spare connection is silent until it is used."""
        self.first = self.received = await self.reader.readexactly(1)

    async def request(self) -> bytes:
        """Read one whole request; raises IncompleteReadError at the end of the connection."""
        head, self.first = self.first, b""
        while not head.endswith(b"\r\n\r\n"):
            head += (more := await self.reader.readexactly(1))
            self.received += more
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        body = await self.reader.readexactly(length)
        self.received += body
        return head + body


class Wire:
    """The other side: a socket server that behaves as told and remembers every byte."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.changed = asyncio.Condition()
        self.behave: Behave = self.answering(OK)
        self.url = ""

    @staticmethod
    def answering(*answers: bytes) -> Behave:
        """Answer each request in turn, the last one for ever."""
        left = list(answers)

        async def behave(peer: Peer) -> None:
            while True:
                await peer.request()
                peer.writer.write(left.pop(0) if len(left) > 1 else left[0])
                await peer.writer.drain()

        return behave

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait until *fact* holds."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(fact)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        async with self.changed:
            self.peers.append(peer)
            self.changed.notify_all()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await peer.spoken_to()
            await self.behave(peer)
        async with self.changed:
            peer.ended = True
            self.changed.notify_all()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def received(self) -> bytes:
        return b"".join(peer.received for peer in self.peers)


@contextlib.asynccontextmanager
async def listening(*, small: bool = False) -> AsyncIterator[Wire]:
    """Listen on a free port; *small* leaves little room for bytes that nobody reads."""
    wire = Wire()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(wire.serve(reader, writer)))

    listener = socket.create_server(("127.0.0.1", 0))
    if small:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    server = await asyncio.start_server(accept, sock=listener)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in wire.peers:
            peer.writer.transport.abort()
        await server.wait_closed()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with listening() as server:
        yield server


@contextlib.asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[Postmark]:
    postmark = Postmark(TOKEN, api_url=url, env={}, **options)
    await postmark.open()
    try:
        yield postmark
    finally:
        await postmark.close()


@pytest.fixture
async def postmark(wire: Wire) -> AsyncIterator[Postmark]:
    async with client(wire.url) as opened:
        yield opened


async def send(
    postmark: Postmark, email: Email = EMAIL, *, budget: float = 5, stop: str | None = None
) -> Outcome:
    return await postmark.send(email, uid=UID, claim=3, budget=budget, still_ours=lambda: stop)


def test_it_is_a_provider() -> None:
    """The worker knows no more than the protocol."""
    provider: Provider = Postmark(TOKEN)

    assert (provider.name, provider.repeats_safely) == ("postmark", False)


async def test_an_email_is_posted_once_with_its_uid(wire: Wire, postmark: Postmark) -> None:
    """The uid and the claim are what a later search finds it by."""
    assert await send(postmark) == Accepted("id-1")

    head, _, body = wire.received().partition(b"\r\n\r\n")
    assert head.startswith(b"POST /email HTTP/1.1\r\n")
    for line in (
        f"X-Postmark-Server-Token: {TOKEN}",
        "Accept: application/json",
        "Content-Type: application/json",
    ):
        assert line.encode() in head
    assert json.loads(body)["Metadata"] == {"notifyq": str(UID), "notifyq_claim": "3"}


async def test_unicode_goes_out_as_it_is(wire: Wire, postmark: Postmark) -> None:
    """UTF-8, no escapes and no encoded-words."""
    email = Email(key="k", to="a@example.com", subject="Zoë 🎉", text="t", from_="b@example.com")
    await send(postmark, email)

    assert "Zoë 🎉".encode() in wire.received()


async def test_nothing_leaves_on_a_new_connection_once_the_claim_is_gone(
    wire: Wire, postmark: Postmark
) -> None:
    """The last look comes before the first byte."""
    assert await send(postmark, stop="late") == Unstarted("late")

    await wire.until(lambda: len(wire.peers) >= 1)
    assert wire.received() == b""
    assert await send(postmark) == Accepted("id-1")


async def test_nothing_leaves_on_a_used_connection_once_the_claim_is_gone(
    wire: Wire, postmark: Postmark
) -> None:
    """A kept-alive connection takes another path through the HTTP client."""
    await send(postmark)
    before = wire.received()

    assert await send(postmark, stop="expired") == Unstarted("expired")
    assert wire.received() == before


async def test_the_last_look_is_taken_once_for_each_attempt(wire: Wire, postmark: Postmark) -> None:
    """Its answer holds for one attempt, on whatever connection."""
    looks: list[int] = []

    for number in range(3):
        await postmark.send(
            EMAIL,
            uid=UID,
            claim=1,
            budget=5,
            still_ours=lambda n=number: looks.append(n),  # type: ignore[misc]
        )

    assert looks == [0, 1, 2]


async def test_a_last_look_that_fails_sends_nothing(wire: Wire, postmark: Postmark) -> None:
    """Never a POST without a yes."""

    def broken() -> str | None:
        raise ZeroDivisionError

    assert type(await postmark.send(EMAIL, uid=UID, claim=1, budget=5, still_ours=broken)) is Deferred
    assert wire.received() == b""


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(wire: Wire, postmark: Postmark, status: int) -> None:
    """A 307 would send the email again, and hand the token to a stranger."""
    async with listening() as stranger:
        wire.behave = wire.answering(answer(status, b"", f"Location: {stranger.url}/email"))

        assert type(await send(postmark)) is Unknown
        assert stranger.peers == []


async def test_a_lost_answer_is_unknown_and_posted_once(wire: Wire, postmark: Postmark) -> None:
    """The server may have accepted it: the client may not try again by itself."""

    async def take_and_close(peer: Peer) -> None:
        await peer.request()

    wire.behave = take_and_close

    assert type(await send(postmark)) is Unknown
    assert wire.received().count(b"POST") == 1


async def test_a_reset_after_the_request_is_unknown(wire: Wire, postmark: Postmark) -> None:
    """The same doubt with another exception."""

    async def take_and_reset(peer: Peer) -> None:
        await peer.request()
        peer.writer.transport.abort()

    wire.behave = take_and_reset

    assert type(await send(postmark)) is Unknown


async def test_no_answer_in_time_is_unknown_and_the_connection_is_gone(
    wire: Wire, postmark: Postmark
) -> None:
    """A budget that is over leaves no byte on its way."""
    ended = asyncio.Event()

    async def hang(peer: Peer) -> None:
        await peer.request()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await peer.reader.readexactly(1)
        ended.set()

    wire.behave = hang

    assert type(await send(postmark, budget=0.2)) is Unknown
    async with asyncio.timeout(5):
        await ended.wait()


async def test_a_cancelled_send_stops_and_stays_cancelled(wire: Wire, postmark: Postmark) -> None:
    """The worker treats it as unknown; swallowing it would hang a shutdown."""
    read, ended = asyncio.Event(), asyncio.Event()

    async def hang(peer: Peer) -> None:
        await peer.request()
        read.set()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await peer.reader.readexactly(1)
        ended.set()

    wire.behave = hang
    task = asyncio.create_task(send(postmark))
    await read.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        await ended.wait()


async def test_a_large_body_does_not_outlive_its_budget() -> None:
    """Bytes that arrive after the lease would be a second email."""
    go, ended, total = asyncio.Event(), asyncio.Event(), bytearray()

    async def read_late(peer: Peer) -> None:
        await go.wait()
        with contextlib.suppress(ConnectionError):
            while more := await peer.reader.read(65536):
                total.extend(more)
        ended.set()

    email = Email(
        key="k",
        to="a@example.com",
        subject="s",
        text="t",
        from_="b@example.com",
        attachments=[Attachment("a.dat", "application/octet-stream", bytes(6_000_000))],
    )

    async with listening(small=True) as wire, client(wire.url) as postmark:
        wire.behave = read_late
        assert type(await send(postmark, email, budget=0.3)) is Unknown
        go.set()
        async with asyncio.timeout(5):
            await ended.wait()
    assert len(total) < 500_000


async def test_a_large_body_arrives_whole(wire: Wire, postmark: Postmark) -> None:
    """It is written in pieces, without a warning about blocking the loop."""
    content = bytes(range(256)) * 12_000
    email = Email(
        key="k",
        to="a@example.com",
        subject="s",
        text="t",
        from_="b@example.com",
        attachments=[Attachment("a.dat", "application/octet-stream", content)],
    )

    assert await send(postmark, email) == Accepted("id-1")
    assert len(wire.received()) > 4_000_000


async def test_a_refused_connection_is_deferred() -> None:
    """Nothing was sent, so it may simply be tried again."""
    async with listening() as gone:
        url = gone.url
    async with client(url) as postmark:
        outcome = await send(postmark)

    assert type(outcome) is Deferred


async def test_a_name_that_does_not_resolve_is_deferred() -> None:
    """DNS trouble is the network's, not the message's."""
    async with client("https://nowhere.invalid") as postmark:
        assert type(await send(postmark)) is Deferred


async def test_a_failed_tls_handshake_is_deferred(wire: Wire) -> None:
    """The email is written after the handshake only."""
    async with client(wire.url.replace("http", "https")) as postmark:

        async def speak_plainly(peer: Peer) -> None:
            peer.writer.write(b"this is not TLS")

        wire.behave = speak_plainly

        assert type(await send(postmark)) is Deferred


async def test_waiting_for_a_free_connection_in_vain_is_deferred(wire: Wire) -> None:
    """The same TimeoutError as after a write, with the opposite meaning."""
    busy, go = asyncio.Event(), asyncio.Event()

    async def slow(peer: Peer) -> None:
        await peer.request()
        busy.set()
        await go.wait()
        peer.writer.write(OK)

    wire.behave = slow
    async with client(wire.url, connections=1) as postmark:
        first = asyncio.create_task(send(postmark))
        await busy.wait()

        assert type(await send(postmark, budget=0.1)) is Deferred
        go.set()
        assert await first == Accepted("id-1")


@pytest.mark.parametrize("kept", [b"", b'{"MessageID": "id-1"'])
async def test_a_200_with_a_cut_body_is_unknown(wire: Wire, postmark: Postmark, kept: bytes) -> None:
    """It was accepted, and only the message id is lost: asking finds it."""

    async def cut(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(answer(200, kept, length=500))
        await peer.writer.drain()

    wire.behave = cut
    outcome = await send(postmark)

    assert type(outcome) is Unknown
    assert "HTTP 200" in outcome.error


@pytest.mark.parametrize(
    ("status", "expected"), [(413, Rejected), (429, Throttled), (401, Blocked), (503, Unknown)]
)
async def test_a_cut_body_leaves_what_the_status_says(
    wire: Wire, postmark: Postmark, status: int, expected: type
) -> None:
    """Some statuses need no body."""

    async def cut(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(answer(status, b"{", length=500))
        await peer.writer.drain()

    wire.behave = cut

    assert type(await send(postmark)) is expected


async def test_an_endless_body_is_cut_off(wire: Wire, postmark: Postmark) -> None:
    """A stranger's page must not fill the memory."""

    async def flood(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(answer(500, b"", length=10**12))
        while True:
            peer.writer.write(b"x" * 65536)
            await peer.writer.drain()

    wire.behave = flood

    assert type(await send(postmark)) is Unknown


async def test_a_missing_or_malformed_sender_makes_the_row_wait(wire: Wire) -> None:
    """It is configuration: no connection is needed to see it."""
    bare = Email(key="k", to="a@example.com", subject="s", text="t")
    env: dict[str, str] = {}
    postmark = Postmark(TOKEN, api_url=wire.url, env=env)
    await postmark.open()
    try:
        assert type(await send(postmark, bare)) is Misconfigured
        env["EMAIL_FROM"] = "nonsense"
        assert type(await send(postmark, bare)) is Misconfigured
        env.update(EMAIL_FROM="a@example.com", EMAIL_SHUNT=" ")
        assert type(await send(postmark, bare)) is Misconfigured
        del env["EMAIL_SHUNT"]
        assert await send(postmark, bare) == Accepted("id-1")
    finally:
        await postmark.close()


async def test_a_malformed_shunt_stops_the_start() -> None:
    """A test system that mails customers is worse than one that does not start."""
    with pytest.raises(InvalidSettings, match="EMAIL_SHUNT"):
        await Postmark(TOKEN, env={"EMAIL_SHUNT": "me"}).open()


async def test_the_spare_is_open_before_the_first_send_and_used_by_it(wire: Wire, postmark: Postmark) -> None:
    """A password reset after a quiet hour waits for no handshake."""
    await wire.until(lambda: len(wire.peers) == 1)
    spare = wire.peers[0]
    assert spare.received == b""

    assert await send(postmark) == Accepted("id-1")
    assert spare.received.startswith(b"POST /email")


async def test_a_used_spare_is_replaced(wire: Wire, postmark: Postmark) -> None:
    """The next burst finds one too."""
    await wire.until(lambda: len(wire.peers) == 1)
    await send(postmark)

    await wire.until(lambda: len(wire.peers) == 2)
    assert wire.peers[1].received == b""


async def test_a_spare_that_the_server_closes_is_replaced_and_never_used(
    wire: Wire, postmark: Postmark
) -> None:
    """A stale connection would put the next email in doubt."""
    await wire.until(lambda: len(wire.peers) == 1)
    wire.peers[0].writer.close()

    await wire.until(lambda: len(wire.peers) == 2)
    assert await send(postmark) == Accepted("id-1")
    assert wire.peers[0].received == b""


async def test_a_spare_that_was_closed_a_moment_ago_is_not_used(wire: Wire, postmark: Postmark) -> None:
    """The loop has not seen the end of the connection yet, but the kernel has."""
    await wire.until(lambda: len(wire.peers) == 1)
    wire.peers[0].writer.get_extra_info("socket").shutdown(1)

    assert await send(postmark) == Accepted("id-1")
    assert wire.peers[0].received == b""


async def test_a_used_connection_that_was_closed_a_moment_ago_is_not_used(
    wire: Wire, postmark: Postmark
) -> None:
    """Keep-alive ends when the other side says so, not when we notice."""
    await wire.until(lambda: len(wire.peers) == 1)
    await send(postmark)
    used = wire.peers[0].received
    wire.peers[0].writer.get_extra_info("socket").shutdown(1)

    assert await send(postmark) == Accepted("id-1")
    assert wire.peers[0].received == used


async def test_an_answer_that_nobody_asked_for_is_not_the_next_emails(wire: Wire, postmark: Postmark) -> None:
    """It had been read before the next email was written: that email would have been lost in silence."""
    stale = answer(200, {"ErrorCode": 0, "Message": "OK", "MessageID": "stale"})
    await wire.until(lambda: len(wire.peers) == 1)
    assert await send(postmark) == Accepted("id-1")
    wire.behave = wire.answering(answer(422, {"ErrorCode": 300, "Message": "no"}))
    wire.peers[0].writer.write(stale)
    async with asyncio.timeout(5):
        while not all(protocol.should_close for protocol in _idle(postmark)):  # noqa: ASYNC110
            await asyncio.sleep(0)

    assert isinstance(await send(postmark), Rejected)


async def test_what_was_answered_before_it_was_written_leaves_no_byte_behind() -> None:
    """The next email would stand behind the rest of this one, and wait for an answer that never comes."""
    async with listening(small=True) as wire, client(wire.url) as postmark:

        async def refuse(peer: Peer) -> None:
            await peer.reader.readuntil(b"\r\n\r\n")
            peer.writer.write(answer(429, b"", "Retry-After: 1"))
            await peer.writer.drain()
            await peer.reader.read(1)

        wire.behave = refuse
        big = Email(key="k", to="ann@example.com", subject="s", text="x" * 4_000_000, from_="a@example.com")

        assert isinstance(await send(postmark, big), Throttled)
        assert _idle(postmark) == []


def _idle(postmark: Postmark) -> list[Any]:
    """The connections that wait for the next email."""
    assert postmark._connector is not None
    return [protocol for idle in postmark._connector._conns.values() for protocol, _ in idle]


async def test_an_old_spare_is_replaced(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side drops what is idle for a minute."""
    monkeypatch.setattr("notifyq.postmark_connection.SPARE_SECONDS", 0.05)
    async with client(wire.url):
        await wire.until(lambda: len(wire.peers) >= 2 and wire.peers[0].ended)


async def test_closing_lets_go_of_every_connection(wire: Wire) -> None:
    """The used ones and the spare."""
    async with client(wire.url) as postmark:
        await asyncio.gather(*(send(postmark) for _ in range(3)))
        await wire.until(lambda: len(wire.peers) >= 4)

    await wire.until(lambda: all(peer.ended for peer in wire.peers))


async def test_a_server_that_is_away_costs_the_spare_only_silence(caplog: pytest.LogCaptureFixture) -> None:
    """Sends tell of an outage; the spare has nothing to add."""
    async with listening() as gone:
        url = gone.url
    with caplog.at_level(logging.DEBUG, "notifyq"):
        async with client(url) as postmark:
            await send(postmark)

    assert caplog.records == []


async def test_the_token_is_in_no_text(
    wire: Wire, postmark: Postmark, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even when a page on the way shows our own request."""

    async def echo(peer: Peer) -> None:
        request = await peer.request()
        peer.writer.write(answer(502, b"<pre>" + request.replace(b"\r\n", b" ") + b"</pre>"))
        await peer.writer.drain()

    wire.behave = echo
    with caplog.at_level(logging.DEBUG):
        outcome = await send(postmark)
        asked = await postmark.find(UID, stream="outbound", budget=5)
        state = await postmark.health(budget=5)

    assert "***" in repr(outcome)
    texts = [
        repr(outcome),
        repr(asked),
        repr(state),
        repr(postmark),
        str(postmark),
        postmark.account,
        caplog.text,
    ]
    for text in texts:
        assert TOKEN not in text


async def test_find_searches_by_uid_on_the_given_stream(wire: Wire, postmark: Postmark) -> None:
    """The default stream would be the wrong place for any other."""
    hit = {"MessageID": "id-1", "Metadata": {"notifyq": str(UID)}}
    wire.behave = wire.answering(
        answer(200, {"TotalCount": 1, "Messages": [hit]}), answer(200, {"TotalCount": 0, "Messages": []})
    )

    assert await postmark.find(UID, stream="broadcast", budget=5) == Found(("id-1",))
    assert await postmark.find(UID, stream="broadcast", budget=5) == Missing()
    line = wire.received().split(b"\r\n")[0].decode()
    for part in (
        "GET /messages/outbound?",
        "count=",
        "offset=0",
        f"metadata_notifyq={UID}",
        "messagestream=broadcast",
    ):
        assert part in line


async def test_a_search_that_fails_is_inconclusive(wire: Wire, postmark: Postmark) -> None:
    """A failure is never a no."""
    wire.behave = wire.answering(answer(500, b""))
    assert await postmark.find(UID, stream="outbound", budget=5) == Inconclusive("HTTP 500", failed=True)

    async def hang(peer: Peer) -> None:
        await peer.reader.read()

    async with listening() as silent:
        silent.behave = hang
        async with client(silent.url) as other:
            for asked in (other.find(UID, stream="outbound", budget=0.1), other.health(budget=0.1)):
                result = await asked
                assert isinstance(result, Inconclusive)
                assert result.failed


def _page(count: int, minute: int, ours: UUID | None = None) -> bytes:
    time = f"2026-01-01T10:{minute:02}:00.1234567-05:00"
    messages = [{"MessageID": f"m{minute}", "ReceivedAt": time, "Metadata": {}} for _ in range(count)]
    if ours is not None:
        messages[0]["Metadata"] = {"notifyq": str(ours)}
    return answer(200, {"TotalCount": 9999, "Messages": messages})


BASE = 1767279600.0  # 2026-01-01T10:00:00-05:00


async def test_a_listing_ends_at_a_short_page_and_is_then_complete(wire: Wire, postmark: Postmark) -> None:
    """Nothing older is there to be missed."""
    wire.behave = wire.answering(_page(500, 9, UID), _page(2, 8, UID))

    listed = await postmark.listing(stream="outbound", since=BASE, budget=5)

    assert listed == Listed({UID: ("m9", "m8")}, None)
    assert b"offset=500" in wire.received()


async def test_a_listing_ends_an_hour_before_what_was_asked(wire: Wire, postmark: Postmark) -> None:
    """It says from when on it is complete, with a margin for messages out of order."""
    wire.behave = wire.answering(_page(500, 9, UID))

    listed = await postmark.listing(stream="outbound", since=BASE + 3600 + 3600, budget=5)

    assert isinstance(listed, Listed)
    assert listed.since == pytest.approx(BASE + 9 * 60 + 3600.123456)
    assert wire.received().count(b"GET /messages") == 1


async def test_a_listing_gives_up_after_ten_pages(wire: Wire, postmark: Postmark) -> None:
    """The search ends at 10,000 messages anyway."""
    wire.behave = wire.answering(_page(500, 9))

    listed = await postmark.listing(stream="outbound", since=0.0, budget=20)

    assert isinstance(listed, Listed)
    assert listed.since is not None
    assert wire.received().count(b"GET /messages") == 10


async def test_a_listing_that_breaks_off_is_inconclusive(wire: Wire, postmark: Postmark) -> None:
    """Half of a listing proves nothing."""
    wire.behave = wire.answering(_page(500, 9), answer(429, b""))

    assert isinstance(await postmark.listing(stream="outbound", since=0.0, budget=5), Inconclusive)


async def test_health_asks_for_the_server(wire: Wire, postmark: Postmark) -> None:
    """The same token, and no mail."""
    wire.behave = wire.answering(answer(200, {"ID": 42}), answer(401, {"ErrorCode": 10, "Message": "bad"}))

    assert await postmark.health(budget=5) == Health(server="postmark:42")
    assert await postmark.health(budget=5) == Health(blocked="HTTP 401, ErrorCode 10: bad")


async def test_a_trailing_slash_in_the_url_is_tolerated(wire: Wire) -> None:
    """Half of the world writes it."""
    async with client(wire.url + "/") as postmark:
        await send(postmark)

    assert b"POST /email HTTP" in wire.received()


async def test_the_environment_names_token_and_url_when_it_is_opened(wire: Wire) -> None:
    """Nothing is read at import or when the object is made."""
    env: dict[str, str] = {}
    postmark = Postmark(env=env)
    with pytest.raises(InvalidSettings, match="POSTMARK_SERVER_TOKEN: is not set"):
        await postmark.open()
    env.update(POSTMARK_SERVER_TOKEN=f"{TOKEN}\n", POSTMARK_API_URL=wire.url)
    await postmark.open()
    await postmark.open()

    assert await send(postmark) == Accepted("id-1")
    assert postmark.account == Postmark(TOKEN).account
    await postmark.close()
    await postmark.close()


@pytest.mark.parametrize(
    "url", ["ftp://x", "api.postmarkapp.com", "https://", "http://[", "https://u:p@host", "https://h?a"]
)
async def test_a_url_that_cannot_work_is_refused(url: str) -> None:
    """At start, with the name of the variable."""
    with pytest.raises(InvalidSettings, match="POSTMARK_API_URL"):
        await Postmark(TOKEN, env={"POSTMARK_API_URL": url}).open()


@pytest.mark.parametrize("token", ["a b", "a\nb", "ü"])
async def test_a_token_that_is_no_header_is_refused_without_showing_it(token: str) -> None:
    """A wrong paste must not become a header, or a line in the log."""
    with pytest.raises(InvalidSettings) as caught:
        await Postmark(token, env={}).open()

    assert token not in str(caught.value)


async def test_plain_http_to_another_host_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """The token would travel in the clear."""
    async with client("http://proxy.invalid:1"):
        pass

    assert "http, not https" in caplog.text
    assert TOKEN not in caplog.text
