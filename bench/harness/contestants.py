"""The systems that are compared, and how each one is started. What a system does is in ``systems/``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import ENVIRONMENT, SYSTEMS
from harness.child import Child, answer_of

__all__ = ["FLOORS", "NOTIFYQ", "PEERS", "Contestant", "installed_peers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One system: its program, the *interpreter* that runs it and about how many emails a second it sends."""

    name: str
    program: str
    interpreter: str = sys.executable
    variant: str = ""
    slots: int = 100
    per_second: int = 5000
    env: dict[str, str] = field(default_factory=dict)

    @property
    def database(self) -> str:
        """What its database is called: systems that differ in the worker alone have one each, too."""
        return "".join(c if c.isalnum() else "_" for c in self.name.lower())

    def work(self, dsn: str, url: str) -> Child:
        """Start a worker and wait until it is ready."""
        return Child(self.command("work", dsn, "--url", url), self.env)

    def do(self, verb: str, dsn: str, **options: Any) -> Any:
        """Run another verb to its end."""
        flat = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return answer_of(self.command(verb, dsn, *flat), self.env)

    def command(self, verb: str, dsn: str, *options: str) -> list[str]:
        """The whole command line."""
        return [
            self.interpreter,
            str(SYSTEMS / self.program),
            verb,
            "--dsn",
            dsn,
            "--slots",
            str(self.slots),
            "--variant",
            self.variant,
            *options,
        ]


NOTIFYQ = Contestant(name="notifyq", program="notifyq_system.py", per_second=5500)
PLAIN_LOOP = Contestant(
    name="notifyq without uvloop", program="notifyq_system.py", per_second=4500, env={"BENCH_UVLOOP": "0"}
)
OFTEN_COLLECTED = Contestant(
    name="notifyq, Python's gc as it comes",
    program="notifyq_system.py",
    per_second=4500,
    env={"BENCH_GC": "default"},
)
POLLING = Contestant(name="notifyq, poll only", program="notifyq_system.py", variant="poll")
FLOORS = (
    Contestant(name="floor, raw socket", program="floor.py", variant="raw", per_second=15000),
    Contestant(name="floor, aiohttp", program="floor.py", variant="aiohttp", per_second=7000),
)


def _python(peer: str) -> str:
    return str(ENVIRONMENT / peer / "bin" / "python")


NODE = str(ENVIRONMENT / "node" / "node_modules" / ".bin" / "node")
"""A newer one than most machines have; it comes from the same registry as the peers."""


PEERS = (
    Contestant(
        name="procrastinate",
        program="peer_procrastinate.py",
        interpreter=_python("procrastinate"),
        per_second=500,
    ),
    Contestant(name="pgqueuer", program="peer_pgqueuer.py", interpreter=_python("pgqueuer"), per_second=3000),
    Contestant(name="oban", program="peer_oban.py", interpreter=_python("oban"), per_second=1000),
    Contestant(name="chancy", program="peer_chancy.py", interpreter=_python("chancy"), per_second=1800),
    Contestant(name="graphile-worker", program="peer_graphile.mjs", interpreter=NODE, per_second=8000),
    Contestant(name="pg-boss", program="peer_pgboss.mjs", interpreter=NODE, per_second=7000),
)


def installed_peers() -> list[Contestant]:
    """The peers that ``peers.py --install`` could install."""
    return [peer for peer in PEERS if _is_installed(peer)]


def _is_installed(peer: Contestant) -> bool:
    there = Path(peer.interpreter).exists()
    if peer.interpreter == NODE:
        return there and (ENVIRONMENT / "node" / "node_modules" / peer.name).is_dir()
    return there
