"""The command: what a person types, which database it uses, how it exits."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner
from command import FLAGS, NOWHERE, notifyq, running, value

from notifyq import embedded
from notifyq.cli import main
from notifyq.embedded_binaries import BIN_SETTING
from notifyq.testing.database import Databases, apart, connected

ONE_SERVER_IS_ENOUGH = True  # the statements are tested in tests/sql, on every server


@pytest.mark.parametrize("name", sorted(main.commands))
def test_the_help_of_each_command_has_an_example(name: str) -> None:
    """A person copies an example sooner than reading options."""
    result = CliRunner().invoke(main, [name, "--help"])

    assert result.exit_code == 0
    assert f"notifyq {name}" in result.output.partition("Example:\n")[2]


def test_help_names_every_command_and_has_an_example() -> None:
    """The first thing that a newcomer runs."""
    result = notifyq(None, "--help")

    assert result.returncode == 0
    assert "Example:" in result.stdout
    assert all(f"\n  {name} " in result.stdout for name in main.commands)


def test_the_version_is_told() -> None:
    """A report of a fault begins with it."""
    result = notifyq(None, "--version")

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("notifyq 0.") or result.stdout.startswith("notifyq 1.")


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("show",),
        ("cancel", "seven"),
        ("cancel", "task:"),
        ("cancel", "mail:7"),
        ("cancel", "0"),
        ("cancel", "99999999999999999999"),
        ("retry",),
        ("retry", "7", "--reason", "rejected"),
        ("retry", "--reason", "bored"),
        ("retry", "--tasks", "--reason", "rejected"),
        ("resolve", "7"),
        ("resolve", "task:7", "id"),
        ("list", "--limit", "0"),
        ("list", "--status", "bogus"),
        ("list", "--reason", "bogus"),
        ("list", "--status", "done"),
        ("list", "--reason", "gave_up"),
        ("list", "tasks", "--status", "held"),
        ("list", "tasks", "--reason", "rejected"),
        ("enqueue", "resize", "--arg", "photo"),
        ("enqueue", "resize", "--arg", "a=1", "--arg", "a=2"),
        ("send", "--key", "k", "--to", "a@example.com", "--text", "t"),
        ("send", "--key", "k", *FLAGS, "--run-after", "2030-01-01T00:00"),
        ("send", "--key", "k", *FLAGS, "--run-after", "soon"),
        ("send", "--key", "k", *FLAGS, "--to", "not an address"),
        ("send", "--text", "t", "-"),
        ("worker", "--lease", "1"),
        ("worker", "--settle", "0"),
        ("worker", "--concurrency", "0"),
        ("worker", "--admin", "8025"),
        ("worker", "--app", ":attr"),
        ("worker", "--app", "shop/mail.py"),
        ("worker", "--embedded"),
    ],
    ids=" ".join,
)
def test_misuse_exits_2_before_anything_is_touched(words: tuple[str, ...]) -> None:
    """A script tells a mistake in its own line from a failure."""
    result = CliRunner(env={"DATABASE_URL": NOWHERE}).invoke(main, words)

    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_misuse_exits_2_as_a_process() -> None:
    """The same, seen from a shell."""
    result = notifyq(None, "cancel", "seven")

    assert (result.returncode, result.stdout) == (2, "")
    assert "an ID is an email's number, or task:7" in result.stderr


def test_a_send_without_a_key_explains_what_a_key_is(notifyq_dsn: str) -> None:
    """The key is the one idea that a newcomer must meet."""
    result = notifyq(notifyq_dsn, "send", *FLAGS)

    assert result.returncode == 2
    assert "one key is sent once, ever" in result.stderr
    assert value(notifyq_dsn, "select count(*) from notifyq.emails") == 0


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://user:secret@host/name", "not a Postgres URL"),
        ("postgresql://user:secret@127.0.0.1:1/name", "does not answer"),
        ("postgresql://user:secret@127.0.0.1:none/name", "not a Postgres URL"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_and_exit_1(url: str, words: str) -> None:
    """And the password in the URL stays where it is."""
    result = notifyq(url, "status")

    assert (result.returncode, result.stdout) == (1, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr


def test_without_any_database_both_ways_out_are_told(tmp_path: Path) -> None:
    """A newcomer who installed no extra must not meet a traceback."""
    result = notifyq(None, "status", **{BIN_SETTING: str(tmp_path)})

    assert (result.returncode, result.stdout) == (1, "")
    assert "DATABASE_URL" in result.stderr
    assert "notifyq[embedded]" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.fixture
def data_folder() -> Iterator[Path]:
    """A data folder that the account which runs Postgres for root can enter."""
    folder = Path(tempfile.mkdtemp(prefix="notifyq-cli-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(not embedded.available(), reason="nothing to embed is installed")
def test_without_a_url_an_embedded_database_is_used_migrated_and_named(data_folder: Path) -> None:
    """Nothing has to be set up, what was enqueued stays, and nobody is left in doubt about where."""
    sent = notifyq(None, "send", "--key", "k", *FLAGS, "--json", XDG_DATA_HOME=str(data_folder))
    seen = notifyq(None, "list", "--json", XDG_DATA_HOME=str(data_folder))

    assert (sent.returncode, seen.returncode) == (0, 0), sent.stderr + seen.stderr
    assert f"embedded Postgres in {data_folder}" in sent.stderr
    assert [row["key"] for row in json.loads(seen.stdout)] == ["k"]


def test_a_given_database_is_never_migrated_silently(notifyq_server: Databases) -> None:
    """It may be the wrong one."""
    with notifyq_server.fresh(migrated=False) as dsn:
        result = notifyq(dsn, "status")

        assert result.returncode == 1
        assert "run `notifyq migrate`" in result.stderr
        assert value(dsn, "select to_regnamespace('notifyq')") is None


def test_migrate_says_what_it_applied_and_then_that_there_is_nothing_to_do(notifyq_server: Databases) -> None:
    """Run by each deploy, so the second time must be quiet."""
    with notifyq_server.fresh(migrated=False) as dsn:
        first, second = notifyq(dsn, "migrate"), notifyq(dsn, "migrate")

    assert (first.returncode, second.returncode) == (0, 0)
    assert "applied 001_tables" in first.stdout
    assert second.stdout.startswith("nothing to do")


async def test_migrate_waits_for_another_and_says_so(notifyq_dsn: str) -> None:
    """Two deploys at once: the second waits, with a word, and holds nobody up."""
    conn = await asyncpg.connect(notifyq_dsn)
    try:
        await conn.execute("select pg_advisory_lock(7236837240123)")
        async with running(notifyq_dsn, "migrate") as process:
            await process.says("waiting for it")
            await conn.execute("select pg_advisory_unlock_all()")

            assert await process.end() == 0
    finally:
        await conn.close()


def test_the_printed_sql_makes_the_same_schema(notifyq_server: Databases) -> None:
    """For a migration tool of the user's own: afterwards `migrate` finds nothing to do."""
    printed = notifyq(None, "sql")
    assert printed.returncode == 0

    async def apply(conn: Any) -> None:
        await conn.execute(printed.stdout)

    with notifyq_server.fresh(migrated=False) as dsn:
        apart(lambda: connected(dsn, apply))
        assert notifyq(dsn, "migrate").stdout.startswith("nothing to do")
