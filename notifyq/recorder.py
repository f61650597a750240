"""Write decisions down: group commit without added delay.

A decision is written at once when the writer is idle, and gathered while a write is under way. Each
kind of transition is one set-based statement, fenced by ``claim_seq``. A database that is away is tried
again for as long as it takes: an acceptance is evidence and is never given up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import anyio

from notifyq import backoff
from notifyq.advice import advice
from notifyq.attempt import Decision
from notifyq.db import DATABASE_FAULTS, Complaints, Link, describe, is_about_the_data
from notifyq.lifecycle import Dead, Doubt, GateSignal, Held, Pending, Sent
from notifyq.task_lifecycle import TaskClaim, TaskDead, TaskDone, TaskPending

__all__ = ["Recorder"]

log = logging.getLogger("notifyq")

# How a kind of transition is spelt: its SQL function, and the arrays after ids and claim_seqs.
_SPELLING: Final[dict[type, tuple[str, tuple[str, ...]]]] = {
    Sent: ("email_sent", ("message_id", "event")),
    Dead: ("email_dead", ("reason", "error", "event")),
    Pending: (
        "email_pending",
        ("delay", "charged", "postponed", "waiting", "resending", "error", "event"),
    ),
    Doubt: ("email_doubt", ("delay", "charged", "fresh", "misses", "asks", "error", "event")),
    Held: ("email_held", ("error", "event")),
    TaskDone: ("task_done", ("event",)),
    TaskDead: ("task_dead", ("reason", "error", "event")),
    TaskPending: ("task_pending", ("delay", "charged", "error", "event")),
}

EXPECTED_ENDS: Final = ("cancelled", "suppressed")
"""Why a row is dead without being anybody's mistake."""


class Recorder:
    """The one writer of a worker.

    *gate_troubled* says whether the gate is known to be anything but open and quiet: only then is a
    success news to it.
    """

    def __init__(self, link: Link, account: str, gate_troubled: Callable[[], bool]) -> None:
        self._link = link
        self._account = account
        self._gate_troubled = gate_troubled
        self._waiting: list[Decision] = []
        self._written = asyncio.Event()
        self._work = asyncio.Event()
        self._complaints = Complaints()
        self._blocked_because = ""
        self._running = anyio.CancelScope(shield=True)

    def hand_over(self, decision: Decision) -> asyncio.Event:
        """Have *decision* written; the event is set once it is in the database."""
        self._waiting.append(decision)
        self._work.set()
        return self._written  # one for all that are written together

    async def run(self) -> None:
        """Write until `stop`."""
        with self._running:
            while True:
                await self._work.wait()
                self._work = asyncio.Event()
                batch, self._waiting = self._waiting, []
                written, self._written = self._written, asyncio.Event()
                await self._write(batch)
                written.set()

    def stop(self) -> None:
        """End `run`, which no cancellation from outside ends: cancelled lanes still have to write."""
        self._running.cancel()

    async def _write(self, decisions: list[Decision]) -> None:
        signals = [decision.signal for decision in decisions if decision.signal is not None]
        # A gate that must shut shuts before its rows are due again, and opens after they are written.
        await self._persist(lambda: self._shut_gate(signals))
        groups: dict[type, list[Decision]] = defaultdict(list)
        for decision in decisions:
            groups[type(decision.transition)].append(decision)
        for kind, group in groups.items():
            await self._write_group(kind, group)
        await self._persist(lambda: self._open_gate(signals))

    async def _write_group(self, kind: type, group: list[Decision]) -> None:
        query, columns = _SPELLING[kind]
        arrays = _arrays(group, columns)
        try:
            rows = await self._persist(lambda: self._link.fetch(query, *arrays))
        except DATABASE_FAULTS as error:
            if len(group) > 1:
                for decision in group:
                    await self._write_group(kind, [decision])
                return
            log.error("%s: its end could not be recorded (%s)", _name(group[0]), describe(error))
            return
        if kind is Pending:
            _tell_of_waiting(group)
        if kind in (Dead, TaskDead):
            _tell_of_dead(group, {row[0] for row in rows})
        if kind is Sent:
            await self._tell_of_sent(group, [row["answer"] for row in rows])
        else:
            _tell_of_lost(group, {row[0] for row in rows})

    async def _tell_of_sent(self, group: list[Decision], answers: list[str]) -> None:
        for decision, answer in zip(group, answers, strict=True):
            sent = decision.transition
            assert isinstance(sent, Sent)  # noqa: S101 (for the type checker)
            if answer == "receipt":
                log.warning("email %d: accepted, though its claim was lost; recorded", decision.claim.id)
            if answer == "duplicate" or sent.copies:
                log.critical("email %d was SENT TWICE: %s", decision.claim.id, _ids(sent))
            if sent.copies:
                write = partial(self._link.fetch, "email_copies", decision.claim.id, list(sent.copies))
                await self._persist(write)

    async def _persist(self, write: Callable[[], Any]) -> Any:
        """Run *write* until the database takes it. Raises only for what can never succeed."""
        failures = 0
        while True:
            try:
                result = await write()
            except DATABASE_FAULTS as error:
                if is_about_the_data(error):
                    raise
                self._complaints.about("record", error)
                failures += 1
                await anyio.sleep(backoff.reconnect(failures, random.random()))  # noqa: S311
            else:
                self._complaints.over("record")
                return result

    async def _shut_gate(self, signals: Sequence[GateSignal]) -> None:
        blocked = [s for s in signals if s.kind == "blocked"]
        throttled = [s for s in signals if s.kind == "throttled"]
        failed = [s for s in signals if s.kind == "failure"]
        if blocked:
            self._tell_of_blocked(blocked[-1].reason)
            await self._link.fetch("gate_blocked", self._account, blocked[-1].reason)
        elif throttled:
            longest = max(throttled, key=lambda s: (s.probe, s.retry_after or 0))
            await self._link.fetch(
                "gate_throttled", self._account, longest.retry_after, longest.probe, longest.reason
            )
        elif failed:
            probe = any(s.probe for s in failed)
            await self._link.fetch("gate_failed", self._account, len(failed), probe, failed[-1].reason)

    def _tell_of_blocked(self, reason: str) -> None:
        """Once a reason, until mail flows again: it is found anew by each probe."""
        if reason != self._blocked_because:
            self._blocked_because = reason
            log.error("%s refuses this account: %s; %s", self._account, reason, advice(reason))

    async def _open_gate(self, signals: Sequence[GateSignal]) -> None:
        successes = [s for s in signals if s.kind == "success"]
        bad = len(successes) < len(signals)
        if successes and not bad:
            self._blocked_because = ""
        if successes and (bad or self._gate_troubled() or any(s.probe for s in successes)):
            await self._link.fetch("gate_succeeded", self._account, any(s.probe for s in successes))


def _arrays(group: list[Decision], columns: tuple[str, ...]) -> list[list[Any]]:
    ids = [decision.claim.id for decision in group]
    seqs = [decision.claim.claim_seq for decision in group]
    return [ids, seqs, *([getattr(d.transition, column) for d in group] for column in columns)]


def _tell_of_lost(group: list[Decision], recorded: set[int]) -> None:
    for decision in group:
        if decision.claim.id not in recorded:
            log.warning("%s: its claim was lost, so its end was not recorded", _name(decision))


def _tell_of_dead(group: list[Decision], recorded: set[int]) -> None:
    """The reason of a task is in its row only: it may quote what is private."""
    for decision in group:
        dead, claim = decision.transition, decision.claim
        if claim.id not in recorded or not isinstance(dead, Dead | TaskDead) or dead.reason in EXPECTED_ENDS:
            continue
        if isinstance(claim, TaskClaim):
            log.warning(
                "task %d (%s) is dead (%s): `notifyq show task:%d`",
                claim.id,
                claim.name,
                dead.reason,
                claim.id,
            )
        else:
            log.warning(
                "email %d is dead (%s): %s; `notifyq show %d`", claim.id, dead.reason, dead.error, claim.id
            )


def _tell_of_waiting(group: list[Decision]) -> None:
    for decision in group:
        if isinstance(decision.transition, Pending) and decision.transition.waiting:
            log.warning("%s waits to be set up: %s", _name(decision), decision.transition.error)


def _name(decision: Decision) -> str:
    lane = "task" if isinstance(decision.claim, TaskClaim) else "email"
    return f"{lane} {decision.claim.id}"


def _ids(sent: Sent) -> str:
    return ", ".join((sent.message_id, *sent.copies))
