"""The command, as a process of its own: what it prints, what it does, how it exits."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from click.testing import CliRunner

from notifyq import Postmark, Worker, WorkerSettings, embedded
from notifyq.cli import main, verdict
from notifyq.embedded_binaries import BIN_SETTING
from notifyq.testing import FakePostmark, faults
from notifyq.testing.database import Databases, apart, connected

ROOT = Path(__file__).resolve().parents[2]
MESSAGE = '{"to":[{"email":"a@example.com"}],"from":{"email":"b@example.com"},"subject":"s","text":"t"}'
FLAGS = ("--to", "a@example.com", "--from", "b@example.com", "--subject", "s", "--text", "t")
QUICK = ("--post-budget", "1", "--lease", "2.5", "--settle", "2", "--grace", "5")
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
LIMIT = 60


def environment(dsn: str | None, **more: str) -> dict[str, str]:
    """The environment of a command: nothing of ours but what is said here."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", BIN_SETTING) if name in os.environ}
    given = {} if dsn is None else {"DATABASE_URL": dsn}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **given, **more}


def notifyq(dsn: str | None, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``notifyq`` to its end."""
    command = (sys.executable, "-m", "notifyq", *words)
    return subprocess.run(
        command,
        input=stdin,
        env=environment(dsn, **env),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def rows(dsn: str, statement: str, *args: Any) -> list[Any]:
    """Ask the database."""

    async def ask(conn: Any) -> list[Any]:
        return list(await conn.fetch(statement, *args))

    return apart(lambda: connected(dsn, ask))


def value(dsn: str, statement: str, *args: Any) -> Any:
    """The first column of the first row."""
    return rows(dsn, statement, *args)[0][0]


def put(dsn: str, key: str) -> int:
    """Enqueue one email with plain SQL."""
    return int(value(dsn, "select id from notifyq.enqueue_email($1, $2::text::jsonb)", key, MESSAGE))


def hold(dsn: str, email_id: int) -> None:
    """Make it a row whose fate is unknown."""
    rows(
        dsn,
        "update notifyq.emails set status = 'held', doubt_since = now() - interval '1 hour',"
        " last_error = 'no answer' where id = $1",
        email_id,
    )


class Process:
    """A running ``notifyq``; its stderr is read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def says(self, words: str) -> str:
        """Wait for a line on stderr that has *words*."""
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT):
            while line := (await self.process.stderr.readline()).decode():
                self.lines.append(line)
                if words in line:
                    return line
        raise AssertionError(f"it never said {words!r}: {self.lines}")

    async def end(self, *signals: signal.Signals) -> int:
        """Send *signals* and wait for the exit code."""
        for number in signals:
            self.process.send_signal(number)
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT):
            rest = await self.process.stderr.read()
            self.lines += rest.decode().splitlines()
            return await self.process.wait()


@asynccontextmanager
async def running(dsn: str, *words: str, **env: str) -> AsyncIterator[Process]:
    """``notifyq`` as a process that goes on; killed at the end if it is still there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "notifyq",
        *words,
        env=environment(dsn, **env),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Process(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def until(condition: Callable[[], Any]) -> None:
    """Wait for an async *condition*."""
    async with asyncio.timeout(LIMIT):
        while not await condition():  # noqa: ASYNC110 (a row in a database tells nobody)
            await asyncio.sleep(0.02)


# ---------------------------------------------------------------- what a person types


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
        ("show", "seven"),
        ("show", "task:"),
        ("show", "mail:7"),
        ("show", "0"),
        ("show", "99999999999999999999"),
        ("retry",),
        ("retry", "7", "--reason", "rejected"),
        ("retry", "--reason", "bored"),
        ("resolve", "7"),
        ("resolve", "task:7", "id"),
        ("list", "--limit", "0"),
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
    result = notifyq(None, "show", "seven")

    assert (result.returncode, result.stdout) == (2, "")
    assert "an ID is an email's number, or task:7" in result.stderr


def test_a_send_without_a_key_explains_what_a_key_is(notifyq_dsn: str) -> None:
    """The key is the one idea that a newcomer must meet."""
    result = notifyq(notifyq_dsn, "send", *FLAGS)

    assert result.returncode == 2
    assert "one key is sent once, ever" in result.stderr
    assert value(notifyq_dsn, "select count(*) from notifyq.emails") == 0


# ---------------------------------------------------------------- the database


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


# ---------------------------------------------------------------- the way in


def test_send_makes_the_email_that_the_flags_describe(notifyq_dsn: str, tmp_path: Path) -> None:
    """Each flag ends up in its own field."""
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    result = notifyq(
        notifyq_dsn,
        *("send", "--key", "k", "--to", "Ann <ann@example.com>", "--to", "b@example.com"),
        *("--from", "Shop <shop@example.com>", "--subject", "Grüße", "--text", "t", "--html", "<p>h</p>"),
        *("--cc", "c@example.com", "--bcc", "d@example.com", "--reply-to", "r@example.com"),
        *("--tag", "welcome", "--stream", "letters", "--metadata", "a=b=c", "--header", "X-A=1"),
        *("--attach", str(tmp_path / "a.pdf"), "--priority", "-5", "--on-doubt", "hold"),
        *("--run-after", "2030-01-01T00:00+00:00", "--send-before", "2030-01-02T00:00+00:00"),
    )
    row = rows(notifyq_dsn, "select *, message::text as text from notifyq.emails")[0]

    assert (result.returncode, result.stdout) == (0, f"id {row['id']}  created true\n")
    assert (row["priority"], row["on_doubt"], row["stream"]) == (-5, "hold", "letters")
    assert (row["run_after"].year, row["send_before"].day) == (2030, 2)
    assert json.loads(row["text"]) == {
        "to": [{"email": "ann@example.com", "name": "Ann"}, {"email": "b@example.com"}],
        "from": {"email": "shop@example.com", "name": "Shop"},
        "cc": [{"email": "c@example.com"}],
        "bcc": [{"email": "d@example.com"}],
        "reply_to": [{"email": "r@example.com"}],
        "subject": "Grüße",
        "text": "t",
        "html": "<p>h</p>",
        "tag": "welcome",
        "stream": "letters",
        "metadata": {"a": "b=c"},
        "headers": {"X-A": "1"},
        "attachments": [{"name": "a.pdf", "content_type": "application/pdf", "content": "JVBERg=="}],
    }


def test_a_known_key_is_answered_with_the_row_that_exists(notifyq_dsn: str) -> None:
    """A script may be run again."""
    first = json.loads(notifyq(notifyq_dsn, "send", "--key", "k", *FLAGS, "--json").stdout)
    again = json.loads(notifyq(notifyq_dsn, "send", "--key", "k", *FLAGS, "--json").stdout)

    assert first == {"id": first["id"], "created": True}
    assert again == {"id": first["id"], "created": False}


def test_send_takes_the_message_of_the_sql_function_on_stdin(notifyq_dsn: str) -> None:
    """One form of a message for SQL, for scripts and for the library."""
    message = json.loads(MESSAGE) | {"key": "k", "priority": -1, "run_after": "+1h"}
    result = notifyq(notifyq_dsn, "send", "--json", "-", stdin=json.dumps(message))
    row = rows(notifyq_dsn, "select *, run_after > now() as later, message::text as m from notifyq.emails")[0]

    assert json.loads(result.stdout) == {"id": row["id"], "created": True}
    assert (row["key"], row["priority"], row["later"]) == ("k", -1, True)
    assert json.loads(row["m"]) == json.loads(MESSAGE)


@pytest.mark.parametrize("stdin", ["", "[]", "{", '{"key": "k"}', '{"key": "k", "tos": []}', MESSAGE])
def test_a_message_on_stdin_that_is_none_exits_2(stdin: str) -> None:
    """Refused with the field's name, before anything is enqueued."""
    result = CliRunner(env={"DATABASE_URL": NOWHERE}).invoke(main, ["send", "-"], input=stdin)

    assert result.exit_code == 2
    assert "Error:" in result.stderr


async def test_send_wait_tells_how_it_ended(
    notifyq_dsn: str, notifyq_pool: Any, fake_postmark: FakePostmark
) -> None:
    """For a script that must know: 0 only if it was sent."""
    fake_postmark.suppress("gone@example.com")
    worker = Worker(notifyq_pool, provider=Postmark(env=fake_postmark.env()), settings=WorkerSettings())
    task = asyncio.create_task(worker.run())

    async def send(key: str, to: str, *more: str) -> subprocess.CompletedProcess[str]:
        words = ("send", "--key", key, *FLAGS[2:], "--to", to, "--wait", "--json", *more)
        return await asyncio.to_thread(notifyq, notifyq_dsn, *words)

    sent = await send("k1", "a@example.com")
    dead = await send("k2", "gone@example.com")
    late = await send("k3", "a@example.com", "--run-after", "+1h", "--timeout", "0.2")
    worker.drain()
    await task

    assert (sent.returncode, json.loads(sent.stdout)["status"]) == (0, "sent")
    assert json.loads(sent.stdout)["provider_message_id"] == fake_postmark.accepted[0].message_id
    assert (dead.returncode, json.loads(dead.stdout)["reason"]) == (1, "suppressed")
    assert (late.returncode, json.loads(late.stdout)["status"]) == (1, "pending")


def test_enqueue_reads_arguments_as_json_where_they_are_json(notifyq_dsn: str) -> None:
    """A number is a number, a word is a word, and a known key of an active call is the answer."""
    words = ("enqueue", "resize", "--key", "r7", "--priority", "3", "--max-attempts", "2")
    args = ("--arg", "id=7", "--arg", "size=large", "--arg", 'tags=["a"]', "--arg", "note=NaN")
    first = notifyq(notifyq_dsn, *words, *args)
    again = notifyq(notifyq_dsn, *words, "--json")
    row = rows(notifyq_dsn, "select *, args::text as a from notifyq.tasks")[0]

    assert first.stdout == f"id task:{row['id']}  created true\n"
    assert json.loads(again.stdout) == {"id": row["id"], "created": False}
    assert json.loads(row["a"]) == {"id": 7, "size": "large", "tags": ["a"], "note": "NaN"}
    assert (row["name"], row["key"], row["priority"], row["max_attempts"]) == ("resize", "r7", 3, 2)


def test_what_the_database_refuses_is_misuse_and_names_the_field(notifyq_dsn: str) -> None:
    """The check is the database's, the answer is the same."""
    result = notifyq(notifyq_dsn, "enqueue", "n" * 201)

    assert result.returncode == 2
    assert "name: must have 1 to 200 characters" in result.stderr


# ---------------------------------------------------------------- looking


def test_list_pages_by_id_and_filters(notifyq_dsn: str) -> None:
    """Pages stay right while rows are added at the top."""
    ids = [put(notifyq_dsn, f"k{number}") for number in range(5)]
    hold(notifyq_dsn, ids[2])

    def listed(*words: str) -> list[int]:
        return [row["id"] for row in json.loads(notifyq(notifyq_dsn, "list", "--json", *words).stdout)]

    assert listed("--limit", "2") == [ids[4], ids[3]]
    assert listed("--limit", "2", "--before", str(ids[3])) == [ids[2], ids[1]]
    assert listed("--status", "held") == [ids[2]]
    assert listed("--key", "k1") == [ids[1]]
    assert listed("--reason", "rejected") == []
    assert listed("tasks") == []


def test_a_list_in_a_pipe_is_plain_text(notifyq_dsn: str) -> None:
    """One row a line, nothing cut off, no colours: for grep."""
    email_id = put(notifyq_dsn, "key-" + "x" * 200 + "\x1b[31m")
    result = notifyq(notifyq_dsn, "list")

    header, line = result.stdout.splitlines()
    assert header.split() == ["id", "status", "when", "tries", "key", "why"]
    assert line.startswith(f"{email_id}") and "x" * 200 in line
    assert "\x1b" not in result.stdout


def on_a_terminal(dsn: str, *words: str, **env: str) -> str:
    """What ``notifyq`` prints when stdout is a terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "wb") as out:
        process = subprocess.Popen(
            (sys.executable, "-m", "notifyq", *words),
            env=environment(dsn, TERM="xterm-256color", **env),
            stdout=out,
            stdin=subprocess.DEVNULL,
        )
    seen = b""
    with suppress(OSError):  # the terminal ends with its last writer
        while chunk := os.read(ours, 65536):
            seen += chunk
    os.close(ours)
    assert process.wait(LIMIT) == 0
    return seen.decode()


def test_a_terminal_gets_a_table_with_colours_unless_no_color(notifyq_dsn: str) -> None:
    """And a key that holds an escape sequence does not drive the terminal."""
    put(notifyq_dsn, "evil-\x1b]0;owned\x07")
    coloured = on_a_terminal(notifyq_dsn, "list")
    plain = on_a_terminal(notifyq_dsn, "list", NO_COLOR="1")

    assert "\x1b[36mpending" in coloured
    assert "pending" in plain and "\x1b[36m" not in plain
    assert "\x1b]0;" not in coloured + plain


def test_show_tells_the_story_in_words_and_keeps_the_body_back(notifyq_dsn: str) -> None:
    """The page of one email: to whom, what about, what happened; the body only when asked for."""
    email_id = put(notifyq_dsn, "k")
    notifyq(notifyq_dsn, "cancel", str(email_id))
    told = notifyq(notifyq_dsn, "show", str(email_id)).stdout
    facts = json.loads(notifyq(notifyq_dsn, "show", str(email_id), "--json").stdout)
    whole = json.loads(notifyq(notifyq_dsn, "show", str(email_id), "--json", "--body").stdout)

    assert "dead (cancelled)" in told.splitlines()[0]
    assert "a@example.com" in told
    assert f"a person said: do not send it (by {getpass.getuser()})" in told
    assert [one["event"] for one in facts["history"]] == ["cancelled"]
    assert facts["message"]["text"] != "t" == whole["message"]["text"]


def test_show_knows_tasks_and_says_when_there_is_no_such_row(notifyq_dsn: str) -> None:
    """An ID is an email's number, or task:7."""
    task_id = value(notifyq_dsn, "select id from notifyq.enqueue_task('resize', '{\"a\": 1}')")
    told = notifyq(notifyq_dsn, "show", f"task:{task_id}")
    missing = notifyq(notifyq_dsn, "show", "1")

    assert told.returncode == 0 and '{"a": 1}' in told.stdout
    assert (missing.returncode, missing.stderr) == (1, "notifyq: there is no email 1\n")


# ---------------------------------------------------------------- acting


def test_an_act_says_what_changed_and_leaves_the_person_in_the_history(notifyq_dsn: str) -> None:
    """Cancel, retry, resolve: each through its SQL function, each by somebody."""
    first, second = put(notifyq_dsn, "k1"), put(notifyq_dsn, "k2")
    hold(notifyq_dsn, second)
    steps = [
        notifyq(notifyq_dsn, "cancel", str(first)),
        notifyq(notifyq_dsn, "retry", str(first), "999"),
        notifyq(notifyq_dsn, "resolve", str(second), "message-1"),
    ]
    history = rows(notifyq_dsn, "select row_id, event, actor from notifyq.history order by id")

    assert [step.returncode for step in steps] == [0, 0, 0]
    assert "is now dead (cancelled)" in steps[0].stdout
    assert "is now pending" in steps[1].stdout and "there is no email 999" in steps[1].stderr
    assert value(notifyq_dsn, "select provider_message_id from notifyq.emails where id = $1", second) == (
        "message-1"
    )
    me = getpass.getuser()
    assert [tuple(row) for row in history] == [
        (first, "cancelled", me),
        (first, "retried", me),
        (second, "resolved", me),
    ]


def test_an_act_that_changes_nothing_says_why_and_exits_1(notifyq_dsn: str) -> None:
    """A row that may not move stays, and the reason is its state."""
    email_id = put(notifyq_dsn, "k")
    refused = {
        ("retry", str(email_id)): "is pending already",
        ("resolve", str(email_id), "m"): "only a held email can be resolved",
        ("cancel", "999"): "there is no email 999",
        ("retry", "task:999"): "there is no task 999",
    }
    for words, why in refused.items():
        result = notifyq(notifyq_dsn, *words)
        assert (result.returncode, result.stdout) == (1, ""), words
        assert why in result.stderr


def test_a_dead_task_whose_key_is_active_again_names_the_active_one(notifyq_dsn: str) -> None:
    """Two calls with one key are never active together; the answer leads to the one that is."""
    enqueue = "select id from notifyq.enqueue_task('resize', '{}', 'r7')"
    dead = value(notifyq_dsn, enqueue)
    assert notifyq(notifyq_dsn, "cancel", f"task:{dead}").returncode == 0
    active = value(notifyq_dsn, enqueue)
    result = notifyq(notifyq_dsn, "retry", f"task:{dead}")

    assert result.returncode == 1
    assert f"task:{active}" in result.stderr


def test_retry_by_reason_takes_all_of_them_in_batches(notifyq_dsn: str) -> None:
    """After a template was mended: every rejected email, and no other."""
    rows(
        notifyq_dsn,
        "insert into notifyq.emails (key, message, status, reason, finished_at)"
        " select 'k' || n, $1::text::jsonb, 'dead',"
        " case when n <= 1200 then 'rejected' else 'expired' end, now() from generate_series(1, 1210) n",
        MESSAGE,
    )
    result = notifyq(notifyq_dsn, "retry", "--reason", "rejected", "--yes")
    left = notifyq(notifyq_dsn, "retry", "--reason", "rejected", "--yes")

    assert (result.returncode, result.stdout) == (0, "1200 of 1200 emails are pending again\n")
    assert "1000 of 1200" in result.stderr
    assert left.returncode == 1
    assert rows(notifyq_dsn, "select status, count(*) from notifyq.emails group by 1 order by 1") == [
        ("dead", 10),
        ("pending", 1200),
    ]


# ---------------------------------------------------------------- does mail flow?


def status(dsn: str, *words: str) -> Any:
    """The answer of ``status --json``."""
    return json.loads(notifyq(dsn, "status", "--json", *words).stdout)


def test_status_of_an_empty_outbox_is_that_mail_flows(notifyq_dsn: str) -> None:
    """Nothing due, nothing wrong: monitoring stays quiet."""
    result = notifyq(notifyq_dsn, "status", "--check")

    assert result.returncode == 0
    assert result.stdout.splitlines()[0] == "Mail flows."


def test_status_names_what_needs_a_person(notifyq_dsn: str) -> None:
    """One look at 2am: no worker, a held email, a sender that is not set up."""
    held, unset, due = (put(notifyq_dsn, key) for key in ("k1", "k2", "k3"))
    hold(notifyq_dsn, held)
    rows(
        notifyq_dsn,
        "update notifyq.emails set waits = 1, last_error = 'the sender is not confirmed' where id = $1",
        unset,
    )
    rows(notifyq_dsn, "update notifyq.emails set run_after = now() - interval '5 min' where id = $1", due)
    facts = status(notifyq_dsn)
    told = notifyq(notifyq_dsn, "status")
    checked = notifyq(notifyq_dsn, "status", "--check")

    assert (facts["flows"], facts["needs_a_person"]) == (False, True)
    assert (facts["emails"]["pending"], facts["emails"]["held"], facts["emails"]["oldest_due"]) == (2, 1, due)
    assert 299 < facts["emails"]["due_for"] < 400
    assert "no worker is connected" in told.stdout
    assert "the sender is not confirmed" in told.stdout
    assert "1 held" in told.stdout
    assert (told.returncode, checked.returncode) == (0, 1)


@pytest.mark.parametrize(
    ("state", "reason", "wait", "pace", "words", "flowing", "person"),
    [
        ("open", None, None, None, "open", True, False),
        ("open", None, None, 20.0, "recovering, at about 20 emails a second", True, False),
        ("closed", "HTTP 503", 20.0, None, "closed for 20 s more, because HTTP 503", False, False),
        ("closed", "HTTP 503", -1.0, None, "the next due email is a probe", False, False),
        (
            "blocked",
            "bad token",
            20.0,
            None,
            "blocked, because bad token; the next look is in 20 s",
            False,
            True,
        ),
        ("blocked", "bad token", -900.0, None, "no worker uses this account now", True, False),
    ],
)
def test_a_gate_is_told_in_words_with_what_it_means(
    state: str,
    reason: str | None,
    wait: float | None,
    pace: float | None,
    words: str,
    flowing: bool,
    person: bool,
) -> None:
    """What the fleet knows of the provider, and whether somebody has to get up."""
    gate = {
        "account": "postmark:1",
        "state": state,
        "reason": reason,
        "wait": wait,
        "pace": pace,
        "failures": 0,
    }
    found = list(verdict.gate_troubles({"gates": [gate]}))

    assert words in verdict.gate_words(gate)
    assert (verdict.flows(found), verdict.needs_person(found)) == (flowing, person)


def test_a_blocked_account_is_the_first_thing_that_status_says(notifyq_dsn: str) -> None:
    """A bad token at 2am: what, why, since when nothing goes out, and exit 1 for monitoring."""
    blocked = "insert into notifyq.gates (account, state, reason, until) values ('a', 'blocked', $1, now())"
    rows(notifyq_dsn, blocked, "the token is refused")
    result = notifyq(notifyq_dsn, "status", "--check")
    facts = status(notifyq_dsn)

    assert result.returncode == 1
    assert result.stdout.startswith(
        "Mail does not flow.\n  ! the gate of a: blocked, because the token is refused"
    )
    assert (facts["flows"], facts["needs_a_person"]) == (False, True)


def test_status_names_the_work_that_no_worker_knows(notifyq_dsn: str) -> None:
    """During a deploy old workers pass new work over: it waits, and somebody should know."""
    rows(notifyq_dsn, "select notifyq.enqueue_task('new-task'), notifyq.enqueue_task('old-task')")
    rows(
        notifyq_dsn,
        "insert into notifyq.workers (name, listening, tasks, builders)"
        " values ('w', true, '{old-task}', '{}')",
    )
    told = notifyq(notifyq_dsn, "status").stdout

    assert "1 due, and no worker knows the task 'new-task'" in told
    assert "old-task" not in told
    assert "1 connected" in told


def test_status_does_not_scan_finished_rows(notifyq_dsn: str) -> None:
    """Ten million sent rows must not make the question slow."""
    rows(
        notifyq_dsn,
        "insert into notifyq.emails (key, message, status, provider_message_id, sent_at, finished_at)"
        " select 'k' || n, '{}', 'sent', 'm', now(), now() - interval '3 days'"
        " from generate_series(1, 20000) n",
    )
    put(notifyq_dsn, "due")
    rows(notifyq_dsn, "analyze notifyq.emails")
    scans = "select coalesce(seq_tup_read, 0) from pg_stat_user_tables where relname = 'emails'"
    before = value(notifyq_dsn, scans)
    facts = status(notifyq_dsn)

    assert (facts["emails"]["pending"], facts["emails"]["sent_last_day"]) == (1, 0)
    assert value(notifyq_dsn, scans) == before


# ---------------------------------------------------------------- the worker


async def test_a_worker_posts_what_plain_sql_enqueues_and_ends_with_0(
    notifyq_dsn: str, notifyq_pool: Any, fake_postmark: FakePostmark
) -> None:
    """The main job: a commit anywhere is a POST at once, a known key is none, SIGTERM is an orderly end."""
    enqueue = "select id, created from notifyq.enqueue_email('k1', $1::text::jsonb)"
    async with running(notifyq_dsn, "worker", *QUICK, **fake_postmark.env()) as process:
        await process.says("is ready")
        first = await notifyq_pool.fetchrow(enqueue, MESSAGE)
        await fake_postmark.wait_accepted(1, timeout=2)
        again = await notifyq_pool.fetchrow(enqueue, MESSAGE)
        facts = await asyncio.to_thread(status, notifyq_dsn)

        assert await process.end(signal.SIGTERM) == 0
    row = await notifyq_pool.fetchrow("select * from notifyq.emails")

    assert (first["created"], again["created"], again["id"]) == (True, False, first["id"])
    assert (row["status"], row["provider_message_id"]) == ("sent", fake_postmark.accepted[0].message_id)
    assert len(fake_postmark.posts) == 1
    assert (facts["flows"], facts["worker_connections"]) == (True, 1)
    log = "".join(process.lines)
    assert "settle is 2 s" in log
    assert "example.com" not in log and fake_postmark.token not in log


async def test_ctrl_c_is_an_orderly_end_too(notifyq_dsn: str, fake_postmark: FakePostmark) -> None:
    """In a terminal nobody sends SIGTERM."""
    async with running(notifyq_dsn, "worker", "--no-listen", **fake_postmark.env()) as process:
        await process.says("is ready")

        assert await process.end(signal.SIGINT) == 0


async def test_a_second_signal_does_not_wait_for_what_is_under_way(
    notifyq_dsn: str, notifyq_pool: Any, fake_postmark: FakePostmark
) -> None:
    """What is cut short is in doubt or under its lease; it is asked about later, and no one has to wait."""
    fake_postmark.fault(faults.Hang(record=True))
    async with running(
        notifyq_dsn, "worker", "--post-budget", "30", "--lease", "60", "--grace", "50", **fake_postmark.env()
    ) as process:
        await process.says("is ready")
        await notifyq_pool.fetch("select notifyq.enqueue_email('k1', $1::text::jsonb)", MESSAGE)
        await fake_postmark.wait_accepted(1)
        process.process.send_signal(signal.SIGTERM)
        await process.says("stops: 1 under way")
        async with asyncio.timeout(10):
            assert await process.end(signal.SIGTERM) == 0
    fake_postmark.release()

    assert await notifyq_pool.fetchval("select status from notifyq.emails") in ("processing", "doubt")


async def test_systemd_is_told_when_it_is_ready_and_when_it_stops(
    notifyq_dsn: str, fake_postmark: FakePostmark
) -> None:
    """``Type=notify``: what starts after the worker starts when mail can go out."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        path = f"{folder}/notify"
        heard.bind(path)
        heard.settimeout(LIMIT)
        env = fake_postmark.env() | {"NOTIFY_SOCKET": path}
        async with running(notifyq_dsn, "worker", **env) as process:
            ready = await asyncio.to_thread(heard.recv, 100)
            assert await process.end(signal.SIGTERM) == 0
        stopping = await asyncio.to_thread(heard.recv, 100)

    assert (ready, stopping) == (b"READY=1", b"STOPPING=1")


async def test_a_database_that_is_away_at_the_start_is_waited_for(fake_postmark: FakePostmark) -> None:
    """After a reboot the worker may be the first; it says so, and can be stopped."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    url = f"postgresql://user@127.0.0.1:{port}/name"
    async with running(url, "worker", **fake_postmark.env()) as process:
        await process.says("does not answer")

        assert await process.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "POSTMARK_SERVER_TOKEN"),
        ({"POSTMARK_SERVER_TOKEN": "t", "EMAIL_SHUNT": "nobody"}, "EMAIL_SHUNT"),
        ({"POSTMARK_SERVER_TOKEN": "t", "EMAIL_FROM": "a@example.com,b@example.com"}, "EMAIL_FROM"),
        ({"POSTMARK_SERVER_TOKEN": "t", "NOTIFYQ_LISTEN_URL": "nonsense"}, "NOTIFYQ_LISTEN_URL"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_setting_that_cannot_be_meant_stops_the_start(env: dict[str, str], words: str) -> None:
    """Above all a malformed shunt: never "off", and not found out only when the database is back."""
    result = notifyq(NOWHERE, "worker", **env)

    assert result.returncode == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_provider_that_is_no_url_stops_the_start(notifyq_dsn: str) -> None:
    """A typo must not look like a provider that is away."""
    result = notifyq(notifyq_dsn, "worker", POSTMARK_SERVER_TOKEN="t", POSTMARK_API_URL="nonsense")

    assert result.returncode == 1
    assert "POSTMARK_API_URL" in result.stderr and "Traceback" not in result.stderr


def test_a_worker_refuses_an_older_schema_and_says_what_to_run(notifyq_dsn: str) -> None:
    """It would not understand its rows."""
    rows(
        notifyq_dsn,
        "delete from notifyq.migrations where version = (select max(version) from notifyq.migrations)",
    )
    result = notifyq(notifyq_dsn, "worker", POSTMARK_SERVER_TOKEN="t")

    assert result.returncode == 1
    assert "run `notifyq migrate`" in result.stderr
    assert "Traceback" not in result.stderr


APP = """
import notifyq

@notifyq.task("greet")
async def greet(ctx, *, name: str) -> None:
    async with ctx.transaction() as conn:
        await conn.execute("create table greeted as select $$" + name + "$$ as name")

class Shop:
    mail = object()
"""


async def test_a_worker_serves_the_tasks_of_an_app_in_the_current_folder(
    notifyq_dsn: str, notifyq_pool: Any, fake_postmark: FakePostmark, tmp_path: Path, monkeypatch: Any
) -> None:
    """``--app`` finds what is declared, says so, and runs what ``notifyq enqueue`` puts in."""
    (tmp_path / "shop_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    async with running(
        notifyq_dsn, "worker", "--app", "shop_app:Shop.mail", **fake_postmark.env()
    ) as process:
        assert "1 task (greet), 0 builders" in await process.says("shop_app")
        await process.says("is ready")
        words = ("enqueue", "greet", "--arg", "name=Ann", "--json")
        enqueued = json.loads((await asyncio.to_thread(notifyq, notifyq_dsn, *words)).stdout)

        async def done() -> bool:
            status = await notifyq_pool.fetchval(
                "select status from notifyq.tasks where id = $1", enqueued["id"]
            )
            return bool(status == "done")

        await until(done)
        assert await process.end(signal.SIGTERM) == 0

    assert await notifyq_pool.fetchval("select name from greeted") == "Ann"


@pytest.mark.parametrize("app", ["no_such_app", "json:no_such_attribute"])
def test_an_app_that_is_not_there_is_one_line_and_exit_1(app: str) -> None:
    """A typo in a unit file."""
    result = notifyq(NOWHERE, "worker", "--app", app, POSTMARK_SERVER_TOKEN="t")

    assert result.returncode == 1
    assert "--app: " in result.stderr
    assert "Traceback" not in result.stderr


# ---------------------------------------------------------------- faces


@pytest.mark.parametrize("code", [0, 1])
def test_the_demo_decides_the_exit_code(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 if the story did not end as told; the demo has tests of its own."""
    asked: list[bool] = []

    def play(*, exit_after_story: bool) -> int:
        asked.append(exit_after_story)
        return code

    monkeypatch.setattr("notifyq.demo.run", play)

    assert CliRunner().invoke(main, ["demo", "--exit"]).exit_code == code
    assert asked == [True]


async def test_admin_serves_the_page_until_it_is_stopped(notifyq_dsn: str) -> None:
    """By itself, on a port of its own."""
    async with running(notifyq_dsn, "admin", "--port", "0") as process:
        url = re.search(r"http://\S+", await process.says("the page is at"))
        assert url is not None
        async with aiohttp.ClientSession() as session, session.get(url[0] + "healthz") as answer:
            assert answer.status in (200, 503)

        assert await process.end(signal.SIGTERM) == 0


async def test_a_worker_can_serve_the_page_too(notifyq_dsn: str, fake_postmark: FakePostmark) -> None:
    """One process under systemd is enough."""
    words = ("worker", "--admin", "127.0.0.1:0")
    async with running(notifyq_dsn, *words, **fake_postmark.env()) as process:
        url = re.search(r"http://\S+", await process.says("the page is at"))
        await process.says("is ready")
        assert url is not None
        async with aiohttp.ClientSession() as session, session.get(url[0]) as answer:
            assert answer.status == 200

        assert await process.end(signal.SIGTERM) == 0


def test_the_page_is_not_shown_to_others_without_a_password(notifyq_dsn: str) -> None:
    """It shows people's mail."""
    result = notifyq(notifyq_dsn, "admin", "--host", "0.0.0.0", "--port", "0")

    assert result.returncode == 1
    assert "NOTIFYQ_ADMIN_PASSWORD" in result.stderr


def test_a_port_that_is_taken_is_one_line_and_exit_1(notifyq_dsn: str) -> None:
    """The usual mistake of a second start."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = notifyq(notifyq_dsn, "admin", "--port", str(taken.getsockname()[1]))

    assert result.returncode == 1
    assert "cannot listen" in result.stderr and result.stderr.count("\n") == 1
