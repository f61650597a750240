"""The floor: the least that can be called a queue with a sender. No retries, no doubt, no leases, no record.

LISTEN, one claim UPDATE for as many rows as there are free slots, and one POST a row on keep-alive
connections. ``--variant raw`` writes to bare sockets, ``--variant aiohttp`` uses aiohttp as the client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import cast
from urllib.parse import urlsplit

import asyncpg
from common import TOKEN, Poster, carry_out, options, payload, run, until_stopped

TABLES = """
create table floor (
    id bigint generated always as identity primary key,
    taken bool not null default false,
    body text not null);
create index floor_waiting on floor (id) where not taken;
create function floor_ring() returns trigger language plpgsql as $$
begin perform pg_notify('floor', ''); return null; end $$;
create trigger ring after insert on floor for each statement execute function floor_ring();
"""

CLAIM = """
update floor set taken = true where id = any (array(
    select id from floor where not taken order by id limit $1 for no key update skip locked))
returning body
"""


class Floor:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given

    async def setup(self) -> None:
        conn = await asyncpg.connect(self.given.dsn)
        await conn.execute(TABLES)
        await conn.close()

    async def work(self) -> None:
        post: Callable[[bytes], Awaitable[None]]
        if self.given.variant == "aiohttp":
            post = Poster(self.given.url, self.given.slots)
        else:
            post = RawPoster(self.given.url)
            await post.warm()
        await until_stopped(self._drain(post))

    async def _drain(self, post: Callable[[bytes], Awaitable[None]]) -> None:
        listening = await asyncpg.connect(self.given.dsn)
        claiming = await asyncpg.connect(self.given.dsn)
        claim = await claiming.prepare(CLAIM)
        bell = asyncio.Event()
        await listening.add_listener("floor", lambda *_: bell.set())
        free = self.given.slots
        freed = asyncio.Event()

        async def attempt(body: str) -> None:
            nonlocal free
            await post(body.encode())
            free += 1
            freed.set()

        under_way: set[asyncio.Task[None]] = set()
        while True:
            bell.clear()
            asked = free
            rows = await claim.fetch(asked)
            free -= len(rows)
            for row in rows:
                task = asyncio.create_task(attempt(row[0]))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            if len(rows) < asked:
                await bell.wait()
            elif not free:
                freed.clear()
                await freed.wait()

    async def producer(self) -> Callable[[str], Awaitable[None]]:
        conn = await asyncpg.connect(self.given.dsn)

        async def enqueue(key: str) -> None:
            await conn.fetch("insert into floor (body) values ($1) returning id", json.dumps(payload(key)))

        return enqueue

    async def fill(self, keys: list[str]) -> None:
        conn = await asyncpg.connect(self.given.dsn)
        rows = [(json.dumps(payload(key)),) for key in keys]
        await conn.copy_records_to_table("floor", records=rows, columns=["body"])
        await conn.close()


class RawPoster:
    """One request at a time on each of as many bare connections as are needed at once."""

    def __init__(self, url: str) -> None:
        self._host, self._port = urlsplit(url).hostname or "", urlsplit(url).port or 0
        self._idle: list[RawConnection] = []
        self._head = (
            f"POST /email HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nX-Postmark-Server-Token: {TOKEN}\r\n"
            "Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: "
        ).encode()

    async def warm(self) -> None:
        self._idle.append(await self._connect())

    async def __call__(self, body: bytes) -> None:
        connection = self._idle.pop() if self._idle else await self._connect()
        await connection.exchange(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        self._idle.append(connection)

    async def _connect(self) -> RawConnection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(RawConnection, self._host, self._port))[1]


class RawConnection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._buffer = b""

    def exchange(self, request: bytes) -> asyncio.Future[None]:
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answered

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            self._buffer = b""
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError("the sink refused")
            self._answered.set_result(None)


async def main() -> None:
    given = options()
    await carry_out(Floor(given), given)


if __name__ == "__main__":
    run(main())
