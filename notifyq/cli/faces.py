"""``notifyq demo`` and ``notifyq admin``: what is there to be looked at. Loaded when they are asked for."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import click

from notifyq.cli.database import check, pooled
from notifyq.cli.runner import Failed, note, run
from notifyq.db import Pool
from notifyq.worker import Worker

__all__ = ["admin", "demo", "page"]


@click.command(short_help="See it work; nothing to set up.")
@click.option(
    "--exit/--stay",
    "exit_after_story",
    default=None,
    help="Leave after the story, 0 if it went as told; or stay until Ctrl-C, as it does on a terminal.",
)
def demo(exit_after_story: bool | None) -> None:
    """Play a story on a throw-away Postgres and a fake Postmark: what happens to each email, live.

    \b
    Example:
      notifyq demo
      notifyq demo --exit
      notifyq demo | cat        # no terminal: it ends by itself
    """
    from notifyq.demo import run as play

    sys.exit(play(exit_after_story=exit_after_story))


@click.command(short_help="Serve the operator's page.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8025, show_default=True)
def admin(host: str, port: int) -> None:
    """Serve the operator's page until it is stopped. NOTIFYQ_ADMIN_PASSWORD protects it.

    \b
    Example:
      notifyq admin --port 8025
    """
    run(lambda: _admin(host, port))


@asynccontextmanager
async def page(pool: Pool, host: str, port: int, worker: Worker | None = None) -> AsyncIterator[str]:
    """The page, for the length of the block; gives its URL.

    Raises `Failed` where its extra is missing or the port is taken, `InvalidSettings` for a host that
    others can reach without a password.
    """
    try:
        from notifyq.admin import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("notifyq"):
            raise
        raise Failed(
            f"the page needs the package {error.name}: install it with `pip install 'notifyq[admin]'`"
        ) from None
    password = os.environ.get("NOTIFYQ_ADMIN_PASSWORD") or None
    async with AsyncExitStack() as open_things:
        try:
            url = await open_things.enter_async_context(
                serve(pool, host=host, port=port, password=password, worker=worker)
            )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise Failed(
                f"the page cannot listen on {host}:{port} ({why}): another notifyq may show its page there; "
                "choose another port"
            ) from None
        yield url


async def _admin(host: str, port: int) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with pooled() as pool:
            await check(pool)  # what is wrong is said here, not on every page
            async with page(pool, host, port) as url:
                note(f"the page is at {url} (Ctrl-C ends it)")
                async for _ in signals:
                    return
