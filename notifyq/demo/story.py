"""The story: it opens the stage, plays the scenes, gives the verdict, and stays if it may."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio

from notifyq.db import DATABASE_FAULTS, Pool, describe
from notifyq.demo.scenes import SCENES, TASKS, Scene
from notifyq.demo.screen import Screen, choose_screen, sentence
from notifyq.demo.short import shortened
from notifyq.demo.stage import Stage, open_stage, worker_log
from notifyq.demo.verdict import Ending, Fact, verdict

__all__ = ["tell"]

READING: Final = 1.0
"""How long a scene's sentence stands before it happens, for a person who reads along, in seconds."""

TO_TRY: Final = (
    "select * from notifyq.enqueue_email('mine:1', "
    '\'{"to":[{"email":"you@example.com"}],"subject":"Hello","text":"Hello."}\')'
)


def tell(*, exit_after_story: bool, farewell: str = "", scenes: Sequence[Scene] = SCENES) -> int:
    """Play *scenes* on standard output, and answer the exit code of `notifyq.demo.run`.

    *farewell* is a last line, for a story that was told to its end.
    Raises `notifyq.EmbeddedUnavailable` if Postgres does not start, `ScreenGone` if nobody reads.
    """
    endings: list[Ending] = []
    with worker_log() as log, choose_screen(sys.stdout, os.environ) as screen:
        anyio.run(_until_told, screen, scenes, endings, exit_after_story)
        code = verdict(endings, len(scenes))
        cut_short = len(endings) < len(scenes)
        if cut_short:
            screen.say("Stopped before the end of the story. Nothing is left behind.")
            return code if exit_after_story else int(not all(ending.as_told for ending in endings))
        if farewell:
            screen.say(farewell)
        if code:
            screen.say("What the worker said last:", style="bold")
            for line in log:
                screen.say(line, indent=2)
    return code


async def _until_told(
    screen: Screen, scenes: Sequence[Scene], endings: list[Ending], exit_after_story: bool
) -> None:
    """Play until the story is over, or a signal ends it; then all that was opened is closed."""
    with anyio.CancelScope() as scope:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                asyncio.get_running_loop().add_signal_handler(number, scope.cancel)
        _open(screen)
        async with open_stage(screen.rows, TASKS) as stage:
            await _play(stage, screen, scenes, endings)
            _close(screen, endings)
            if not exit_after_story:
                await _stay(stage, screen)


def _open(screen: Screen) -> None:
    screen.say("notifyq demo", style="bold")
    screen.say(
        "Real commits, a real worker and real HTTP requests. Only the Postgres is one to throw away, and the"
        " provider is a fake Postmark on this machine: no email leaves it."
    )
    screen.say(shortened())
    screen.say("Starting Postgres ...", style="dim")


async def _play(stage: Stage, screen: Screen, scenes: Sequence[Scene], endings: list[Ending]) -> None:
    for number, scene in enumerate(scenes, start=1):
        screen.say("")
        screen.say(f"{number} of {len(scenes)}  {scene.title}", style="bold")
        screen.say(scene.why, indent=3)
        if screen.paced:
            await anyio.sleep(READING)
        ending = await _played(stage, scene)
        endings.append(ending)
        line, style = sentence(ending)
        screen.say(line, style=style, indent=3)


async def _played(stage: Stage, scene: Scene) -> Ending:
    """Play one scene. What it waits for in vain is its ending, and the story goes on."""
    try:
        told = await scene.play(stage)
    except TimeoutError as error:
        return Ending(title=scene.title, line="", facts=(Fact(f"it comes to an end ({error})", False),))
    except DATABASE_FAULTS as error:
        return Ending(
            title=scene.title, line="", facts=(Fact(f"Postgres answers ({describe(error)})", False),)
        )
    return Ending(title=scene.title, line=told.line, facts=told.facts)


def _close(screen: Screen, endings: Sequence[Ending]) -> None:
    screen.say("")
    wrong = [ending.title for ending in endings if not ending.as_told]
    if wrong:
        screen.say(
            f"✗ {len(wrong)} of {len(endings)} did not end as told: {'; '.join(wrong)}.", style="bold red"
        )
    else:
        screen.say(f"✓ All {len(endings)} scenes ended as told.", style="bold green")


async def _stay(stage: Stage, screen: Screen) -> None:
    """Keep everything up until Ctrl-C, and say how to look around."""
    async with _page(stage.pool) as url:
        screen.say("")
        screen.say("It stays up until Ctrl-C: then all of it is thrown away. To look around:", style="bold")
        for what, line in (("the database", f"psql '{stage.dsn}'"), ("an email of yours", TO_TRY + ";")):
            screen.say(f"{what}:", indent=3)
            screen.verbatim(line)
        if url is not None:
            screen.say("the operator's page:", indent=3)
            screen.verbatim(url)
        await anyio.sleep_forever()


@asynccontextmanager
async def _page(pool: Pool) -> AsyncIterator[str | None]:
    """The operator's page on a free port, where its extra is installed; gives its URL, or None."""
    try:
        from notifyq.admin import serve
    except ImportError:
        yield None
        return
    async with serve(pool, port=0) as url:
        yield url
