"""Run a command, and say in one line what went wrong. Exit codes: 0, 1 (it failed), 2 (misuse)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import anyio
import click
from asyncpg.exceptions import (
    ClientConfigurationError,
    InsufficientPrivilegeError,
    InterfaceError,
    InternalClientError,
    InvalidAuthorizationSpecificationError,
    InvalidCatalogNameError,
    InvalidParameterValueError,
    PostgresError,
    QueryCanceledError,
    ReadOnlySQLTransactionError,
    TooManyConnectionsError,
)

from notifyq.db import describe
from notifyq.errors import NotifyqError

__all__ = ["RARELY", "Failed", "away", "note", "run"]

RARELY: Final = (20_000, 20, 20)
"""`gc.set_threshold` for a worker's own process. An email on its way is some dozens of containers, which live
for milliseconds and are freed by their counts. At Python's 700 a claim of forty makes the collector walk over
them, and soon over all that lives long, and find nothing: a seventh of the worker's time."""

# A connection that was there and is gone. One that cannot be made may be any OSError: see `database`.
_AWAY: Final = (ConnectionError, TimeoutError, InterfaceError, InternalClientError)

# What a person can do about it; anything else is named by class and SQLSTATE.
_ADVICE: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (
        ClientConfigurationError,
        "DATABASE_URL cannot be used: it should look like postgresql://user@host/name",
    ),
    (InvalidCatalogNameError, "there is no such database on the server: create it, or correct DATABASE_URL"),
    (
        InvalidAuthorizationSpecificationError,
        "the server does not let this user in: look at user and password in DATABASE_URL",
    ),
    (
        ReadOnlySQLTransactionError,
        "the database is read-only here (a standby, or default_transaction_read_only of this role): "
        "DATABASE_URL must name the primary and a role that may write",
    ),
    (
        TooManyConnectionsError,
        "the server has no connection left (max_connections, or the limit of this role or database): "
        "try again, or raise it",
    ),
    (
        QueryCanceledError,
        "the server ended a statement that took too long: raise statement_timeout of this role",
    ),
    (
        InsufficientPrivilegeError,
        "this role lacks a privilege: `notifyq migrate` needs CREATE on the database or the schema's owner, "
        "the other commands what its owner grants",
    ),
)


class Failed(click.ClickException):
    """It failed, for a reason that fits one line: exit 1.

    Example: ``raise Failed("email 7 does not exist")``
    """

    exit_code = 1

    def show(self, file: object = None) -> None:
        """Print the line to stderr."""
        note(self.format_message())


def note(text: str) -> None:
    """A remark for the person at the terminal, on stderr, so that stdout holds facts only."""
    click.echo(f"notifyq: {text}", err=True)


def run(work: Callable[[], Awaitable[int | None]], *, fast: bool = False) -> NoReturn:
    """Run *work* to its end and exit with its answer (None is 0).

    *fast*: use uvloop where it is installed, and collect cycles rarely (`RARELY`).

    Example: ``run(lambda: _migrate())``
    """
    if fast:
        gc.set_threshold(*RARELY)
    try:
        code = anyio.run(work, backend_options={"use_uvloop": fast and _has_uvloop()})
    except Exception as error:
        explained = _explain(_only(error))
        if explained is None:
            raise
        raise explained from None
    sys.exit(code or 0)


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401 (an extra)
    except ImportError:
        return False
    return True


def _only(error: BaseException) -> BaseException:
    """The error itself, where task groups have wrapped it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _explain(error: BaseException) -> click.ClickException | None:
    """The line for *error*, which quotes no row; None for a mistake of this program."""
    if isinstance(error, click.ClickException):
        return error
    if isinstance(error, NotifyqError):
        return Failed(str(error))
    if isinstance(error, InvalidParameterValueError) and error.schema_name == "notifyq":
        return click.UsageError(str(error))  # our own refusal: field and rule, never the value
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return Failed(f"{advice} ({describe(error)})")
    if isinstance(error, PostgresError):
        return Failed(f"the database refused ({describe(error)})")
    if isinstance(error, _AWAY) and not isinstance(error, BrokenPipeError):  # that one is a closed stdout
        return away(error)
    return None


def away(error: BaseException) -> Failed:
    """The line for a database that does not answer."""
    return Failed(f"the database does not answer ({describe(error)}): is DATABASE_URL right?")
