"""What lies where: a change of state writes the row, and nothing beside it."""

from __future__ import annotations

import secrets

import pytest
from sqlclient import ACCOUNT, MESSAGE, Outbox

# Random: what is compressed would look as if it were short.
LONG = secrets.token_hex(100)
BY = "w-" + secrets.token_hex(50)


async def outside(db: Outbox) -> int:
    """How many values lie outside their rows."""
    table = await db.conn.fetchval(
        "select reltoastrelid::regclass::text from pg_class where oid = 'notifyq.emails'::regclass"
    )
    return int(await db.conn.fetchval(f"select count(distinct chunk_id) from {table}"))


@pytest.mark.parametrize("end", ["processing", "sent", "late receipt", "pending", "doubt", "held", "dead"])
async def test_nothing_but_the_body_lies_outside_the_row(db: Outbox, end: str) -> None:
    """It is pushed out on purpose, so that a change of state does not copy it; another value that goes along
    costs a second table and its index at each change."""
    to = [{"email": f"{'a' * 60}@{'b' * 60}.example"}]
    message = {**MESSAGE, "to": to, "subject": LONG, "tag": LONG[:90], "text": LONG * 20}
    row_id = await db.put(LONG, message)
    (claim,) = await db.claim(worker=BY, account=f"{ACCOUNT}-{LONG}")
    seq = claim["claim_seq"]
    match end:
        case "sent":
            await db.sent(row_id, seq, message_id=LONG)
        case "late receipt":
            await db.doubt(row_id, seq, 0)
            await db.claim(worker=BY, account=f"{ACCOUNT}-{LONG}")
            await db.sent(row_id, seq, message_id=LONG)
        case "pending":
            await db.pending(row_id, seq)
        case "doubt" | "held":
            await db.doubt(row_id, seq, 0)
            if end == "held":
                await db.claim(worker=BY, account=f"{ACCOUNT}-{LONG}")
                await db.held(row_id, seq + 1)
        case "dead":
            await db.dead(row_id, seq)

    await db.conn.execute("update notifyq.emails set last_error = $1 where id = $2", LONG * 4, row_id)

    assert await outside(db) == 1
