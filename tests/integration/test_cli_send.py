"""The way in: ``notifyq send`` and ``notifyq enqueue``."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command import FLAGS, MESSAGE, NOWHERE, notifyq, rows

from notifyq import Postmark, Worker, WorkerSettings
from notifyq.cli import main
from notifyq.testing import FakePostmark

ONE_SERVER_IS_ENOUGH = True  # the statements are tested in tests/sql, on every server


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
    assert "no worker" not in sent.stderr
    assert (dead.returncode, json.loads(dead.stdout)["reason"]) == (1, "suppressed")
    assert (late.returncode, json.loads(late.stdout)["status"]) == (1, "pending")


def test_send_wait_says_that_no_worker_runs(notifyq_dsn: str) -> None:
    """Waiting a minute for what cannot come would look like a slow provider. The answer itself stays JSON."""
    result = notifyq(
        notifyq_dsn,
        "send",
        "--key",
        "k",
        "--to",
        "a@example.com",
        *FLAGS[2:],
        "--wait",
        "--timeout",
        "0.1",
        "--json",
    )

    assert "no worker is running" in result.stderr
    assert (result.returncode, json.loads(result.stdout)["status"]) == (1, "pending")


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
