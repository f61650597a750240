"""The SQL that ships with the package: migrations, functions and named queries, as they lie in ``sql/``.

``sql/`` is real SQL that psql can read. A query file holds blocks that begin with ``-- name: …``;
Python names a block and adds nothing to it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

__all__ = ["Migration", "everything", "functions", "functions_digest", "migrations", "query"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered step of the schema; *oldest_worker* is the oldest that may run beside it."""

    version: int
    name: str
    oldest_worker: int
    sql: str


def sql_root() -> Traversable:
    """Where ``sql/`` lies: inside the wheel, or beside the package in a checkout."""
    packaged = files("notifyq") / "sql"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parent.parent / "sql"


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations, in order.

    Example: ``migrations()[-1].version`` is the schema that this package wants.
    """
    return tuple(_migration(file) for file in _sql_files("migrations"))


@cache
def functions() -> tuple[str, ...]:
    """The function files. They are replaced as a whole whenever one of them has changed."""
    return tuple(file.read_text(encoding="utf-8") for file in _sql_files("functions"))


@cache
def functions_digest() -> str:
    """A hash over `functions`, kept in the database to see whether they are up to date."""
    return hashlib.sha256("\0".join(functions()).encode()).hexdigest()


def query(name: str) -> str:
    """The text of one named query.

    Raises KeyError for a name that no file has: a mistake in this package.
    """
    return _queries()[name]


def everything() -> str:
    """All of it, for a migration tool of the user's own: what ``notifyq sql`` prints.

    Example: ``print(everything())``
    """
    steps = [
        f"-- migration {m.version}: {m.name}\n{m.sql}\n"
        "insert into notifyq.migrations (version, name, oldest_worker) "
        f"values ({m.version}, '{m.name}', {m.oldest_worker});\n"
        for m in migrations()
    ]
    digest = (
        "insert into notifyq.chores (name, last_at, detail) "  # noqa: S608 (our own constants)
        f"values ('functions', clock_timestamp(), '{functions_digest()}')\n"
        "on conflict (name) do update set last_at = excluded.last_at, detail = excluded.detail;\n"
    )
    return "\n".join(["begin;\n", *steps, *functions(), digest, "commit;\n"])


def _sql_files(folder: str) -> list[Traversable]:
    found = [file for file in (sql_root() / folder).iterdir() if file.name.endswith(".sql")]
    return sorted(found, key=lambda file: file.name)


def _migration(file: Traversable) -> Migration:
    sql = file.read_text(encoding="utf-8")
    number, _, name = file.name.removesuffix(".sql").partition("_")
    oldest = re.match(r"-- oldest worker: (\d+)$", sql, flags=re.MULTILINE)
    if oldest is None:
        raise ValueError(f"{file.name}: the first line must be '-- oldest worker: N'")
    return Migration(version=int(number), name=name, oldest_worker=int(oldest[1]), sql=sql)


@cache
def _queries() -> dict[str, str]:
    blocks: dict[str, str] = {}
    for file in _sql_files("queries"):
        _, *parts = re.split(r"^-- name: ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for part in parts:
            name, _, body = part.partition("\n")
            if name in blocks:
                raise ValueError(f"two queries are called {name}")
            blocks[name] = body.strip()
    return blocks
