"""The checker: what must hold after any fault, read from SQL and from the provider's ledger alone.

It never imports the library, so that a fault there cannot hide itself. Each finding is one line that
names the row; an empty list is the proof.

* accepted at most once a row, and nothing accepted that is not a row (a rolled-back enqueue);
* every row has ended or is held; an application's row and its email exist together or not at all;
* ``sent``: the ledger has that message id, for that uid and recipient;
* ``dead``: the ledger has nothing for it;
* every move between states is one of the design's, and ``claim_seq`` grows by one at each claim, else never;
* every order of an application has one call, every call is done, and what calls counted in their own
  transactions is exactly their number;
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

CALL_MOVES = {
    ("pending", "processing"),
    ("pending", "dead"),
    ("processing", "done"),
    ("processing", "pending"),
    ("processing", "dead"),
    ("dead", "pending"),
}

# Each names what is wrong with a call, a row a line.
CALLS_WRONG = (
    """select format('the order %L has %s calls', o.key, count(t.id))
       from app.orders o left join notifyq.tasks t on t.args ->> 'order' = o.key
       group by o.key having count(t.id) <> 1""",
    """select format('call %s: its order %L was rolled back', t.id, t.args ->> 'order')
       from notifyq.tasks t left join app.orders o on o.key = t.args ->> 'order' where o.key is null""",
    """select format('call %s was counted %s times', t.id, count(c.call))
       from notifyq.tasks t left join app.counted c on c.call = t.id
       group by t.id having count(c.call) > 1 or (count(c.call) = 1) <> (t.status = 'done')""",
    """select format('the counter stands at %s, %s calls are done', r.total, d.calls)
       from app.counter r, (select count(*) calls from notifyq.tasks where status = 'done') d
       where r.total <> d.calls""",
)
CALLS_OPEN = """select format('call %s is %s: %s %s', t.id, t.status, t.reason, t.last_error)
                from notifyq.tasks t where t.status <> 'done'"""

WITNESS = (Path(__file__).parent / "witness.sql").read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What was seen: how many rows in which state, and what is wrong."""

    rows: int
    statuses: dict[str, int]
    lost: int
    twice: int
    stuck: int
    counted: int = 0
    excused: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        states = ", ".join(f"{n} {status}" for status, n in sorted(self.statuses.items()))
        late = f" ({self.excused} more: accepted later than assumed)" if self.excused else ""
        calls = f"; {self.counted} calls counted once each" if self.counted else ""
        return (
            f"{self.rows} emails ({states}): {self.lost} lost, {self.twice} twice{late}, "
            f"{self.stuck} stuck{calls}"
        )


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
    doubles = [row for row in rows if len(by_uid[str(row["uid"])]) > 1]
    twice = [row for row in doubles if not twice_is_known(row)]
    stuck = [row for row in rows if row["status"] not in ENDS] if all_end else []
    lost = await _lost(conn, rows)
    wrong += [f"{_name(row)} was accepted {len(by_uid[str(row['uid'])])} times" for row in twice]
    wrong += [f"{_name(row)} is stuck in {row['status']}: {row['last_error']}" for row in stuck]
    wrong += lost
    wrong += [line for row in rows for line in _end_is_true(row, by_uid[str(row["uid"])])]
    known = {str(row["uid"]) for row in rows}
    wrong += [f"a message of no row was accepted: {uid}" for uid in by_uid.keys() - known if by_uid[uid]]
    wrong += await _moves(conn, "email", "moves", MOVES)
    wrong += await _calls(conn, all_end=all_end)
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
        excused=len(doubles) - len(twice),
        counted=await conn.fetchval("select total from app.counter"),
        wrong=wrong,
    )


async def accepted_too_late(conn: Any, accepted: Sequence[Any], limit: float) -> set[int]:
    """The rows of which a message was accepted more than *limit* seconds after its claim had gone into doubt.

    Nothing can have left the worker after that moment, so a provider that took so long broke an assumption
    that the promise names: on a machine that stands still for seconds, this one does.
    """
    doubts = await conn.fetch(
        """select e.id, e.uid::text, m.seq::text, extract(epoch from min(m.at))::float8 at
           from witness.moves m join notifyq.emails e using (id)
           where m.was = 'processing' and m.became = 'doubt' group by 1, 2, 3"""
    )
    known = {(doubt["uid"], doubt["seq"]): (doubt["id"], doubt["at"]) for doubt in doubts}
    late = set()
    for message in accepted:
        row, at = known.get((str(message.uid), message.metadata.get("notifyq_claim")), (0, float("inf")))
        if message.accepted_epoch > at + limit:
            late.add(row)
    return late


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


async def _calls(conn: Any, *, all_end: bool) -> list[str]:
    queries = (*CALLS_WRONG, CALLS_OPEN) if all_end else CALLS_WRONG
    wrong = [record[0] for query in queries for record in await conn.fetch(query)]
    return wrong + await _moves(conn, "call", "call_moves", CALL_MOVES)


async def _moves(conn: Any, what: str, table: str, known: set[tuple[str, str]]) -> list[str]:
    moves = await conn.fetch(f"select id, was, became, rose from witness.{table} group by 1, 2, 3, 4")
    wrong = []
    for move in moves:
        claimed = move["became"] == "processing"
        if (move["was"], move["became"]) not in known or move["rose"] != int(claimed):
            way = f"from {move['was']} to {move['became']}, claim_seq by {move['rose']}"
            wrong.append(f"{what} {move['id']} moved {way}")
    return wrong


async def _idle_in_transaction(conn: Any) -> list[str]:
    sessions = await conn.fetch(
        "select application_name, query from pg_stat_activity where datname = current_database() "
        "and state like 'idle in transaction%' and clock_timestamp() - state_change > interval '1 s'"
    )
    return [
        f"a session is idle in a transaction: {s['application_name']} after {s['query']}" for s in sessions
    ]
