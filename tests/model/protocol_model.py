"""The send-once protocol as a small machine: one row, its workers, a provider, a lagging search, an operator.

The *decisions* are the real ones (`after_send`, `after_ask`); what the SQL functions do with them is said
here again in a few lines each, under the names of those functions. Every rule of the protocol is a switch
in `Rules`, so that a weakened protocol is one word, and a search must find its counter-example.

Time is counted in ticks of half a *settle*: a miss counts from tick 2 on, the second one is asked for a
tick later. A tick cannot pass over the assumptions that the README prints: a request is accepted or dead
within *settle* of its last byte (A1), findable within the same time (A2, `World.lag`), and nobody pauses
for longer than lease - POST budget exactly between the last look and the write (A5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from notifyq.lifecycle import Claim, Dead, Doubt, Held, Pending, Sent, Transition, after_ask, after_send
from notifyq.provider import (
    Accepted,
    Deferred,
    Finding,
    Found,
    Inconclusive,
    Missing,
    Outcome,
    Rejected,
    Unknown,
    Unstarted,
)
from notifyq.settings import WorkerSettings

SETTLE: Final = 2
AGE_CAP: Final = 3
NO_DOUBT: Final = -1
REUSED: Final = 99
ASKS_BEFORE: Final = 8
"""The model counts fruitless asks from here, so that the limit of ten is two asks away."""

SETTINGS: Final = WorkerSettings(settle=float(SETTLE), lease=2.0, post_budget=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the protocol keeps to. All True is ours."""

    settle: bool = True
    two_misses: bool = True
    settle_runs_on: bool = True
    failed_search_is_no_answer: bool = True
    timeout_is_doubt: bool = True
    error_500_is_doubt: bool = True
    last_unknown_is_doubt: bool = True
    expiry_asks_first: bool = True
    fenced_ends: bool = True
    fenced_takeover: bool = True
    fence_grows: bool = True
    takeover_is_doubt: bool = True
    last_look: bool = True
    durable_claim: bool = True
    releases_only_the_unheard: bool = True
    asks_where_it_was_sent: bool = True
    retry_asks_there_too: bool = True
    own_uid: bool = True
    late_receipts: bool = True
    honours_receipts: bool = True
    resends_once: bool = True
    retries_only_at_rest: bool = True
    retry_asks_first: bool = True
    positive_control: bool = True
    hold_is_not_ask: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Who is there, what may go wrong, and how much of it is explored.

    *leases_end_early* to *clock_steps* are what the README assumes, made false: the lease watch, A2,
    A1, A5, and the database's clock jumping forward by a settle while a row is in doubt. With
    *evidence_only* a second acceptance is no violation: what must hold even then is looked at.
    """

    accounts: tuple[int, ...] = (0, 0)
    policy: str = "ask"
    posts: int = 3
    attempts: int = 2
    lag: int = SETTLE
    retries: int = 0
    cancels: int = 0
    expiry: bool = False
    probes: bool = False
    search_fails: bool = False
    lost_claims: bool = False
    other_row: bool = False
    leases_end_early: bool = False
    search_in_time: bool = True
    accepts_in_time: bool = True
    pauses_in_time: bool = True
    clock_steps: bool = False
    evidence_only: bool = False


class Row(NamedTuple):
    """A row of notifyq.emails. *age*: ticks since doubt_since. *expiry*: 0 none, 1 ahead, 2 past."""

    status: str = "pending"
    reason: str = ""
    seq: int = 0
    attempts: int = 0
    age: int = NO_DOUBT
    due: int = 0
    misses: int = 0
    asks: int = 0
    resent: bool = False
    ordered: bool = False
    receipt: int = 0
    sent_id: int = 0
    account: int = -1
    policy: str = "ask"
    expiry: int = 0


class Post(NamedTuple):
    """A request at the provider: flying, accepted, early (accepted before the other row), shown,
    rejected, dropped."""

    state: str = "flying"
    age: int = 0
    account: int = 0


class Worker(NamedTuple):
    """claimed (fresh or stale) → posting → answered; asking → answer; lost: a claim it never heard of."""

    doing: str = "idle"
    seq: int = 0
    what: str = ""
    number: int = 0
    probing: bool = False


class State(NamedTuple):
    """Everything there is. *watched*: what an unfenced takeover saw. *other*: the second row's message
    (0 not yet, 1 accepted, 2 shown by the search). *told*: a worker has said that it was accepted."""

    row: Row
    workers: tuple[Worker, ...]
    posts: tuple[Post, ...] = ()
    watched: bool = False
    other: int = 0
    told: bool = False
    retries: int = 0
    cancels: int = 0


Step: TypeAlias = tuple[str, State]
IDLE: Final = Worker()
TAKEN: Final = ("accepted", "early", "shown")
ACCOUNT_NAMES: Final = "AB"

OUTCOMES: Final[dict[str, Outcome]] = {
    "accepted": Accepted("id"),
    "rejected": Rejected("no"),
    "deferred": Deferred("later"),
    "timeout": Unknown("timeout"),
    "error 500": Unknown("500"),
    "expired": Unstarted("expired"),
    "late": Unstarted("late"),
}
FINDINGS: Final[dict[str, Finding]] = {
    "found": Found(("id",)),
    "missing": Missing(),
    "inconclusive": Inconclusive("half a page"),
    "failed": Inconclusive("no answer", failed=True),
}


def start(world: World) -> State:
    """One row, just enqueued."""
    row = Row(policy=world.policy, expiry=int(world.expiry))
    return State(row, (IDLE,) * len(world.accounts), retries=world.retries, cancels=world.cancels)


# ---------------------------------------------------------------- decisions: the real ones


@cache
def sending(outcome: str, attempts: int, limit: int, probing: bool) -> Transition:
    """`after_send`, on small numbers."""
    return after_send(_claim(attempts, limit, probing=probing), OUTCOMES[outcome], SETTINGS, 0.5)


@cache
def asking(
    finding: str, age: int, row_facts: tuple[int, int, int, str, bool, bool, bool], limit: int
) -> Transition:
    """`after_ask`, on small numbers."""
    attempts, misses, asks, policy, resent, ordered, expired = row_facts
    claim = _claim(
        attempts,
        limit,
        asking=True,
        doubt_age=float(age),
        misses=misses,
        asks=asks + ASKS_BEFORE if asks else 0,
        on_doubt=policy,
        resent=resent,
        ordered=ordered,
        expires_in=-1.0 if expired else None,
    )
    return after_ask(claim, FINDINGS[finding], SETTINGS, 0.0)


def _claim(attempts: int, limit: int, **facts: object) -> Claim:
    return Claim(
        id=1,
        uid=UUID(int=1),
        key="k",
        claim_seq=1,
        attempts=attempts,
        max_attempts=limit,
        **facts,  # type: ignore[arg-type]
    )


# ---------------------------------------------------------------- the machine


class Machine:
    """All steps that *rules* allow in *world*."""

    def __init__(self, rules: Rules, world: World, *, fold_workers: bool = True) -> None:
        self.rules = rules
        self.world = world
        self.alike = fold_workers and len(set(world.accounts)) == 1

    def steps(self, state: State) -> Iterator[Step]:
        """What may happen next: the system's own steps, then the world's and the operator's."""
        for label, after in self._all_steps(state):
            yield label, self._canonical(after)

    def _all_steps(self, state: State) -> Iterator[Step]:
        for number, worker in enumerate(state.workers):
            yield from self._worker_steps(state, number, worker)
        yield from self._sweep(state)
        yield from self._provider(state)
        yield from self._time(state)
        yield from self._operator(state)

    def violation(self, before: State, state: State) -> str | None:
        """What the promise forbids, if this step did it."""
        row, taken = state.row, sum(post.state in TAKEN for post in state.posts)
        allowed = 2 if row.resent else 1
        if taken > allowed and not self.world.evidence_only:
            return f"accepted {taken} times"
        if (
            before.told
            and before.row.status == "pending"
            and row.status == "processing"
            and row.age == NO_DOUBT
        ):
            return "claimed to be sent, after an acceptance was told"
        if len(state.posts) == len(before.posts) and row.status == "doubt" and 0 <= row.age < before.row.age:
            return "settle was started again by an ask"
        if row.seq < before.row.seq:
            return "claim_seq went down"
        if before.row.status == "sent" != row.status:
            return f"sent became {row.status}"
        if row.status == "sent" and not self._is_taken(state, row.sent_id):
            return "sent, but the provider has no such message: a lost mail"
        sure = row.reason in ("rejected", "exhausted", "expired") and not (
            row.resent or self.world.evidence_only
        )
        if row.status == "dead" and sure and taken:
            return f"dead ({row.reason}), but the provider accepted it"
        return None

    def ended(self, state: State) -> bool:
        """True where a row may rest for ever, or where the exploration is cut."""
        return state.row.status in ("sent", "dead", "held") or self._cut(state)

    def _cut(self, state: State) -> bool:
        return state.row.age == NO_DOUBT and len(state.posts) >= self.world.posts

    # ------------------------------------------------ workers

    def _worker_steps(self, state: State, number: int, worker: Worker) -> Iterator[Step]:
        name = f"worker {number + 1}"
        if worker.doing == "idle":
            yield from self._claims(state, number, name)
            return
        for label, after in self._work(state, number, worker):
            yield f"{name}: {label}", after
        yield f"{name}: is killed", _with(state, number, IDLE)

    def _work(self, state: State, number: int, worker: Worker) -> Iterator[Step]:
        match worker.doing:
            case "claimed":
                yield from self._last_look(state, number, worker)
            case "posting":
                yield from self._answer(state, number, worker)
            case "answered" | "asked":
                yield self._record(state, number, worker)
                if worker.doing == "answered" and not self.rules.releases_only_the_unheard:
                    yield "gives back what waits to be written", self._release(state, worker)
            case "asking":
                yield from self._ask(state, number, worker)
            case "lost":
                yield (
                    "gives back a claim it never heard of",
                    _with(self._release(state, worker), number, IDLE),
                )

    def _claims(self, state: State, number: int, name: str) -> Iterator[Step]:
        row, account = state.row, self.world.accounts[number]
        if row.status not in ("pending", "doubt") or row.due:
            return
        if row.age != NO_DOUBT:
            retried = row.status == "pending"
            there = self.rules.retry_asks_there_too if retried else self.rules.asks_where_it_was_sent
            if row.account == account or not there:
                asker = Worker("asking", row.seq + 1)
                claimed = row._replace(status="processing", seq=row.seq + 1)
                yield f"{name}: claims it, to ask", _with(state._replace(row=claimed), number, asker)
            return
        if row.expiry == 2 or self._cut(state):
            return
        claimed = row._replace(
            status="processing", seq=row.seq + 1, attempts=row.attempts + 1, account=account
        )
        after = state._replace(row=claimed)
        sender = Worker("claimed", claimed.seq, "fresh")
        yield f"{name}: claims it, to send", _with(after, number, sender)
        if self.world.probes:
            yield f"{name}: claims it, as a probe", _with(after, number, sender._replace(probing=True))
        if self.world.lost_claims:
            yield f"{name}: claims it, the answer is lost", _with(after, number, Worker("lost", claimed.seq))

    def _last_look(self, state: State, number: int, worker: Worker) -> Iterator[Step]:
        fresh = worker.what == "fresh"
        if fresh:
            yield "pauses past its own deadline", _with(state, number, worker._replace(what="stale"))
        if fresh or not (self.rules.last_look and self.world.pauses_in_time):
            if state.row.expiry == 2:
                yield "sees at the last look that it is expired", _answered(state, number, "expired")
                return
            post = Post(account=self.world.accounts[number])
            after = state._replace(posts=(*state.posts, post))
            posting = worker._replace(doing="posting", what="", number=len(after.posts))
            yield "POSTs", _with(after, number, posting)
        else:
            yield "sees at the last look that it is late", _answered(state, number, "late")

    def _answer(self, state: State, number: int, worker: Worker) -> Iterator[Step]:
        fate = state.posts[worker.number - 1].state
        answer = {"accepted": "accepted", "early": "accepted", "shown": "accepted"}.get(fate, fate)
        if answer in ("accepted", "rejected"):
            yield f"hears: {answer}", _answered(state, number, answer)
        if fate == "dropped":
            yield "hears: 503, not accepted", _answered(state, number, "deferred")
        yield "hears nothing in time", _answered(state, number, "timeout")
        if not self.rules.error_500_is_doubt:
            yield "hears: 500", _answered(state, number, "error 500")

    def _ask(self, state: State, number: int, worker: Worker) -> Iterator[Step]:
        account = self.world.accounts[number]
        hits = [i + 1 for i, p in enumerate(state.posts) if p.state == "shown" and p.account == account]
        if not self.rules.own_uid:
            hits.append(REUSED)
        age = max(state.row.age, 0)
        behind = self.rules.positive_control and state.other == 1 and age >= SETTLE
        answers = ["found" if hits else "inconclusive" if behind else "missing"]
        if self.world.search_fails:
            answers += ["inconclusive", "failed"]
        for answer in answers:
            asked = worker._replace(doing="asked", what=answer, number=hits[0] if answer == "found" else age)
            yield f"asks at {age}/2 settle: {answer}", _with(state, number, asked)

    # ------------------------------------------------ what the SQL functions do

    def _record(self, state: State, number: int, worker: Worker) -> Step:
        transition = self._decide(state.row, worker)
        after = _with(state, number, IDLE)
        label = f"records {type(transition).__name__.lower()}"
        if isinstance(transition, Sent):
            return label, after._replace(row=self._email_sent(state.row, worker), told=True)
        return label, after._replace(row=self._end(state.row, worker.seq, transition))

    def _decide(self, row: Row, worker: Worker) -> Transition:
        rules, limit = self.rules, self.world.attempts
        if worker.doing == "answered":
            outcome = worker.what
            if (outcome == "timeout" and not rules.timeout_is_doubt) or (
                outcome == "error 500" and not rules.error_500_is_doubt
            ):
                outcome = "deferred"
            if outcome == "timeout" and row.attempts >= limit and not rules.last_unknown_is_doubt:
                return Dead(reason="exhausted", error="", event="exhausted")
            return sending(outcome, row.attempts, limit, worker.probing)
        finding, age, misses = worker.what, worker.number, row.misses
        if finding == "failed" and not rules.failed_search_is_no_answer:
            finding = "missing"
        if finding != "found" and not rules.settle:
            age = AGE_CAP
        if not rules.two_misses:
            misses = 1
        resent = row.resent and rules.resends_once
        policy = row.policy if rules.hold_is_not_ask or row.policy != "hold" else "ask"
        facts = (row.attempts, misses, row.asks, policy, resent, row.ordered, row.expiry == 2)
        return asking(finding, age, facts, limit)

    def _email_sent(self, row: Row, worker: Worker) -> Row:
        """email_sent, then late_receipt for a claim that is gone."""
        message = worker.number
        ours = row.status == "processing" and row.seq == worker.seq
        if ours and not row.receipt:
            return self._sent(row, message)
        if row.status == "sent" or not (ours or self.rules.late_receipts):
            return row
        if row.status == "processing" and not ours:
            return row._replace(receipt=row.receipt or message)
        return self._sent(row, row.receipt or message)

    def _sent(self, row: Row, message: int) -> Row:
        return row._replace(status="sent", reason="", sent_id=message, receipt=0)

    def _end(self, row: Row, seq: int, transition: Transition) -> Row:
        """email_dead, email_pending, email_doubt, email_held: fenced, and a receipt comes first."""
        if self.rules.fenced_ends and (row.status != "processing" or row.seq != seq):
            return row
        if row.receipt and self.rules.honours_receipts:
            return self._sent(row, row.receipt)
        row = row._replace(receipt=0)
        sending = row.age == NO_DOUBT
        match transition:
            case Dead(reason=reason):
                return row._replace(status="dead", reason=reason)
            case Held():
                return row._replace(status="held")
            case Pending(charged=charged, resending=resending):
                return row._replace(
                    status="pending",
                    attempts=max(0, row.attempts - (not charged and sending)),
                    resent=row.resent or resending,
                    age=NO_DOUBT,
                    misses=0,
                    asks=0,
                    ordered=False,
                    due=0,
                )
            case Doubt(delay=delay, charged=charged, fresh=fresh, misses=misses, asks=asks):
                restarted = fresh or not self.rules.settle_runs_on
                return row._replace(
                    status="doubt",
                    attempts=max(0, row.attempts - (not charged and sending)),
                    age=0 if restarted else row.age,
                    misses=misses,
                    asks=max(0, asks - ASKS_BEFORE) or min(asks, 1),
                    due=min(AGE_CAP, int(-(-delay // 1))),
                )
        raise AssertionError(transition)

    def _release(self, state: State, worker: Worker) -> State:
        """release_lost_emails."""
        row = state.row
        if row.status != "processing" or row.seq != worker.seq or row.receipt:
            return state
        status = "pending" if row.age == NO_DOUBT else "doubt"
        attempts = row.attempts - (row.age == NO_DOUBT)
        return state._replace(row=row._replace(status=status, attempts=attempts))

    def _sweep(self, state: State) -> Iterator[Step]:
        """email_leases_ended, expire_emails."""
        row = state.row
        working = any(w.seq == row.seq and w.what == "fresh" for w in state.workers)
        over = row.status == "processing" and (self.world.leases_end_early or not working)
        if over and self.rules.fenced_takeover:
            yield "the lease ends", state._replace(row=self._lease_ended(row))
        if not self.rules.fenced_takeover:
            if over and not state.watched:
                yield "a sweep reads that the lease is over", state._replace(watched=True)
            if state.watched:
                yield "the sweep writes", state._replace(row=self._lease_ended(row), watched=False)
        asks_first = row.age != NO_DOUBT and self.rules.expiry_asks_first
        if row.expiry == 2 and row.status in ("pending", "doubt") and not asks_first:
            yield "a sweep expires it", state._replace(row=row._replace(status="dead", reason="expired"))
        if not self.rules.durable_claim and row.status == "processing" and row.age == NO_DOUBT:
            forgotten = row._replace(status="pending", attempts=row.attempts - 1)
            yield "a crash forgets the claim", state._replace(row=forgotten)

    def _lease_ended(self, row: Row) -> Row:
        if row.receipt and self.rules.honours_receipts:
            return self._sent(row, row.receipt)
        if not self.rules.takeover_is_doubt and row.age == NO_DOUBT:
            return row._replace(status="pending", due=0, receipt=0)
        return row._replace(status="doubt", reason="", age=max(row.age, 0), due=0, receipt=0, sent_id=0)

    # ------------------------------------------------ the world

    def _provider(self, state: State) -> Iterator[Step]:
        for i, post in enumerate(state.posts):
            if post.state == "flying":
                for fate in ("accepted", "rejected", "dropped"):
                    yield f"POST {i + 1} is {fate}", _posted(state, i, post._replace(state=fate))
            if post.state in ("accepted", "early"):
                yield f"the search shows POST {i + 1}", _posted(state, i, post._replace(state="shown", age=0))
        if self.world.other_row and not state.other and state.row.age != NO_DOUBT:
            before = tuple(p._replace(state="early") if p.state == "accepted" else p for p in state.posts)
            yield "another row's message is accepted", state._replace(other=1, posts=before)
        if state.other == 1 and all(p.state != "early" for p in state.posts):
            yield "the search shows the other row's message", state._replace(other=2)

    def _time(self, state: State) -> Iterator[Step]:
        row = state.row
        if row.expiry == 1:
            yield "send_before passes", state._replace(row=row._replace(expiry=2))
        if any(w.what == "fresh" or w.doing == "posting" for w in state.workers):
            return  # a lease and a POST are shorter than a tick
        limits = {}
        if self.world.accepts_in_time:
            limits["flying"] = SETTLE
        if self.world.search_in_time:
            limits["accepted"] = self.world.lag
        if any(p.age + 1 >= limits.get(p.state, 99) for p in state.posts):
            return  # A1, A2
        moved = row._replace(
            age=row.age if row.age == NO_DOUBT else min(row.age + 1, AGE_CAP), due=max(row.due - 1, 0)
        )
        posts = tuple(p._replace(age=p.age + 1) if p.state in limits else p for p in state.posts)
        if moved != row or posts != state.posts:
            yield "half a settle passes", state._replace(row=moved, posts=posts)
        if self.world.clock_steps and NO_DOUBT < row.age < AGE_CAP:
            yield "the database's clock steps forward", state._replace(row=row._replace(age=AGE_CAP, due=0))

    def _operator(self, state: State) -> Iterator[Step]:
        row = state.row
        live = row.status == "processing" and not self.rules.retries_only_at_rest
        if state.retries and (row.status in ("held", "dead") or live):
            yield "operator: retry", state._replace(row=self._retried(row), retries=state.retries - 1)
        if state.cancels and row.status in ("pending", "held", "doubt"):
            if row.status == "doubt":
                cancelled = row._replace(policy="hold", ordered=False)
            else:
                cancelled = row._replace(status="dead", reason="cancelled")
            yield "operator: cancel", state._replace(row=cancelled, cancels=state.cancels - 1)
        if row.status == "held":
            for i, post in enumerate(state.posts):
                if post.state in TAKEN:
                    yield "operator: it was sent", state._replace(row=self._sent(row, i + 1))

    def _retried(self, row: Row) -> Row:
        doubted = row.age != NO_DOUBT
        return row._replace(
            status="pending",
            reason="",
            attempts=0,
            due=0,
            expiry=0 if row.expiry == 2 else row.expiry,
            misses=int(doubted),
            asks=0,
            ordered=doubted,
            age=row.age if self.rules.retry_asks_first else NO_DOUBT,
            seq=row.seq if self.rules.fence_grows else 0,
        )

    def _is_taken(self, state: State, message: int) -> bool:
        return 0 < message <= len(state.posts) and state.posts[message - 1].state in TAKEN

    def _canonical(self, state: State) -> State:
        """Fold states that cannot be told apart: ages that no longer matter, workers that are alike."""
        row = state.row
        if row.age == NO_DOUBT and state.other:
            posts = tuple(
                p._replace(state="accepted", age=0) if p.state == "early" else p for p in state.posts
            )
            state = state._replace(other=0, posts=posts)
        awaited = {w.number for w in state.workers if w.doing == "posting"}
        posts = tuple(
            Post("dropped", 0, p.account)
            if p.state == "dropped" or (p.state == "rejected" and i + 1 not in awaited)
            else p
            for i, p in enumerate(state.posts)
        )
        if posts != state.posts:
            state = state._replace(posts=posts)
        if self.rules.fenced_ends and self.rules.fence_grows:
            # An older claim never comes back: one number for all of them, and what the fence will refuse
            # is as good as forgotten.
            workers = tuple(self._behind_the_fence(w, row.seq) for w in state.workers)
            state = state._replace(row=row._replace(seq=min(row.seq, 1)), workers=workers)
        if self.alike:
            ordered = tuple(sorted(state.workers))
            if ordered != state.workers:
                state = state._replace(workers=ordered)
        return state

    def _behind_the_fence(self, worker: Worker, seq: int) -> Worker:
        if worker.doing == "idle":
            return worker
        if worker.seq == seq:
            return worker._replace(seq=1)
        harmless = worker.what not in ("accepted", "found", "fresh") and worker.doing not in (
            "posting",
            "asking",
        )
        return IDLE if harmless and self.rules.last_look else worker._replace(seq=0)


def _with(state: State, number: int, worker: Worker) -> State:
    workers = (*state.workers[:number], worker, *state.workers[number + 1 :])
    return state._replace(workers=workers)


def _answered(state: State, number: int, outcome: str) -> State:
    worker = state.workers[number]
    return _with(state, number, worker._replace(doing="answered", what=outcome))


def _posted(state: State, index: int, post: Post) -> State:
    return state._replace(posts=(*state.posts[:index], post, *state.posts[index + 1 :]))
