"""The checker: what must hold after any fault, read from SQL and from the provider's ledger alone.

It never imports the library, so that a fault there cannot hide itself. Each finding is one line that
names the row; an empty list is the proof.

* accepted at most once a row, and nothing accepted that is not a row (a rolled-back enqueue);
* every row has ended or is held; an application's row and its email exist together or not at all;
* ``sent``: the ledger has that message id, for that uid and recipient;
* ``dead``: the ledger has nothing for it;
* every move between states is one of the design's, and ``claim_seq`` grows by one at each claim, else never;
* no session is left idle in a transaction; no canary is in a log.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CANARY_ADDRESS = "canary-address"
CANARY_BODY = "canary-body"
CANARY_TOKEN = "canary-token"
CANARIES = (CANARY_ADDRESS, CANARY_BODY, CANARY_TOKEN)
"""Tests put these into addresses, bodies and the token; no log line may hold them."""

ENDS = {"sent", "dead", "held"}

# From the design's table of states, not from the library's.
MOVES = {
    ("pending", "processing"),
    ("pending", "dead"),
    ("pending", "sent"),
    ("doubt", "processing"),
    ("doubt", "held"),
    ("doubt", "sent"),
    ("processing", "sent"),
    ("processing", "dead"),
    ("processing", "pending"),
    ("processing", "doubt"),
    ("processing", "held"),
    ("held", "pending"),
    ("held", "sent"),
    ("held", "dead"),
    ("dead", "pending"),
    ("dead", "sent"),
}

WITNESS = (Path(__file__).parent / "witness.sql").read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What was seen: how many rows in which state, and what is wrong."""

    rows: int
    statuses: dict[str, int]
    lost: int
    twice: int
    stuck: int
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        states = ", ".join(f"{n} {status}" for status, n in sorted(self.statuses.items()))
        return f"{self.rows} emails ({states}): {self.lost} lost, {self.twice} twice, {self.stuck} stuck"


async def watch(conn: Any) -> None:
    """Put the witness into the database of *conn*."""
    await conn.execute(WITNESS)


async def check(
    conn: Any,
    accepted: Sequence[Any],
    *,
    all_end: bool = True,
    twice_is_known: Callable[[Any], bool] = lambda _row: False,
) -> Tally:
    """Compare the database of *conn* with *accepted*, the ledger's messages.

    Without *all_end*, rows may be under way. *twice_is_known* says of which rows the test itself knows
    that an assumption was broken on purpose.
    """
    rows = await conn.fetch("select * from notifyq.emails order by id")
    by_uid: dict[str, list[Any]] = defaultdict(list)
    for message in accepted:
        by_uid[str(message.uid)].append(message)
    wrong: list[str] = []
    twice = [row for row in rows if len(by_uid[str(row["uid"])]) > 1 and not twice_is_known(row)]
    stuck = [row for row in rows if row["status"] not in ENDS] if all_end else []
    lost = await _lost(conn, rows)
    wrong += [f"{_name(row)} was accepted {len(by_uid[str(row['uid'])])} times" for row in twice]
    wrong += [f"{_name(row)} is stuck in {row['status']}: {row['last_error']}" for row in stuck]
    wrong += lost
    wrong += [line for row in rows for line in _end_is_true(row, by_uid[str(row["uid"])])]
    known = {str(row["uid"]) for row in rows}
    wrong += [f"a message of no row was accepted: {uid}" for uid in by_uid.keys() - known if by_uid[uid]]
    wrong += await _moves(conn)
    wrong += await _idle_in_transaction(conn)
    statuses: dict[str, int] = defaultdict(int)
    for row in rows:
        statuses[row["status"]] += 1
    return Tally(
        rows=len(rows),
        statuses=dict(statuses),
        lost=len(lost) + sum(row["status"] == "sent" and not by_uid[str(row["uid"])] for row in rows),
        twice=len(twice),
        stuck=len(stuck),
        wrong=wrong,
    )


def canaries_in(texts: Iterable[str]) -> list[str]:
    """The log lines that hold what no log may hold."""
    return [line for text in texts for line in text.splitlines() if any(c in line for c in CANARIES)]


def _name(row: Any) -> str:
    return f"email {row['id']} {row['key']!r}"


def _end_is_true(row: Any, messages: list[Any]) -> list[str]:
    ids = {message.message_id for message in messages}
    match row["status"]:
        case "sent" if row["provider_message_id"] not in ids:
            return [f"{_name(row)} is sent, but the ledger does not hold its message id for its uid"]
        case "sent" if row["message"] is not None and not _same_recipients(row, messages):
            return [f"{_name(row)} went to somebody else"]
        case "dead" if messages and row["reason"] != "cancelled":  # held, and a person gave it up
            return [f"{_name(row)} is dead ({row['reason']}), but it was accepted"]
    return []


def _same_recipients(row: Any, messages: list[Any]) -> bool:
    wanted = {address["email"] for address in json.loads(row["message"])["to"]}
    return all(set(message.to) == wanted for message in messages)


async def _lost(conn: Any, rows: list[Any]) -> list[str]:
    orders = {record["key"] for record in await conn.fetch("select key from app.orders")}
    keys = {row["key"] for row in rows}
    lost = [f"the order {key!r} is there, its email is not" for key in sorted(orders - keys)]
    # Keys of tests that have no orders do not begin with "order".
    ghosts = {key for key in keys - orders if key.startswith("order")}
    return lost + [f"the email {key!r} is there, its order was rolled back" for key in sorted(ghosts)]


async def _moves(conn: Any) -> list[str]:
    moves = await conn.fetch("select id, was, became, rose, count(*) from witness.moves group by 1, 2, 3, 4")
    wrong = []
    for move in moves:
        claimed = move["became"] == "processing"
        if (move["was"], move["became"]) not in MOVES or move["rose"] != int(claimed):
            way = f"from {move['was']} to {move['became']}, claim_seq by {move['rose']}"
            wrong.append(f"email {move['id']} moved {way}")
    return wrong


async def _idle_in_transaction(conn: Any) -> list[str]:
    sessions = await conn.fetch(
        "select application_name from pg_stat_activity where datname = current_database() "
        "and state like 'idle in transaction%' and clock_timestamp() - state_change > interval '1 s'"
    )
    return [
        f"a session is idle in a transaction: {s['application_name']} after {s['query']}" for s in sessions
    ]
