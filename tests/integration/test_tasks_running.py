"""What becomes of a call by what its function does: a real worker on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import command
import pytest
from outbox import until
from task_fleet import Fleet

import notifyq
from notifyq import TaskContext, enqueue
from notifyq.testing import FakePostmark

ONE_SERVER_IS_ENOUGH = True

LAST_CLAIM_IS_OVER = """
select bool_and(state = 'idle' and clock_timestamp() - state_change > interval '0.3 s')
from pg_stat_activity
where datname = current_database() and application_name = 'notifyq worker claims'
"""


@pytest.fixture
async def fleet(notifyq_pool: Any, fake_postmark: FakePostmark) -> AsyncIterator[Fleet]:
    """No worker runs yet."""
    async with Fleet(notifyq_pool, fake_postmark) as fleet:
        yield fleet


@dataclass(frozen=True)
class Photo:
    id: int
    tags: list[str]


async def test_a_call_runs_with_the_arguments_that_it_was_given(fleet: Fleet) -> None:
    """Through JSON, the table and another process's eyes."""
    seen: list[Any] = []

    @notifyq.task("resize")
    async def resize(ctx: TaskContext, *, photo: Photo, size: int = 10) -> None:
        seen.append((ctx.id, ctx.attempt, ctx.key, ctx.deadline, ctx.cancelled, photo, size))

    await fleet.start(resize)
    id = await fleet.put(resize.call(photo=Photo(7, ["a"])), key="resize:7")
    call = await fleet.until_call(id, "done")

    assert seen == [(id, 1, "resize:7", None, False, Photo(7, ["a"]), 10)]
    assert (call["attempts"], call["last_error"]) == (1, None)
    assert await fleet.events(id) == ["done"]


async def test_it_runs_if_and_only_if_the_callers_transaction_commits(fleet: Fleet) -> None:
    """The point of an outbox."""
    seen: list[int] = []

    @notifyq.task("t")
    async def work(ctx: TaskContext, *, n: int) -> None:
        seen.append(n)

    await fleet.start(work)
    async with fleet.pool.acquire() as conn:
        with contextlib.suppress(ZeroDivisionError):
            async with conn.transaction():
                await enqueue(conn, work.call(n=1))
                raise ZeroDivisionError
        async with conn.transaction():
            kept = await enqueue(conn, work.call(n=2))
    await fleet.until_call(kept.id, "done")

    assert seen == [2]


async def test_a_plain_function_runs_in_a_thread_and_does_not_hold_up_the_loop(fleet: Fleet) -> None:
    """Two of them meet at a barrier, which they could not in one thread."""
    barrier = threading.Barrier(2, timeout=10)
    threads: set[int] = set()

    @notifyq.task("t")
    def work(ctx: TaskContext) -> None:
        threads.add(threading.get_ident())
        barrier.wait()

    await fleet.start(work)
    ids = [await fleet.put(work.call()) for _ in range(2)]
    for id in ids:
        await fleet.until_call(id, "done")

    assert len(threads - {threading.get_ident()}) == 2


async def test_a_coroutine_function_in_a_plain_wrapper_is_awaited(fleet: Fleet) -> None:
    """A decorator that forgot ``async`` must not turn the work into nothing."""
    seen: list[int] = []

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @notifyq.task("t")
    @decorated
    async def work(ctx: TaskContext) -> None:
        await asyncio.sleep(0)
        seen.append(1)

    await fleet.start(work)
    await fleet.until_call(await fleet.put(work.call()), "done")

    assert seen == [1]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def cancels_itself() -> None:
    """Awaits what it has cancelled."""
    sleeping = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    sleeping.cancel()
    await sleeping


async def raises_in_a_group() -> None:
    """As a task group wraps it."""
    async with anyio.create_task_group():
        raise ValueError("inside")


def raising(error: BaseException) -> Callable[[], Any]:
    """A coroutine function that raises."""

    async def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("does", "shown"),
    [
        (raising(ValueError("no photo of ann@example.com")), "ValueError: no photo of (address)"),
        (raising(ValueError("first\nDETAIL: Key (token)=(s3cret)")), "ValueError: first"),
        (raising(ValueError("nul \x00 surrogate \ud800")), "ValueError: nul surrogate ?"),
        (raising(Unprintable()), "Unprintable: (its text cannot be made)"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (raising(StopAsyncIteration()), "StopAsyncIteration:"),
        (cancels_itself, "RuntimeError: it let a cancellation escape that it had caused itself"),
        (raises_in_a_group, "ValueError: inside"),
    ],
    ids=["address", "detail", "nul", "unprintable", "exit", "stop", "cancelled", "group"],
)
async def test_whatever_a_function_raises_the_call_is_tried_again_and_the_worker_lives(
    fleet: Fleet, does: Callable[[], Any], shown: str
) -> None:
    """One bad call must never stop the mail."""

    @notifyq.task("bad")
    async def bad(ctx: TaskContext) -> None:
        await does()

    @notifyq.task("good")
    async def good(ctx: TaskContext) -> None: ...

    worker = await fleet.start(bad, good)
    id = await fleet.put(bad.call())
    await fleet.until_event("failed", id)
    await fleet.until_call(await fleet.put(good.call()), "done")

    call = await fleet.call(id)
    assert (call["status"], call["attempts"], call["last_error"]) == ("pending", 1, shown)
    assert fleet.is_running(worker)
    assert 90 < (call["run_after"] - call["created_at"]).total_seconds() < 160


@pytest.mark.parametrize("error", [SystemExit(1), StopIteration(), ValueError("x")], ids=repr)
async def test_whatever_a_thread_raises_the_worker_lives(fleet: Fleet, error: BaseException) -> None:
    """``sys.exit()`` in a thread included."""

    @notifyq.task("bad", max_attempts=1)
    def bad(ctx: TaskContext) -> None:
        raise error

    worker = await fleet.start(bad)
    call = await fleet.until_call(await fleet.put(bad.call()), "dead")

    assert call["reason"] == "exhausted"
    assert fleet.is_running(worker)


async def test_a_call_that_fails_every_time_ends_dead(fleet: Fleet) -> None:
    """After its own number of attempts, with the last error."""

    @notifyq.task("bad", max_attempts=3, backoff=0.01)
    async def bad(ctx: TaskContext) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    await fleet.start(bad)
    id = await fleet.put(bad.call())
    call = await fleet.until_call(id, "dead")

    assert (call["reason"], call["attempts"], call["last_error"]) == ("exhausted", 3, "ValueError: attempt 3")
    assert await fleet.events(id) == ["failed", "failed", "exhausted"]


ENQUEUED: dict[str, tuple[str, int]] = {
    "plain insert": ("insert into notifyq.tasks (name) values ('twice') returning id", 2),
    "function": ("select id from notifyq.enqueue_task('twice')", 2),
    "function, with a number": ("select id from notifyq.enqueue_task('twice', p_max_attempts => 4)", 4),
}


@pytest.mark.parametrize("how", ENQUEUED)
async def test_the_attempts_that_a_task_declares_count_for_calls_from_anywhere(
    fleet: Fleet, how: str
) -> None:
    """The author of the task knows how often it may run; whoever enqueues it may know better."""
    sql, allowed = ENQUEUED[how]

    @notifyq.task("twice", max_attempts=2, backoff=0.001)
    async def twice(ctx: TaskContext) -> None:
        raise RuntimeError("no")

    await fleet.start(twice)
    id = await fleet.pool.fetchval(sql)
    call = await fleet.until_call(id, "dead")

    assert (call["reason"], call["attempts"], call["max_attempts"]) == ("exhausted", allowed, allowed)


async def test_a_call_that_fails_says_in_the_log_where_its_text_is(
    fleet: Fleet, notifyq_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The text may quote what is private, so the log has the place and the command, and the row the text."""

    @notifyq.task("fails", max_attempts=1)
    async def fails(ctx: TaskContext) -> None:
        raise RuntimeError("no such photo")

    await fleet.start(fails)
    id = await fleet.put(fails.call())
    call = await fleet.until_call(id, "dead")

    assert call["last_error"] == "RuntimeError: no such photo"
    assert (
        f"task {id} (fails) failed: RuntimeError in fails (integration/test_tasks_running.py:" in caplog.text
    )
    assert f"notifyq show task:{id}" in caplog.text and "photo" not in caplog.text
    for words in (("show", f"task:{id}"), ("list", "tasks")):
        shown = await asyncio.to_thread(command.notifyq, notifyq_dsn, *words)
        assert "RuntimeError: no such photo" in shown.stdout
    assert f"task {id} (fails) is dead (exhausted): `notifyq show task:{id}`" in caplog.messages


async def test_a_call_may_ask_to_run_again_later(fleet: Fleet) -> None:
    """Also out of a task group, which wraps what it raises."""

    @notifyq.task("t")
    async def work(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            async with anyio.create_task_group():
                ctx.retry_later(0.01, "not there yet")

    await fleet.start(work)
    id = await fleet.put(work.call())
    call = await fleet.until_call(id, "done")

    assert (call["attempts"], await fleet.events(id)) == (2, ["postponed", "done"])


@pytest.mark.parametrize("delay", [-1.0, float("nan"), float("inf"), 1e12])
async def test_a_delay_that_cannot_be_is_a_failure_of_the_call(fleet: Fleet, delay: float) -> None:
    """The database could not write it, and the row would stay as it is for ever."""

    @notifyq.task("t", max_attempts=1)
    async def work(ctx: TaskContext) -> None:
        ctx.retry_later(delay)

    await fleet.start(work)
    call = await fleet.until_call(await fleet.put(work.call()), "dead")

    assert call["last_error"].startswith("ValueError: retry_later")


async def test_a_call_may_give_up_from_a_thread_too(fleet: Fleet) -> None:
    """Final at once, with the reason that it gives."""

    @notifyq.task("t")
    def work(ctx: TaskContext) -> None:
        ctx.give_up("the photo is gone")

    await fleet.start(work)
    call = await fleet.until_call(await fleet.put(work.call()), "dead")

    assert (call["reason"], call["attempts"], call["last_error"]) == ("gave_up", 1, "the photo is gone")


@pytest.mark.parametrize("args", ['{"n": "x"}', "{}", '{"n": 1, "gone": 2}'])
async def test_stored_arguments_that_do_not_fit_end_the_call(fleet: Fleet, args: str) -> None:
    """Plain SQL enqueued it, or the function has changed: no run can ever succeed."""

    @notifyq.task("t")
    async def work(ctx: TaskContext, *, n: int) -> None: ...

    await fleet.start(work)
    id = await fleet.pool.fetchval("select id from notifyq.enqueue_task('t', $1)", args)
    call = await fleet.until_call(id, "dead")

    assert call["reason"] == "invalid"
    assert "work" in call["last_error"]


async def test_a_coroutine_that_runs_too_long_is_cancelled_and_has_failed(fleet: Fleet) -> None:
    """The error says which limit it was."""
    ended: list[str] = []

    @notifyq.task("t", timeout=0.1, max_attempts=1)
    async def work(ctx: TaskContext) -> None:
        assert ctx.deadline is not None and 0 < ctx.deadline <= 0.1
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled" if ctx.cancelled else "not told")

    await fleet.start(work)
    call = await fleet.until_call(await fleet.put(work.call()), "dead")

    assert ended == ["cancelled"]
    assert call["last_error"] == "TimeoutError: it ran longer than its timeout of 0.1 s"


async def test_a_functions_own_timeout_is_its_own_error(fleet: Fleet) -> None:
    """Not taken for ours."""

    @notifyq.task("t", timeout=30, max_attempts=1)
    async def work(ctx: TaskContext) -> None:
        raise TimeoutError("the camera does not answer")

    await fleet.start(work)
    call = await fleet.until_call(await fleet.put(work.call()), "dead")

    assert call["last_error"] == "TimeoutError: the camera does not answer"


async def test_a_thread_that_runs_too_long_is_told_and_keeps_its_claim_until_it_returns(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be stopped; another run beside it would be two at once."""
    go_on = threading.Event()
    was_told: list[bool] = []

    @notifyq.task("t", timeout=0.1, max_attempts=1)
    def work(ctx: TaskContext) -> None:
        go_on.wait(20)
        was_told.append(ctx.cancelled)

    await fleet.start(work)
    id = await fleet.put(work.call())

    async def told() -> bool:
        return "runs longer than its timeout" in caplog.text

    await until(told, what="the log tells of it")
    assert (await fleet.call(id))["status"] == "processing"
    go_on.set()
    call = await fleet.until_call(id, "dead")

    assert was_told == [True]
    assert call["last_error"].startswith("TimeoutError")


async def test_a_limit_of_one_over_eight_workers_is_never_passed(notifyq_dsn: str, fleet: Fleet) -> None:
    """1,000 calls of one task, eight workers, and each worker would take them all."""
    import asyncpg

    running = peak = ran = 0

    @notifyq.task("one", limit=1)
    async def one(ctx: TaskContext) -> None:
        nonlocal running, peak, ran
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        ran += 1

    await fleet.pool.execute("insert into notifyq.tasks (name) select 'one' from generate_series(1, 1000)")
    async with asyncpg.create_pool(notifyq_dsn, min_size=0, max_size=60) as pool:
        workers = [await fleet.start(one, pool=pool, lease=20.0) for _ in range(8)]
        await fleet.until_all("done", 1000, seconds=100)
        await fleet.stop(*workers)

    assert (peak, ran) == (1, 1000)


async def test_room_that_another_worker_leaves_is_found_within_seconds(fleet: Fleet) -> None:
    """The one that had the running call has gone; the other waits for room, and nobody rings it."""
    started, go_on = asyncio.Event(), asyncio.Event()

    @notifyq.task("one", limit=1)
    async def one(ctx: TaskContext, *, n: int) -> None:
        if n == 1:
            started.set()
            await go_on.wait()

    first = await fleet.start(one, poll=60.0, quiet_poll=60.0)
    await fleet.put(one.call(n=1))
    await started.wait()
    await fleet.start(one, poll=60.0, quiet_poll=60.0)
    second = await fleet.put(one.call(n=2))
    stopping = asyncio.create_task(fleet.stop(first))
    await asyncio.sleep(0)
    go_on.set()
    await stopping

    await fleet.until_call(second, "done", seconds=5)


async def test_urgent_calls_run_first(fleet: Fleet) -> None:
    """With one slot, the order is the order of priority."""
    order: list[str] = []

    @notifyq.task("bulk")
    async def bulk(ctx: TaskContext) -> None:
        order.append("bulk")

    @notifyq.task("urgent", priority=-1)
    async def urgent(ctx: TaskContext) -> None:
        order.append("urgent")

    await fleet.put(bulk.call())
    await fleet.put(urgent.call())
    await fleet.start(bulk, urgent, slots=1)
    await fleet.until_all("done", 2)

    assert order == ["urgent", "bulk"]


async def test_a_call_of_an_unknown_name_waits_untouched_while_others_run(fleet: Fleet) -> None:
    """A deploy: the old worker meets tomorrow's calls."""

    @notifyq.task("known")
    async def known(ctx: TaskContext) -> None: ...

    @notifyq.task("tomorrow")
    async def tomorrow(ctx: TaskContext) -> None: ...

    stranger = await fleet.put(tomorrow.call())
    before = await fleet.pool.fetchval("select xmin::text from notifyq.tasks where id = $1", stranger)
    await fleet.start(known)
    for _ in range(3):
        await fleet.until_call(await fleet.put(known.call()), "done")

    assert before == await fleet.pool.fetchval("select xmin::text from notifyq.tasks where id = $1", stranger)

    await fleet.start(known, tomorrow)
    await fleet.until_call(stranger, "done")


async def test_same_key_while_active_is_one_row_and_after_done_a_second(fleet: Fleet) -> None:
    """While it runs counts as active."""
    started, go_on = asyncio.Event(), asyncio.Event()

    @notifyq.task("t")
    async def work(ctx: TaskContext) -> None:
        started.set()
        await go_on.wait()

    await fleet.start(work)
    first = await enqueue(fleet.pool, work.call(), key="k")
    await started.wait()
    again = await enqueue(fleet.pool, work.call(), key="k")
    go_on.set()
    await fleet.until_call(first.id, "done")
    after = await enqueue(fleet.pool, work.call(), key="k")

    assert (again.id, again.created) == (first.id, False)
    assert after.created and after.id != first.id


# ---------------------------------------------------------------- shutdown


async def test_a_shutdown_lets_running_calls_finish_within_grace(fleet: Fleet) -> None:
    """Nothing is run twice by a deploy."""
    started, go_on = asyncio.Event(), asyncio.Event()

    @notifyq.task("t")
    async def work(ctx: TaskContext) -> None:
        started.set()
        await go_on.wait()

    worker = await fleet.start(work, lease=20.0)
    id = await fleet.put(work.call())
    await started.wait()
    stopping = asyncio.create_task(fleet.stop(worker))

    async def claims_no_more() -> bool:
        return bool(await fleet.pool.fetchval(LAST_CLAIM_IS_OVER))

    await until(claims_no_more, what="a claim that was under way is over")
    waiting = await fleet.put(work.call())
    go_on.set()
    await stopping

    assert ((await fleet.call(id))["status"], (await fleet.call(id))["attempts"]) == ("done", 1)
    assert ((await fleet.call(waiting))["status"], (await fleet.call(waiting))["attempts"]) == ("pending", 0)


async def test_a_call_that_outlasts_grace_is_cancelled_given_back_and_charged(fleet: Fleet) -> None:
    """It had been started: half of its work may be done."""
    started = asyncio.Event()
    ended: list[bool] = []

    @notifyq.task("t")
    async def work(ctx: TaskContext) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    worker = await fleet.start(work, grace=0.1)
    id = await fleet.put(work.call())
    await started.wait()
    await fleet.stop(worker)

    call = await fleet.call(id)
    assert (call["status"], call["attempts"], ended) == ("pending", 1, [True])
    assert await fleet.events(id) == ["stopped"]


async def test_a_thread_that_outlasts_grace_is_told_and_its_call_waits_for_the_lease(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Given back at once, it would run beside itself."""
    started, told = threading.Event(), threading.Event()

    @notifyq.task("t")
    def work(ctx: TaskContext) -> None:
        started.set()
        while not ctx.cancelled:
            told.wait(0.01)
        told.set()

    worker = await fleet.start(work, grace=0.1)
    id = await fleet.put(work.call())
    await asyncio.to_thread(started.wait, 10)
    with caplog.at_level(logging.WARNING):
        await fleet.stop(worker)

    assert await asyncio.to_thread(told.wait, 10)
    assert ((await fleet.call(id))["status"], (await fleet.call(id))["attempts"]) == ("processing", 1)
    assert "still runs in its thread" in caplog.text
