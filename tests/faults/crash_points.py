"""Every crash point: the real worker, stopped at each await of its protocol, on a real Postgres.

A *scene* is one email on its way (sent, asked about, given back at a shutdown) with one behaviour of the
provider. It is played once to learn its points, and then once for each point and each *blow*. What is
left behind by all these deaths in one database is then brought to its end by one fresh worker, and checked.

Time is moved, not waited for: the trials hold long leases; then SQL shortens them to a third of a second,
which the fresh worker sees out with its own clock. What the provider accepts late, it accepts when the
first of those leases has ended.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import asyncpg
from canary_email import an_email
from checker import CANARY_TOKEN, Tally, canaries_in, check, watch
from processes import Child, Zygote
from wire_proxy import Proxy, Tunnel, Way, proxy

from notifyq import build_postmark_payload, enqueue
from notifyq.testing import FakePostmark, Fault, faults
from notifyq.testing.ledger import Ledger

BLOWS = ("kill", "kill after", "cancel", "reset", "lose answer")
TRIAL = {"slots": 4, "post_budget": 1.0, "lease": 60.0, "settle": 30.0, "grace": 1.0, "poll": 1.0}
RECOVERY = {"slots": 30, "post_budget": 0.6, "lease": 1.2, "settle": 1.5, "poll": 0.3, "backoff": 0.1}
UNREACHED = 6.0
LESSONS = 4
AT_ONCE = 4
"""Scenes played beside each other."""

Point: TypeAlias = "tuple[str, int]"
"""A place, and the how-many-eth wait there."""

OPEN = "select count(*) from notifyq.emails where status not in ('sent', 'dead', 'held')"
RESTING = (
    "select status in ('sent', 'dead', 'held') or status in ('doubt', 'pending') "
    "and run_after > clock_timestamp() + interval '3 s' from notifyq.emails where id = $1"
)
SHORTEN = "update notifyq.emails set lease_until = leased_at + interval '0.3 s' where status = 'processing'"
AS_IF_NOW = "update notifyq.emails set doubt_since = clock_timestamp() where status = 'doubt'"
DUE = "update notifyq.emails set run_after = clock_timestamp() where status in ('pending', 'doubt')"
CLAIMERS = "select distinct claimed_by from notifyq.emails where status = 'processing'"
# The lock SLEEP is held, and what follows the grant, the looks of all lanes, is over.
ASLEEP = """
select true from pg_locks l join pg_stat_activity sleeper on sleeper.pid = l.pid
    join pg_stat_activity claimer on claimer.datname = sleeper.datname
where l.locktype = 'advisory' and l.classid = 1852798834 and l.objid = 1 and l.granted
  and sleeper.datname = current_database() and sleeper.backend_start > $1
  and claimer.application_name = 'notifyq worker claims' and claimer.state = 'idle'
  and claimer.query_start >= sleeper.state_change
  and claimer.state_change < clock_timestamp() - interval '0.2 s'
"""
PARK = (
    "update notifyq.emails set run_after = clock_timestamp() + interval '1 h' "
    "where status in ('pending', 'doubt')"
)
IN_DOUBT = (
    "update notifyq.emails set status = 'doubt', doubt_since = clock_timestamp() - interval '60 s', "
    "misses = 1, attempts = 1, account = $2 where id = $1"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """*on_send* and *on_search* are the provider's faults; *begins* says what the row is at first.

    *from_place* and *to_place*: only the points from the first place that holds the one, up to the first
    that holds the other. *drain* holds a part of the place at which the worker is told to drain. A row that
    *begins* "rung" is enqueued when the worker sleeps.
    """

    name: str
    begins: str = "pending"
    on_send: Fault | None = None
    on_search: Fault | None = None
    from_place: str = ""
    to_place: str | None = None
    drain: str | None = None


SCENES = (
    Scene(name="accepted"),
    Scene(name="accepted, answer lost", on_send=faults.Reset(record=True), from_place="Postmark.send"),
    Scene(name="not accepted", on_send=faults.Reset(record=False), from_place="Postmark.send"),
    Scene(name="accepted late", on_send=faults.LateAccept(after=None), from_place="Postmark.send"),
    Scene(name="rejected", on_send=faults.refused(300), from_place="Postmark.send"),
    Scene(name="asked, found", begins="in doubt, accepted", from_place="EmailWork._ask"),
    Scene(name="asked, not found", begins="in doubt", from_place="EmailWork._ask", to_place="Postmark.send"),
    Scene(
        name="asked in vain", begins="in doubt", on_search=faults.bad_gateway(), from_place="EmailWork._ask"
    ),
    Scene(name="rung", begins="rung", from_place="EmailWork._claim_first", to_place="Postmark.send"),
    Scene(name="given back", drain="EmailWork.claim", from_place="EmailWork.claim"),
    Scene(name="drained", drain="Postmark._post", from_place="Postmark._post"),
)


@dataclass(slots=True)
class Result:
    """What one scene came to."""

    scene: str
    points: list[Point]
    sites: set[str]
    seen: tuple[Point, ...]
    trials: int = 0
    unreached: list[str] = field(default_factory=list)
    tally: Tally | None = None


def _blows(place: str) -> tuple[str, ...]:
    # Before the first claim no row is touched: there, the process's own death is enough.
    if place.startswith("Worker.run > Worker._check"):
        return ("kill", "cancel")
    # These wait for what may never come: there is no moment at which they go on.
    is_rest = place.startswith(("Recorder.run +", "Lane.run > Lane._sleep", "Worker.run > Worker._serve"))
    return ("kill", "cancel", "reset") if is_rest else BLOWS


@dataclass(slots=True)
class LostAnswer:
    """Let the next words to Postgres pass, and lose what it answers, with the connection."""

    tunnel: Tunnel | None = None
    done: bool = False

    def see(self, tunnel: Tunnel, way: Way, data: bytes) -> bytes:
        if self.done:
            return data
        if way == "up" and self.tunnel is None:
            self.tunnel = tunnel
        elif way == "down" and tunnel is self.tunnel:
            self.done = True
            tunnel.break_off("reset")
            return b""
        return data


class Stage:
    """Where one scene is played: a database, a proxy before it, a provider, and a channel to the child."""

    def __init__(
        self,
        scene: Scene,
        dsn: str,
        wire: Proxy,
        fake: FakePostmark,
        children: Zygote,
        conn: Any,
        channel: str,
    ) -> None:
        self.scene, self.dsn, self.wire, self.fake = scene, dsn, wire, fake
        self.children, self.conn, self.channel = children, conn, channel
        self.news: asyncio.Queue[Any] = asyncio.Queue()
        self.sites: set[str] = set()
        self.writers: list[asyncio.StreamWriter] = []
        parts = urlsplit(dsn)
        self.through = dsn.replace(f":{parts.port}/", f":{wire.port}/")

    async def play(self, blows: int, known: Callable[[Iterable[Point]], bool]) -> Result:
        """Strike at all points, with *blows* of the five (others at the next point), then come to the end.

        The points are learnt again, a few times, as long as they are not *known* to be all.
        """
        await self.send_the_control()
        points: list[Point] = []
        for turn in range(LESSONS):
            points = list(dict.fromkeys([*points, *await self.points(turn)]))
            if known(points):
                break
        seen = tuple(points)
        if blows < len(BLOWS):
            # The third and later waits at one place are steps within the driver.
            points = [(place, nth) for place, nth in points if nth <= 2]
        result = Result(self.scene.name, points, self.sites, seen)
        for number, (place, _) in enumerate(points):
            chosen = _blows(place)
            for turn in range(min(blows, len(chosen))):
                await self._trial(result, number, chosen[(number * blows + turn) % len(chosen)])
        result.tally = await self._recover()
        return result

    async def send_the_control(self) -> None:
        """One email that was sent, later than every doubt here: the positive control finds it."""
        await enqueue(self.conn, an_email("control"))
        child = await self._child(TRIAL)
        await self.fake.wait_accepted(1)
        while await self.conn.fetchval(OPEN):  # noqa: ASYNC110 (a database)
            await asyncio.sleep(0.01)
        await child.kill()

    async def points(self, turn: int = 0) -> list[Point]:
        """Play the scene undisturbed, and answer where it can be struck."""
        steps = {"drain": self.scene.drain} if self.scene.drain else {}
        row, child = await self._begin(f"to learn the points, turn {turn}", steps)
        if self.scene.drain is None:
            await self._rest(row)
            child.signal(10)
        seen = await self._report(child)
        await self.conn.execute(PARK)
        return self._chosen(seen)

    async def _news_of(self, child: Child) -> Any:
        """What *child* has to say; others may have died in the middle of a word."""
        while True:
            pid, news = await self.news.get()
            if pid == child.pid:
                return news

    async def _report(self, child: Child) -> list[Any]:
        try:
            report = await asyncio.wait_for(self._news_of(child), 30)
        except TimeoutError:
            raise AssertionError(f"{self.scene.name}: no report\n{self.children.logged[-2000:]}") from None
        self._answer()
        await child.ended.wait()
        self.sites |= set(report["sites"])
        return list(report["points"])

    def _chosen(self, seen: list[Any]) -> list[Point]:
        places = [place for place, _ in seen]
        start = next(i for i, place in enumerate(places) if self.scene.from_place in place)
        end = len(seen)
        if self.scene.to_place is not None:
            end = next(i for i, place in enumerate(places) if self.scene.to_place in place)
        return [(place, nth) for place, nth in seen[start:end]]

    async def _trial(self, result: Result, number: int, blow: str) -> None:
        # An answer is lost from the point before: there, the words that it answers are not yet said.
        place, nth = result.points[max(0, number - 1) if blow == "lose answer" else number]
        key = f"{blow} at {place} #{nth}"
        steps: dict[str, Any] = {"stop": {"place": place, "nth": nth, "do": blow}}
        if self.scene.drain is not None:
            steps["drain"] = self.scene.drain
        row, child = await self._begin(key, steps)
        result.trials += 1
        if not await self._struck(child, blow):
            result.unreached.append(f"{key} (exit code {child.code})")
        elif blow in ("reset", "lose answer") and self.scene.drain is None:
            await self._rest(row)
        elif blow in ("cancel", "reset", "lose answer"):
            await asyncio.wait_for(child.ended.wait(), 8)
        await child.kill()
        self.wire.tap = None
        await self.conn.execute(PARK)

    async def _struck(self, child: Child, blow: str) -> bool:
        """Wait for the blow to fall. False: the point was not met this time."""
        if blow in ("kill", "kill after", "cancel"):
            try:
                await asyncio.wait_for(child.ended.wait(), UNREACHED)
            except TimeoutError:
                return False
            return child.code == (0 if blow == "cancel" else -9)
        try:
            await asyncio.wait_for(self._news_of(child), UNREACHED)
        except TimeoutError:
            return False
        if blow == "reset":
            self.wire.break_all("reset")
        else:
            self.wire.tap = LostAnswer()
        self._answer()
        return True

    async def _recover(self) -> Tally:
        self.fake.clear_faults()
        await self.conn.execute(SHORTEN)
        await self.conn.execute(AS_IF_NOW)
        await self.conn.execute(DUE)
        leased = "select count(*) from notifyq.emails where status = 'processing' and claimed_by = any ($1)"
        dead = [row[0] for row in await self.conn.fetch(CLAIMERS)]
        child = await self.children.fork("worker", dsn=self.dsn, env=self.fake.env(), settings=RECOVERY)
        while await self.conn.fetchval(leased, dead):  # noqa: ASYNC110 (a database)
            await asyncio.sleep(0.02)
        self.fake.release()
        async with asyncio.timeout(60):
            while await self.conn.fetchval(OPEN):  # noqa: ASYNC110 (a database)
                await asyncio.sleep(0.05)
        child.signal(15)
        await child.ended.wait()
        assert child.code == 0
        return await check(self.conn, self.fake.accepted)

    async def _begin(self, key: str, steps: dict[str, Any]) -> tuple[int, Child]:
        """The row and a worker, in the order of the scene."""
        if self.scene.begins != "rung":
            row = await self._set_up(key)
            return row, await self._child(TRIAL, steps)
        before = await self.conn.fetchval("select clock_timestamp()")
        child = await self._child(TRIAL, steps)
        async with asyncio.timeout(30):
            while not await self.conn.fetchval(ASLEEP, before):  # noqa: ASYNC110 (a database)
                await asyncio.sleep(0.005)
        return await self._set_up(key), child

    async def _set_up(self, key: str) -> int:
        row = (await enqueue(self.conn, an_email(key[:480]))).id
        uid = str(await self.conn.fetchval("select uid from notifyq.emails where id = $1", row))
        if self.scene.on_send is not None:
            self.fake.fault(self.scene.on_send, uid=uid)
        if self.scene.on_search is not None:
            self.fake.fault(self.scene.on_search, uid=uid, on="search", times=None)
        if self.scene.begins.startswith("in doubt"):
            account = await self.conn.fetchval("select account from notifyq.emails where key = 'control'")
            await self.conn.execute(IN_DOUBT, row, account)
            await self.conn.execute(
                "delete from witness.moves where id = $1", row
            )  # that was not the library
        if self.scene.begins == "in doubt, accepted":
            ledger: Ledger = self.fake._ledger
            ledger.accept(
                f"accepted-{row}", build_postmark_payload(an_email(key[:480]), {}, uid=uid, claim=1)
            )
        return row

    async def _child(self, settings: dict[str, Any], steps: dict[str, Any] | None = None) -> Child:
        order: dict[str, Any] = {"dsn": self.through, "env": self.fake.env(), "settings": settings}
        if steps is not None:
            order["steps"] = {"channel": self.channel, **steps}
        return await self.children.fork("worker", **order)

    async def _rest(self, row: int) -> None:
        """Wait until the row has come to an end, or waits for its next turn."""
        for _ in range(2000):
            if await self.conn.fetchval(RESTING, row):
                return
            await asyncio.sleep(0.005)
        now = dict(await self.conn.fetchrow("select * from notifyq.emails where id = $1", row))
        raise AssertionError(f"{self.scene.name}: it does not come to rest: {now}")

    async def hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A child has something to say, and waits for an answer."""
        line = await reader.readline()
        self._writer = writer
        self.writers.append(writer)
        if line:
            self.news.put_nowait(json.loads(line))

    def _answer(self) -> None:
        self._writer.write(b"!")
        self._writer.close()


@asynccontextmanager
async def stage(scene: Scene, dsn: str, children: Zygote, folder: Path) -> AsyncIterator[Stage]:
    """Set the stage for *scene*; *folder* takes the channel."""
    parts = urlsplit(dsn)
    channel = str(folder / f"{abs(hash(scene.name)) % 10**6}.sock")
    async with (
        FakePostmark(token=CANARY_TOKEN) as fake,
        proxy(parts.hostname or "", parts.port or 5432) as wire,
    ):
        conn = await asyncpg.connect(dsn)
        made = Stage(scene, dsn, wire, fake, children, conn, channel)
        server = await asyncio.start_unix_server(made.hear, channel)
        try:
            await watch(conn)
            yield made
        finally:
            fake.release()
            for writer in made.writers:
                writer.close()
            server.close()
            await server.wait_closed()
            await conn.close()


def canaries(children: Zygote) -> list[str]:
    """What the children have logged and should not have."""
    return canaries_in([children.logged])
