"""Install the peers into an environment of the bench's own, or measure them alone.

``python bench/peers.py --install`` makes ``bench/.env``: one virtual environment for each Python peer and
one ``node_modules`` for the Node ones. Nothing of it is a dependency of notifyq. A peer that cannot be
installed is named and left out. Without ``--install`` it drains a backlog with each of them, beside notifyq.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from harness import ENVIRONMENT
from harness.report import Options, Result, answer
from throughput import throughput

PYTHONS = (sys.executable, "python3.14", "python3.13", "python3.12")
PYTHON_PEERS = {
    "procrastinate": (sys.executable, "procrastinate"),
    "pgqueuer": (sys.executable, "pgqueuer"),
    "oban": (None, "oban"),  # needs Python 3.12
    "chancy": (sys.executable, "chancy"),
}
NODE_PEERS = ("graphile-worker", "pg-boss", "pg")
TOOLS = ("py-spy",)


async def peers(options: Options) -> Result:
    """Drain a backlog with each peer, and with notifyq."""
    result = await throughput(options)
    result.question = "peers"
    return result


def install() -> None:
    """Install what can be installed, and say what cannot."""
    ENVIRONMENT.mkdir(exist_ok=True)
    _say("tools", _python_environment("tools", sys.executable, TOOLS))
    for name, (interpreter, package) in PYTHON_PEERS.items():
        found = interpreter or _newer_python()
        if found is None:
            _say(name, "it needs Python 3.12 or newer, and none is on the path")
        else:
            _say(
                name,
                _python_environment(
                    name, found, (package, "aiohttp", "asyncpg", "uvloop", "psycopg[binary,pool]")
                ),
            )
    _say("graphile-worker and pg-boss", _node_environment())


def _newer_python() -> str | None:
    if sys.version_info >= (3, 12):
        return sys.executable
    for name in PYTHONS[1:]:
        if path := shutil.which(name):
            tried = subprocess.run([path, "-c", "import venv"], capture_output=True, check=False)
            if tried.returncode == 0:
                return path
    return None


def _python_environment(name: str, interpreter: str, packages: tuple[str, ...]) -> str | None:
    folder = ENVIRONMENT / name
    return _tried([interpreter, "-m", "venv", str(folder)]) or _tried(
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--upgrade", *packages]
    )


def _node_environment() -> str | None:
    npm = shutil.which("npm")
    if npm is None:
        return "there is no npm"
    folder = ENVIRONMENT / "node"
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"name": "bench", "private": True}))
    # The peers' newest versions want a newer Node than most machines have: it comes from npm, too.
    install = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel", "error"]
    return _tried([*install, "node@22"]) or _tried([*install, *(f"{name}@latest" for name in NODE_PEERS)])


def _tried(command: list[str]) -> str | None:
    """None if it worked, else the last thing it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else (lines[-1] if lines else f"exit {done.returncode}")


def _say(name: str, trouble: str | None) -> None:
    print(f"{name}: {'installed' if trouble is None else f'left out ({trouble})'}")


if __name__ == "__main__":
    if "--install" in sys.argv:
        install()
    else:
        answer(peers)
