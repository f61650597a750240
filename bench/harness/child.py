"""A child process: started, waited for, measured, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Child", "answer_of"]

TICKS = os.sysconf("SC_CLK_TCK")
STOP_SECONDS = 10


class Child:
    """A process that prints one JSON line once it is ready.

    Example: ``with Child([sys.executable, "worker.py"]) as child: child.cpu_seconds()``
    """

    def __init__(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(env or {})},
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise ChildFailed(self.complaint())
        self.ready: Any = json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def lines(self, count: int) -> list[Any]:
        """The next *count* JSON lines that it prints. Raises `ChildFailed` if it ends before."""
        assert self._process.stdout is not None
        found = [self._process.stdout.readline() for _ in range(count)]
        if not all(found):
            raise ChildFailed(self.complaint())
        return [json.loads(line) for line in found]

    def complaint(self) -> str:
        """The last line that it wrote to stderr."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit {self._process.returncode}"

    def cpu_seconds(self) -> float:
        """Processor time of all its threads so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mb(self) -> float:
        """Its proportional set size in MB."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no Pss in smaps_rollup")

    def kill(self) -> None:
        """Kill it as a crash would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end; kill it if it does not."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


class ChildFailed(Exception):
    """It ended before it was ready."""


def answer_of(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Any:
    """Run a program to its end and read the JSON that it prints, if any. Raises `ChildFailed`."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, env={**os.environ, **(env or {})}, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ChildFailed(lines[-1] if lines else f"exit {done.returncode}")
    return json.loads(done.stdout) if done.stdout.strip() else None


def python() -> str:
    """The interpreter that runs the bench."""
    return sys.executable
