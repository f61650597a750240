"""Does mail flow? ``notifyq status``."""

from __future__ import annotations

import asyncio

import pytest
from command import hold, notifyq, put, rows, status, value
from outbox import a_worker

from notifyq.cli import verdict

ONE_SERVER_IS_ENOUGH = True  # the statements are tested in tests/sql, on every server


async def test_status_of_an_empty_outbox_is_that_mail_flows(notifyq_dsn: str) -> None:
    """Nothing due, nothing wrong: monitoring stays quiet."""
    async with a_worker(notifyq_dsn):
        result = await asyncio.to_thread(notifyq, notifyq_dsn, "status", "--check")

    assert result.returncode == 0
    assert result.stdout.splitlines()[0] == "Mail flows."


def test_without_a_worker_status_does_not_say_that_mail_flows(notifyq_dsn: str) -> None:
    """As the page; but while nothing is due nobody has to get up, and monitoring stays quiet."""
    result = notifyq(notifyq_dsn, "status", "--check")

    assert result.returncode == 0
    assert result.stdout.splitlines()[0] == "No worker is running."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("waits = 1, last_error = 'no sender', run_after = now() + interval '5 min'", "no sender"),
        ("status = 'dead', reason = 'rejected', finished_at = now()", "1 email more died within 7 days"),
        ('message = \'{"builder": "order-shipped"}\'', "no worker knows the builder 'order-shipped'"),
        ("run_after = now() - interval '5 min'", "1 emails are due, the oldest for 5 min"),
    ],
)
async def test_while_anything_waits_for_a_person_mail_does_not_just_flow(
    notifyq_dsn: str, change: str, said: str
) -> None:
    """The first line is all that a tired person reads; the next ones say why."""
    put(notifyq_dsn, "k")
    rows(notifyq_dsn, f"update notifyq.emails set {change}")
    async with a_worker(notifyq_dsn):
        told = (await asyncio.to_thread(notifyq, notifyq_dsn, "status")).stdout
        facts = await asyncio.to_thread(status, notifyq_dsn)

    assert told.splitlines()[0] in ("Something needs a look:", "Mail is late:")
    assert (facts["headline"] + ":", facts["flows"]) == (told.splitlines()[0], True)
    assert said in told


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
    ("state", "reason", "wait", "pace", "words", "shut", "person"),
    [
        ("open", None, None, None, "open", False, False),
        ("open", None, None, 20.0, "recovering, at about 20 emails a second", False, False),
        ("closed", "HTTP 503", 20.0, None, "closed for 20 s more, because HTTP 503", True, False),
        ("closed", "HTTP 503", -1.0, None, "the next due email is a probe", True, False),
        (
            "blocked",
            "bad token",
            20.0,
            None,
            "blocked, because bad token; look at the account at Postmark; the next look is in 20 s",
            True,
            True,
        ),
        (
            "blocked",
            "HTTP 401, ErrorCode 10: no",
            0.0,
            None,
            "look at POSTMARK_SERVER_TOKEN; the next look is now",
            True,
            True,
        ),
        ("blocked", "bad token", -900.0, None, "no worker uses this account now", False, False),
    ],
)
def test_a_gate_is_told_in_words_with_what_it_means(
    state: str,
    reason: str | None,
    wait: float | None,
    pace: float | None,
    words: str,
    shut: bool,
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
        "forsaken": "no worker" in words,
    }
    found = list(verdict.gate_troubles({"gates": [gate]}))

    assert words in verdict.gate_words(gate)
    assert (bool(found), verdict.needs_person(found)) == (shut, person)


def test_a_blocked_account_is_the_first_thing_that_status_says(notifyq_dsn: str) -> None:
    """A bad token at 2am: what, why, since when nothing goes out, and exit 1 for monitoring."""
    blocked = "insert into notifyq.gates (account, state, reason, until) values ('a', 'blocked', $1, now())"
    rows(notifyq_dsn, blocked, "the token is refused")
    result = notifyq(notifyq_dsn, "status", "--check")
    facts = status(notifyq_dsn)

    assert result.returncode == 1
    assert result.stdout.startswith(
        "Mail does not flow:\n  ! the gate of a: blocked, because the token is refused"
    )
    assert (facts["flows"], facts["needs_a_person"]) == (False, True)


@pytest.mark.parametrize(
    ("accounts", "blocks"),
    [((), True), (("a", "b"), True), ((None,), True), (("b", "b"), False), (("b", None), True)],
)
def test_the_refused_account_of_a_token_that_was_changed_is_nobodys_trouble(
    notifyq_dsn: str, accounts: tuple[str | None, ...], blocks: bool
) -> None:
    """Whoever mends the token must not be told for minutes that mail does not flow."""
    rows(notifyq_dsn, "insert into notifyq.gates (account, state, until) values ('a', 'blocked', now())")
    for number, account in enumerate(accounts):
        seen = "select notifyq.worker_seen($1, true, '{}', '{}', $2)"
        rows(notifyq_dsn, seen, f"w{number}", account)

    assert ("the gate of a" in notifyq(notifyq_dsn, "status").stdout) == blocks


async def test_status_names_the_work_that_no_worker_knows(notifyq_dsn: str) -> None:
    """During a deploy old workers pass new work over: it waits, and somebody should know."""
    rows(notifyq_dsn, "select notifyq.enqueue_task('new-task'), notifyq.enqueue_task('old-task')")
    async with a_worker(notifyq_dsn, "{old-task}"):
        told = (await asyncio.to_thread(notifyq, notifyq_dsn, "status")).stdout

    assert told.splitlines()[0] == "Something needs a look:"
    assert "1 wait, and no worker knows the task 'new-task'" in told
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
