"""What an operator may do, in every state, with a fresh view of the row and with a stale one."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest
from sqlclient import Outbox

STATES = ["pending", "processing", "doubt", "held", "sent", "dead"]
# act → state → what becomes of it; a state that is not named stays as it is.
MOVES: dict[str, dict[str, str]] = {
    "retry_email": {"held": "pending", "dead": "pending"},
    "cancel_email": {"pending": "dead: cancelled", "held": "dead: cancelled", "doubt": "doubt"},
    "resolve_email": {"held": "sent"},
}
CASES = [(act, state) for act in MOVES for state in STATES]


async def act_on(db: Outbox, act: str, row_id: int, seq: int | None = None) -> list[asyncpg.Record]:
    """One act; *seq* is the row as the operator saw it."""
    proof = {"provider_message_id": "m-9"} if act == "resolve_email" else {}
    return await db.call(act, id=row_id, claim_seq=seq, **proof)


@pytest.mark.parametrize(("act", "state"), CASES)
async def test_an_act_moves_what_it_may_and_says_whether_it_did(db: Outbox, act: str, state: str) -> None:
    """`processing` is never touched; everything else is answered honestly."""
    row_id = await db.in_state(state)
    before = await db.row(row_id)
    (answer,) = await act_on(db, act, row_id)
    moves = state in MOVES[act]

    assert answer["changed"] is moves
    assert await db.status(row_id) == MOVES[act].get(state, "dead: rejected" if state == "dead" else state)
    assert answer["status"] == (await db.row(row_id))["status"]
    assert (await db.row(row_id))["claim_seq"] == before["claim_seq"]
    if not moves:
        assert await db.row(row_id) == before


@pytest.mark.parametrize(("act", "state"), CASES)
async def test_a_row_that_has_moved_on_stays(db: Outbox, act: str, state: str) -> None:
    """Two tabs, a double click: what was decided about an older row is not done to a newer one."""
    row_id = await db.in_state(state)
    before = await db.row(row_id)
    (answer,) = await act_on(db, act, row_id, before["claim_seq"] + 1)

    assert answer["changed"] is False
    assert await db.row(row_id) == before


@pytest.mark.parametrize(("act", "state"), [(a, s) for a in MOVES for s in MOVES[a]])
async def test_a_row_as_it_was_seen_moves_and_the_history_names_who(db: Outbox, act: str, state: str) -> None:
    """The page sets the name, else it is the role."""
    row_id = await db.in_state(state)
    await db.conn.execute("select set_config('notifyq.actor', 'ann', true)")
    (answer,) = await act_on(db, act, row_id, (await db.row(row_id))["claim_seq"])
    (last,) = await db.conn.fetch(
        "select event, actor from notifyq.history where row_id = $1 order by id desc limit 1",
        row_id,
    )

    assert answer["changed"] is True
    expected = {"retry_email": "retried", "cancel_email": "cancelled", "resolve_email": "resolved"}[act]
    assert tuple(last) == (expected, "ann")


@pytest.mark.parametrize("act", MOVES)
async def test_an_unknown_id_has_no_row(db: Outbox, act: str) -> None:
    """Not an error: it may have been typed."""
    assert await act_on(db, act, -1) == []


async def test_a_retry_starts_the_attempts_again_and_clears_a_past_deadline(db: Outbox) -> None:
    """A person decided that it is still worth sending."""
    row_id = await db.put(send_before=db.at(60))
    await db.claim()
    await db.dead(row_id, 1, "exhausted")
    db.later(3600)
    await db.call("retry_email", id=row_id)
    row = await db.row(row_id)

    assert (row["attempts"], row["send_before"], row["run_after"]) == (0, None, db.now)
    (claim,) = await db.claim()
    assert (claim["asking"], claim["claim_seq"]) == (False, 2)


async def test_a_retry_keeps_a_deadline_that_is_ahead(db: Outbox) -> None:
    """It still holds."""
    row_id = await db.put(send_before=db.at(60))
    await db.claim()
    await db.dead(row_id, 1)
    await db.call("retry_email", id=row_id)

    assert (await db.row(row_id))["send_before"] == db.at(60)


async def test_a_retried_row_that_was_in_doubt_is_asked_about_once_more(db: Outbox) -> None:
    """Then it goes whatever its policy says: one miss is enough, for a person decided."""
    row_id = await db.in_state("held")
    await db.call("retry_email", id=row_id)
    (claim,) = await db.claim()

    assert (claim["id"], claim["asking"], claim["misses"], claim["ordered"]) == (row_id, True, 1, True)


async def test_a_retry_of_a_purged_row_changes_nothing(db: Outbox) -> None:
    """There is no body left to send."""
    row_id = await db.in_state("dead")
    db.later(100 * 86400)
    await db.call("purge_emails", older=timedelta(days=30))
    before = await db.row(row_id)
    (answer,) = await db.call("retry_email", id=row_id)

    assert (answer["status"], answer["changed"]) == ("dead", False)
    assert await db.row(row_id) == before


async def test_a_cancelled_doubt_is_not_sent_again_by_itself(db: Outbox) -> None:
    """It may be out: from now on a person decides. To cancel it twice changes nothing."""
    row_id = await db.in_state("doubt")
    changed = [(await db.call("cancel_email", id=row_id))[0]["changed"] for _ in range(2)]

    assert changed == [True, False]
    assert (await db.row(row_id))["on_doubt"] == "hold"


async def test_a_cancelled_order_is_no_order_any_more(db: Outbox) -> None:
    """A retried row in doubt again, and the person thought better of it."""
    row_id = await db.in_state("held")
    await db.call("retry_email", id=row_id)
    await db.claim()
    await db.doubt(row_id, 3, fresh=False)
    await db.call("cancel_email", id=row_id)
    row = await db.row(row_id)

    assert (row["on_doubt"], row["ordered"]) == ("hold", False)


async def test_it_was_sent_needs_the_providers_id(db: Outbox) -> None:
    """A proof, not a feeling."""
    row_id = await db.in_state("held")
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await db.call("resolve_email", id=row_id, provider_message_id=" ")

    assert caught.value.column_name == "provider_message_id"
