"""The work of the emails lane: claim rows, send them or ask about them, decide."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from notifyq import attempt
from notifyq.asking import Asker
from notifyq.attempt import Decision, LastLook, steady_clock
from notifyq.builders import Unrenderable
from notifyq.cleaning import clean
from notifyq.clock_watch import ClockWatch
from notifyq.db import Link, seconds
from notifyq.errors import InvalidEmail
from notifyq.lane import Batch, Room
from notifyq.lifecycle import Claim, Doubt, Pending, after_ask, builder_failed, unrenderable
from notifyq.low_water import LowWater
from notifyq.provider import Inconclusive, Missing, Provider
from notifyq.recorder import Recorder
from notifyq.rendering import BuilderFailed, Renderer
from notifyq.settings import WorkerSettings

__all__ = ["EmailJob", "EmailWork"]

log = logging.getLogger("notifyq")

FIRST_LOOKS = 4
"""With a backlog so many claims in a row look at what is foremost only; asks and the rest wait that long."""

SOON = 1.0
"""Seconds. A claim that wants the next one so soon may have left something due."""

SLOW_ANSWER = 1.0
"""A claim that took longer than this says too little about the clocks, in seconds."""


@dataclass(slots=True, kw_only=True, eq=False)
class EmailJob:
    """One claimed row on its way: the claim, the message (None for an ask) and the last look at the clock."""

    claim: Claim
    claimed_at: float
    message: str | None
    last_look: LastLook
    doubt_since: datetime | None
    urgent: bool = False
    asked_after: float = 0.0


class EmailWork:
    """See `notifyq.lane.Work`. *draining* says whether the worker is shutting down."""

    def __init__(
        self,
        *,
        worker: str,
        provider: Provider,
        settings: WorkerSettings,
        link: Link,
        recorder: Recorder,
        asker: Asker,
        renderer: Renderer,
        draining: Callable[[], bool],
    ) -> None:
        self._worker = worker
        self._provider = provider
        self._account = provider.account
        self._settings = settings
        self._link = link
        self._recorder = recorder
        self._asker = asker
        self._renderer = renderer
        self._draining = draining
        self._builders = ["", *renderer.names]
        several = len(self._builders) > 1
        self._first_look = ("first_look_of_several", self._builders) if several else ("first_look", "")
        self._lease = seconds(settings.lease)
        self._jobs: set[EmailJob] = set()
        self._asking = 0
        self._first_looks_left = 0
        self._mark = LowWater()
        self._clocks = ClockWatch(distrust=1.5 * settings.settle)
        self.gate = "open"
        self.gate_failures = 0

    def gate_troubled(self) -> bool:
        """True unless the gate was open, with nothing failing, at the last claim."""
        return self.gate != "open" or self.gate_failures > 0

    async def claim(self, room: Room, *, rung: bool) -> Batch[EmailJob]:
        """Claim emails to send and doubts to ask about, as many as there is *room* for."""
        claimed_at = steady_clock()
        since = self._mark.since(claimed_at)
        first = (rung or self._first_looks_left > 0) and since is None and not self._mark.slow
        if first and room.bulk > 0 and not self.gate_troubled():
            return await self._claim_first(room, claimed_at)
        ask_slots = max(0, min(self._settings.ask_slots - self._asking, room.bulk))
        rows = await self._link.fetch(
            "claim_emails",
            self._worker,
            self._account,
            room.slots,
            ask_slots,
            self._builders,
            self._lease,
            room.bulk,
            since,
        )
        jobs = [self._job(row, claimed_at) for row in rows if row["id"] is not None]
        self._jobs.update(jobs)
        head = rows[0]
        self._note_gate(head["gate"], head["gate_failures"])
        self._note_clock(head["clock"], claimed_at)
        self._mark.note(
            head["clock"],
            started=claimed_at,
            ended=steady_clock(),
            everything=len(jobs) < room.bulk and head["gate"] == "open" and not _soon(head["wake_in"]),
            last_waited=next((job.claim.waited for job in reversed(jobs) if not job.claim.asking), None),
        )
        self._asking += sum(job.claim.asking for job in jobs)
        if room.bulk > 0:
            self._first_looks_left = FIRST_LOOKS if len(jobs) >= room.bulk else 0
        look_at_once = rung and not jobs and self._mark.rung_in_vain(steady_clock())
        return Batch(
            jobs=jobs,
            wake_in=0.0 if look_at_once else _sooner(head["wake_in"], self._mark.look_again_in),
            waited=max((job.claim.waited for job in jobs), default=0.0),
            held_back=self._asking >= self._settings.ask_slots,
            others_at_work=head["others_at_work"],
        )

    async def _claim_first(self, room: Room, claimed_at: float) -> Batch[EmailJob]:
        """What is due at the foremost priority; nothing else is looked at (``first_look.sql``)."""
        query, served = self._first_look
        slots = min(room.slots, room.bulk)
        rows = await self._link.fetch(query, self._worker, self._account, slots, served, self._lease, None)
        jobs = [self._job(row, claimed_at) for row in rows]
        self._jobs.update(jobs)
        self._first_looks_left = max(0, self._first_looks_left - 1) if len(jobs) == slots else 0
        self._mark.note_first(started=claimed_at, ended=steady_clock())
        jobs.sort(key=lambda job: -job.claim.waited)
        return Batch(jobs=jobs, first=True)

    async def release_lost(self) -> None:
        """Give back the rows of a claim whose answer was lost: nothing was sent under it."""
        released = await self._link.fetch(
            "release_lost_emails", self._worker, [job.claim.id for job in self._jobs]
        )
        if released:
            log.info("%d emails claimed by a lost statement were given back", len(released))

    def is_urgent(self, job: EmailJob) -> bool:
        """True if it may use the slots kept for urgent mail."""
        return job.urgent

    def name_of(self, job: EmailJob) -> int:
        """The row's id."""
        return job.claim.id

    async def run(self, job: EmailJob) -> Decision:
        """Send it or ask about it."""
        try:
            if job.claim.asking:
                return await self._ask(job)
            return await self._send(job)
        except Exception as error:
            # A fault of ours must not end the process, and must not be taken for "not sent".
            where = traceback.extract_tb(error.__traceback__)[-1]
            log.error(
                "email %d: %s in %s line %s", job.claim.id, type(error).__name__, where.name, where.lineno
            )
            if job.claim.asking or job.last_look.passed:
                return self.interrupted(job)
            # It says nothing about the provider, so nothing to the gate.
            shown = f"internal error: {type(error).__name__}"
            transition = builder_failed(job.claim, shown, self._settings, attempt.roll())
            return Decision(claim=job.claim, transition=transition)

    async def _send(self, job: EmailJob) -> Decision:
        claim = job.claim
        assert job.message is not None  # noqa: S101 (for the type checker)
        try:
            email = await self._renderer.render(claim, job.message)
        except (InvalidEmail, Unrenderable) as error:
            return Decision(claim=claim, transition=unrenderable(clean(str(error))))
        except BuilderFailed as error:
            log.error("email %d: %s", claim.id, error)
            transition = builder_failed(claim, str(error), self._settings, attempt.roll())
            return Decision(claim=claim, transition=transition)
        return await attempt.send(claim, email, self._provider, self._settings, job.last_look)

    def interrupted(self, job: EmailJob) -> Decision:
        """The attempt was cancelled: an ask goes on being in doubt, a send is judged by its last look."""
        if job.claim.asking:
            return self._decide_ask(
                job, Inconclusive("the worker stopped before the answer came", failed=True)
            )
        return attempt.interrupted(job.claim, self._provider, self._settings, job.last_look)

    def hand_over(self, decision: Decision, job: EmailJob) -> asyncio.Event:
        """Have it written."""
        return self._recorder.hand_over(decision)

    def comes_again(self, decision: Decision) -> bool:
        """True if the row will be due again."""
        return isinstance(decision.transition, Pending | Doubt)

    def ended(self, job: EmailJob) -> None:
        """Its slot is free."""
        self._jobs.remove(job)
        self._asking -= job.claim.asking

    async def _ask(self, job: EmailJob) -> Decision:
        assert job.doubt_since is not None  # noqa: S101 (for the type checker)
        # A miss is as old as its question, not as its answer.
        job.asked_after = steady_clock() - job.claimed_at
        finding = await self._asker.ask(
            job.claim.uid,
            stream=job.claim.stream,
            doubt_since=job.doubt_since,
            settled=job.claim.doubt_age + job.asked_after >= self._settings.settle,
        )
        if isinstance(finding, Missing) and not self._clocks.trusted(steady_clock()):
            finding = Inconclusive(
                "the database's clock was set: how old the doubt is cannot be told", failed=True
            )
        return self._decide_ask(job, finding)

    def _decide_ask(self, job: EmailJob, finding: Any) -> Decision:
        transition = after_ask(
            job.claim,
            finding,
            self._settings,
            attempt.roll(),
            elapsed=job.asked_after,
            gate_open=self.gate == "open",
        )
        return Decision(claim=job.claim, transition=transition)

    def _job(self, row: Any, claimed_at: float) -> EmailJob:
        claim = Claim(*(*_claim_values(row), row["doubt_age"] or 0.0, row["waited"] or 0.0))
        return EmailJob(
            claim=claim,
            claimed_at=claimed_at,
            message=row["message"],
            last_look=LastLook(claim, claimed_at, self._settings, self._draining),
            doubt_since=row["doubt_since"],
            urgent=row["urgent"],
        )

    def _note_clock(self, database: datetime, steady: float) -> None:
        if steady_clock() - steady > SLOW_ANSWER:
            return
        stepped = self._clocks.note(database=database.timestamp(), steady=steady)
        if stepped is not None:
            log.warning("the database's clock was set by %+.0f s; doubts are settled later", stepped)

    def _note_gate(self, state: str, failures: int) -> None:
        if state != self.gate:
            say = log.info if state == "open" else log.warning
            say("the gate of %s is %s", self._account, state)
        self.gate, self.gate_failures = state, failures


def _soon(wake_in: float | None) -> bool:
    """More may be due than was taken: the next token of a gate that recovers comes within a second."""
    return wake_in is not None and wake_in <= SOON


def _sooner(one: float | None, other: float | None) -> float | None:
    return min((wait for wait in (one, other) if wait is not None), default=None)


_CLAIM_COLUMNS = Claim.__struct_fields__[:-2]
"""All but the two ages, which are null in some rows."""
_claim_values: Callable[[Any], tuple[Any, ...]] = itemgetter(*_CLAIM_COLUMNS)
