"""One run of one call: user code is called, and every way in which it can end becomes an `Ending`.

A function may fork. A child that came back out of it would go on as a second worker, on the very
connections of this one; it is ended instead.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import types
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread

from notifyq.blame import log_traceback, place_of
from notifyq.cancellation import being_cancelled
from notifyq.cleaning import clean
from notifyq.db import Pool
from notifyq.task_context import ClaimLost, RunningCall
from notifyq.task_lifecycle import Ending, Failed, GaveUp, Invalid, Postponed, Returned, Stopped, TaskClaim
from notifyq.tasks import GiveUp, RetryLater, Task

__all__ = ["TaskJob", "run_call", "runs_in_thread"]

log = logging.getLogger("notifyq")

FORKED: Final = 70
"""The exit status of a forked child that is ended here (EX_SOFTWARE)."""


@dataclass(slots=True, kw_only=True, eq=False)
class TaskJob:
    """One claimed call on its way. *renewed_at*: the steady clock before its lease was last asked for.

    *lost*: another worker may have it, nothing is ours to write. *lapsed*: the database was away for a
    whole lease. *over*: the run has ended and its end is being written. *again*: it will run once more.
    """

    claim: TaskClaim
    task: Task[Any]
    args: str
    urgent: bool
    renewed_at: float
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    call: RunningCall | None = None
    lost: bool = False
    lapsed: bool = False
    over: bool = False
    again: bool = False
    told_overdue: bool = False

    def __str__(self) -> str:
        return f"task {self.claim.id} ({self.claim.name})"

    def end(self) -> None:
        """Cancel the run; a function in a thread is told."""
        if self.call is not None:
            self.call.ended = True
        self.scope.cancel()


def runs_in_thread(task: Task[Any]) -> bool:
    """A plain function does, a coroutine function does not."""
    return not inspect.iscoroutinefunction(task.function)


async def run_call(job: TaskJob, pool: Pool, threads: anyio.CapacityLimiter) -> Ending:
    """Run it. Raises nothing but a cancellation that is ours."""
    try:
        arguments = job.task.parameters.unpack(json.loads(job.args))
    except TypeError as error:
        return Invalid(clean(str(error)))
    job.call = RunningCall(job.claim, pool, job.task.timeout)
    function = partial(job.task.function, job.call, **arguments)
    try:
        await _call(job.task, job.call, function, threads)
        return Returned()
    except anyio.get_cancelled_exc_class():
        if being_cancelled():
            raise
        return _failed(job, RuntimeError("it let a cancellation escape that it had caused itself"))
    except BaseException as error:  # user code: whatever it raises ends its call, never the worker
        return _ending_of(job, error)


async def _call(
    task: Task[Any], call: RunningCall, function: Callable[[], Any], threads: anyio.CapacityLimiter
) -> None:
    if not runs_in_thread(task):
        await _within_timeout(task, function())
        return
    result = await anyio.to_thread.run_sync(_contained, function, limiter=threads, abandon_on_cancel=True)
    if inspect.isawaitable(result):  # a coroutine function in a plain wrapper
        await _within_timeout(task, result)
    elif call.overdue:
        raise _timed_out(task)


def _contained(function: Callable[[], Any]) -> Any:
    """Call *function*; what would end the thread's own machinery becomes an error like any other."""
    own = os.getpid()
    try:
        return function()
    except GeneratorExit:
        raise RuntimeError("it raised GeneratorExit") from None
    finally:
        _end_child_of(own)


async def _within_timeout(task: Task[Any], running: Any) -> None:
    with anyio.move_on_after(task.timeout) as scope:
        await _in_one_process(running)
    if scope.cancelled_caught:
        raise _timed_out(task)


@types.coroutine
def _in_one_process(running: Awaitable[Any]) -> Generator[Any, Any, Any]:
    """``await running``, of which a forked child awaits nothing: its event loop would be the worker's."""
    own = os.getpid()
    steps = _awaited(running)
    resume: Callable[[], Any] = partial(steps.send, None)
    while True:
        try:
            waits_for = resume()
        except StopIteration as end:
            return end.value
        finally:
            _end_child_of(own)
        try:
            resume = partial(steps.send, (yield waits_for))
        except BaseException as error:
            resume = partial(steps.throw, error)


async def _awaited(running: Awaitable[Any]) -> Any:
    return await running


def _end_child_of(parent: int) -> None:
    if os.getpid() != parent:
        log.error("a process that a task forked came back into the worker; it ends here")
        os._exit(FORKED)


def _timed_out(task: Task[Any]) -> TimeoutError:
    return TimeoutError(f"it ran longer than its timeout of {task.timeout:g} s")


def _ending_of(job: TaskJob, error: BaseException) -> Ending:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]  # a task group wraps even what ctx raises
    match error:
        case RetryLater():
            return Postponed(error.delay, clean(str(error)))
        case GiveUp():
            return GaveUp(clean(str(error)))
        case ClaimLost():
            job.lost = True
            log.error("%s: its claim was lost; its transaction was undone, this run changes nothing", job)
            return Stopped("its claim was lost")
        case _:
            return _failed(job, error)


def _failed(job: TaskJob, error: BaseException) -> Failed:
    where, shown = place_of(error, job.task.function), _shown(error)
    done = " after its transaction had committed, so it is done" if job.call and job.call.completed else ""
    kind, read = type(error).__name__, f"notifyq show task:{job.claim.id}"
    log.error("%s failed%s: %s in %s; what it said: %s", job, done, kind, where, read)
    log_traceback(job, error, shown)
    return Failed(shown)


def _shown(error: BaseException) -> str:
    """The first line only: a database's next ones quote rows."""
    try:
        first = str(error).strip().partition("\n")[0]
    except Exception:
        first = "(its text cannot be made)"
    return clean(f"{type(error).__name__}: {first}")
