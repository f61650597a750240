"""Names that nobody serves, and that the two lanes' SQL reads alike."""

from __future__ import annotations

import re

import asyncpg

from notifyq.sqlfiles import query, sql_root

VERB = re.compile(r"^create or replace function notifyq\.(\w+)\(", re.M)


def verbs(file: str, word: str) -> list[str]:
    """The functions of *file*, in order, with the lane's own word made equal."""
    text = (sql_root() / "functions" / file).read_text("utf-8")
    return [name.replace(word, "row") for name in VERB.findall(text)]


def test_emails_and_tasks_have_their_shared_verbs_in_the_same_order() -> None:
    """Who has read the one file has read the other."""
    emails = verbs("emails.sql", "email")
    tasks = verbs("tasks.sql", "task")
    shared = [verb for verb in tasks if verb in emails]

    assert shared == [verb for verb in emails if verb in tasks]
    assert shared == [
        "check_row",
        "enqueue_row",
        "claim_rows",
        "row_dead",
        "row_pending",
        "row_leases_ended",
        "release_lost_rows",
        "purge_rows",
        "retry_row",
        "cancel_row",
    ]


async def _rows(pool: asyncpg.Pool[asyncpg.Record]) -> list[tuple[str, str, int]]:
    return [tuple(row) for row in await pool.fetch(query("unserved_names"))]


async def test_names_without_a_live_worker_are_told(notifyq_pool: asyncpg.Pool[asyncpg.Record]) -> None:
    """A task that nobody knows waits for ever without an error: somebody must be told."""
    pool = notifyq_pool
    for name in ("known", "new", "new", "gone"):
        await pool.fetch("select notifyq.enqueue_task($1)", name)
    await pool.fetch("select notifyq.enqueue_task('done before')")
    await pool.execute(
        "update notifyq.tasks set status = 'done', finished_at = now() where name = 'done before'"
    )
    for key, builder in (("1", "known"), ("2", "newer")):
        await pool.fetch(
            "select notifyq.enqueue_email($1, jsonb_build_object('builder', $2::text, 'args', '{}'::jsonb))",
            key,
            builder,
        )
    await pool.fetch(
        "select notifyq.enqueue_email('3', $1)",
        '{"to": [{"email": "a@b.example"}], "subject": "s", "text": "t"}',
    )
    assert len(await _rows(pool)) == 5

    await pool.fetch("select notifyq.worker_seen('w', true, array['known'], array['known'])")
    await pool.fetch(
        "select notifyq.worker_seen('old', true, array['gone'], '{}', p_now => now() - interval '3 minutes')"
    )

    assert await _rows(pool) == [("task", "gone", 1), ("task", "new", 2), ("email", "newer", 1)]


async def test_what_waits_behind_a_name_does_not_make_the_question_slow(
    notifyq_pool: asyncpg.Pool[asyncpg.Record],
) -> None:
    """Each name is a step in an index: 20,000 rows of three names are a few pages."""
    await notifyq_pool.execute(
        "insert into notifyq.tasks (name) select 'n' || i % 3 from generate_series(1, 20000) i"
    )
    await notifyq_pool.execute("vacuum analyze notifyq.tasks")

    plan = await notifyq_pool.fetch("explain (analyze, buffers, format text) " + query("unserved_names"))

    top = "\n".join(row[0] for row in plan)
    buffers = re.search(r"Buffers: shared hit=(\d+)", top)
    assert buffers is not None
    assert int(buffers[1]) < 400, top
