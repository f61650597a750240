"""The committed list of crash points, ``crash_places.txt``: each scene, and each await that it is struck at.

A new await makes a test red until it is on the list, so none can escape. To bless what the code does now::

    PYTHONPATH=. python tests/faults/crash_places.py

plays every scene a dozen times, writes the list, and prints what came and went. A line that begins with
``~`` is an await at which that scene does not stop each time (a driver that had its answer already).
Awaits that no scene stops at at all need a reason, by hand: `ELSEWHERE` in `test_crash_points.py`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from awaits import place_by_name
from crash_points import AT_ONCE, SCENES, Scene, stage
from processes import zygote

from notifyq import embedded
from notifyq.testing.database import Databases

LIST = Path(__file__).with_name("crash_places.txt")
COMMAND = "PYTHONPATH=. python tests/faults/crash_places.py"
TURNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Lines such as ``accepted: Lane.run > Lane._sleep #1``, by how often they are met."""

    always: frozenset[str]
    sometimes: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        return self.always | self.sometimes

    def foreign(self, lines: Iterable[str]) -> list[str]:
        """Those of *lines* whose place no scene is known to stop at: in which of them, chance may decide."""
        known = {_place(line) for line in self.all}
        return sorted(line for line in lines if _place(line) not in known)

    def of(self, scene: str) -> frozenset[str]:
        """Those that *scene* stops at each time it is played."""
        return frozenset(line for line in self.always if line.startswith(f"{scene}: "))


def listed() -> Places:
    """What the committed list holds."""
    lines = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    sometimes = {line.removeprefix("~ ") for line in lines if line.startswith("~ ")}
    return Places(
        always=frozenset(lines) - {f"~ {line}" for line in sometimes}, sometimes=frozenset(sometimes)
    )


def _place(line: str) -> str:
    return line.partition(": ")[2]


def named(scene: str, points: Iterable[tuple[str, int]]) -> set[str]:
    """The lines of *points*, however often each place is met."""
    return {f"{scene}: {place_by_name(place)}" for place, _ in points}


async def learn(turns: int) -> Places:
    """Play every scene *turns* times."""
    met: Counter[str] = Counter()
    at_once = asyncio.Semaphore(AT_ONCE)
    with (
        embedded.running(throwaway=True) as server,
        tempfile.TemporaryDirectory() as folder,
        ExitStack() as databases,
    ):
        source = Databases(server.dsn)
        homes = [(scene, databases.enter_context(source.fresh())) for scene in SCENES]
        async with zygote(Path(folder)) as children:

            async def play(scene: Scene, dsn: str) -> None:
                async with at_once, stage(scene, dsn, children, Path(folder)) as made:
                    await made.send_the_control()
                    for turn in range(turns):
                        met.update(named(scene.name, await made.points(turn)))

            await asyncio.gather(*(play(scene, dsn) for scene, dsn in homes))
    always = frozenset(line for line, times in met.items() if times == turns)
    return Places(always=always, sometimes=frozenset(met) - always)


def bless() -> None:
    """Write the list anew, and print what came and went."""
    before = listed().all if LIST.exists() else frozenset()
    now = asyncio.run(learn(TURNS))
    order = {scene.name: number for number, scene in enumerate(SCENES)}
    lines = sorted(now.all, key=lambda line: (order[line.partition(": ")[0]], line))
    marked = [line if line in now.always else f"~ {line}" for line in lines]
    LIST.write_text(f"# {len(lines)} crash points; made by: {COMMAND}\n" + "\n".join(marked) + "\n")
    for sign, gone_or_new in (("+", now.all - before), ("-", before - now.all)):
        for line in sorted(gone_or_new):
            print(sign, line)
    print(f"{len(lines)} crash points in {LIST.name}, {len(before)} before")


if __name__ == "__main__":
    bless()
