"""The worker is killed, cancelled and cut off at every await; nothing is lost, nothing is twice."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from awaits import Wait, awaits_of
from crash_places import COMMAND, listed, named
from crash_points import AT_ONCE, BLOWS, SCENES, Result, Scene, canaries, stage
from processes import zygote

from notifyq.testing.database import Databases

PROTOCOL = ("lane", "email_work", "attempt", "asking", "recorder")
"""The modules whose every await must be met by a scene, or stand in `ELSEWHERE` with its reason."""

BURST = "only in a burst of doubts: test_shared_listing, and the recovery of each scene"
GATE = "only when the gate moves: test_outages"
WIRE = "only after a lost answer: test_database_wire, and the blows themselves"
ELSEWHERE = {
    "Asker._listing #1": BURST,
    "Asker._listing #2": BURST,
    "Asker._look #2": BURST,
    "EmailWork._send #1": "a finished message is rendered without a wait",
    "EmailWork.release_lost #1": WIRE,
    "Lane._attempt #3": "only when it is cancelled: the blow 'cancel'",
    "Lane._turn #1": WIRE,
    "Lane._turn #5": "only when the timer found what the bell should have told: test_listener",
    "Recorder._open_gate #1": GATE,
    "Recorder._persist #2": WIRE,
    "Recorder._shut_gate #1": GATE,
    "Recorder._shut_gate #2": GATE,
    "Recorder._tell_of_sent #1": "only for a double: test_outages",
    "Recorder._write #3": GATE,
    "Recorder._write_group #2": "only for data that the database refuses: test_cases_email",
    "Recorder._write_group #3": "only for a double: test_outages",
}

FOREIGN = "on no list: if it is right, bless it with `{}`".format
MISSING = "on the list, but no longer met: if it is right, bless it with `{}`".format


@pytest.mark.timeout(200)
async def test_every_single_crash_point_keeps_the_promise(notifyq_server: Databases, tmp_path: Path) -> None:
    """A process can die, and a wire can break, between any two lines. One blow falls at each point."""
    await _strike(notifyq_server, tmp_path, blows=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_every_blow_at_every_crash_point_keeps_the_promise(
    notifyq_server: Databases, tmp_path: Path
) -> None:
    """The same, with every blow at every point."""
    await _strike(notifyq_server, tmp_path, blows=len(BLOWS))


async def _strike(server: Databases, folder: Path, *, blows: int) -> None:
    began = time.monotonic()
    with ExitStack() as databases:
        homes = [(scene, databases.enter_context(server.fresh())) for scene in SCENES]
        results, spilt = await _play(homes, folder, blows)
    trials = sum(result.trials for result in results)
    missed = [f"{result.scene}: {one}" for result in results for one in result.unreached]
    points = sum(len(result.points) for result in results)
    print(
        f"\n{points} points, {trials} trials, {len(missed)} points not met again, "
        f"{time.monotonic() - began:.0f} s"
    )
    for line in missed:
        print(line)
    assert [f"{r.scene}: {line}" for r in results if r.tally for line in r.tally.wrong] == []
    assert spilt == []
    assert len(missed) < trials / 8, missed
    _are_the_listed_ones(results)
    _no_await_is_unmet({site for result in results for site in result.sites})


async def _play(homes: list[tuple[Scene, str]], folder: Path, blows: int) -> tuple[list[Result], list[str]]:
    at_once = asyncio.Semaphore(AT_ONCE)
    async with zygote(folder) as children:

        async def play(scene: Scene, dsn: str) -> Result:
            wanted = listed().of(scene.name)
            async with at_once, stage(scene, dsn, children, folder) as made:
                return await made.play(blows, lambda points: named(scene.name, points) >= wanted)

        results = await asyncio.gather(*(play(scene, dsn) for scene, dsn in homes))
        return results, canaries(children)


def _are_the_listed_ones(results: list[Result]) -> None:
    """Exactly the committed points: a new await is struck, and makes this red until somebody blessed it."""
    places, seen = listed(), {line for result in results for line in named(result.scene, result.seen)}
    assert places.foreign(seen) == [], FOREIGN(COMMAND)
    assert sorted(places.always - seen) == [], MISSING(COMMAND)


def _no_await_is_unmet(sites: set[str]) -> None:
    """Whatever no scene stops at has its reason."""
    waits = {wait for module in PROTOCOL for wait in awaits_of(module)}
    met = {wait for wait in waits for site in sites if _is_at(site, wait)}
    unmet = {wait.name for wait in waits - met}
    assert sorted(unmet - ELSEWHERE.keys()) == [], (
        "no scene stops at these: add one, or a reason to ELSEWHERE"
    )
    assert sorted(ELSEWHERE.keys() - {wait.name for wait in waits}) == [], "gone: take them out of ELSEWHERE"


def _is_at(site: str, wait: Wait) -> bool:
    function, _, line = site.rpartition(" +")
    return function == wait.function and wait.holds(int(line))
