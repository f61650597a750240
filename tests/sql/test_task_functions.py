"""A call's life in SQL alone: every verb of sql/functions/tasks.sql, with the time handed in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from outbox import until

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LEASE = timedelta(seconds=20)


@pytest.fixture
async def db(notifyq_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection: no code of ours between the test and the functions."""
    conn = await asyncpg.connect(notifyq_dsn)
    yield conn
    await conn.close()


@pytest.fixture
async def other(notifyq_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A second one, for races."""
    conn = await asyncpg.connect(notifyq_dsn)
    yield conn
    await conn.close()


async def put(db: asyncpg.Connection, name: str = "a", key: str | None = None, **more: Any) -> Any:
    """Enqueue one call."""
    options = {"run_after": None, "priority": 0, "max_attempts": None, "now": NOW, **more}
    return await db.fetchrow(
        "select * from notifyq.enqueue_task($1, '{}', $2, $3, $4, $5, $6)", name, key, *options.values()
    )


async def claim(
    db: asyncpg.Connection,
    *names: str,
    slots: int = 10,
    limits: list[int | None] | None = None,
    worker: str = "w",
    now: datetime = NOW,
) -> list[Any]:
    """All rows of a claim's answer; with ``id`` null if it claimed nothing."""
    return await db.fetch(
        "select * from notifyq.claim_tasks($1, $2, $3, $4, $5, p_now => $6)",
        worker,
        slots,
        list(names or ("a",)),
        limits or [None] * len(names or ("a",)),
        LEASE,
        now,
    )


async def claimed(db: asyncpg.Connection, *names: str, **more: Any) -> list[int]:
    """The ids that a claim got."""
    return [row["id"] for row in await claim(db, *names, **more) if row["id"] is not None]


async def row(db: asyncpg.Connection, id: int) -> Any:
    """One call as it is."""
    return await db.fetchrow("select * from notifyq.tasks where id = $1", id)


async def one_row(db: asyncpg.Connection, query: str, *arguments: Any) -> asyncpg.Record:
    """The only row of an answer."""
    (row,) = await db.fetch(query, *arguments)
    return row


async def done(db: asyncpg.Connection, id: int, claim_seq: int = 1) -> list[Any]:
    """Record that it returned."""
    return await db.fetch("select * from notifyq.task_done($1, $2, $3, $4)", [id], [claim_seq], ["done"], NOW)


async def dead(db: asyncpg.Connection, id: int, claim_seq: int = 1) -> None:
    """Record that it gave up."""
    await db.fetch(
        "select * from notifyq.task_dead($1, $2, $3, $4, $5, $6)",
        [id],
        [claim_seq],
        ["gave_up"],
        ["why"],
        ["gave up"],
        NOW,
    )


# ---------------------------------------------------------------- keys


async def test_a_key_gives_one_row_while_its_call_is_active_and_a_new_one_after(
    db: asyncpg.Connection,
) -> None:
    """The one difference to an email's key, which is used once ever: a finished task can run again."""
    first = await put(db, key="k")
    again = await put(db, key="k")
    await claim(db)
    while_it_runs = await put(db, key="k")
    await done(db, first["id"])
    after = await put(db, key="k")

    assert [first["created"], again["created"], while_it_runs["created"], after["created"]] == [
        True,
        False,
        False,
        True,
    ]
    assert first["id"] == again["id"] == while_it_runs["id"] != after["id"]


async def test_a_dead_call_does_not_keep_its_key(db: asyncpg.Connection) -> None:
    """Nobody is going to run it."""
    first = await put(db, key="k")
    await claim(db)
    await dead(db, first["id"])

    assert (await put(db, key="k"))["created"]


async def test_a_key_belongs_to_its_task_and_no_key_is_no_rule(db: asyncpg.Connection) -> None:
    """Two tasks may both have a call "7"; calls without a key never meet."""
    made = [await put(db, "a", "7"), await put(db, "b", "7"), await put(db, "a"), await put(db, "a")]

    assert all(answer["created"] for answer in made)


@pytest.mark.parametrize("commits", [True, False])
async def test_two_transactions_that_race_on_a_key_give_one_row(
    db: asyncpg.Connection, other: asyncpg.Connection, commits: bool
) -> None:
    """The second waits for the first, and answers by what became of it."""
    first = db.transaction()
    await first.start()
    await put(db, key="k")
    second = asyncio.create_task(put(other, key="k"))
    await _until_waiting(db, other)

    await (first.commit() if commits else first.rollback())

    assert (await second)["created"] is not commits
    assert await db.fetchval("select count(*) from notifyq.tasks") == 1


async def test_above_read_committed_the_loser_of_the_race_is_told(
    db: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    """40001, as with any insert; not a loop that never ends."""
    loser = other.transaction(isolation="repeatable_read")
    await loser.start()
    await other.fetchval("select 1 from notifyq.tasks")
    await put(db, key="k")

    with pytest.raises(asyncpg.SerializationError):
        await put(other, key="k")

    await loser.rollback()


async def _until_waiting(db: asyncpg.Connection, other: asyncpg.Connection) -> None:
    async def waits() -> bool:
        waiting = "select count(*) > 0 from pg_locks where pid = $1 and not granted"
        return bool(await db.fetchval(waiting, other.get_server_pid()))

    await until(waits, what="the second transaction waits for the first")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("p_name => ''", "name"),
        ("p_name => null", "name"),
        ("p_name => repeat('x', 201)", "name"),
        ("p_name => 'a', p_args => '[]'", "args"),
        ("p_name => 'a', p_args => null", "args"),
        ("p_name => 'a', p_key => ''", "key"),
        ("p_name => 'a', p_key => repeat('x', 501)", "key"),
        ("p_name => 'a', p_priority => null", "priority"),
        ("p_name => 'a', p_max_attempts => 0", "max_attempts"),
    ],
)
async def test_misuse_is_refused_with_the_name_of_the_field(
    db: asyncpg.Connection, arguments: str, field: str
) -> None:
    """For programs in any language: SQLSTATE 22023 and COLUMN."""
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await db.fetch(f"select * from notifyq.enqueue_task({arguments})")

    assert caught.value.column_name == field


# ---------------------------------------------------------------- the claim


async def test_urgent_calls_go_first_then_the_longest_due(db: asyncpg.Connection) -> None:
    """Priority is exact, also over several names."""
    late = (await put(db, "a", run_after=NOW - timedelta(minutes=1)))["id"]
    earlier = (await put(db, "b", run_after=NOW - timedelta(minutes=2)))["id"]
    urgent = (await put(db, "a", priority=-1))["id"]
    await put(db, "a", run_after=NOW + timedelta(seconds=30))

    rows = await claim(db, "a", "b", slots=10)

    assert [each["id"] for each in rows] == [urgent, earlier, late]
    assert rows[0]["wake_in"] == 30


@pytest.mark.parametrize("slots", [1, 2, 3])
async def test_a_claim_takes_as_many_as_there_are_slots(db: asyncpg.Connection, slots: int) -> None:
    """A claim is the intent to start now."""
    made = [(await put(db, name, priority=n % 2))["id"] for n, name in enumerate("aabbab")]

    got = await claimed(db, "a", "b", slots=slots)

    assert len(got) == slots
    assert set(got) <= set(made)


async def test_a_claim_charges_leases_and_counts_the_fence_up(db: asyncpg.Connection) -> None:
    """Charged before it is started: a call that kills its process must not run for ever."""
    id = (await put(db))["id"]
    await claim(db)

    call = await row(db, id)

    assert (call["status"], call["attempts"], call["claim_seq"], call["claimed_by"]) == (
        "processing",
        1,
        1,
        "w",
    )
    assert call["lease_until"] - call["leased_at"] == LEASE


async def test_names_that_a_worker_does_not_know_are_left_as_they_are(db: asyncpg.Connection) -> None:
    """An old worker during a deploy: not charged, not claimed, not updated, and not in anybody's way."""
    stranger = (await put(db, "new", priority=-9))["id"]
    known = (await put(db, "a"))["id"]
    before = await db.fetchrow("select xmin, ctid from notifyq.tasks where id = $1", stranger)

    assert await claimed(db) == [known]
    (nothing,) = await claim(db)

    assert (nothing["id"], nothing["wake_in"]) == (None, None)
    assert before == await db.fetchrow("select xmin, ctid from notifyq.tasks where id = $1", stranger)
    assert (await row(db, stranger))["attempts"] == 0


async def test_a_limit_counts_what_runs_anywhere(db: asyncpg.Connection) -> None:
    """Two of the limited name, whoever claims, and all of the other."""
    made = [(await put(db, "a"))["id"] for _ in range(4)]
    free = (await put(db, "b"))["id"]

    first = await claimed(db, "a", "b", limits=[2, None], worker="w1")
    (full,) = await claim(db, "a", "b", limits=[2, None], worker="w2")
    await done(db, made[0])
    then = await claimed(db, "a", "b", limits=[2, None], worker="w2")

    assert first == [*made[:2], free]
    assert (full["id"], full["wake_in"]) == (None, 1.0)
    assert then == made[2:3]


async def test_a_limit_holds_over_several_priorities_of_one_claim(db: asyncpg.Connection) -> None:
    """What the first priority took is no room for the second."""
    for priority in (0, 1, 2):
        await put(db, priority=priority)

    assert len(await claimed(db, limits=[2])) == 2


async def test_while_another_claim_counts_a_limited_name_nobody_else_does(
    db: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    """Two counts at once would both see room; the later one comes again in a moment."""
    await put(db)
    await put(db)
    async with db.transaction():
        assert len(await claimed(db, limits=[1])) == 1
        (nothing,) = await claim(other, limits=[1])

    assert (nothing["id"], nothing["wake_in"]) == (None, 0.02)
    assert await claimed(other, limits=[1]) == []


async def test_a_limit_of_one_is_never_passed_by_claims_at_the_same_time(notifyq_pool: Any) -> None:
    """Eight claimers, each claim a transaction of its own; the database counts what runs."""
    await notifyq_pool.executemany("select notifyq.enqueue_task($1)", [("a",)] * 40)
    peak = ran = 0

    async def claimer() -> None:
        nonlocal peak, ran
        async with notifyq_pool.acquire() as conn:
            while ran < 40:
                got = await claimed(conn, limits=[1], now=datetime(2100, 1, 1, tzinfo=UTC))
                running = await conn.fetchval(
                    "select count(*) from notifyq.tasks where status = 'processing'"
                )
                peak = max(peak, running, len(got))
                for id in got:
                    await done(conn, id)
                    ran += 1

    await asyncio.gather(*(claimer() for _ in range(8)))

    assert peak == 1


# ---------------------------------------------------------------- the ends


ENDS = {
    "done": "select * from notifyq.task_done($1, $2, '{done}')",
    "dead": "select * from notifyq.task_dead($1, $2, '{gave_up}', '{e}', '{gave up}')",
    "pending": "select * from notifyq.task_pending($1, $2, '{5}', '{true}', '{e}', '{failed}')",
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_worker_that_lost_its_claim_changes_nothing(db: asyncpg.Connection, end: str) -> None:
    """The fence: claim_seq has gone up since."""
    id = (await put(db))["id"]
    await claim(db)
    await _lease_over(db, id)
    await claim(db, worker="second")
    before = await row(db, id)

    assert await db.fetch(ENDS[end], [id], [1]) == []
    assert before == await row(db, id)
    assert [answer[0] for answer in await db.fetch(ENDS[end], [id], [2])] == [id]
    assert (await row(db, id))["status"] == end


@pytest.mark.parametrize("end", ENDS)
async def test_an_end_is_recorded_once(db: asyncpg.Connection, end: str) -> None:
    """The answer to the first statement was lost, and it is sent again."""
    id = (await put(db))["id"]
    await claim(db)
    await db.fetch(ENDS[end], [id], [1])
    before = await row(db, id)

    assert await db.fetch(ENDS[end], [id], [1]) == []
    assert before == await row(db, id)
    assert await db.fetchval("select count(*) from notifyq.history where row_id = $1", id) == 1


@pytest.mark.parametrize(("charged", "attempts"), [(True, 1), (False, 0)])
async def test_a_run_that_was_not_started_is_not_charged(
    db: asyncpg.Connection, charged: bool, attempts: int
) -> None:
    """A shutdown came first."""
    id = (await put(db))["id"]
    await claim(db)
    await db.fetch(
        "select * from notifyq.task_pending($1, $2, $3, $4, $5, $6, $7)",
        [id],
        [1],
        [7.0],
        [charged],
        [None],
        ["released"],
        NOW,
    )

    call = await row(db, id)

    assert (call["status"], call["attempts"], call["run_after"]) == (
        "pending",
        attempts,
        NOW + timedelta(seconds=7),
    )


# ---------------------------------------------------------------- leases


async def _lease_over(db: asyncpg.Connection, id: int) -> list[Any]:
    return await db.fetch(
        "select * from notifyq.task_leases_ended(array[$1::bigint], "
        "(select array[claim_seq] from notifyq.tasks where id = $1), "
        "(select array[lease_until] from notifyq.tasks where id = $1), $2)",
        id,
        NOW,
    )


async def test_a_call_whose_worker_was_lost_runs_again_and_is_charged(db: asyncpg.Connection) -> None:
    """It had been started, as far as anybody can know."""
    id = (await put(db))["id"]
    await claim(db)

    assert len(await _lease_over(db, id)) == 1

    call = await row(db, id)
    assert (call["status"], call["attempts"], call["run_after"]) == ("pending", 1, NOW)
    assert "lost" in call["last_error"]


async def test_a_call_that_always_loses_its_worker_ends_dead(db: asyncpg.Connection) -> None:
    """One that kills its process must not kill for ever."""
    id = (await put(db, max_attempts=2))["id"]
    for _ in range(2):
        await claim(db)
        await _lease_over(db, id)

    call = await row(db, id)

    assert (call["status"], call["reason"], call["attempts"]) == ("dead", "exhausted", 2)


async def test_a_lease_that_was_renewed_meanwhile_is_not_over(db: asyncpg.Connection) -> None:
    """The observer saw another lease than the one that stands."""
    id = (await put(db))["id"]
    await claim(db)
    seen = (await row(db, id))["lease_until"]
    renewed = await db.fetch(
        "select * from notifyq.renew_task_leases($1, $2, $3, $4)",
        [id],
        [1],
        LEASE,
        NOW + timedelta(seconds=5),
    )

    over = await db.fetch("select * from notifyq.task_leases_ended($1, $2, $3)", [id], [1], [seen])

    assert ([each[0] for each in renewed], over) == ([id], [])
    assert (await row(db, id))["status"] == "processing"


async def test_the_heartbeat_says_which_calls_are_still_ours(db: asyncpg.Connection) -> None:
    """One statement for all; what is missing in the answer was lost."""
    mine, lost, over = [(await put(db))["id"] for _ in range(3)]
    await claim(db)
    await _lease_over(db, lost)
    await done(db, over)

    answer = await db.fetch(
        "select * from notifyq.renew_task_leases($1, $2, $3)", [mine, lost, over], [1] * 3, LEASE
    )

    assert [each[0] for each in answer] == [mine]


async def test_claims_that_a_worker_never_heard_of_go_back_uncharged(db: asyncpg.Connection) -> None:
    """The answer to the claim was lost on the way."""
    known, unheard = (await put(db))["id"], (await put(db))["id"]
    foreign = (await put(db, "b"))["id"]
    await claim(db)
    await claim(db, "b", worker="other")

    released = await db.fetch("select * from notifyq.release_lost_tasks('w', $1)", [known])

    assert [each[0] for each in released] == [unheard]
    assert ((await row(db, unheard))["status"], (await row(db, unheard))["attempts"]) == ("pending", 0)
    assert {(await row(db, id))["status"] for id in (known, foreign)} == {"processing"}


# ---------------------------------------------------------------- the operator


async def test_a_dead_call_can_be_run_again_from_the_start(db: asyncpg.Connection) -> None:
    """All its attempts are there again, and it is due now."""
    id = (await put(db))["id"]
    await claim(db)
    await dead(db, id)

    answer = await one_row(db, "select * from notifyq.retry_task($1, p_now => $2)", id, NOW)

    assert tuple(answer) == (id, "pending", True)
    call = await row(db, id)
    assert (call["attempts"], call["reason"], call["run_after"], call["claim_seq"]) == (0, None, NOW, 1)


async def test_a_dead_call_whose_key_is_active_again_answers_with_the_active_one(
    db: asyncpg.Connection,
) -> None:
    """Two active calls of one key may not be; the operator sees which one is there."""
    old = (await put(db, key="k"))["id"]
    await claim(db)
    await dead(db, old)
    active = (await put(db, key="k"))["id"]

    answer = await one_row(db, "select * from notifyq.retry_task($1)", old)

    assert tuple(answer) == (active, "pending", False)
    assert (await row(db, old))["status"] == "dead"


@pytest.mark.parametrize("verb", ["retry_task", "cancel_task"])
async def test_what_runs_is_never_touched_by_an_operator(db: asyncpg.Connection, verb: str) -> None:
    """Its worker holds it."""
    id = (await put(db))["id"]
    await claim(db)
    before = await row(db, id)

    assert tuple(await one_row(db, f"select * from notifyq.{verb}($1)", id)) == (id, "processing", False)
    assert before == await row(db, id)


@pytest.mark.parametrize("verb", ["retry_task", "cancel_task"])
async def test_an_unknown_id_has_no_answer(db: asyncpg.Connection, verb: str) -> None:
    """Not even a false one."""
    assert await db.fetch(f"select * from notifyq.{verb}(4711)") == []


async def test_an_act_on_a_row_that_has_moved_on_changes_nothing(db: asyncpg.Connection) -> None:
    """The page showed an older state of it."""
    id = (await put(db))["id"]
    await claim(db)
    await dead(db, id)

    assert tuple(await one_row(db, "select * from notifyq.retry_task($1, 0)", id)) == (id, "dead", False)


async def test_a_waiting_call_can_be_cancelled_and_the_act_is_signed(db: asyncpg.Connection) -> None:
    """The history says who did it."""
    id = (await put(db, key="k"))["id"]
    await db.execute("select set_config('notifyq.actor', 'ann', false)")

    answer = await one_row(db, "select * from notifyq.cancel_task($1)", id)

    assert tuple(answer) == (id, "dead", True)
    assert (await row(db, id))["reason"] == "cancelled"
    assert await db.fetchval("select actor from notifyq.history where row_id = $1", id) == "ann"
    assert (await put(db, key="k"))["created"]


# ---------------------------------------------------------------- retention, ticks


async def test_retention_takes_finished_calls_with_their_history(db: asyncpg.Connection) -> None:
    """A task's key is free after its end, so nothing has to be kept."""
    old, active = (await put(db))["id"], (await put(db, "b"))["id"]
    await claim(db)
    await done(db, old)

    count = await db.fetchval(
        "select notifyq.purge_tasks(interval '1 day', p_now => $1)", NOW + timedelta(days=1, seconds=1)
    )

    assert (count, await row(db, old)) == (1, None)
    assert (await row(db, active))["status"] == "pending"
    assert await db.fetchval("select count(*) from notifyq.history") == 0


async def test_a_tick_is_enqueued_once_however_many_workers_see_it(notifyq_pool: Any) -> None:
    """Also when its call is done before the last of them asks: a key could not do that."""
    await notifyq_pool.fetchval("select notifyq.last_tick('nightly', $1)", NOW)
    tick = NOW + timedelta(hours=1)

    async def worker() -> bool:
        return bool(await notifyq_pool.fetchval("select notifyq.enqueue_tick('nightly', $1)", tick))

    answers = await asyncio.gather(*(worker() for _ in range(8)))
    await notifyq_pool.execute("delete from notifyq.tasks")
    late = await worker()

    assert (sum(answers), late) == (1, False)
    assert await notifyq_pool.fetchval("select count(*) from notifyq.tasks") == 0
    assert await notifyq_pool.fetchval("select notifyq.last_tick('nightly')") == tick


async def test_a_tick_that_is_passed_over_is_passed_over_by_all(db: asyncpg.Connection) -> None:
    """The tick moves forward, no call is made."""
    await db.fetchval("select notifyq.last_tick('nightly', $1)", NOW)

    ran = await db.fetchval("select notifyq.enqueue_tick('nightly', $1, false)", NOW + timedelta(hours=1))

    assert ran is False
    assert await db.fetchval("select notifyq.last_tick('nightly')") == NOW + timedelta(hours=1)
    assert await db.fetchval("select count(*) from notifyq.tasks") == 0


async def test_a_tick_whose_transaction_is_lost_is_still_due(db: asyncpg.Connection) -> None:
    """The tick moves in the transaction that enqueues."""
    await db.fetchval("select notifyq.last_tick('nightly', $1)", NOW)
    attempt = db.transaction()
    await attempt.start()
    await db.fetchval("select notifyq.enqueue_tick('nightly', $1)", NOW + timedelta(hours=1))
    await attempt.rollback()

    assert await db.fetchval("select notifyq.enqueue_tick('nightly', $1)", NOW + timedelta(hours=1))


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("status = 'processing'", "leased_exactly_while_processing"),
        ("lease_until = now()", "leased_exactly_while_processing"),
        ("status = 'dead', finished_at = now()", "reason_exactly_when_dead"),
        ("status = 'done'", "finished_exactly_at_the_end"),
        ("status = 'sent'", "status_known"),
        ("status = 'dead', finished_at = now(), reason = 'bored'", "reason_known"),
        ("attempts = -1", "attempts_counted"),
        ("args = '[]'", "args_are_an_object"),
    ],
)
async def test_wrong_rows_are_impossible(db: asyncpg.Connection, change: str, constraint: str) -> None:
    """Also for whoever writes the table with his own hands."""
    await put(db)

    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await db.execute(f"update notifyq.tasks set {change}")

    assert caught.value.constraint_name == constraint
