"""``notifyq worker``: the process that sends."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anyio
import click
from anyio.abc import TaskStatus

from notifyq.cli.apps import load_app
from notifyq.cli.database import database_url, listen_url, pooled
from notifyq.cli.faces import page
from notifyq.cli.options import ADDRESS, DURATION
from notifyq.cli.runner import Failed, run
from notifyq.cli.systemd import tell_systemd
from notifyq.errors import InvalidSettings, MissingSender
from notifyq.message import Email
from notifyq.postmark import Postmark
from notifyq.postmark_payload import build_postmark_payload, shunt
from notifyq.settings import WorkerSettings
from notifyq.worker import Worker

__all__ = ["run_until_told", "set_up_logging", "worker"]

log = logging.getLogger("notifyq")

DEFAULTS = WorkerSettings()
STOPPING = (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM))
"""A terminal that is closed is no reason to leave rows behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker process was asked to be."""

    settings: WorkerSettings
    listen: bool
    runs_tasks: bool
    admin: tuple[str, int] | None


@click.command(short_help="Send what the outbox holds.")
@click.option("--app", metavar="MODULE[:ATTR]", help="Import this: its tasks and builders are served.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=DEFAULTS.slots, show_default=True, help="Slots a lane."
)
@click.option("--admin", type=ADDRESS, help="Serve the operator's page here too.")
@click.option("--no-listen", is_flag=True, help="Only poll; for a database that is a transaction pooler.")
@click.option(
    "--embedded", is_flag=True, help="Without DATABASE_URL: serve the embedded database, also as a service."
)
@click.option("--unsafe-durability", is_flag=True, help="Run although fsync is off. For tests.")
@click.option("--post-budget", type=DURATION, default=DEFAULTS.post_budget, show_default=True)
@click.option("--lease", type=DURATION, default=DEFAULTS.lease, show_default=True)
@click.option("--settle", type=DURATION, default=DEFAULTS.settle, show_default=True)
@click.option("--grace", type=DURATION, default=DEFAULTS.grace, show_default=True)
@click.option("--poll", type=DURATION, default=DEFAULTS.poll, show_default=True)
@click.option("--backoff", type=DURATION, default=DEFAULTS.backoff, show_default=True)
@click.option("--verbose", is_flag=True, help="Log more.")
def worker(
    app: str | None,
    concurrency: int,
    admin: tuple[str, int] | None,
    no_listen: bool,
    embedded: bool,
    verbose: bool,
    **settings: Any,
) -> None:
    """Send emails and run tasks until SIGTERM or Ctrl-C: then finish what is under way, and exit 0.

    A second signal stops at once. Reads POSTMARK_SERVER_TOKEN, EMAIL_FROM and EMAIL_SHUNT. Durations are
    seconds, fractions allowed.

    \b
    Example:
      POSTMARK_SERVER_TOKEN=... notifyq worker
      notifyq worker --app shop.mail --concurrency 50 --admin 127.0.0.1:8025
    """
    set_up_logging(verbose)
    try:
        job = Job(
            settings=WorkerSettings(slots=concurrency, **settings),
            listen=not no_listen,
            runs_tasks=app is not None,
            admin=admin,
        )
    except InvalidSettings as error:
        raise click.UsageError(str(error)) from None
    _check_database_is_meant(embedded)
    if app is not None:
        log.info("%s: %s", app, load_app(app))
    for line in job.settings.warnings():
        log.warning(line)
    run(lambda: _work(job), fast=True)


def _check_database_is_meant(embedded: bool) -> None:
    """Refuse to serve an embedded database that nobody asked for: a service would send nothing, silently.

    Whether systemd started it cannot be told from INVOCATION_ID: desktops hand theirs to every terminal.
    """
    if embedded and database_url():
        raise click.UsageError("--embedded and DATABASE_URL are two databases: leave one of them out")
    attended = sys.stdin.isatty() and (sys.stderr.isatty() or sys.stdout.isatty())
    if not (embedded or attended or database_url()):
        raise Failed(
            "DATABASE_URL is not set: set it (postgresql://user@host/name; under systemd by "
            "EnvironmentFile=), or serve the embedded Postgres with --embedded. Without a terminal the "
            "worker does not guess"
        )


class OneLine(logging.Formatter):
    """``2030-01-31 09:00:00 INFO notifyq: …``, whatever the message holds."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Keep a line break in a message from looking like the next line."""
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


def set_up_logging(verbose: bool) -> None:
    """Log to stderr, a line each.

    Example: ``set_up_logging(verbose=False)``
    """
    handler = logging.StreamHandler()  # stderr
    handler.setFormatter(OneLine())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("notifyq").setLevel(logging.DEBUG if verbose else logging.INFO)


async def _work(job: Job) -> None:
    provider = Postmark()
    _check_environment(provider)
    async with AsyncExitStack() as open_things:
        more = job.settings.slots if job.runs_tasks else 0
        pool = await open_things.enter_async_context(pooled(more, tell=log.warning))
        made = Worker(
            pool,
            provider=provider,
            settings=job.settings,
            listen=job.listen,
            listen_url=listen_url() if job.listen else None,
        )
        if job.admin is not None:
            url = await open_things.enter_async_context(page(pool, *job.admin, worker=made))
            log.info("the page is at %s", url)
        await run_until_told(made)


def _check_environment(provider: Postmark) -> None:
    """Refuse at the start what would otherwise show at the first email: above all a malformed shunt.

    Raises `InvalidSettings`. A sender that is not set is no mistake: each email may name its own.
    """
    _ = provider.account
    shunt(os.environ)  # by itself: the sample may end at a missing sender before anybody looks at it
    sample = Email(key="sample", to="sample@example.com", subject="", text="sample")
    try:
        build_postmark_payload(sample, os.environ)
    except MissingSender:
        log.warning(
            "EMAIL_FROM is not set: emails that name no sender will wait. "
            "Set it to the address that sends and restart; they go at once then"
        )


async def run_until_told(made: Worker) -> None:
    """Run until the work is over: drained after the first signal, cut short by a second.

    Example: ``await run_until_told(Worker(pool, provider=Postmark()))``
    """
    async with anyio.create_task_group() as tg:
        ready = anyio.Event()
        await tg.start(_obey_signals, made, ready, tg.cancel_scope)

        async def to_the_end(*, task_status: TaskStatus[None]) -> None:
            await made.run(task_status=task_status)
            tg.cancel_scope.cancel()

        await tg.start(to_the_end)
        ready.set()
        tell_systemd("READY=1", os.environ)


async def _obey_signals(
    made: Worker, ready: anyio.Event, scope: anyio.CancelScope, *, task_status: TaskStatus[None]
) -> None:
    with anyio.open_signal_receiver(*STOPPING) as signals:
        task_status.started()
        told = False
        async for _ in signals:
            tell_systemd("STOPPING=1", os.environ)
            if told or not ready.is_set():
                # Told twice, or before it began. What is cut short is in doubt, and is asked about later.
                scope.cancel()
                return
            told = True
            made.drain()
