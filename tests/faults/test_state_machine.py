"""Hypothesis plays workers, provider, operator and clock against the real SQL and the real decisions.

Time is a number that the machine moves (``p_now``). The provider keeps to the printed assumptions: what it
accepts late it accepts, and shows, within *settle* of the POST. A worker POSTs only within its lease less
the POST budget, and may record whenever it likes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from canary_email import an_email
from checker import MOVES, WITNESS
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from notifyq import WorkerSettings, enqueue
from notifyq.db import seconds
from notifyq.email_work import _CLAIM_COLUMNS
from notifyq.lifecycle import Claim, after_ask, after_send, gate_signal
from notifyq.provider import (
    Accepted,
    Blocked,
    Deferred,
    Found,
    Inconclusive,
    Misconfigured,
    Missing,
    Outcome,
    Rejected,
    Suppressed,
    Throttled,
    Unknown,
    Unstarted,
)
from notifyq.recorder import _SPELLING, _arrays
from notifyq.sqlfiles import query
from notifyq.testing.database import Databases

SETTINGS = WorkerSettings()
LAG = 30.0
LATE = 60.0
"""Together below settle (120 s)."""

ACCOUNT = "postmark:one"
NOES: tuple[Outcome, ...] = (
    Deferred("later"),
    Throttled("slow", 5.0),
    Blocked("account"),
    Misconfigured("sender"),
    Rejected("never"),
    Suppressed("inactive"),
    Unstarted("shutting down"),
    Unstarted("expired"),
)
YESSES = ("accepted", "accepted, lost", "accepted late", "not accepted, lost")


@dataclass(slots=True, eq=False)
class Job:
    """A claimed row in a worker's hands. *outcome* is set once its one POST has been made."""

    claim: Claim
    at: datetime
    lease_until: datetime
    doubt_since: datetime | None
    outcome: Outcome | None = None
    lost: bool = False


class Protocol(RuleBasedStateMachine):
    """The rules are what anybody may do; the invariants are the promise."""

    conn: Any = None
    loop: asyncio.AbstractEventLoop

    @initialize()
    def begin(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        self.jobs: list[Job] = []
        self.accepted: dict[str, list[tuple[str, datetime]]] = {}
        self.keys: set[str] = set()
        self.made = 0
        # Not truncate: it makes new files, and a busy disk takes a second for each of eighty times.
        self.sql(EMPTY)

    def sql(self, statement: str, *args: Any) -> Any:
        return self.loop.run_until_complete(self.conn.fetch(statement, *args))

    # ---- the application

    @rule(
        key=st.sampled_from("abcd"),
        policy=st.sampled_from(["ask", "ask", "hold", "resend"]),
        before=st.sampled_from([None, None, 60, 600]),
        urgent=st.booleans(),
        kept=st.sampled_from([True, True, True, False]),
    )
    def enqueue(self, key: str, policy: str, before: int | None, urgent: bool, kept: bool) -> None:
        email = an_email(
            key,
            on_doubt=policy,
            run_after=self.now,
            priority=-1 if urgent else 0,
            send_before=None if before is None else self.now + timedelta(seconds=before),
        )

        async def commit_or_not() -> bool:
            transaction = self.conn.transaction()
            await transaction.start()
            created = (await enqueue(self.conn, email)).created
            await (transaction.commit() if kept else transaction.rollback())
            return created

        created = self.loop.run_until_complete(commit_or_not())
        assert created == (key not in self.keys), "one row a key"
        if kept:
            self.keys.add(key)

    # ---- workers

    @rule(
        slots=st.integers(1, 4),
        asks=st.integers(0, 2),
        worker=st.sampled_from(["w1", "w2"]),
        first=st.booleans(),
    )
    def claim(self, slots: int, asks: int, worker: str, first: bool = False) -> None:
        lease = seconds(SETTINGS.lease)
        if first:
            rows = self.sql(query("first_look"), worker, ACCOUNT, slots, "", lease, self.now)
        else:
            rows = self.sql(CLAIM, worker, ACCOUNT, slots, asks, [""], lease, self.now)
        claimed = [row for row in rows if row["id"] is not None]
        assert len(claimed) <= slots, "never more than asked for"
        for row in claimed:
            claim = Claim(**{n: row[n] for n in _CLAIM_COLUMNS}, doubt_age=row["doubt_age"] or 0.0)
            lease = self.now + seconds(SETTINGS.lease)
            self.jobs.append(Job(claim, self.now, lease, row["doubt_since"]))

    def _job(self, data: st.DataObject, asking: bool) -> Job | None:
        fit = [job for job in self.jobs if job.claim.asking == asking and not job.lost]
        return data.draw(st.sampled_from(fit)) if fit else None

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), fate=st.sampled_from([*YESSES, *NOES]))
    def post(self, data: st.DataObject, fate: str | Outcome) -> None:
        """One POST, within the budget, or the last look says no."""
        job = self._job(data, asking=False)
        if job is None or job.outcome is not None:
            return
        waited = (self.now - job.at).total_seconds()
        if job.claim.expires_in is not None and job.claim.expires_in <= waited:
            job.outcome = Unstarted("expired")
        elif waited >= SETTINGS.lease - SETTINGS.post_budget:
            job.outcome = Unstarted("late")
        elif isinstance(fate, str):
            job.outcome = self._accept(job, fate)
        elif fate != Unstarted("expired"):
            job.outcome = fate

    def _accept(self, job: Job, fate: str) -> Outcome:
        self.made += 1
        message = f"m{self.made}"
        if fate != "not accepted, lost":
            at = self.now + seconds(LATE if fate == "accepted late" else 0)
            self.accepted.setdefault(str(job.claim.uid), []).append((message, at))
        return Accepted(message) if fate == "accepted" else Unknown("the answer was lost")

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def record(self, data: st.DataObject) -> None:
        """The worker writes its outcome down, perhaps long after its claim was lost."""
        job = self._job(data, asking=False)
        if job is not None and job.outcome is not None:
            self.jobs.remove(job)
            self._signal(job.claim, job.outcome)
            self._write(job.claim, after_send(job.claim, job.outcome, SETTINGS, 0.5))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), search=st.sampled_from(["works", "works", "works", "fails", "cannot say"]))
    def ask(self, data: st.DataObject, search: str) -> None:
        job = self._job(data, asking=True)
        if job is not None:
            self._ask(job, search)

    def _ask(self, job: Job, search: str) -> None:
        self.jobs.remove(job)
        shown = [m for m, at in self.accepted.get(str(job.claim.uid), []) if at + seconds(LAG) <= self.now]
        finding: Any = Found(tuple(reversed(shown))) if shown else Missing()
        if search != "works":
            finding = Inconclusive(search, failed=search == "fails")
        elapsed = (self.now - job.at).total_seconds()
        self._write(job.claim, after_ask(job.claim, finding, SETTINGS, 0.5, elapsed=elapsed))

    @rule(
        search=st.sampled_from(["works", "works", "fails", "cannot say"]),
        fate=st.sampled_from([*YESSES, *YESSES, *NOES]),
        wait=st.sampled_from([0, 130, 400]),
    )
    def turn(self, search: str, fate: str | Outcome, wait: int) -> None:
        """What a whole worker does, some time later: claim, then POST and record, or ask."""
        self.wait(wait)
        self.end_leases()
        before = set(map(id, self.jobs))
        self.claim(4, 2, "w3")
        for job in [job for job in self.jobs if id(job) not in before]:
            if job.claim.asking:
                self._ask(job, search)
                continue
            job.outcome = self._accept(job, fate) if isinstance(fate, str) else fate
            if fate == Unstarted("expired") or (job.claim.expires_in or 1) <= 0:
                job.outcome = Unstarted("shutting down")
            self.jobs.remove(job)
            self._signal(job.claim, job.outcome)
            self._write(job.claim, after_send(job.claim, job.outcome, SETTINGS, 0.5))

    def _write(self, claim: Claim, transition: Any) -> None:
        name, columns = _SPELLING[type(transition)]

        @dataclass
        class OneDecision:
            claim: Claim
            transition: Any

        arrays = _arrays([OneDecision(claim, transition)], columns)  # type: ignore[list-item]
        statement = query(name).replace(")", f", ${len(arrays) + 1})", 1)
        self.sql(statement, *arrays, self.now)

    def _signal(self, claim: Claim, outcome: Outcome) -> None:
        signal = gate_signal(claim, outcome)
        if signal is None:
            return
        match signal.kind:
            case "success":
                self.sql("select notifyq.gate_succeeded($1, $2, $3)", ACCOUNT, signal.probe, self.now)
            case "failure":
                self.sql("select notifyq.gate_failed($1, 1, $2, 'x', $3)", ACCOUNT, signal.probe, self.now)
            case "throttled":
                self.sql("select notifyq.gate_throttled($1, 5, $2, 'x', $3)", ACCOUNT, signal.probe, self.now)
            case _:
                self.sql("select notifyq.gate_blocked($1, 'x', $2)", ACCOUNT, self.now)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        """A worker dies with its job; what it POSTed is on its way."""
        job = data.draw(st.sampled_from(self.jobs))
        job.lost = True

    @rule()
    def end_leases(self) -> None:
        """An observer has seen these leases out, whether their worker is dead or merely slow."""
        over = [job for job in self.jobs if job.lease_until <= self.now]
        self.sql(
            "select * from notifyq.email_leases_ended($1, $2, $3, $4)",
            [job.claim.id for job in over],
            [job.claim.claim_seq for job in over],
            [job.lease_until for job in over],
            self.now,
        )
        self.jobs = [job for job in self.jobs if not (job.lost and job in over)]

    @rule()
    def mend_gate(self) -> None:
        self.sql("select notifyq.gate_mended($1, $2)", ACCOUNT, self.now)

    @rule(step=st.sampled_from([1, 5, 15, 60, 60, 130, 400]))
    def wait(self, step: int) -> None:
        self.now += timedelta(seconds=step)

    @rule()
    def sweep(self) -> None:
        """A day goes by, and the minute's chores are done."""
        self.now += timedelta(days=1)
        self.sql(
            "select * from notifyq.sweep_emails($1, '120 s', '6 days', '30 days', $2)", ACCOUNT, self.now
        )

    # ---- the operator

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), act=st.sampled_from(["retry", "cancel", "resolve"]), stale=st.booleans())
    def operate(self, data: st.DataObject, act: str, stale: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.keys)))
        (before,) = self.sql("select * from notifyq.emails where key = $1", key)
        seq = before["claim_seq"] - stale
        if act == "resolve":
            shown = self.accepted.get(str(before["uid"]))
            if not shown or shown[-1][1] > self.now:
                return  # a person resolves with the id that the provider shows
            (answer,) = self.sql(
                "select * from notifyq.resolve_email($1, $2, $3, $4)",
                before["id"],
                shown[-1][0],
                seq,
                self.now,
            )
        else:
            (answer,) = self.sql(
                f"select * from notifyq.{act}_email($1, $2, $3)", before["id"], seq, self.now
            )
        (after,) = self.sql("select * from notifyq.emails where key = $1", key)
        assert answer["changed"] == (dict(before) != dict(after)), "an honest answer"
        assert not (answer["changed"] and (stale or before["status"] in ("processing", "sent")))

    # ---- the promise

    @invariant()
    def nothing_twice(self) -> None:
        if self.conn is None or not self.accepted:
            return
        rows = self.sql("select uid::text, key, on_doubt, status, resent from notifyq.emails")
        for row in rows:
            times = len(self.accepted.get(row["uid"], []))
            # The policy resend says: perhaps twice. Afterwards it is handled as ask.
            assert times <= 1 + (row["on_doubt"] == "resend" or row["resent"]), f"{row} sent {times} times"

    @invariant()
    def every_end_is_true(self) -> None:
        for row in self.sql("select * from notifyq.emails where status in ('sent', 'dead')"):
            ids = [message for message, _ in self.accepted.get(str(row["uid"]), [])]
            if row["status"] == "sent":
                assert row["provider_message_id"] in ids, f"{row['key']}: no such message"
            elif row["reason"] != "cancelled" and not row["resent"]:
                assert not ids, f"{row['key']} is dead ({row['reason']}), but was accepted"

    @invariant()
    def every_move_is_allowed(self) -> None:
        for move in self.sql("select was, became, rose from witness.moves"):
            assert (move["was"], move["became"]) in MOVES
            assert move["rose"] == (move["became"] == "processing"), "claim_seq grows at claims only"

    def teardown(self) -> None:
        """From anywhere, a day of a healthy worker brings every row to its end."""
        if not hasattr(self, "keys"):
            return
        for job in self.jobs:
            job.lost = True
        for _ in range(60):
            if not self.sql("select from notifyq.emails where status not in ('sent', 'dead', 'held')"):
                break
            self.now += timedelta(hours=1)
            self.end_leases()
            self.mend_gate()
            self.claim(10, 10, "healthy")
            for job in list(self.jobs):
                if job.claim.asking:
                    self._answer(job)
                else:
                    job.outcome = self._accept(job, "accepted")
                    self.jobs.remove(job)
                    self._signal(job.claim, job.outcome)
                    self._write(job.claim, after_send(job.claim, job.outcome, SETTINGS, 0.5))
        stuck = self.sql(
            "select key, status from notifyq.emails where status not in ('sent', 'dead', 'held')"
        )
        assert stuck == [], "stuck"
        self.nothing_twice()
        self.every_end_is_true()
        assert {row["key"] for row in self.sql("select key from notifyq.emails")} == self.keys

    def _answer(self, job: Job) -> None:
        self.jobs.remove(job)
        shown = [message for message, _ in self.accepted.get(str(job.claim.uid), [])]
        finding = Found(tuple(reversed(shown))) if shown else Missing()
        self._write(job.claim, after_ask(job.claim, finding, SETTINGS, 0.5))


EMPTY = """
with emails as (delete from notifyq.emails), history as (delete from notifyq.history),
     gates as (delete from notifyq.gates), chores as (delete from notifyq.chores)
delete from witness.moves
"""
CLAIM = (
    "select * from notifyq.claim_emails(p_worker => $1, p_account => $2, p_slots => $3, p_ask_slots => $4, "
    "p_builders => $5, p_lease => $6, p_now => $7)"
)


@pytest.fixture
def machine(notifyq_server: Databases) -> Iterator[type[Protocol]]:
    """The machine on a database of its own."""
    with notifyq_server.fresh() as dsn:
        loop = asyncio.new_event_loop()
        conn = loop.run_until_complete(asyncpg.connect(dsn))
        loop.run_until_complete(conn.execute(WITNESS))
        Protocol.loop, Protocol.conn = loop, conn
        yield Protocol
        loop.run_until_complete(conn.close())
        Protocol.conn = None
        loop.close()


def _play(machine: type[Protocol], examples: int, steps: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            print_blob=True,
            # A planted bug has only to be seen; its shortest story is nobody's news.
            phases=[Phase.generate] if "NOTIFYQ_PLANTED" in os.environ else list(Phase),
        ),
    )


def test_no_order_of_events_breaks_the_promise(machine: type[Protocol]) -> None:
    """Forty steps by anybody, in any order, then a healthy day: each row ends once, and truly."""
    _play(machine, 80, 40)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_long_order_of_events_breaks_the_promise(machine: type[Protocol]) -> None:
    """The same, at length."""
    _play(machine, 1500, 100)
