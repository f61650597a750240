"""``notifyq dev``: database, fake Postmark, worker and page in one command, for an app in development."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import anyio
import click

from notifyq.cli.apps import load_app
from notifyq.cli.database import check, database, database_url, pool_at
from notifyq.cli.display import say
from notifyq.cli.faces import page
from notifyq.cli.options import ADDRESS
from notifyq.cli.runner import Failed, note, run
from notifyq.cli.work import run_until_told, set_up_logging
from notifyq.postmark import Postmark
from notifyq.settings import WorkerSettings
from notifyq.worker import Worker

if TYPE_CHECKING:
    from notifyq.testing.fake import FakePostmark

__all__ = ["dev"]

log = logging.getLogger("notifyq")

SETTINGS = WorkerSettings(unsafe_durability=True)
SENDER = "dev@example.com"
LONG = 86_400.0
HERE = ("", "localhost", "127.0.0.1", "::1")


@click.command(short_help="All of it for development: no email leaves your machine.")
@click.option("--app", metavar="MODULE[:ATTR]", help="Import this: its tasks and builders are served.")
@click.option("--admin", type=ADDRESS, default="127.0.0.1:8025", show_default=True, help="The page.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The fake Postmark's; default: any free one."
)
def dev(app: str | None, admin: tuple[str, int], port: int) -> None:
    """Serve an app in development until Ctrl-C: database, fake Postmark, worker and page in one process.

    Every email that is sent is printed, and shown on the page. The database is DATABASE_URL if it is on this
    machine (all that is due in it goes to the fake!), else the embedded one, which stays.

    \b
    Example:
      notifyq dev --app shop.mail
      notifyq send --key k1 --to ann@example.com --subject Hello --text Hello --wait
    """
    set_up_logging(verbose=False)
    logging.getLogger("notifyq.traceback").setLevel(logging.DEBUG)
    if app is not None:
        log.info("%s: %s", app, load_app(app))
    run(lambda: _dev(admin, port))


def _check_here(url: str) -> None:
    """Refuse a database that may be the real one: its mail would be marked as sent and reach nobody."""
    parts = urlsplit(url)
    asked = parse_qs(parts.query)
    # A service's host lies in a file, which need not be read to be distrusted.
    by_service = [*asked.get("service", ()), *asked.get("servicefile", ()), os.environ.get("PGSERVICE", "")]
    in_query = asked.get("host")  # counts before the one in its usual place
    places = in_query or [parts.netloc.rpartition("@")[2] or os.environ.get("PGHOST", "")]
    if any(by_service) or not all(_is_here(place) for place in ",".join(places).split(",")):
        raise Failed(
            "dev gives what is due in the database to a fake Postmark, so DATABASE_URL must be on this "
            "machine, and name no service (PGSERVICE): unset it to use the embedded database"
        )


def _is_here(place: str) -> bool:
    """Tell whether ``host``, ``host:port`` or the folder of a socket is on this machine."""
    return place.startswith("/") or (urlsplit(f"//{place}").hostname or "") in HERE


async def _dev(admin: tuple[str, int], port: int) -> None:
    async with (
        database(tell=log.warning) as url,
        pool_at(url, SETTINGS.slots) as pool,
        _fake(port) as fake,
        anyio.create_task_group() as tg,
    ):
        _check_here(url)
        await check(pool)
        env = {**os.environ, **fake.env()}
        named = env.get("EMAIL_FROM", "").strip()
        env["EMAIL_FROM"] = named or SENDER
        made = Worker(pool, provider=Postmark(env=env), settings=SETTINGS)
        async with page(pool, *admin, worker=made) as address:
            if not database_url():
                note(f"for your app:  export DATABASE_URL='{url}'")
            if not named:
                note(f"EMAIL_FROM is not set: emails that name no sender are sent by {SENDER}, here only")
            note(f"the page is at {address} and the fake Postmark at {fake.url} (Ctrl-C ends it)")
            tg.start_soon(_show_sent, fake)
            await run_until_told(made)
        tg.cancel_scope.cancel()


@asynccontextmanager
async def _fake(port: int) -> AsyncIterator[FakePostmark]:
    from notifyq.testing.fake import FakePostmark

    fake = FakePostmark(port=port, token="dev")  # noqa: S106 (a fake account's)
    try:
        await fake.__aenter__()
    except OSError as error:
        raise Failed(f"the fake Postmark cannot listen on port {port}: {error.strerror}") from None
    try:
        yield fake
    finally:
        await fake.__aexit__(None, None, None)


async def _show_sent(fake: FakePostmark) -> None:
    """Print what arrives."""
    for number in itertools.count():
        while len(fake.accepted) <= number:
            with suppress(TimeoutError):
                await fake.wait_accepted(number + 1, timeout=LONG)
        message = fake.accepted[number]
        say(f"sent to {', '.join(message.recipients)}: {message.subject}", "green")
