"""`Budget` against `asyncio.timeout`, whose work it does: the same end in every order of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TypeAlias

import pytest

from notifyq.cancellation import Budget

Limit: TypeAlias = Callable[[float], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def budget(seconds: float) -> AsyncIterator[None]:
    """`Budget`, to be entered as the other one is."""
    with Budget(seconds):
        yield


async def in_time(limit: Limit) -> str:
    """The block ends first."""
    async with limit(60):
        await asyncio.sleep(0)
    return "done"


async def too_late(limit: Limit) -> str:
    """The deadline comes first."""
    async with limit(0.001):
        await asyncio.Event().wait()
    return "done"


async def fails(limit: Limit) -> str:
    """The block's own error is nobody's time-out."""
    async with limit(60):
        raise ValueError("its own")


async def fails_too_late(limit: Limit) -> str:
    """It fails while the deadline ends it."""
    async with limit(0.001):
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("its own")


async def swallows(limit: Limit) -> str:
    """It takes the cancellation for itself, and the task goes on."""
    async with limit(0.001):
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    await asyncio.sleep(0)
    return "went on"


async def over_but_not_yet_cancelled(limit: Limit) -> str:
    """The deadline passes while nothing is awaited, and the block ends by itself."""
    async with limit(0.0):
        asyncio.get_running_loop().call_soon(lambda: None)
    await asyncio.sleep(0)
    return "done"


async def inner_of_two(limit: Limit) -> str:
    """The inner one ends the block, the outer one nothing."""
    async with limit(60):
        try:
            async with limit(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
            return "caught the inner one"
    return "done"


async def outer_of_two(limit: Limit) -> str:
    """The outer one ends both."""
    try:
        async with limit(0.001), limit(60):
            await asyncio.Event().wait()
    except TimeoutError:
        return "caught the outer one"
    return "done"


async def cancelled(limit: Limit) -> str:
    """Somebody else cancels the task."""
    task = asyncio.current_task()
    assert task is not None
    async with limit(60):
        task.cancel()
        await asyncio.Event().wait()
    return "done"


async def cancelled_and_late(limit: Limit) -> str:
    """Both at once: the cancellation from outside goes on."""
    task = asyncio.current_task()
    assert task is not None
    async with limit(0.001):
        try:
            await asyncio.Event().wait()
        finally:
            task.cancel()
            await asyncio.sleep(0)
    return "done"


STORIES: tuple[Callable[[Limit], Awaitable[str]], ...] = (
    in_time,
    too_late,
    fails,
    fails_too_late,
    swallows,
    over_but_not_yet_cancelled,
    inner_of_two,
    outer_of_two,
    cancelled,
    cancelled_and_late,
)


async def end_of(story: Callable[[Limit], Awaitable[str]], limit: Limit) -> tuple[str, int]:
    """How it ends in a task of its own, and how many cancellations that task still owes."""
    owed = 0

    async def tell() -> str:
        nonlocal owed
        try:
            return await story(limit)
        except BaseException as error:
            return type(error).__name__
        finally:
            task = asyncio.current_task()
            owed = 0 if task is None else task.cancelling()

    return await asyncio.create_task(tell()), owed


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_it_ends_as_asyncio_timeout_does(story: Callable[[Limit], Awaitable[str]]) -> None:
    """In the same way, and with the same account of cancellations."""
    assert await end_of(story, budget) == await end_of(story, asyncio.timeout)


async def test_a_deadline_ends_the_block_with_a_timeout_error() -> None:
    """Which is what the caller takes for "no answer in time"."""
    assert await end_of(too_late, budget) == ("TimeoutError", 0)
