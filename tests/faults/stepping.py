"""Stops a worker at a chosen await of its own code. Runs in a child of `zygote`.

Every task of the child is driven through `Stepped`, which sees each suspension. A *place* names one: the
chain of the package's functions that await each other, and the line within the innermost. The same place
may be met more than once: a *point* is a place and a count.

At a point the child may be killed (SIGKILL: nothing of its clean-up runs), while it is suspended or just
before it goes on; cancelled; or paused until the parent has broken something.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import notifyq

PACKAGE = str(Path(notifyq.__file__).parent) + "/"
ROOTS = ("Lane.run", "Lane._attempt", "Recorder.run", "Worker.run")
"""Tasks whose awaits are points: claim, POST, ask, record, release, start and shutdown."""


class Steps:
    """Counts the points of this process, and stops at the one that it was told.

    *order*: ``channel`` (a Unix socket of the parent), and perhaps ``stop``: ``{"place", "nth", "do"}``
    and ``drain``: a part of the place at which the worker is told to drain.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self._channel = order["channel"]
        self._stop = order.get("stop") or {}
        self._drain = order.get("drain", "")
        self._met: Counter[str] = Counter()
        self.seen: list[tuple[str, int]] = []
        self.sites: set[str] = set()
        self.cancel: Callable[[], object] = lambda: None
        self.drain: Callable[[], None] = lambda: None
        self.armed: object = None

    def install(self) -> None:
        """Drive the tasks that are made from now on."""

        def make(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
            return asyncio.Task(Stepped(coro, self), loop=loop, **options)

        asyncio.get_running_loop().set_task_factory(make)

    def suspended(self, stepped: Stepped) -> None:
        """A task has just been suspended."""
        chain = chain_of(stepped.coro)
        self.sites |= {f"{name} +{line}" for name, line in chain}
        place = place_of(chain)
        if place is None:
            return
        self._met[place] += 1
        self.seen.append((place, self._met[place]))
        if self._drain and self._drain in place:
            self._drain = ""
            asyncio.get_running_loop().call_soon(self.drain)
        if self._is(self._stop, place):
            self._act(self._stop["do"], stepped)

    def resumes(self, stepped: Stepped) -> None:
        """A task is about to go on."""
        if self.armed is stepped:
            self.armed = None
            if self._stop["do"] == "kill after":
                os.kill(os.getpid(), signal.SIGKILL)
            self.tell("at")

    def tell(self, news: object) -> None:
        """Say something to the parent, and wait for its word."""
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(self._channel)
            channel.sendall(json.dumps([os.getpid(), news]).encode() + b"\n")
            channel.recv(1)

    def report(self) -> None:
        """Tell what was met: points, and all lines at which the package awaited."""
        self.tell({"points": self.seen, "sites": sorted(self.sites)})

    def _is(self, wanted: dict[str, Any], place: str) -> bool:
        return wanted.get("place") == place and wanted.get("nth") == self._met[place]

    def _act(self, what: str, stepped: Stepped) -> None:
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "cancel":
            asyncio.get_running_loop().call_soon(self.cancel)
        elif what == "reset":
            self.tell("at")
        else:  # "kill after", "lose answer": at the moment when it goes on
            self.armed = stepped


class Stepped(Coroutine[Any, Any, Any]):
    """A coroutine with an onlooker."""

    def __init__(self, coro: Any, steps: Steps) -> None:
        self.coro = coro
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coro, name)

    def send(self, value: Any) -> Any:
        self._steps.resumes(self)
        result = self.coro.send(value)
        self._steps.suspended(self)
        return result

    def throw(self, *error: Any) -> Any:
        self._steps.resumes(self)
        result = self.coro.throw(*error)
        self._steps.suspended(self)
        return result

    def close(self) -> None:
        self.coro.close()

    def __await__(self) -> Any:
        return self.coro.__await__()


def chain_of(coro: Any) -> list[tuple[str, int]]:
    """The package's functions in which *coro* is suspended, outermost first: name, and line within it."""
    chain: list[tuple[str, int]] = []
    while coro is not None:
        frame = getattr(coro, "cr_frame", None)
        if frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
            chain.append((frame.f_code.co_qualname, frame.f_lineno - frame.f_code.co_firstlineno))
        coro = getattr(coro, "cr_await", None)
    return chain


def place_of(chain: list[tuple[str, int]]) -> str | None:
    """The name of where a task of the protocol is suspended; None for other tasks."""
    if not chain or chain[0][0] not in ROOTS:
        return None
    return f"{' > '.join(name for name, _ in chain)} +{chain[-1][1]}"
