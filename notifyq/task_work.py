"""The work of the tasks lane: claim calls, have them run, keep their leases, decide."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from notifyq import attempt
from notifyq.attempt import Decision, steady_clock
from notifyq.db import DATABASE_FAULTS, Complaints, Link, Pool, seconds
from notifyq.lane import Batch, Room
from notifyq.recorder import Recorder
from notifyq.settings import WorkerSettings
from notifyq.task_lifecycle import (
    Ending,
    NotStarted,
    RetryPolicy,
    Stopped,
    TaskClaim,
    TaskPending,
    after_run,
    attempts_allowed,
)
from notifyq.task_run import TaskJob, run_call, runs_in_thread
from notifyq.tasks import Task

__all__ = ["TaskWork"]

log = logging.getLogger("notifyq")

BEATS: Final = 4
"""Heartbeats in one lease."""

SHUT_DOWN: Final = Stopped("the worker was shut down while it ran this call")
LAPSED: Final = Stopped("the database did not answer for a whole lease while this call ran")


class TaskWork:
    """See `notifyq.lane.Work`. *freed* wakes the lane when an ended call leaves something to claim."""

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
        self._jobs: set[TaskJob] = set()
        self._threads = anyio.CapacityLimiter(settings.slots)
        self._complaints = Complaints()

    async def claim(self, room: Room, *, rung: bool) -> Batch[TaskJob]:
        """Claim due calls of the tasks that this worker knows, as many as there is *room* for."""
        claimed_at = steady_clock()
        rows = await self._link.fetch(
            "claim_tasks", self._worker, room.slots, self._names, self._limits, self._lease, room.bulk
        )
        claimed = [row for row in rows if row["id"] is not None]
        await self._adopt(claimed)
        jobs = [self._job(row, claimed_at) for row in claimed]
        self._lose_claimed_again({job.claim.id for job in jobs})
        self._jobs.update(jobs)
        return Batch(
            jobs=jobs,
            wake_in=rows[0]["wake_in"],
            waited=max((row["waited"] for row in claimed), default=0.0),
            others_at_work=rows[0]["others_at_work"],
        )

    def is_urgent(self, job: TaskJob) -> bool:
        """True if it may use the slots kept for urgent calls."""
        return job.urgent

    async def release_lost(self) -> None:
        """Give back the calls of a claim whose answer was lost: nothing was started under it."""
        released = await self._link.fetch(
            "release_lost_tasks", self._worker, [job.claim.id for job in self._jobs]
        )
        if released:
            log.info("%d tasks claimed by a lost statement were given back", len(released))

    def name_of(self, job: TaskJob) -> int:
        """The row's id."""
        return job.claim.id

    async def run(self, job: TaskJob) -> Decision | None:
        """Run the call. None: its end is in the database already, or is no longer ours to write."""
        ending: Ending | None = None
        with job.scope:
            ending = await run_call(job, self._pool, self._threads)
        return self._decide(job, ending or (LAPSED if job.lapsed else SHUT_DOWN))

    def interrupted(self, job: TaskJob) -> Decision | None:
        """A shutdown cancelled the run. What runs in a thread goes on, so its lease must run out first."""
        if job.call is None:
            return self._decide(job, NotStarted())
        job.call.ended = True
        if runs_in_thread(job.task) and not job.lost:
            log.warning("%s still runs in its thread; it is run again once its lease is over", job)
            return None
        return self._decide(job, SHUT_DOWN)

    def hand_over(self, decision: Decision | None, job: TaskJob) -> asyncio.Event:
        """Have it written, unless it is not ours to write."""
        if decision is None:
            written = asyncio.Event()
            written.set()
            return written
        return self._recorder.hand_over(decision)

    def comes_again(self, decision: Decision | None) -> bool:
        """True if the row will be due again."""
        return decision is not None and isinstance(decision.transition, TaskPending)

    def ended(self, job: TaskJob) -> None:
        """Its slot is free. A limited task has room again, and a call that waits again is due sometime."""
        self._jobs.remove(job)
        if job.task.limit is not None or job.again:
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
                await self._beat(list(self._jobs), pause)
            self._tell_of_overdue()

    async def _beat(self, jobs: list[TaskJob], pause: float) -> None:
        asked_at = steady_clock()
        try:
            with anyio.fail_after(pause):
                rows = await self._link.fetch(
                    "renew_task_leases",
                    [job.claim.id for job in jobs],
                    [job.claim.claim_seq for job in jobs],
                    self._lease,
                )
        except DATABASE_FAULTS as error:
            self._complaints.about("heartbeat", error)
            self._let_lapse(jobs, pause)
            return
        self._complaints.over("heartbeat")
        ours = {row[0] for row in rows}
        for job in jobs:
            if job.claim.id in ours and not job.lost:
                job.renewed_at = asked_at
            elif not (job.over or (job.call and (job.call.completing or job.call.completed))):
                self._lose(job)

    def _lose_claimed_again(self, ids: set[int]) -> None:
        """This very process has claimed them anew: their earlier runs have lost their lease, unnoticed."""
        for job in self._jobs:
            if job.claim.id in ids and not job.over:
                self._lose(job)

    def _lose(self, job: TaskJob) -> None:
        if job.lost:
            return
        log.error(
            "%s: its lease was lost, another worker may have it; this run is cancelled and changes nothing",
            job,
        )
        job.lost = True
        job.end()

    def _let_lapse(self, jobs: list[TaskJob], pause: float) -> None:
        """End what nobody could renew before its lease is over: cut off, this is all that we can know."""
        must_hold_until = steady_clock() + pause
        for job in jobs:
            if must_hold_until >= job.renewed_at + self._settings.lease and not (job.over or job.lapsed):
                log.error("%s is cancelled: the database did not answer for a whole lease", job)
                job.lapsed = True
                job.end()

    def _tell_of_blocking(self, late: float) -> None:
        names = ", ".join(sorted({job.claim.name for job in self._jobs}))
        lost = " Their leases may be lost." if late > self._settings.lease * (BEATS - 1) / BEATS else ""
        log.error("the event loop stood still for %.1f s while these tasks ran: %s.%s", late, names, lost)

    def _tell_of_overdue(self) -> None:
        """A coroutine has been cancelled by then; a function in a thread can only be told."""
        for job in self._jobs:
            if job.call is not None and job.call.overdue and not (job.over or job.told_overdue):
                job.told_overdue = True
                log.error(
                    "%s runs longer than its timeout of %g s, and cannot be stopped: it keeps its slot",
                    job,
                    job.task.timeout,
                )

    def _decide(self, job: TaskJob, ending: Ending) -> Decision | None:
        job.over = True
        if job.lost or (job.call is not None and job.call.completed):
            return None
        policy = RetryPolicy(base=job.task.backoff, cap=job.task.backoff_cap)
        transition = after_run(job.claim, ending, policy, attempt.roll())
        job.again = isinstance(transition, TaskPending)
        return Decision(claim=job.claim, transition=transition)

    async def _adopt(self, rows: list[Any]) -> None:
        """Write into calls that were enqueued without ``max_attempts`` what their task declares.

        So it counts, and is shown, wherever a call came from, also where its end is written by another
        worker. If this fails, the claim is one whose answer was lost, and is given back.
        """
        allowed = [(row, self._allowed(row)) for row in rows]
        news = [(row["id"], row["claim_seq"], most) for row, most in allowed if most != row["max_attempts"]]
        if news:
            await self._link.fetch("adopt_max_attempts", *map(list, zip(*news, strict=True)))

    def _allowed(self, row: Any) -> int:
        return attempts_allowed(row["max_attempts"], self._tasks[row["name"]].max_attempts)

    def _job(self, row: Any, claimed_at: float) -> TaskJob:
        columns = {name: row[name] for name in _CLAIM_COLUMNS}
        claim = TaskClaim(**columns, max_attempts=self._allowed(row))
        return TaskJob(
            claim=claim,
            task=self._tasks[claim.name],
            args=row["args"],
            urgent=row["urgent"],
            renewed_at=claimed_at,
        )


_CLAIM_COLUMNS: Final = ("id", "name", "key", "claim_seq", "attempts")
