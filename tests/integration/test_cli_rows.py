"""Looking and acting: ``notifyq list``, ``show``, ``retry``, ``cancel`` and ``resolve``."""

from __future__ import annotations

import getpass
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

import pytest
from command import LIMIT, MESSAGE, NOWHERE, environment, hold, notifyq, put, rows, value

from notifyq.cli.options import REASONS, STATUSES

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
    email_id = put_by_hand(notifyq_dsn, "key-" + "x" * 200 + "\x1b[31m")
    result = notifyq(notifyq_dsn, "list")

    header, line = result.stdout.splitlines()
    assert header.split() == ["id", "status", "when", "tries", "key", "why"]
    assert line.startswith(f"{email_id}") and "x" * 200 in line
    assert "\x1b" not in result.stdout


def put_by_hand(dsn: str, key: str) -> int:
    """Put a row into the table: no function has looked at its key."""
    return int(value(dsn, "insert into notifyq.emails (key, message) values ($1, '{}') returning id", key))


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
    put_by_hand(notifyq_dsn, "evil-\x1b]0;owned\x07")
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
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("notifyq: there is no email 1, and no email and no task has the key '1'")


def test_show_finds_by_key_what_no_id_names(notifyq_dsn: str) -> None:
    """The key is what the app's own log has; an ID of that name goes first, and an email before a task."""
    email_id = put(notifyq_dsn, "receipt:7")
    enqueue = "select id from notifyq.enqueue_task('resize', '{}', $1)"
    task_id = value(notifyq_dsn, enqueue, "photo:7")
    rows(notifyq_dsn, "update notifyq.tasks set status = 'done', finished_at = now()")
    again = value(notifyq_dsn, enqueue, "photo:7")
    value(notifyq_dsn, enqueue, "receipt:7")
    numeric = put(notifyq_dsn, "99")

    def first_line(named: str) -> str:
        return notifyq(notifyq_dsn, "show", named).stdout.splitlines()[0]

    assert first_line("receipt:7").startswith(f"email {email_id}: pending")
    assert first_line("99").startswith(f"email {numeric}: ")
    shown = notifyq(notifyq_dsn, "show", "photo:7")
    assert shown.stdout.startswith(f"task {again}: pending") and again > task_id
    assert "notifyq list tasks --key 'photo:7'" in shown.stderr
    assert first_line(f"task:{task_id}").startswith(f"task {task_id}: done")


def test_show_of_what_is_not_there_says_where_to_look(notifyq_dsn: str) -> None:
    """A typo in a key, or a key of another environment."""
    result = notifyq(notifyq_dsn, "show", "receipt:\x1b[31m8")

    assert (result.returncode, result.stdout) == (1, "")
    assert "no email and no task has the key 'receipt:" in result.stderr
    assert "`notifyq list`" in result.stderr and "\x1b" not in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("lane", ["email", "task"])
def test_the_words_of_list_are_those_of_the_table(notifyq_dsn: str, lane: str) -> None:
    """A word that the command refuses must not be one that a row can have."""
    definition = (
        "select pg_get_constraintdef(oid) from pg_constraint where conname = $1"
        f" and (conrelid = 'notifyq.{lane}s'::regclass or contypid = to_regtype($2))"
    )

    def known(what: str) -> set[str]:
        said = value(notifyq_dsn, definition, f"{what}_known", f"notifyq.{lane}_{what}")
        return set(re.findall(r"'(\w+)'::text", said))

    assert set(STATUSES[lane]) == known("status")
    assert set(REASONS[lane]) == known("reason")


def test_a_word_of_the_other_lane_is_refused_with_those_of_this_one() -> None:
    """An empty list would look like good news."""
    result = notifyq(NOWHERE, "list", "tasks", "--status", "held")

    assert (result.returncode, result.stdout) == (2, "")
    assert "'held' is not one of pending, processing, done, dead (of tasks)" in result.stderr


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
