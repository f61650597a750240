"""The Postgres wire, cut at every message of a claim and of a record; and what a held lock can do to both."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from outbox import Outbox, until
from wire_proxy import CutAtMessage, How, Proxy, Tunnel, Way, proxy

from notifyq import upkeep
from notifyq.db import STATEMENT_TIMEOUT, Link

STATEMENT_LIMIT = 0.4
"""Stands for the 5 s of a real worker's statements."""


CLAIM = re.compile(re.escape(socket.gethostname().encode()) + rb"[^\0]*\0{3}.postmark:", re.DOTALL)
"""The arguments of a claim: an account and a worker. No other statement has both."""


@pytest.fixture
def short_statements() -> Iterator[None]:
    """Let a statement that gets no answer end soon."""
    defaults = Link.__init__.__kwdefaults__
    before = dict(defaults)
    defaults["timeout"] = STATEMENT_LIMIT
    yield
    defaults.update(before)


@pytest.fixture
async def wire(notifyq_dsn: str, short_statements: None) -> AsyncIterator[tuple[Proxy, Any]]:
    """A proxy before Postgres, and a pool that goes through it."""
    parts = urlsplit(notifyq_dsn)
    async with proxy(parts.hostname or "", parts.port or 5432) as before_postgres:
        through = notifyq_dsn.replace(f":{parts.port}/", f":{before_postgres.port}/")
        pool = await asyncpg.create_pool(through, min_size=0, max_size=6)
        yield before_postgres, pool
        before_postgres.tap = None
        pool.terminate()


@pytest.mark.parametrize("how", ["reset", pytest.param("fin", marks=pytest.mark.long), "blackhole"])
@pytest.mark.parametrize("statement", ["claim_emails", "email_sent"])
async def test_a_cut_at_any_message_costs_no_email(
    outbox: Outbox, wire: tuple[Proxy, Any], statement: str, how: How
) -> None:
    """Whatever the database has heard or done by then: one POST, one acceptance, and the row is sent."""
    before_postgres, pool = wire
    cases = 0
    for way in ("up", "down"):
        for number in range(30):
            cut = CutAtMessage(f"notifyq.{statement}(".encode(), way, number, how)
            if not await _survives(outbox, before_postgres, pool, cut, f"{way}-{number}"):
                break
            cases += 1
    print(f"\n{statement}, {how}: {cases} boundaries")
    assert len(outbox.fake.posts) == len(outbox.fake.accepted) == await _sent(outbox)
    assert max(outbox.fake.accepted_by_uid().values()) == 1
    assert cases >= BOUNDARIES


BOUNDARIES = 10
"""At least: parse, describe, flush, bind, execute, sync on the way up, and their answers."""


async def _survives(outbox: Outbox, before: Proxy, pool: Any, cut: CutAtMessage, key: str) -> bool:
    """Send one email through a worker whose wire is cut. False: the exchange has no such message."""
    await pool.expire_connections()  # a new connection has to parse the statement
    before.tap = cut
    await outbox.put(key)
    worker = await outbox.start(pool=pool, listen=False, poll=0.2)
    row = await outbox.until("sent", key)
    reached = cut.done
    before.tap = None
    await outbox.stop(worker)
    assert row["attempts"] == 1, f"{cut}: charged for a cut wire"
    return reached


async def _sent(outbox: Outbox) -> int:
    return (await outbox.statuses())["sent"]


@dataclass(slots=True)
class OvertakenClaim:
    """Keep a claim back, as a network does that is about to heal; the next one waits behind it.

    Not the very first: a statement that is still to be parsed is ended by the server's own time limit.
    """

    parsed: bool = False
    first: tuple[Tunnel, bytes] | None = None
    second: tuple[Tunnel, bytes] | None = None
    done: bool = False

    def see(self, tunnel: Tunnel, way: Way, data: bytes) -> bytes:
        if self.done or way != "up" or data[:1] != b"B" or CLAIM.search(data) is None:
            return data
        if not self.parsed:
            self.parsed = True
            return data
        if self.first is None:
            self.first = tunnel, data
            tunnel.ended = True  # the far side outlives the near one
        else:
            self.second = tunnel, data
        return b""

    def deliver(self, held: tuple[Tunnel, bytes] | None) -> None:
        assert held is not None
        tunnel, data = held
        tunnel.ends["up"].write(data)


async def test_a_claim_that_commits_after_its_worker_gave_it_up_is_not_stuck(
    outbox: Outbox, wire: tuple[Proxy, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim can reach the server after its worker gave it up and looked for it: then the row is leased
    under the name of a live worker that never heard of it, and nobody else need be there to see it end."""
    monkeypatch.setattr(upkeep, "SWEEP_EVERY", 0.3)
    before_postgres, pool = wire
    before_postgres.tap = tap = OvertakenClaim()
    worker = await outbox.start(pool=pool, listen=False, poll=0.5, post_budget=0.4, lease=0.8, settle=0.3)

    async def parsed() -> bool:
        return tap.parsed

    await until(parsed, what="the worker has claimed once")
    await outbox.put()

    async def overtaken() -> bool:
        return tap.second is not None

    await until(overtaken, what="the worker claims again")
    tap.deliver(tap.first)
    assert (await outbox.until("processing"))["claimed_by"] == worker.name
    tap.done = True
    tap.deliver(tap.second)

    await outbox.until("sent", seconds=10)
    assert (await outbox.events())[0] == "lease ended"
    assert len(outbox.fake.accepted) == 1


@pytest.mark.parametrize(
    ("at", "how"),
    [
        (b"notifyq.worker_gone(", "reset"),
        (b"notifyq.worker_gone(", "blackhole"),
        (b"pg_advisory_unlock_all()", "reset"),
    ],
)
async def test_a_database_that_is_lost_at_the_very_end_keeps_nothing_open(
    outbox: Outbox, wire: tuple[Proxy, Any], monkeypatch: pytest.MonkeyPatch, at: bytes, how: How
) -> None:
    """The last statement got no answer, and the worker's other connection was never given back: the
    application's pool could not be closed, and its process stayed for ever."""
    before_postgres, pool = wire
    monkeypatch.setitem(Link.__init__.__kwdefaults__, "timeout", STATEMENT_TIMEOUT)
    worker = await outbox.start(pool=pool)
    await outbox.put()
    await outbox.until("sent")
    before_postgres.tap = cut = CutAtMessage(at, "down", 0, how)

    await outbox.stop(worker)

    assert cut.done
    before_postgres.tap = None
    await asyncio.wait_for(pool.close(), 5)


FULL_DISK = """
create table disk (is_full boolean);
insert into disk values (true);
create sequence refused;
create function refuse() returns trigger language plpgsql as $$
begin
    if (select is_full from disk) then
        perform nextval('refused');
        raise exception using errcode = 'disk_full', message = 'no space left on device';
    end if;
    return new;
end $$;
create trigger refuses before update on notifyq.emails for each row when (new.status = 'sent')
    execute function refuse();
"""


async def test_a_receipt_is_written_for_as_long_as_it_takes(outbox: Outbox) -> None:
    """An acceptance is the only proof there is: a disk that is full for a while makes no doubt of it."""
    await outbox.pool.execute(FULL_DISK)
    await outbox.start(post_budget=5, lease=30)
    await outbox.put()

    async def refused_twice() -> bool:
        return bool(await outbox.pool.fetchval("select is_called and last_value >= 2 from refused"))

    await until(refused_twice, what="the database has refused it twice")
    await outbox.pool.execute("update disk set is_full = false")

    await outbox.until("sent")
    assert await outbox.events() == ["accepted"]


async def test_a_link_comes_back_after_its_connection_was_ended(outbox: Outbox) -> None:
    """A connection that the server ends leaves the pool by itself, and then refuses even to be closed:
    a restart of Postgres ended the process."""
    link = Link(outbox.pool, "test")
    before = await link.fetch("durability")
    pid = await outbox.pool.fetchval(
        "select pid from pg_stat_activity where application_name = 'notifyq test'"
    )
    await outbox.pool.fetchval("select pg_terminate_backend($1)", pid)

    async def gone() -> bool:
        return link._held._con is None

    await until(gone, what="the pool has taken the connection back")

    assert await link.fetch("durability") == before
    await link.close()
