"""Leases of calls, and the transaction that completes one: what is lost changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from outbox import until
from task_fleet import Fleet

import notifyq
from notifyq import TaskContext
from notifyq.db import Link
from notifyq.testing import FakePostmark

ONE_SERVER_IS_ENOUGH = True


@pytest.fixture
async def fleet(notifyq_pool: Any, fake_postmark: FakePostmark) -> AsyncIterator[Fleet]:
    """No worker runs yet."""
    async with Fleet(notifyq_pool, fake_postmark) as fleet:
        yield fleet


@pytest.fixture
async def counted(fleet: Fleet) -> Callable[[], Any]:
    """A table to count in: how many rows has it?"""
    await fleet.pool.execute("create table effects (call bigint)")

    async def count() -> int:
        return int(await fleet.pool.fetchval("select count(*) from effects"))

    return count


async def take_over(fleet: Fleet, id: int) -> None:
    """End the call's lease, as an observer would."""
    await fleet.pool.fetch(
        "select notifyq.task_leases_ended(array[id], array[claim_seq], array[lease_until]) "
        "from notifyq.tasks where id = $1",
        id,
    )


async def test_a_call_that_runs_for_ten_leases_runs_once(fleet: Fleet) -> None:
    """The heartbeat keeps its lease, and the other worker sees it kept."""
    runs: list[int] = []

    @notifyq.task("long")
    async def long(ctx: TaskContext) -> None:
        runs.append(ctx.attempt)
        await asyncio.sleep(10)

    for _ in range(2):
        await fleet.start(long, post_budget=0.4, lease=1.0)
    id = await fleet.put(long.call())
    await fleet.until_call(id, "done")

    assert (runs, await fleet.events(id)) == ([1], ["done"])


async def test_the_heartbeat_is_one_statement_however_many_calls_run(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty calls, twenty ids in one statement."""
    beats: list[int] = []
    fetch = Link.fetch

    async def counting(self: Link, query: str, *args: Any) -> Any:
        if query == "renew_task_leases":
            beats.append(len(args[0]))
        return await fetch(self, query, *args)

    monkeypatch.setattr(Link, "fetch", counting)
    go_on = asyncio.Event()

    @notifyq.task("t")
    async def work(ctx: TaskContext) -> None:
        await go_on.wait()

    await fleet.start(work, slots=20)
    ids = [await fleet.put(work.call()) for _ in range(20)]
    await fleet.until_all("processing", 20)
    beats.clear()
    began = time.monotonic()

    async def three() -> bool:
        return len(beats) >= 3

    await until(three, what="three heartbeats")
    go_on.set()

    assert set(beats) == {20}
    assert time.monotonic() - began >= 2 * 0.5  # four in a lease of 2 s
    for id in ids:
        await fleet.until_call(id, "done")


async def test_a_lost_lease_cancels_the_run_and_refuses_its_result(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the same process claims the call anew before it has noticed."""
    ended: Counter[int] = Counter()
    go_on = asyncio.Event()

    @notifyq.task("t")
    async def work(ctx: TaskContext) -> None:
        try:
            await (asyncio.sleep(60) if ctx.attempt == 1 else go_on.wait())
        finally:
            ended[ctx.attempt] += ctx.cancelled or ctx.attempt == 2

    worker = await fleet.start(work)
    id = await fleet.put(work.call())
    await fleet.until_call(id, "processing")
    await take_over(fleet, id)

    async def lost() -> bool:
        return ended[1] == 1

    await until(lost, what="the first run has been cancelled")
    assert "its lease was lost" in caplog.text
    go_on.set()
    call = await fleet.until_call(id, "done")

    assert (call["attempts"], await fleet.events(id)) == (2, ["lease ended", "done"])
    assert fleet.is_running(worker)


async def test_a_function_that_ignores_its_cancellation_has_its_result_refused(fleet: Fleet) -> None:
    """It returns as if nothing had been; the row is another's."""
    swallowed = asyncio.Event()

    @notifyq.task("t", max_attempts=1)
    async def stubborn(ctx: TaskContext) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.set()

    await fleet.start(stubborn)
    id = await fleet.put(stubborn.call())
    await fleet.until_call(id, "processing")
    await take_over(fleet, id)
    await asyncio.wait_for(swallowed.wait(), 20)

    await fleet.stop()
    assert ((await fleet.call(id))["status"], await fleet.events(id)) == ("dead", ["exhausted"])


async def test_a_function_that_holds_up_the_event_loop_is_noticed_by_name(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """It stops every call and every email of the process, and its own heartbeat."""

    @notifyq.task("holds-up")
    async def holds_up(ctx: TaskContext) -> None:
        time.sleep(2.2)  # noqa: ASYNC251 (the very mistake)

    await fleet.start(holds_up)
    await fleet.until_call(await fleet.put(holds_up.call()), "done")

    (line,) = [r.getMessage() for r in caplog.records if "the event loop stood still" in r.message]
    assert "holds-up" in line and "Their leases may be lost" in line


# ---------------------------------------------------------------- the database away


@asynccontextmanager
async def nobody_may_connect(fleet: Fleet, dsn: str) -> AsyncIterator[None]:
    """The database refuses everybody, for the length of the block."""
    name = await fleet.pool.fetchval("select current_database()")
    url = urlsplit(dsn)
    conn = await asyncpg.connect(url._replace(path="/postgres").geturl())
    try:
        await conn.execute(f'alter database "{name}" allow_connections false')
        await conn.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and pid <> $2",
            name,
            conn.get_server_pid(),
        )
        try:
            yield
        finally:
            await conn.execute(f'alter database "{name}" allow_connections true')
    finally:
        await conn.close()


async def test_a_worker_that_cannot_renew_for_a_whole_lease_ends_its_runs(
    fleet: Fleet, notifyq_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut off, it must assume that others have taken over: two at once is what a limit forbids."""
    runs: list[float] = []
    ended = asyncio.Event()

    @notifyq.task("t", limit=1)
    async def work(ctx: TaskContext) -> None:
        runs.append(time.monotonic())
        if ctx.attempt == 1:
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

    await fleet.start(work)
    id = await fleet.put(work.call())
    await fleet.until_call(id, "processing")
    async with nobody_may_connect(fleet, notifyq_dsn):
        cut = time.monotonic()
        await asyncio.wait_for(ended.wait(), 20)
        assert time.monotonic() - cut <= 2.0 + 0.3  # the lease, and a busy machine
    call = await fleet.until_call(id, "done")

    assert "the database did not answer for a whole lease" in caplog.text
    assert (call["attempts"], len(runs)) == (2, 2)


async def test_a_short_absence_of_the_database_ends_nothing(fleet: Fleet, notifyq_dsn: str) -> None:
    """A restart is shorter than a lease: the run goes on, and its end is written afterwards."""
    go_on = asyncio.Event()

    @notifyq.task("t")
    async def work(ctx: TaskContext) -> None:
        await go_on.wait()

    await fleet.start(work, lease=8.0)
    id = await fleet.put(work.call())
    await fleet.until_call(id, "processing")
    async with nobody_may_connect(fleet, notifyq_dsn):
        go_on.set()
        await asyncio.sleep(0.5)
    call = await fleet.until_call(id, "done")

    assert (call["attempts"], await fleet.events(id)) == (1, ["done"])


# ---------------------------------------------------------------- ctx.transaction


def effect(**options: Any) -> Any:
    """A task that leaves one row in its own transaction, and then does *after*."""

    @notifyq.task("effect", backoff=0.01, **options)
    async def leave(ctx: TaskContext, *, after: str = "", before: str = "") -> None:
        async with ctx.transaction() as conn:
            await conn.execute("insert into effects values ($1)", ctx.id)
            if before == "raise" and ctx.attempt == 1:
                raise ValueError("undo it")
            if before == "later" and ctx.attempt == 1:
                ctx.retry_later(0.01)
            if before == "hang" and ctx.attempt == 1:
                await asyncio.sleep(60)
        if after == "raise":
            raise ValueError("too late")
        if after == "again":
            async with ctx.transaction():
                pass

    return leave


async def test_the_work_and_done_commit_together(fleet: Fleet, counted: Callable[[], Any]) -> None:
    """One transaction, one row, and the call is done."""
    leave = effect()
    await fleet.start(leave)
    id = await fleet.put(leave.call())
    await fleet.until_call(id, "done")

    assert (await counted(), await fleet.events(id)) == (1, ["done"])


@pytest.mark.parametrize("before", ["raise", "later"])
async def test_what_ends_the_block_early_undoes_the_work(
    fleet: Fleet, counted: Callable[[], Any], before: str
) -> None:
    """And the next run does it once."""
    leave = effect()
    await fleet.start(leave)
    call = await fleet.until_call(await fleet.put(leave.call(before=before)), "done")

    assert (await counted(), call["attempts"]) == (1, 2)


@pytest.mark.parametrize("after", ["raise", "again"])
async def test_what_comes_after_the_block_cannot_undo_it(
    fleet: Fleet, counted: Callable[[], Any], after: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is done; the error is only told."""
    leave = effect()
    await fleet.start(leave)
    id = await fleet.put(leave.call(after=after))
    await fleet.until_call(id, "done")
    await fleet.stop()

    assert (await counted(), await fleet.events(id)) == (1, ["done"])
    assert "after its transaction had committed, so it is done" in caplog.text


async def test_a_run_that_lost_its_claim_has_its_work_undone(
    fleet: Fleet, counted: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The commit is refused, although the transaction itself was sound."""
    at_the_end, go_on = asyncio.Event(), asyncio.Event()

    @notifyq.task("t", limit=1)
    async def work(ctx: TaskContext) -> None:
        async with ctx.transaction() as conn:
            await conn.execute("insert into effects values ($1)", ctx.id)
            if ctx.attempt == 1:
                at_the_end.set()
                with pytest.raises(asyncio.CancelledError):
                    await go_on.wait()

    await fleet.start(work)
    id = await fleet.put(work.call())
    await asyncio.wait_for(at_the_end.wait(), 20)
    await take_over(fleet, id)
    await fleet.until_call(id, "done")
    await fleet.stop()

    assert (await counted(), await fleet.events(id)) == (1, ["lease ended", "done"])
    assert "changes nothing" in caplog.text


class CommitCutter:
    """A proxy that resets the connection at the first COMMIT: before it arrives, or before its answer."""

    def __init__(self, dsn: str, *, arrives: bool) -> None:
        self._dsn = urlsplit(dsn)
        self._arrives = arrives
        self._serving: set[asyncio.Task[None]] = set()
        self.cut = 0

    async def __aenter__(self) -> CommitCutter:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        login, at, _ = self._dsn.netloc.rpartition("@")
        self.url = self._dsn._replace(netloc=login + at + address).geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        behind, onward = await asyncio.open_connection(self._dsn.hostname, self._dsn.port)
        back = asyncio.create_task(_copy(behind, writer))
        try:
            while (data := await reader.read(65536)) and not (b"COMMIT;" in data and self.cut == 0):
                onward.write(data)
            back.cancel()
            await asyncio.wait((back,))
            if data:
                self.cut += 1
                if self._arrives:
                    onward.write(data)
                    await behind.read(65536)
        finally:
            writer.transport.abort()
            onward.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.transport.abort()


@pytest.mark.parametrize("arrives", [True, False], ids=["committed", "never arrived"])
async def test_a_commit_whose_answer_is_lost_happens_once(
    fleet: Fleet, notifyq_dsn: str, counted: Callable[[], Any], arrives: bool
) -> None:
    """The client cannot know whether it was committed; the fence in the row does."""
    leave = effect()
    async with (
        CommitCutter(notifyq_dsn, arrives=arrives) as proxy,
        asyncpg.create_pool(proxy.url, min_size=0, max_size=10) as pool,
    ):
        worker = await fleet.start(leave, pool=pool)
        id = await fleet.put(leave.call())
        call = await fleet.until_call(id, "done")
        await fleet.stop(worker)

    assert proxy.cut == 1
    assert (await counted(), call["attempts"]) == (1, 1 if arrives else 2)
    assert (await fleet.events(id)).count("done") == 1


async def test_a_long_transaction_is_not_in_the_way_of_its_own_heartbeat(
    fleet: Fleet, notifyq_dsn: str, counted: Callable[[], Any]
) -> None:
    """Where the role's default is SERIALIZABLE, too: each heartbeat changes the row that "done" changes."""
    go_on = asyncio.Event()

    @notifyq.task("t", max_attempts=1)
    async def work(ctx: TaskContext) -> None:
        async with ctx.transaction() as conn:
            await conn.execute("insert into effects values ($1)", ctx.id)
            await go_on.wait()

    settings = {"default_transaction_isolation": "serializable"}
    async with asyncpg.create_pool(notifyq_dsn, min_size=0, max_size=10, server_settings=settings) as pool:
        worker = await fleet.start(work, pool=pool)
        id = await fleet.put(work.call())
        first = (await fleet.until_call(id, "processing"))["lease_until"]

        async def renewed() -> bool:
            return bool((await fleet.call(id))["lease_until"] > first)

        await until(renewed, what="a heartbeat came between")
        go_on.set()
        await fleet.until_call(id, "done")
        await fleet.stop(worker)

    assert await counted() == 1
