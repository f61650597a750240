"""The way in: one row a key, refusals that name the field, and rows that cannot be wrong."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import asyncpg
import pytest
from sqlclient import MESSAGE, Outbox

FILE = {"name": "a.txt", "content_type": "text/plain", "content": "QUJD"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no key": ({"key": None}, "key"),
    "an empty key": ({"key": ""}, "key"),
    "a long key": ({"key": "k" * 501}, "key"),
    "an unknown policy": ({"on_doubt": "guess"}, "on_doubt"),
    "no policy": ({"on_doubt": None}, "on_doubt"),
    "no priority": ({"priority": None}, "priority"),
    "no message": ({"message": "null"}, "message"),
    "a message that is a list": ({"message": "[]"}, "message"),
    "no recipient": ({"message": MESSAGE | {"to": []}}, "to"),
    "to is missing": ({"message": {"subject": "s", "text": "t"}}, "to"),
    "to is no list": ({"message": MESSAGE | {"to": "ann@example.org"}}, "to"),
    "an address without @": ({"message": MESSAGE | {"to": [{"email": "ann"}]}}, "to"),
    "two addresses in one": ({"message": MESSAGE | {"to": [{"email": "a@b.org,c@d.org"}]}}, "to"),
    "a line break in an address": ({"message": MESSAGE | {"to": [{"email": "a@b.org\nx"}]}}, "to"),
    "a line break in a name": ({"message": MESSAGE | {"cc": [{"email": "a@b.org", "name": "a\r"}]}}, "cc"),
    "an address that is a string": ({"message": MESSAGE | {"bcc": ["a@b.org"]}}, "bcc"),
    "a bad reply_to": ({"message": MESSAGE | {"reply_to": [{}]}}, "reply_to"),
    "a bad sender": ({"message": MESSAGE | {"from": {"email": "@"}}}, "from"),
    "51 recipients": ({"message": MESSAGE | {"bcc": [{"email": "a@b.org"}] * 50}}, "to"),
    "no subject": ({"message": {k: MESSAGE[k] for k in ("to", "text")}}, "subject"),
    "a line break in the subject": ({"message": MESSAGE | {"subject": "a\nb"}}, "subject"),
    "a long subject": ({"message": MESSAGE | {"subject": "s" * 2001}}, "subject"),
    "no body": ({"message": {k: MESSAGE[k] for k in ("to", "subject")}}, "text"),
    "a body that is a number": ({"message": MESSAGE | {"html": 7}}, "html"),
    "headers that are a list": ({"message": MESSAGE | {"headers": []}}, "headers"),
    "metadata of nine fields": (
        {"message": MESSAGE | {"metadata": dict.fromkeys("abcdefghi", "1")}},
        "metadata",
    ),
    "a header that is a number": ({"message": MESSAGE | {"headers": {"X-A": 1}}}, "headers"),
    "a header with a line break": (
        {"message": MESSAGE | {"headers": {"X-A": "1\nBcc: b@example.org"}}},
        "headers",
    ),
    "a header that is not free to set": ({"message": MESSAGE | {"headers": {"Bcc": "x"}}}, "headers"),
    "a header whose name is none": ({"message": MESSAGE | {"headers": {"X A": "x"}}}, "headers"),
    "metadata that is a number": ({"message": MESSAGE | {"metadata": {"order": 7}}}, "metadata"),
    "metadata with a long value": ({"message": MESSAGE | {"metadata": {"order": "7" * 81}}}, "metadata"),
    "metadata with a long name": ({"message": MESSAGE | {"metadata": {"o" * 21: "7"}}}, "metadata"),
    "metadata with our name": ({"message": MESSAGE | {"metadata": {"NotifyQ": "7"}}}, "metadata"),
    "a tag of two lines": ({"message": MESSAGE | {"tag": "a\nb"}}, "tag"),
    "a stream that is none": ({"message": MESSAGE | {"stream": "a b"}}, "stream"),
    "a recipient of six thousand characters": (
        {"message": MESSAGE | {"to": [{"email": "a" * 6000 + "@b.org"}]}},
        "to",
    ),
    "two dots": ({"message": MESSAGE | {"to": [{"email": "a..b@example.org"}]}}, "to"),
    "an address with a number for a domain": ({"message": MESSAGE | {"to": [{"email": "a@1.2.3.4"}]}}, "to"),
    "an address with a field of no meaning": (
        {"message": MESSAGE | {"to": [{"email": "a@b.org", "x": 1}]}},
        "to",
    ),
    "a key of two lines": ({"key": "a\nb"}, "key"),
    "a blank key": ({"key": "  "}, "key"),
    "a builder of too long a name": ({"message": {"builder": "b" * 201}}, "builder"),
    "a name that is a number": ({"message": MESSAGE | {"to": [{"email": "a@b.org", "name": 7}]}}, "to"),
    "a tab in the subject": ({"message": MESSAGE | {"subject": "a\tb"}}, "subject"),
    "an attachment that is no base64": (
        {"message": MESSAGE | {"attachments": [FILE | {"content": "%"}]}},
        "attachments",
    ),
    "an attachment that Postmark forbids": (
        {"message": MESSAGE | {"attachments": [FILE | {"name": "run.EXE. "}]}},
        "attachments",
    ),
    "an attachment of no type": (
        {"message": MESSAGE | {"attachments": [FILE | {"content_type": "text"}]}},
        "attachments",
    ),
    "an attachment with a bad content_id": (
        {"message": MESSAGE | {"attachments": [FILE | {"content_id": "<a>"}]}},
        "attachments",
    ),
    "attachments of over ten megabytes": (
        {"message": MESSAGE | {"attachments": [FILE | {"content": "QUJD" * 2_700_000}]}},
        "attachments",
    ),
    "an attachment that is a text": ({"message": MESSAGE | {"attachments": ["x"]}}, "attachments"),
    "an attachment without its content": (
        {"message": MESSAGE | {"attachments": [{"name": "a.txt", "content_type": "text/plain"}]}},
        "attachments",
    ),
    "an attachment with a field of no meaning": (
        {
            "message": MESSAGE
            | {"attachments": [{"name": "a", "content_type": "text/plain", "content": "", "cid": "x"}]}
        },
        "attachments",
    ),
    "attachments that are no list": ({"message": MESSAGE | {"attachments": {}}}, "attachments"),
    "a builder without a name": ({"message": {"builder": ""}}, "builder"),
    "a builder's args that are a list": ({"message": {"builder": "b", "args": []}}, "args"),
}


def put(**given: Any) -> dict[str, Any]:
    """Arguments of enqueue_email, with the message as text."""
    whole = {"key": "k", "message": MESSAGE} | given
    text = whole["message"] if isinstance(whole["message"], str) else json.dumps(whole["message"])
    return whole | {"message": text}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_sent_is_refused_by_the_name_of_its_field(db: Outbox, case: str) -> None:
    """A program in any language reads SQLSTATE 22023 and COLUMN; the value is not repeated to it."""
    given, field = REFUSED[case]
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await db.call("enqueue_email", **put(**given))

    assert (caught.value.sqlstate, caught.value.column_name) == ("22023", field)
    assert "example.org" not in str(caught.value)


async def test_a_new_row_is_pending_and_due_now(db: Outbox) -> None:
    """What the defaults promise."""
    row = await db.row(await db.put())

    assert (row["status"], row["run_after"], row["attempts"], row["claim_seq"]) == ("pending", db.now, 0, 0)
    assert (row["priority"], row["on_doubt"], row["created_at"]) == (0, "ask", db.now)


async def test_a_known_key_answers_the_row_that_exists(db: Outbox) -> None:
    """Nothing is sent twice, nothing is aborted, and the first message stands."""
    first = await db.put()
    (again,) = await db.call("enqueue_email", **put(message=MESSAGE | {"subject": "other"}))

    assert (again["id"], again["created"]) == (first, False)
    assert json.loads((await db.row(first))["message"])["subject"] == "Hello"


@pytest.mark.parametrize("state", ["processing", "doubt", "held", "sent", "dead"])
async def test_a_key_is_used_once_ever(db: Outbox, state: str) -> None:
    """Whatever became of the row, its key stays taken."""
    row_id = await db.in_state(state)
    (again,) = await db.call("enqueue_email", **put())

    assert (again["id"], again["created"]) == (row_id, False)


async def test_many_are_answered_in_their_order_and_a_key_that_stands_twice_is_created_once(
    db: Outbox,
) -> None:
    """The caller zips the answers with what it gave."""
    known = await db.put("b")
    keys = ["c", "b", "a", "c"]
    rows = await bulk(db, keys)
    by_id = [(await db.row(row["id"]))["key"] for row in rows]

    assert by_id == keys
    assert [row["created"] for row in rows] == [True, False, True, False]
    assert rows[1]["id"] == known
    assert rows[0]["id"] < rows[2]["id"]


async def test_one_bad_message_refuses_all_of_a_bulk(db: Outbox) -> None:
    """Half a newsletter is worse than an error."""
    savepoint = db.conn.transaction()
    await savepoint.start()
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await bulk(db, ["a", "", "c"])
    await savepoint.rollback()

    assert await db.conn.fetchval("select count(*) from notifyq.emails where key in ('a', 'c')") == 0


async def bulk(db: Outbox, keys: list[str]) -> list[asyncpg.Record]:
    """enqueue_emails with the defaults."""
    n = len(keys)
    return await db.call(
        "enqueue_emails",
        keys=keys,
        messages=[json.dumps(MESSAGE)] * n,
        run_afters=[None] * n,
        send_befores=[None] * n,
        priorities=[0] * n,
        on_doubts=["ask"] * n,
    )


@pytest.mark.parametrize("ending", ["cancel_email", "expire_emails"])
async def test_a_row_with_an_endless_recipient_can_end(db: Outbox, ending: str) -> None:
    """Whoever inserts it by hand: it did not fit the index of ended emails, and no claim could pass it."""
    endless = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=6000))
    message = json.dumps({"to": [{"email": f"{endless}@example.org"}], "subject": "s", "text": "t"})
    row_id = await db.conn.fetchval(
        "insert into notifyq.emails (key, message, send_before) values ('long', $1, $2) returning id",
        message,
        db.at(-1),
    )

    if ending == "cancel_email":
        await db.call("cancel_email", id=row_id)
    else:
        await db.call("expire_emails")

    assert (await db.status(row_id)).startswith("dead")


async def test_two_transactions_that_race_on_a_key_make_one_row(notifyq_dsn: str) -> None:
    """The second waits for the first, and is answered with its row or, after a rollback, with its own."""
    for commits in (True, False):
        first, second = await asyncpg.connect(notifyq_dsn), await asyncpg.connect(notifyq_dsn)
        key = f"race {commits}"
        held = first.transaction()
        await held.start()
        mine = await Outbox(first).put(key)
        waiting = asyncio.create_task(Outbox(second).call("enqueue_email", **put(key=key)))
        blocked = "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1"
        while not await first.fetchval(blocked, second.get_server_pid()):
            await first.execute("select pg_stat_clear_snapshot()")
        await (held.commit() if commits else held.rollback())
        (theirs,) = await waiting
        await first.close()
        await second.close()

        assert theirs["created"] is not commits
        assert (theirs["id"] == mine) is commits


WRONG: dict[str, tuple[str, str]] = {
    "an unknown status": ("status = 'lost'", "status_known"),
    "dead without a reason": ("status = 'dead', finished_at = now()", "reason_exactly_when_dead"),
    "a reason without being dead": ("reason = 'expired'", "reason_exactly_when_dead"),
    "an unknown reason": ("status = 'dead', reason = 'bored', finished_at = now()", "reason_known"),
    "processing without a lease": ("status = 'processing'", "leased_exactly_while_processing"),
    "a lease while pending": (
        "lease_until = now(), leased_at = now(), claimed_by = 'w'",
        "leased_exactly_while_processing",
    ),
    "sent without a message id": (
        "status = 'sent', sent_at = now(), finished_at = now()",
        "receipted_exactly_when_sent",
    ),
    "a message id while pending": ("provider_message_id = 'm'", "receipted_exactly_when_sent"),
    "finished while pending": ("finished_at = now()", "finished_exactly_at_the_end"),
    "a doubt without a beginning": ("status = 'doubt'", "doubt_has_a_beginning"),
    "held without a doubt": ("status = 'held'", "doubt_has_a_beginning"),
    "a receipt while pending": ("receipt = 'm'", "early_receipt_only_under_a_claim"),
    "attempts below nothing": ("attempts = -1", "attempts_counted"),
    "an unknown policy": ("on_doubt = 'guess'", "on_doubt_known"),
    "a body emptied before the end": ("message = null", "message_until_the_end"),
    "a body that is a list": ("message = '[]'", "message_is_an_object"),
    "a long error": ("last_error = repeat('x', 1001)", "last_error_length"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_wrong_row_is_impossible(db: Outbox, case: str) -> None:
    """Whoever bypasses the functions meets the constraints."""
    change, constraint = WRONG[case]
    row_id = await db.put()
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await db.conn.execute(f"update notifyq.emails set {change} where id = $1", row_id)

    assert caught.value.constraint_name == constraint


@pytest.mark.parametrize("field", ["run_after", "send_before"])
async def test_a_time_that_no_clock_reaches_is_refused(conn: asyncpg.Connection, field: str) -> None:
    """Arithmetic on infinity fails: one such row would stop every claim."""
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await conn.execute(
            f"select notifyq.enqueue_email('k', $1, p_{field} => 'infinity')", json.dumps(MESSAGE)
        )

    assert caught.value.column_name == field


async def test_not_even_a_plain_insert_puts_one_there(conn: asyncpg.Connection) -> None:
    """Whoever bypasses the functions meets the constraint."""
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute(
            "insert into notifyq.emails (key, message, run_after) values ('k', '{}', 'infinity')"
        )
