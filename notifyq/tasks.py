"""Tasks: functions that run later, in a worker, after the caller's transaction committed.

A *task* is the function, a *call* is one use of it. Names are explicit and stable, so that moving a
function orphans no row. Nothing here does I/O: the worker runs what is declared here.

A call may run more than once (its worker was killed, its end could not be written); what it does in
`TaskContext.transaction` happens exactly once.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol

from notifyq.arguments import Parameters
from notifyq.schedule import Missed, Schedule

__all__ = [
    "Call",
    "GiveUp",
    "Registry",
    "RetryLater",
    "Task",
    "TaskContext",
    "check_declaration",
    "check_is_bare",
    "periodic",
    "registered",
    "task",
]

P = ParamSpec("P")


class RetryLater(Exception):
    """Raised by ``ctx.retry_later``: run this call again in *delay* seconds."""

    def __init__(self, delay: float, reason: str = "") -> None:
        super().__init__(reason or f"retry in {delay:g} s")
        self.delay = delay


class GiveUp(Exception):
    """Raised by ``ctx.give_up``: this call is dead, for the reason given."""


class TaskContext(Protocol):
    """What a running call knows and may do. Handed to every task as its first argument.

    Example::

        @notifyq.task("make-invoice")
        async def make_invoice(ctx: notifyq.TaskContext, *, order_id: int) -> None:
            async with ctx.transaction() as conn:  # the invoice and "done" commit together
                await conn.execute("insert into invoices (order_id) values ($1)", order_id)
    """

    @property
    def id(self) -> int:
        """The row's id in ``notifyq.tasks``."""

    @property
    def attempt(self) -> int:
        """1 for the first run, and so on."""

    @property
    def key(self) -> str | None:
        """The key that the call was enqueued with."""

    @property
    def deadline(self) -> float | None:
        """Seconds left until the task's timeout ends this run; None without a timeout."""

    @property
    def cancelled(self) -> bool:
        """True once this run should end: its timeout passed, its claim was lost, the worker stops.

        A coroutine is cancelled at its next await anyway. A function in a thread cannot be stopped from
        outside: a long one looks here now and then, and returns.
        """

    @property
    def pool(self) -> Any:
        """The worker's asyncpg pool."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A connection in a transaction that commits the work and ``done`` together.

        What happens in it happens exactly once: if the claim was lost meanwhile, the commit is refused
        and everything rolls back. Once a run, for coroutines only.
        """

    def retry_later(self, delay: float, reason: str = "") -> NoReturn:
        """End this run and run the call again in *delay* seconds.

        This run was an attempt: after ``max_attempts`` of them the call is ``dead``. Raises ValueError for
        a delay that is negative or longer than a year.
        """

    def give_up(self, reason: str) -> NoReturn:
        """End this call for good; *reason* is kept in the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One use of a task, ready to be enqueued: made by `Task.call`."""

    name: str
    args: dict[str, Any] = field(repr=False)
    priority: int
    max_attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[P]):
    """A function that workers run. Made by `task`.

    Example: ``await notifyq.enqueue(conn, make_invoice.call(order_id=7), key="invoice:7")``
    """

    name: str
    function: Callable[..., Any]
    timeout: float | None
    max_attempts: int
    limit: int | None
    priority: int
    backoff: float
    backoff_cap: float
    parameters: Parameters = field(repr=False)
    schedule: Schedule | None = None

    if TYPE_CHECKING:

        def __call__(self, ctx: TaskContext, *args: P.args, **kwargs: P.kwargs) -> Any:
            """Run it here and now, as the function it is: for tests."""

    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Run it here and now, as the function it is: for tests. Raises TypeError without a context."""
            if not args and "ctx" not in kwargs:
                raise TypeError(
                    f"task {self.name!r} runs in a worker, with a context: to enqueue it, "
                    f"`await notifyq.enqueue(conn, {self.function.__name__}.call(...))`"
                )
            return self.function(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """One use of it. Raises TypeError for arguments that do not fit or JSON cannot keep."""
        return Call(
            name=self.name,
            args=self.parameters.pack(args, kwargs),
            priority=self.priority,
            max_attempts=self.max_attempts,
        )


class Registry(dict[str, Any]):
    """What has been declared, by name. A name stands for one function."""

    def add(self, name: str, thing: Any, function: Callable[..., Any]) -> None:
        """Keep *thing*. Raises ValueError if another function has the name already."""
        known = self.get(name)
        if known is not None and _place(known.function) != _place(function):
            raise ValueError(
                f"{name!r} is declared twice: in {_place(known.function)} and in {_place(function)}"
            )
        self[name] = thing


def check_declaration(decorator: str, name: Any) -> None:
    """Raise TypeError or ValueError unless *name* can be the name that *decorator* was given.

    Example: ``check_declaration("task", "resize")``
    """
    if not isinstance(name, str):
        raise TypeError(f'@notifyq.{decorator} takes a name: @notifyq.{decorator}("a-name")')
    if not 1 <= len(name) <= 200 or "\x00" in name:
        raise ValueError(f"@notifyq.{decorator}: a name has 1 to 200 characters, and no NUL")


def check_is_bare(decorator: str, function: Any) -> None:
    """Raise TypeError if *function* has been declared as a task or a builder already.

    Example: ``check_is_bare("email", order_shipped)``
    """
    if isinstance(getattr(function, "parameters", None), Parameters):
        kind = "task" if isinstance(function, Task) else "builder"
        raise TypeError(
            f"@notifyq.{decorator} goes on a plain function: {function.name!r} is a {kind} already"
        )


registered: Registry = Registry()
"""All tasks declared in this process: what a `Worker` runs if it is not given any."""


def task(
    name: str,
    *,
    timeout: float | None = None,
    max_attempts: int = 10,
    limit: int | None = None,
    priority: int = 0,
    backoff: float = 60.0,
    backoff_cap: float = 7200.0,
) -> Callable[[Callable[Concatenate[TaskContext, P], Awaitable[None] | None]], Task[P]]:
    """Declare a task. A plain function runs in a thread.

    *timeout* (seconds) cancels a run, which then has failed; a function in a thread is only told
    (`TaskContext.cancelled`), and keeps its claim and its slot until it returns. *limit* is how many calls
    may run at once over all workers; it holds while leases hold. A failed run waits
    ``backoff × 2^attempts`` seconds ± 20 %, at most *backoff_cap*, and is ``dead`` after *max_attempts*
    runs, where a run that was begun counts even if its worker was killed. A call from SQL or the command
    that names no ``max_attempts`` takes this one when it is first claimed (its row says 10 until then);
    any other number in the row wins. A lower *priority* goes first.

    Start other programs with ``subprocess``, other processes with ``multiprocessing``, best by ``spawn``. A
    bare fork has the worker's own connections: a child that returns from the function, or awaits, is ended.

    Raises ValueError for a name that another function has or a setting that cannot be, TypeError for
    parameters that cannot be stored.

    Example::

        @notifyq.task("resize", limit=4)
        async def resize(ctx: notifyq.TaskContext, *, photo_id: int) -> None: ...
    """
    check_declaration("task", name)
    if (limit is not None and limit < 1) or max_attempts < 1:
        raise ValueError(f"task {name!r}: limit and max_attempts are at least 1")
    for what, value in (("timeout", timeout), ("backoff", backoff), ("backoff_cap", backoff_cap)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"task {name!r}: {what} is a number of seconds above 0")

    def declare(function: Callable[Concatenate[TaskContext, P], Awaitable[None] | None]) -> Task[P]:
        check_is_bare("task", function)
        declared: Task[P] = Task(
            name=name,
            function=function,
            timeout=timeout,
            max_attempts=max_attempts,
            limit=limit,
            priority=priority,
            backoff=backoff,
            backoff_cap=backoff_cap,
            parameters=Parameters(function, skip=1),
        )
        registered.add(name, declared, function)
        return declared

    return declare


def periodic(
    expression: str, *, timezone: str = "UTC", missed: Missed = "skip"
) -> Callable[[Task[P]], Task[P]]:
    """Run a task at the times of a cron *expression*, once per tick however many workers there are.

    *missed* says what happens to ticks that passed while no worker ran, and are late by more than a
    minute: ``"skip"`` them, or run ``"one"``, the newest. A tick does not wait for the call of the tick
    before; ``limit=1`` makes them run one after the other.
    Daylight saving follows Debian's cron: a wildcard hour follows the wall clock, a fixed time that is
    skipped in spring runs right after the gap, and one that occurs twice in autumn runs once.

    Raises `InvalidSettings` for an expression or a time zone that means nothing, or if the extra
    ``periodic`` is not installed.

    Example::

        @notifyq.periodic("0 3 * * *", timezone="Europe/Paris")
        @notifyq.task("nightly-report")
        async def nightly_report(ctx: notifyq.TaskContext) -> None: ...
    """
    schedule = Schedule(expression=expression, timezone=timezone, missed=missed)

    def plan(planned: Task[P]) -> Task[P]:
        if not isinstance(planned, Task):
            raise TypeError("@notifyq.periodic plans a task: put @periodic above @task")
        planned.parameters.pack((), {})  # refuses a task that cannot be called without arguments
        scheduled = replace(planned, schedule=schedule)
        registered.add(planned.name, scheduled, planned.function)
        return scheduled

    return plan


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
