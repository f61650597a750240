"""A thin client of the SQL functions: one connection, one transaction, a clock that tests move."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg

from notifyq.sqlfiles import query

MESSAGE: Final[dict[str, Any]] = {"to": [{"email": "ann@example.org"}], "subject": "Hello", "text": "Hi"}
NOW: Final = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
LEASE: Final = timedelta(seconds=20)
ACCOUNT: Final = "fake:a"
# By whether there are builders: the query, and how it is told what is served.
FIRST_LOOKS: Final = {False: ("first_look", lambda names: names[0]), True: ("first_look_of_several", list)}


class Outbox:
    """The functions of schema notifyq, called with the time of this test."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self.conn = conn
        self.now = NOW

    def later(self, seconds: float) -> datetime:
        """Move time forward."""
        self.now += timedelta(seconds=seconds)
        return self.now

    def at(self, seconds: float) -> datetime:
        """A time from now."""
        return self.now + timedelta(seconds=seconds)

    async def call(self, function: str, **arguments: Any) -> list[asyncpg.Record]:
        """``call("retry_email", id=1)`` is ``select * from notifyq.retry_email(p_id => 1, p_now => …)``."""
        arguments = {"now": self.now, **arguments}
        spelt = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(arguments, 1))
        rows: list[asyncpg.Record] = await self.conn.fetch(
            f"select * from notifyq.{function}({spelt})", *arguments.values()
        )
        return rows

    async def value(self, function: str, **arguments: Any) -> Any:
        """The one value of a function that answers one."""
        rows = await self.call(function, **arguments)
        return rows[0][0]

    async def put(self, key: str = "k", message: dict[str, Any] | None = None, **more: Any) -> int:
        """Enqueue one email; its id."""
        text = json.dumps(MESSAGE if message is None else message)
        row = (await self.call("enqueue_email", key=key, message=text, **more))[0]
        return int(row["id"])

    async def claim(
        self,
        slots: int = 1,
        *,
        asks: int | None = None,
        worker: str = "w1",
        account: str = ACCOUNT,
        builders: tuple[str, ...] = ("",),
        first: bool = False,
    ) -> list[asyncpg.Record]:
        """Claim; the answer's rows, also the one that holds no email."""
        if first:
            return await self.first_look(slots, worker, account, builders)
        return await self.call(
            "claim_emails",
            worker=worker,
            account=account,
            slots=slots,
            ask_slots=slots if asks is None else asks,
            builders=list(builders),
            lease=LEASE,
        )

    async def first_look(
        self, slots: int, worker: str, account: str, builders: tuple[str, ...]
    ) -> list[asyncpg.Record]:
        """The statement that a worker with these *builders* answers a ring with."""
        name, served = FIRST_LOOKS[len(builders) > 1]
        return await self.conn.fetch(query(name), worker, account, slots, served(builders), LEASE, self.now)

    async def claimed(self, slots: int = 1, **how: Any) -> list[str]:
        """The keys that a claim brings."""
        return [row["key"] for row in await self.claim(slots, **how) if row["id"] is not None]

    async def row(self, row_id: int) -> asyncpg.Record:
        """The row as it is."""
        row = await self.conn.fetchrow("select * from notifyq.emails where id = $1", row_id)
        assert row is not None
        return row

    async def status(self, row_id: int) -> str:
        """Its status, with the reason of a dead one."""
        row = await self.row(row_id)
        return f"dead: {row['reason']}" if row["reason"] else str(row["status"])

    async def events(self, row_id: int) -> list[str]:
        """What the history tells of it."""
        rows = await self.conn.fetch(
            "select event from notifyq.history where row_id = $1 and lane = 'email' order by id", row_id
        )
        return [row["event"] for row in rows]

    async def gate(self, account: str = ACCOUNT) -> asyncpg.Record:
        """The gate's row."""
        row = await self.conn.fetchrow("select * from notifyq.gates where account = $1", account)
        assert row is not None
        return row

    # ------------------------------------------------ the ends of an attempt, for one row

    async def sent(self, row_id: int, seq: int, message_id: str = "m-1", event: str = "accepted") -> str:
        """email_sent; its answer."""
        rows = await self.call(
            "email_sent", ids=[row_id], claim_seqs=[seq], message_ids=[message_id], events=[event]
        )
        return str(rows[0]["answer"])

    async def dead(self, row_id: int, seq: int, reason: str = "rejected", error: str = "no") -> list[int]:
        """email_dead; the ids that it recorded."""
        return _ids(
            await self.call(
                "email_dead",
                ids=[row_id],
                claim_seqs=[seq],
                reasons=[reason],
                errors=[error],
                events=[reason],
            )
        )

    async def pending(
        self,
        row_id: int,
        seq: int,
        delay: float = 0,
        *,
        charged: bool = True,
        postponed: bool = False,
        waiting: bool = False,
        resending: bool = False,
    ) -> list[int]:
        """email_pending; the ids that it recorded."""
        return _ids(
            await self.call(
                "email_pending",
                ids=[row_id],
                claim_seqs=[seq],
                delays=[delay],
                charged=[charged],
                postponed=[postponed],
                waiting=[waiting],
                resending=[resending],
                errors=["later"],
                events=["deferred"],
            )
        )

    async def doubt(
        self,
        row_id: int,
        seq: int,
        delay: float = 0,
        *,
        fresh: bool = True,
        charged: bool = True,
        misses: int = 0,
        asks: int = 0,
    ) -> list[int]:
        """email_doubt; the ids that it recorded."""
        return _ids(
            await self.call(
                "email_doubt",
                ids=[row_id],
                claim_seqs=[seq],
                delays=[delay],
                charged=[charged],
                fresh=[fresh],
                misses=[misses],
                asks=[asks],
                errors=["reset"],
                events=["unknown"],
            )
        )

    async def held(self, row_id: int, seq: int) -> list[int]:
        """email_held; the ids that it recorded."""
        return _ids(
            await self.call(
                "email_held", ids=[row_id], claim_seqs=[seq], errors=["who knows"], events=["held"]
            )
        )

    async def lease_ended(self, claim: asyncpg.Record, until: datetime | None = None) -> list[int]:
        """email_leases_ended; the ids that it took over."""
        until = until or (await self.row(claim["id"]))["lease_until"]
        return _ids(
            await self.call(
                "email_leases_ended", ids=[claim["id"]], claim_seqs=[claim["claim_seq"]], leases=[until]
            )
        )

    # ------------------------------------------------ rows in each state

    async def in_state(self, state: str, key: str = "k") -> int:
        """A row that came to *state* by the functions themselves."""
        row_id = await self.put(key)
        if state == "pending":
            return row_id
        claim = (await self.claim())[0]
        assert claim["id"] == row_id
        match state:
            case "processing":
                pass
            case "doubt":
                await self.doubt(row_id, 1, 0)
            case "held":
                await self.doubt(row_id, 1, 0)
                await self.claim()
                await self.held(row_id, 2)
            case "sent":
                await self.sent(row_id, 1)
            case "dead":
                await self.dead(row_id, 1)
            case _:
                raise AssertionError(state)
        return row_id


def _ids(rows: list[asyncpg.Record]) -> list[int]:
    return [row[0] for row in rows]
