"""The parent's side of `zygote`: start real processes, signal them, wait for their end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(slots=True, eq=False)
class Child:
    """A forked process. *code* is its exit code once `ended` is set; minus the signal if it was killed."""

    pid: int
    order: dict[str, Any]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    code: int | None = None

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if not self.ended.is_set():
            with suppress(ProcessLookupError):  # it has ended just now, and the news is on its way
                os.kill(self.pid, number)

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        await self.ended.wait()


class Zygote:
    """Forks children. *folder* takes their log."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self.log = folder / "children.log"
        self._forked: asyncio.Queue[int] = asyncio.Queue()
        self._children: dict[int, Child] = {}
        self._turn = asyncio.Lock()
        self._gone: dict[int, int] = {}

    async def fork(self, kind: str, **order: Any) -> Child:
        """Start a *kind* of child (see `children.KINDS`)."""
        async with self._turn:
            whole = {"kind": kind, "log": str(self.log), **order}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(whole).encode() + b"\n")
            child = Child(await self._forked.get(), whole)
            self._children[child.pid] = child
            if child.pid in self._gone:
                self._end(child.pid, self._gone.pop(child.pid))
            return child

    @property
    def logged(self) -> str:
        """All that the children have logged."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_lines(self) -> Iterator[str]:
        """The same, line by line: a long run logs much."""
        if self.log.exists():
            with self.log.open(errors="replace") as log:
                yield from log

    async def _hear(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            news = json.loads(line)
            if "forked" in news:
                self._forked.put_nowait(news["forked"])
            elif news["pid"] in self._children:
                self._end(news["pid"], news["exit"])
            else:
                self._gone[news["pid"]] = news["exit"]

    def _end(self, pid: int, code: int) -> None:
        child = self._children.pop(pid)
        child.code = code
        child.ended.set()


@asynccontextmanager
async def zygote(folder: Path) -> AsyncIterator[Zygote]:
    """Run a zygote; at the end its children are killed."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).parent / "zygote.py"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=env,
    )
    made = Zygote(process, folder)
    hearing = asyncio.create_task(made._hear())
    try:
        yield made
    finally:
        for child in list(made._children.values()):
            await child.kill()
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await hearing
