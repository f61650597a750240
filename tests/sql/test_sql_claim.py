"""The claim: what it takes, in which order, never more than it may, and when to come again."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest
from sqlclient import ACCOUNT, LEASE, Outbox


async def test_a_claim_is_a_lease_a_fence_and_an_attempt(db: Outbox) -> None:
    """What a sending claim writes, all at once."""
    row_id = await db.put()
    (claim,) = await db.claim()
    row = await db.row(row_id)

    assert (claim["id"], claim["claim_seq"], claim["attempts"], claim["asking"]) == (row_id, 1, 1, False)
    assert (row["status"], row["lease_until"], row["leased_at"]) == ("processing", db.now + LEASE, db.now)
    assert (row["claimed_by"], row["account"]) == ("w1", ACCOUNT)
    assert claim["message"] is not None


async def test_a_doubt_is_claimed_to_ask_and_not_charged(db: Outbox) -> None:
    """A claim either asks or sends; an ask needs no body."""
    row_id = await db.in_state("doubt")
    db.later(30)
    (claim,) = await db.claim()

    assert (claim["id"], claim["claim_seq"], claim["attempts"], claim["asking"]) == (row_id, 2, 1, True)
    assert claim["doubt_age"] == 30
    assert claim["message"] is None


async def test_the_lowest_priority_goes_first_then_the_oldest(db: Outbox) -> None:
    """Exactly, for a password reset must not wait behind a newsletter."""
    for key, priority in [("bulk 1", 5), ("bulk 2", 5), ("plain", 0), ("urgent", -5)]:
        await db.put(key, priority=priority)
    await db.put("urgent and older", priority=-5, run_after=db.at(-60))
    taken = [(await db.claimed())[0] for _ in range(5)]

    assert taken == ["urgent and older", "urgent", "plain", "bulk 1", "bulk 2"]


async def test_one_claim_crosses_priorities_and_builders_in_order(db: Outbox) -> None:
    """The free slots are filled from the top, whoever makes the message."""
    await db.put("c", priority=1)
    await db.put("b", {"builder": "invoice"}, priority=0)
    await db.put("a", priority=-1)
    await db.put("d", priority=2)

    assert await db.claimed(3, builders=("", "invoice")) == ["a", "b", "c"]


# What a worker may serve: each has its own first look.
SERVED = [("",), ("", "reset")]
PLANS = ["enable_hashjoin", "enable_mergejoin", "enable_sort", "enable_hashagg", "enable_material"]
PLANS += ["enable_nestloop", "enable_indexscan", "enable_bitmapscan", "enable_seqscan"]


@pytest.mark.parametrize("off", [*PLANS, "all of the first five"])
async def test_no_plan_claims_past_its_limit(db: Outbox, off: str) -> None:
    """A limit in a subquery may be run again under some plans, and claims what nobody has a slot for."""
    for n in range(20):
        await db.put(f"k{n}", priority=n % 2)
    for n in range(4):
        await db.doubt(*await _sent_away(db, f"d{n}"), 0)
    for setting in PLANS[:5] if off.startswith("all") else [off]:
        await db.conn.execute(f"set local {setting} = off")
    claimed = await db.claimed(5, asks=2)

    assert len(claimed) == 5
    assert [key for key in claimed if key.startswith("d")] == ["d0", "d1"]
    for builders in SERVED:
        assert len(await db.claimed(2, builders=builders, first=True)) == 2
    assert await db.conn.fetchval("select count(*) from notifyq.emails where status = 'processing'") == 9


async def test_the_first_look_takes_what_is_due_at_the_foremost_priority(db: Outbox) -> None:
    """Oldest first, whoever makes the message; the rest is for the whole claim that follows at once."""
    await db.put("plain")
    await db.put("urgent", priority=-1)
    await db.put("reset", {"builder": "reset"}, priority=-1, run_after=db.at(-60))
    await db.put("newsletter", {"builder": "news"}, priority=3)
    await db.put("unknown", {"builder": "invoice"}, priority=-9)
    known = ("", "reset", "news")
    one = await db.claimed(1, builders=known, first=True)
    other = await db.claimed(5, builders=known, first=True)

    assert (one, other) == (["reset"], ["urgent"])
    assert await db.claimed(5, builders=known) == ["plain", "newsletter"]


async def test_the_first_look_of_a_worker_without_builders_is_exact_too(db: Outbox) -> None:
    """Its own statement: priority, then age."""
    await db.put("plain")
    await db.put("urgent", priority=-1)
    await db.put("older", priority=-1, run_after=db.at(-60))
    await db.put("oldest", {"builder": "reset"}, priority=-9, run_after=db.at(-90))

    assert [await db.claimed(1, first=True) for _ in range(4)] == [["older"], ["urgent"], ["plain"], []]


@pytest.mark.parametrize("builders", SERVED)
async def test_the_first_look_writes_what_a_whole_claim_writes(db: Outbox, builders: tuple[str, ...]) -> None:
    """The same lease, fence and attempt, the same answer; only what it did not look at is missing."""
    unlooked = {"wake_in", "clock", "gate", "gate_failures", "others_at_work"}
    answers, rows = [], []
    for key, first in (("whole", False), ("first", True)):
        row_id = await db.put(key, send_before=db.at(60))
        (answer,) = await db.claim(builders=builders, first=first)
        answers.append({**dict(answer), "id": None, "key": None, "uid": None})
        rows.append({**dict(await db.row(row_id)), "id": None, "key": None, "uid": None})

    assert rows[0] == rows[1]
    assert {name for name in answers[0] if name not in answers[1]} == unlooked
    assert answers[1].items() <= answers[0].items()


@pytest.mark.parametrize("builders", SERVED)
async def test_the_first_look_leaves_alone_what_needs_a_whole_claim(
    db: Outbox, builders: tuple[str, ...]
) -> None:
    """Doubts, the future, what has expired, and what is sent only unless it is found."""
    doubt = await db.in_state("doubt")
    db.later(1000)
    future = await db.put("future", run_after=db.at(60))
    expired = await db.put("expired", send_before=db.at(1))
    ordered = await db.put("ordered")  # to be sent, unless it is found
    await db.conn.execute(
        "update notifyq.emails set doubt_since = run_after, ordered = true where id = $1", ordered
    )
    db.later(2)
    rows = (doubt, future, expired, ordered)
    before = [dict(await db.row(row_id)) for row_id in rows]

    assert await db.claim(5, builders=builders, first=True) == []
    assert [dict(await db.row(row_id)) for row_id in rows] == before


@pytest.mark.parametrize("builders", SERVED)
@pytest.mark.parametrize("gate", ["closed", "paced"])
async def test_the_first_look_takes_nothing_through_a_gate_that_is_not_wide_open(
    db: Outbox, gate: str, builders: tuple[str, ...]
) -> None:
    """A probe and a pace are matters of the whole claim."""
    shut = "'closed', now() + interval '1 hour', null" if gate == "closed" else "'open', null, 1.0"
    await db.conn.execute(
        f"insert into notifyq.gates (account, state, until, pace) values ($1, {shut})", ACCOUNT
    )
    await db.put()

    assert await db.claimed(5, builders=builders, first=True) == []
    assert await db.claimed(5, builders=builders, first=True, account="fake:b") == ["k"]


async def _sent_away(db: Outbox, key: str) -> tuple[int, int]:
    row_id = await db.put(key, priority=-9)
    (claim,) = await db.claim(1, asks=0)
    assert claim["id"] == row_id
    return row_id, claim["claim_seq"]


async def test_a_builder_that_nobody_here_knows_is_left_alone(db: Outbox) -> None:
    """Not claimed, not touched, and no reason to wake up."""
    row_id = await db.put("k", {"builder": "invoice"})
    before = await db.conn.fetchval("select ctid from notifyq.emails where id = $1", row_id)
    (nothing,) = await db.claim(5)
    after = await db.conn.fetchval("select ctid from notifyq.emails where id = $1", row_id)

    assert (nothing["id"], nothing["wake_in"]) == (None, None)
    assert before == after
    assert await db.claimed(5, builders=("", "invoice")) == ["k"]


async def test_a_future_row_is_claimed_when_it_is_due(db: Outbox) -> None:
    """And the answer says when that is."""
    await db.put(run_after=db.at(90))
    (nothing,) = await db.claim(5)

    assert (nothing["id"], nothing["wake_in"]) == (None, 90)
    db.later(90)
    assert await db.claimed(5) == ["k"]


async def test_a_future_doubt_is_asked_about_when_it_is_due(db: Outbox) -> None:
    """Settle is a wait like any other."""
    row_id = await db.put()
    await db.claim()
    await db.doubt(row_id, 1, 120)
    (nothing,) = await db.claim(5)

    assert (nothing["id"], nothing["wake_in"]) == (None, 120)
    db.later(120)
    assert await db.claimed(5) == ["k"]


async def test_past_send_before_it_is_dead_and_not_claimed(db: Outbox) -> None:
    """A password reset whose token has died is not sent."""
    row_id = await db.put(send_before=db.at(60))
    db.later(60)

    assert await db.claimed(5) == []
    assert await db.status(row_id) == "dead: expired"
    assert await db.events(row_id) == ["expired"]


async def test_a_doubt_past_send_before_is_asked_about_all_the_same(db: Outbox) -> None:
    """It may have been sent in time."""
    await db.put(send_before=db.at(60))
    await db.claim()
    await db.doubt((await db.conn.fetchval("select id from notifyq.emails")), 1)
    db.later(120)
    (claim,) = await db.claim()

    assert (claim["asking"], claim["expires_in"]) == (True, -60)


async def test_rows_behind_expired_ones_are_not_forgotten(db: Outbox) -> None:
    """After an outage the oldest rows have expired; what stands behind them is due now."""
    await db.put("expired", run_after=db.at(-100), send_before=db.at(-1))
    await db.put("good")
    first = await db.claim(1)
    come_again = first[0]["wake_in"] is not None and first[0]["wake_in"] <= 0

    assert first[0]["key"] == "good" or come_again


async def test_however_many_have_expired_one_claim_ends_a_thousand_of_them_and_takes_what_is_good(
    db: Outbox,
) -> None:
    """All at once would cost the square of their number: after an outage no claim would ever end."""
    await db.conn.execute(
        "insert into notifyq.emails (key, message, run_after, send_before) "
        "select 'expired ' || n, '{}', $1, $2 from generate_series(1, 2500) n",
        db.at(-100),
        db.at(-1),
    )
    await db.put("good")
    expired = "select count(*) from notifyq.emails where reason = 'expired'"
    (first,) = await db.claim(5)
    assert (first["key"], await db.conn.fetchval(expired)) == ("good", 1000)
    assert 0 < first["wake_in"] < 0.1

    for _ in range(2):
        await db.claim(5)
    assert await db.conn.fetchval(expired) == 2500


async def test_what_expires_expires_while_nothing_may_be_sent(db: Outbox) -> None:
    """Behind a shut gate, too: an operator looks at a queue that says what is still to go."""
    row_id = await db.put(send_before=db.at(-1))

    await db.claim(0)

    assert await db.status(row_id) == "dead: expired"


async def test_forty_priorities_of_urgent_rows_leave_the_bulk_its_own_slots(db: Outbox) -> None:
    """The rest of many priorities is taken in one walk, and that knows which slots are for whom."""
    for n in range(40):
        await db.put(f"future {n}", priority=n - 50, run_after=db.at(3600))
    for n in range(5):
        await db.put(f"bulk {n}")
    await db.put("urgent", priority=-1)
    rows = await db.call(
        "claim_emails",
        worker="w",
        account="fake:a",
        slots=5,
        ask_slots=0,
        builders=[""],
        lease=timedelta(seconds=20),
        bulk_slots=2,
    )

    assert [row["key"] for row in rows] == ["urgent", "bulk 0", "bulk 1"]


async def test_a_doubt_of_another_account_is_not_asked_about_here(db: Outbox) -> None:
    """Another account's search shows nothing, which would be taken for a no."""
    await db.in_state("doubt")
    db.later(1000)
    (nothing,) = await db.claim(5, account="fake:b")

    assert (nothing["id"], nothing["wake_in"]) == (None, None)


async def test_many_doubts_of_another_account_cost_a_claim_one_question_who_it_is(db: Outbox) -> None:
    """Not one a row: with fifty thousand of them a claim took seconds."""
    await db.conn.execute(
        """
        insert into notifyq.emails (key, message, status, account, doubt_since)
        select 'd' || n, '{}', 'doubt', 'fake:b', now() from generate_series(1, 300) n
        """
    )
    await db.conn.execute("set local track_functions = 'pl'")
    await db.claim(5)

    assert await db.conn.fetchval(
        "select calls <= 3 from pg_stat_xact_user_functions where funcname = 'same_accounts'"
    )


async def test_a_new_token_of_the_same_server_may_ask(db: Outbox) -> None:
    """The provider's own name of the account outlives a change of token."""
    await db.in_state("doubt")
    await db.conn.execute(
        "select notifyq.gate_server($1, 's1'), notifyq.gate_server('fake:b', 's1')", ACCOUNT
    )
    (claim,) = await db.claim(5, account="fake:b")

    assert (claim["asking"], claim["account"]) == (True, ACCOUNT)


async def test_a_retried_doubt_of_another_account_is_not_asked_about_here(db: Outbox) -> None:
    """The same empty search, the same second copy: the account is still that of the lost POST."""
    row_id = await db.in_state("held")
    await db.call("retry_email", id=row_id)

    assert await db.claimed(5, account="fake:b") == []


async def test_asks_take_no_more_than_their_slots(db: Outbox) -> None:
    """A burst of doubts never stops the mail."""
    for n in range(3):
        await db.doubt(*await _sent_away(db, f"d{n}"), 0)
    for n in range(3):
        await db.put(f"k{n}")

    assert await db.claimed(4, asks=1) == ["d0", "k0", "k1", "k2"]
    assert await db.claimed(4, asks=0) == []


async def test_the_bell_may_be_followed_only_as_far_as_there_are_slots(db: Outbox) -> None:
    """No slot, no row."""
    await db.put()

    assert await db.claimed(0) == []


async def test_two_workers_never_claim_one_row(notifyq_dsn: str) -> None:
    """The second skips what the first has locked, and is told to come again at once."""
    one, two = await asyncpg.connect(notifyq_dsn), await asyncpg.connect(notifyq_dsn)
    await Outbox(one).put("a")
    await Outbox(one).put("b")
    held = one.transaction()
    await held.start()
    first = await Outbox(one).claimed(1)
    second = await Outbox(two).claimed(5, worker="w2")
    third = await Outbox(two).claim(5, worker="w2")
    await held.commit()
    await one.close()
    await two.close()

    assert (first, second) == (["a"], ["b"])
    assert third[0]["id"] is None
    assert third[0]["wake_in"] <= 0


async def test_the_answer_tells_of_other_processes_at_work(db: Outbox) -> None:
    """Somebody must watch their leases."""
    await db.in_state("processing")
    (mine,) = await db.claim(worker="w1")
    (others,) = await db.claim(worker="w2")

    assert (mine["others_at_work"], others["others_at_work"]) == (False, True)


@pytest.mark.parametrize("setting", ["off", "local", "on", "remote_apply"])
async def test_a_claim_is_durable_whatever_the_role_says(db: Outbox, setting: str) -> None:
    """A claim that a crash forgets is sent blindly again; what is more than "on" stays."""
    await db.conn.execute(f"set local synchronous_commit = {setting}")
    await db.claim()

    expected = "on" if setting in ("off", "local") else setting
    assert await db.conn.fetchval("show synchronous_commit") == expected


async def test_a_row_that_waits_tells_how_long(db: Outbox) -> None:
    """From when it was due, not from when it was made."""
    await db.put(run_after=db.at(10))
    db.later(15)
    (claim,) = await db.claim()

    assert claim["waited"] == timedelta(seconds=5).total_seconds()


async def test_a_priority_for_each_email_does_not_stop_the_claim(db: Outbox) -> None:
    """Somebody uses a sequence as the priority: in order all the same, and without a hop for each."""
    for number in range(60):
        await db.put(f"ahead {number}", priority=number, run_after=db.at(3600))
    for number in range(100, 105):
        await db.put(f"due {number}", priority=number)

    assert await db.claimed(slots=3) == ["due 100", "due 101", "due 102"]
