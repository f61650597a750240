"""The way in: what the caller's transaction, its isolation and its pool do to an enqueued email."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from outbox import Pool, an_email, emails, keys, until

from notifyq import enqueue, enqueue_many, migrate

SQL_MESSAGE = '{"to":[{"email":"a@example.com"}],"from":{"email":"b@example.com"},"subject":"s","text":"t"}'


@pytest.fixture
async def conn(notifyq_pool: Pool) -> AsyncIterator[Any]:
    """The caller's connection."""
    async with notifyq_pool.acquire() as conn:
        yield conn


@pytest.fixture
async def bell(notifyq_dsn: str) -> AsyncIterator[Bell]:
    """Somebody who listens on the channel, on a connection of its own."""
    bell = Bell()
    conn = await asyncpg.connect(notifyq_dsn)
    await conn.add_listener("notifyq", bell.hear)
    await conn.add_listener("done", bell.hear)
    yield bell
    await conn.close()


class Bell:
    """Counts rings."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []

    def hear(self, _conn: object, _pid: int, channel: str, payload: object) -> None:
        self.heard.append((channel, payload))

    async def rings_before_done(self, conn: Any) -> int:
        """How often it rang up to now: a notification of ours comes after all earlier ones."""
        await conn.execute("select pg_notify('done', '')")

        async def done() -> bool:
            return ("done", "") in self.heard

        await until(done, what="the last notification came")
        assert {payload for _, payload in self.heard} == {""}
        return sum(channel == "notifyq" for channel, _ in self.heard)


async def count(conn: Any) -> int:
    """How many rows there are."""
    return int(await conn.fetchval("select count(*) from notifyq.emails"))


async def test_a_rollback_leaves_neither_row_nor_ring(conn: Any, bell: Bell) -> None:
    """A mail about something that never happened is worse than none."""
    await conn.execute("select set_config('notifyq.bell', 'always', false)")
    transaction = conn.transaction()
    await transaction.start()
    await enqueue(conn, an_email())
    await transaction.rollback()

    assert (await count(conn), await bell.rings_before_done(conn)) == (0, 0)


async def test_a_commit_keeps_the_row_and_rings(conn: Any, bell: Bell) -> None:
    """The twin of the rollback: the same steps, the other end."""
    await conn.execute("select set_config('notifyq.bell', 'always', false)")
    async with conn.transaction():
        await enqueue(conn, an_email())

    assert (await count(conn), await bell.rings_before_done(conn)) == (1, 1)


async def test_a_savepoint_that_is_rolled_back_takes_its_email_along(conn: Any) -> None:
    """The rest of the transaction goes on and commits."""
    async with conn.transaction():
        await enqueue(conn, an_email("kept"))
        savepoint = conn.transaction()
        await savepoint.start()
        await enqueue(conn, an_email("undone"))
        await savepoint.rollback()

    assert [r["key"] for r in await conn.fetch("select key from notifyq.emails")] == ["kept"]


async def test_a_known_key_answers_its_row_and_the_transaction_goes_on(conn: Any) -> None:
    """A double click must not undo the order that it belongs to."""
    first = await enqueue(conn, an_email())
    async with conn.transaction():
        second = await enqueue(conn, an_email(subject="another"))
        await enqueue(conn, an_email("other"))

    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert await count(conn) == 2


@pytest.mark.parametrize("first_commits", [True, False])
async def test_two_transactions_that_race_on_a_key_give_one_row(
    conn: Any, notifyq_pool: Pool, first_commits: bool
) -> None:
    """The second waits for the first: it takes that row if it is there, and makes its own if not."""
    async with notifyq_pool.acquire() as other:
        first = conn.transaction()
        await first.start()
        mine = await enqueue(conn, an_email())
        theirs = asyncio.create_task(enqueue(other, an_email()))
        await until_it_waits(notifyq_pool, other.get_server_pid())
        await (first.commit() if first_commits else first.rollback())
        answer = await theirs

    assert answer.created is not first_commits
    assert (answer.id == mine.id) is first_commits
    assert await count(conn) == 1


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_above_read_committed_the_loser_gets_40001(
    conn: Any, notifyq_pool: Pool, isolation: str
) -> None:
    """As with any insert: the caller repeats its transaction, and nothing is half done."""
    async with notifyq_pool.acquire() as other:
        first = conn.transaction()
        await first.start()
        await enqueue(conn, an_email())
        second = other.transaction(isolation=isolation)
        await second.start()
        await other.fetchval("select 1 from notifyq.emails")  # the snapshot is taken
        theirs = asyncio.create_task(enqueue(other, an_email()))
        await until_it_waits(notifyq_pool, other.get_server_pid())
        await first.commit()
        with pytest.raises(asyncpg.SerializationError):
            await theirs
        await second.rollback()

    assert await count(conn) == 1


async def until_it_waits(pool: Pool, pid: int) -> None:
    """Wait until the session *pid* is seen waiting for a lock."""

    async def waits() -> bool:
        return bool(
            await pool.fetchval("select wait_event_type = 'Lock' from pg_stat_activity where pid = $1", pid)
        )

    await until(waits, what="the other transaction waits")


async def test_bulk_answers_in_order_and_creates_a_repeated_key_once(conn: Any) -> None:
    """An import with duplicates in it, beside a row that is known already."""
    known = await enqueue(conn, an_email("known"))

    first, old, again, last = await enqueue_many(conn, emails(["a", "known", "a", "b"]))

    assert [e.created for e in (first, old, again, last)] == [True, False, False, True]
    assert (old.id, again.id) == (known.id, first.id)
    assert await count(conn) == 3


async def test_bulk_is_one_statement_and_one_ring(conn: Any, bell: Bell) -> None:
    """A thousand notifications would wake every worker a thousand times."""
    await conn.execute("select set_config('notifyq.bell', 'always', false)")

    await enqueue_many(conn, emails(keys(500)))

    assert (await count(conn), await bell.rings_before_done(conn)) == (500, 1)


async def test_a_refused_email_in_a_bulk_leaves_nothing(conn: Any) -> None:
    """One statement: all of it or nothing."""
    good, bad = SQL_MESSAGE, SQL_MESSAGE.replace('"s"', r'"s\nBcc: x@example.com"')
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await conn.fetch(
            "select * from notifyq.enqueue_emails($1, $2, $3, $4, $5, $6)",
            ["a", "b"], [good, bad], [None, None], [None, None], [0, 0], ["ask", "ask"],
        )  # fmt: skip

    assert (refused.value.column_name, await count(conn)) == ("subject", 0)


async def test_a_pool_with_its_own_json_codec_works(notifyq_dsn: str) -> None:
    """Web frameworks set one up; a message must not be encoded twice."""

    async def init(conn: asyncpg.Connection) -> None:
        for kind in ("json", "jsonb"):
            await conn.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")

    async with asyncpg.create_pool(notifyq_dsn, min_size=0, max_size=2, init=init) as pool:
        await enqueue(pool, an_email("one"))
        await enqueue_many(pool, emails(["two"]))
        kinds = await pool.fetch("select jsonb_typeof(message) as kind, message from notifyq.emails")

    assert [row["kind"] for row in kinds] == ["object", "object"]
    assert all(row["message"]["subject"] == "s" for row in kinds)


async def test_plain_sql_says_the_same_as_python(conn: Any) -> None:
    """Any language that can call a function has the same outbox."""
    statement = f"select * from notifyq.enqueue_email('k1', '{SQL_MESSAGE}')"

    first, second = await conn.fetchrow(statement), await conn.fetchrow(statement)

    assert (first["created"], second["created"]) == (True, False)
    assert (await enqueue(conn, an_email("k1"))).id == first["id"] == second["id"]


WAYS_IN = {
    "function": f"select notifyq.enqueue_email('k', '{SQL_MESSAGE}')",
    "plain insert": f"insert into notifyq.emails (key, message) values ('k', '{SQL_MESSAGE}')",
    "insert of many": "insert into notifyq.emails (key, message) "
    f"select 'k' || n, '{SQL_MESSAGE}' from generate_series(1, 50) n",
}


@pytest.mark.parametrize("way", WAYS_IN)
async def test_every_way_in_rings_once(conn: Any, bell: Bell, way: str) -> None:
    """A row that nobody is told of waits for the poll."""
    await conn.execute("select set_config('notifyq.bell', 'always', false)")

    await conn.execute(WAYS_IN[way])

    assert await bell.rings_before_done(conn) == 1


async def test_copy_rings_once(conn: Any, bell: Bell) -> None:
    """An import by COPY is mail like any other."""
    await conn.execute("select set_config('notifyq.bell', 'always', false)")

    await conn.copy_records_to_table(
        "emails",
        schema_name="notifyq",
        columns=["key", "message"],
        records=[(key, SQL_MESSAGE) for key in keys(100)],
    )

    assert (await count(conn), await bell.rings_before_done(conn)) == (100, 1)


async def test_a_copied_row_is_sent(outbox: Any) -> None:
    """What COPY put there has every default that a worker needs."""
    await outbox.start()
    async with outbox.pool.acquire() as conn:
        await conn.copy_records_to_table(
            "emails", schema_name="notifyq", columns=["key", "message"], records=[("k", SQL_MESSAGE)]
        )

    await outbox.until("sent")
    assert len(outbox.fake.accepted) == 1


@pytest.mark.parametrize(
    ("field", "call"),
    {
        "key": f"select notifyq.enqueue_email('', '{SQL_MESSAGE}')",
        "to": """select notifyq.enqueue_email('k', '{"subject":"s","text":"t","to":[]}')""",
        "from": """select notifyq.enqueue_email('k', '{"subject":"s","text":"t",
            "to":[{"email":"a@b.example"}],"from":{"email":"x\\ny@example.com"}}')""",
        "text": """select notifyq.enqueue_email('k', '{"subject":"s","to":[{"email":"a@b.example"}]}')""",
        "on_doubt": f"select notifyq.enqueue_email('k', '{SQL_MESSAGE}', p_on_doubt => 'perhaps')",
    }.items(),
)
async def test_misuse_from_sql_names_the_field(conn: Any, field: str, call: str) -> None:
    """SQLSTATE 22023 and COLUMN are what a caller in another language can act on."""
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await conn.execute(call)

    assert (refused.value.sqlstate, refused.value.column_name) == ("22023", field)
    assert await count(conn) == 0


async def test_the_first_email_of_a_kind_in_a_long_transaction_holds_up_no_other(
    notifyq_pool: Pool,
) -> None:
    """An enqueue may wait for nobody but for its own key."""
    async with notifyq_pool.acquire() as one, notifyq_pool.acquire() as other:
        await other.execute("set lock_timeout = '1s'")
        async with one.transaction():
            await one.execute("select notifyq.enqueue_email('a', $1, p_priority => 7)", SQL_MESSAGE)

            row = await other.fetchrow(
                "select * from notifyq.enqueue_email('b', $1, p_priority => 7)", SQL_MESSAGE
            )

    assert row is not None
    assert row["created"]


async def test_a_connection_whose_schema_was_made_anew_still_enqueues(conn: Any, notifyq_dsn: str) -> None:
    """Tests rebuild it under a pool that lives on, and a driver remembers each type that it was asked for."""
    await enqueue(conn, an_email())
    other = await asyncpg.connect(notifyq_dsn)
    await other.execute("drop schema notifyq cascade")
    await migrate(other)
    await other.close()

    assert (await enqueue(conn, an_email())).created


async def test_a_connection_with_a_codec_of_its_own_for_uuids_enqueues(conn: Any) -> None:
    """As some frameworks set one up."""
    await conn.set_type_codec(
        "uuid", schema="pg_catalog", encoder=lambda text: text, decoder=lambda text: text
    )

    assert (await enqueue(conn, an_email())).created
