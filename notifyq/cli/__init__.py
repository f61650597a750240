"""The command ``notifyq``: the only place that reads the environment, prints and sets up logging.

==================  ============================================================================
`main`              the command itself, with all its subcommands
`runner`            one way to run a command and to say what went wrong; exit codes
`database`          ``DATABASE_URL``, or the embedded server
`options`           what a person types, made into values: an id, a time, ``k=v``
`display`           tables for people and for pipes, JSON for scripts
`verdict`, `story`  words: does mail flow, what happened to a row
the rest            one file for each group of commands
==================  ============================================================================

Exit codes: 0, 1 (it failed), 2 (misuse). Facts go to stdout, remarks to stderr.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from pathlib import Path

import click

from notifyq.cli.acts import cancel, resolve, retry
from notifyq.cli.dev import dev
from notifyq.cli.faces import admin, demo
from notifyq.cli.rows import list_rows, show
from notifyq.cli.schema import migrate, sql
from notifyq.cli.send import enqueue, send
from notifyq.cli.status import status
from notifyq.cli.work import worker

__all__ = ["main"]

COMMANDS = (
    demo,
    dev,
    migrate,
    worker,
    send,
    enqueue,
    status,
    list_rows,
    show,
    retry,
    cancel,
    resolve,
    admin,
    sql,
)


class InOrder(click.Group):
    """Commands in the order in which a newcomer needs them, not in that of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the names in the order of `COMMANDS`."""
        return list(self.commands)


def package_version() -> str:
    """The version of the installed package, or of the checkout that this runs from."""
    try:
        return version("notifyq")
    except PackageNotFoundError:
        project = Path(__file__).resolve().parents[2] / "pyproject.toml"
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"notifyq {package_version()}")
        ctx.exit()


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Transactional email from a Postgres outbox, sent through Postmark once.

    The database is DATABASE_URL; without it, a Postgres of your own is started in your data folder
    (extra "embedded"). An ID is an email's number, or task:7.

    \b
    Example:
      notifyq demo                # see it work, nothing to set up
      notifyq dev --app shop.mail # your own app, with a fake Postmark
      notifyq migrate             # then, with DATABASE_URL set:
      notifyq worker              # send what the outbox holds
      notifyq status              # does mail flow?
    """
    # A terminal or a pipe that cannot show a character gets a question mark, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


for _command in COMMANDS:
    main.add_command(_command)
