"""Looking and acting: ``notifyq list``, ``show``, ``retry``, ``cancel`` and ``resolve``."""

from __future__ import annotations

import getpass
import json
import os
import pty
import subprocess
import sys
from contextlib import suppress

from command import LIMIT, MESSAGE, environment, hold, notifyq, put, rows, value

ONE_SERVER_IS_ENOUGH = True  # the statements are tested in tests/sql, on every server


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
