"""The work of the tasks lane: claim calls, run them, keep their leases, decide."""

from __future__ import annotations

import inspect
import json
import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread

from notifyq import attempt
from notifyq.attempt import Decision, steady_clock
from notifyq.cleaning import clean
from notifyq.db import DATABASE_FAULTS, Complaints, Link, Pool, seconds
from notifyq.lane import Batch
from notifyq.recorder import Recorder
from notifyq.settings import WorkerSettings
from notifyq.task_context import ClaimLost, RunningCall
from notifyq.task_lifecycle import (
    Ending,
    Failed,
    GaveUp,
    Invalid,
    NotStarted,
    Postponed,
    RetryPolicy,
    Returned,
    Stopped,
    TaskClaim,
    after_run,
)
from notifyq.tasks import GiveUp, RetryLater, Task

__all__ = ["TaskJob", "TaskWork"]

log = logging.getLogger("notifyq")

BEATS: Final = 4
"""Heartbeats in one lease."""


@dataclass(slots=True, kw_only=True, eq=False)
class TaskJob:
    """One claimed call on its way."""

    claim: TaskClaim
    task: Task[Any]
    args: str
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    call: RunningCall | None = None
    lost: bool = False


class TaskWork:
    """See `notifyq.lane.Work`. *freed* wakes the lane when a call of a limited task has ended."""

    def __init__(
        self,
        *,
        worker: str,
        tasks: Mapping[str, Task[Any]],
        settings: WorkerSettings,
        pool: Pool,
        link: Link,
        recorder: Recorder,
        freed: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._tasks = tasks
        self._settings = settings
        self._pool = pool
        self._link = link
        self._recorder = recorder
        self._freed = freed
        self._names = sorted(tasks)
        self._limits = [tasks[name].limit for name in self._names]
        self._lease = seconds(settings.lease)
        self._jobs: dict[int, TaskJob] = {}
        self._threads = anyio.CapacityLimiter(settings.slots)
        self._complaints = Complaints()

    async def claim(self, slots: int) -> Batch[TaskJob]:
        """Claim up to *slots* due calls of the tasks that this worker knows."""
        rows = await self._link.fetch(
            "claim_tasks", self._worker, slots, self._names, self._limits, self._lease
        )
        jobs = [self._job(row) for row in rows if row["id"] is not None]
        self._jobs.update((job.claim.id, job) for job in jobs)
        return Batch(
            jobs=jobs,
            wake_in=rows[0]["wake_in"],
            waited=max((row["waited"] for row in rows if row["id"] is not None), default=0.0),
            others_at_work=rows[0]["others_at_work"],
        )

    async def release_lost(self) -> None:
        """Give back the calls of a claim whose answer was lost: nothing was started under it."""
        await self._link.fetch("release_lost_tasks", self._worker, list(self._jobs))

    def name_of(self, job: TaskJob) -> int:
        """The row's id."""
        return job.claim.id

    async def run(self, job: TaskJob) -> Decision | None:
        """Run the call. None: its end is in the database already, or is no longer ours to write."""
        ending: Ending | None = None
        with job.scope:
            ending = await self._ending(job)
        return self._decide(job, ending)

    def interrupted(self, job: TaskJob) -> Decision | None:
        """A shutdown cancelled the run."""
        return self._decide(job, NotStarted() if job.call is None else Stopped())

    def hand_over(self, decision: Decision | None, job: TaskJob) -> anyio.Event:
        """Have it written, unless it is not ours to write."""
        if decision is None:
            written = anyio.Event()
            written.set()
            return written
        return self._recorder.hand_over(decision)

    def ended(self, job: TaskJob) -> None:
        """Its slot is free, and a limited task has room again."""
        del self._jobs[job.claim.id]
        if job.task.limit is not None:
            self._freed()

    async def keep_leases(self) -> None:
        """The heartbeat: one statement for all calls of this process, a few times in a lease."""
        pause = self._settings.lease / BEATS
        while True:
            slept_from = steady_clock()
            await anyio.sleep(pause)
            late = steady_clock() - slept_from - pause
            if self._jobs and late > pause:
                self._tell_of_blocking(late)
            if self._jobs:
                await self._beat()

    async def _beat(self) -> None:
        jobs = list(self._jobs.values())
        try:
            rows = await self._link.fetch(
                "renew_task_leases",
                [job.claim.id for job in jobs],
                [job.claim.claim_seq for job in jobs],
                self._lease,
            )
        except DATABASE_FAULTS as error:
            self._complaints.about("heartbeat", error)
            return
        self._complaints.over("heartbeat")
        ours = {row[0] for row in rows}
        for job in jobs:
            still_running = self._jobs.get(job.claim.id) is job
            if job.claim.id not in ours and still_running and not (job.call and job.call.completed):
                self._lose(job)

    def _lose(self, job: TaskJob) -> None:
        log.error(
            "task %d (%s): its lease was lost, another worker may have it; this run is cancelled and "
            "changes nothing",
            job.claim.id,
            job.claim.name,
        )
        job.lost = True
        job.scope.cancel()

    def _tell_of_blocking(self, late: float) -> None:
        names = ", ".join(sorted({job.claim.name for job in self._jobs.values()}))
        lost = " Their leases may be lost." if late > self._settings.lease * (BEATS - 1) / BEATS else ""
        log.error("the event loop stood still for %.1f s while these tasks ran: %s.%s", late, names, lost)

    async def _ending(self, job: TaskJob) -> Ending:
        try:
            arguments = job.task.parameters.unpack(json.loads(job.args))
        except TypeError as error:
            return Invalid(clean(str(error)))
        job.call = RunningCall(job.claim, self._pool, job.task.timeout)
        try:
            with anyio.fail_after(job.task.timeout):
                await self._call(job.task, job.call, arguments)
            return Returned()
        except RetryLater as wish:
            return Postponed(wish.delay, clean(str(wish)))
        except GiveUp as wish:
            return GaveUp(clean(str(wish)))
        except ClaimLost:
            job.lost = True
            log.error(
                "task %d (%s): its claim was lost; its transaction was undone", job.claim.id, job.claim.name
            )
            return Stopped()
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            log.error(
                "task %d (%s) failed: %s in %s line %s",
                job.claim.id,
                job.claim.name,
                type(error).__name__,
                place.name,
                place.lineno,
            )
            return Failed(clean(f"{type(error).__name__}: {error}"))

    async def _call(self, task: Task[Any], call: RunningCall, arguments: Mapping[str, Any]) -> None:
        if inspect.iscoroutinefunction(task.function):
            await task.function(call, **arguments)
            return
        run = partial(task.function, call, **arguments)
        await anyio.to_thread.run_sync(run, limiter=self._threads, abandon_on_cancel=True)

    def _decide(self, job: TaskJob, ending: Ending | None) -> Decision | None:
        if job.lost or (job.call is not None and job.call.completed):
            return None
        policy = RetryPolicy(base=job.task.backoff, cap=job.task.backoff_cap)
        transition = after_run(job.claim, ending or Stopped(), policy, attempt.roll())
        return Decision(claim=job.claim, transition=transition)

    def _job(self, row: Any) -> TaskJob:
        claim = TaskClaim(**{name: row[name] for name in _CLAIM_COLUMNS})
        return TaskJob(claim=claim, task=self._tasks[claim.name], args=row["args"])


_CLAIM_COLUMNS: Final = ("id", "name", "key", "claim_seq", "attempts", "max_attempts")
