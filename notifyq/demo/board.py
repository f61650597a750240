"""The board: every email and call of the story, as database and provider know it, watched.

The database is looked at many times a second, as a spectator: nothing here moves a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import anyio

from notifyq.db import DATABASE_FAULTS, Pool
from notifyq.sqlfiles import query
from notifyq.testing import FakePostmark

__all__ = ["Board", "Row", "milliseconds"]

LOOK_EVERY: Final = 0.05
NEWEST: Final = 200
PATIENCE: Final = 12.0
"""How long a scene waits for what it told, in seconds: several times what it takes."""

# What happened, in words for the table. An event that is not named here shows as it is.
WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "accepted": "accepted",
        "done": "ran",
        "rejected": "refused for good",
        "suppressed": "suppressed",
        "deferred": "put off",
        "unknown": "answer lost",
        "lease ended": "worker lost",
        "too early": "asked: not seen yet",
        "not found": "asked: not there",
        "found": "asked: found",
        "held": "held for a person",
        "retried": "a person: send it",
        "not sent": "surely not sent",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One email or call. *latency*: seconds from its commit to its first POST's arrival, or None.

    *messages* is how many the provider accepted of it: above one means that it was sent twice.
    """

    lane: str
    id: int
    name: str
    uid: str | None
    status: str
    reason: str | None
    attempts: int
    events: tuple[str, ...]
    latency: float | None = None
    posts: int = 0
    messages: int = 0

    @property
    def state(self) -> str:
        """The status, with its reason. Example: ``"dead: rejected"``"""
        return f"{self.status}: {self.reason}" if self.reason else self.status

    @property
    def is_over(self) -> bool:
        """True if nothing will happen to it by itself any more."""
        return self.status in ("sent", "dead", "held", "done")

    @property
    def journey(self) -> tuple[str, ...]:
        """What happened to it, step by step, in words."""
        return tuple(WORDS.get(event, event) for event in self.events)


class Board:
    """Keeps *rows* fresh while `run` runs, and tells *show* of every change."""

    def __init__(self, pool: Pool, fake: FakePostmark, show: Callable[[tuple[Row, ...]], None]) -> None:
        self.rows: tuple[Row, ...] = ()
        self._pool = pool
        self._fake = fake
        self._show = show
        self._committed: dict[int, float] = {}
        self._changed = anyio.Event()

    def note_commit(self, ids: Iterable[int], at: float) -> None:
        """The emails *ids* were committed at the monotonic time *at*."""
        for id in ids:
            self._committed.setdefault(id, at)

    async def run(self) -> None:
        """Look until cancelled. A database that is away for a moment is looked at again."""
        while True:
            try:
                rows = await self._look()
            except DATABASE_FAULTS:
                rows = self.rows
            if rows != self.rows:
                self.rows = rows
                self._show(rows)
                self._changed.set()
                self._changed = anyio.Event()
            await anyio.sleep(LOOK_EVERY)

    async def wait(self, name: str, until: Callable[[Row], bool]) -> Row:
        """Return the row *name* once *until* is true of it. Raises TimeoutError, which tells its state."""
        try:
            with anyio.fail_after(PATIENCE):
                while not (found := [row for row in self.rows if row.name == name and until(row)]):
                    await self._changed.wait()
        except TimeoutError:
            states = [row.state for row in self.rows if row.name == name]
            raise TimeoutError(f"{name} is {', '.join(states) or 'not there'} still") from None
        return found[0]

    async def end_of(self, name: str) -> Row:
        """Return the row *name* once nothing will happen to it by itself any more."""
        return await self.wait(name, lambda row: row.is_over)

    async def _look(self) -> tuple[Row, ...]:
        rows = await self._pool.fetch(query("demo_rows"), NEWEST, timeout=5)
        arrivals: dict[str, float] = {}
        for post in self._fake.posts:
            for uid in post.uids:
                arrivals.setdefault(uid, post.arrived_at)
        posts, accepted = self._fake.posts_by_uid(), self._fake.accepted_by_uid()
        return tuple(
            Row(
                lane=row["lane"],
                id=row["id"],
                name=row["name"],
                uid=row["uid"],
                status=row["status"],
                reason=row["reason"],
                attempts=row["attempts"],
                events=tuple(row["events"]),
                latency=self._latency(row, arrivals.get(row["uid"])),
                posts=posts[row["uid"]],
                messages=accepted[row["uid"]],
            )
            for row in rows
        )

    def _latency(self, row: Any, arrived: float | None) -> float | None:
        if arrived is None:
            return None
        # A row that came from elsewhere (psql) was committed about when it was made.
        made_ago = time.time() - row["created_at"]
        return arrived - self._committed.setdefault(row["id"], time.monotonic() - made_ago)


def milliseconds(seconds: float) -> str:
    """A duration for a person. Example: ``milliseconds(0.0042) == "4.2 ms"``"""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
