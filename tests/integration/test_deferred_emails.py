"""Emails that are made in the worker: nothing secret at rest, the record fresh, the life the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest
import task_dump
from outbox import Outbox, an_email, until
from task_fleet import Fleet

import notifyq
from notifyq import Email, InvalidEmail, enqueue
from notifyq.builders import Builder
from notifyq.testing import FakePostmark
from notifyq.testing.faults import Answer, Close, Hang, refused

ONE_SERVER_IS_ENOUGH = True

TOKEN = "tok-9f8e7d6c5b4a"
LINK = f"https://shop.example/reset?token={TOKEN}"
SECRETS = (TOKEN, "shop.example")
Backup: TypeAlias = Callable[[], Awaitable[str]]


@pytest.fixture
async def fleet(notifyq_pool: Any, fake_postmark: FakePostmark) -> AsyncIterator[Fleet]:
    """No worker runs yet."""
    async with Fleet(notifyq_pool, fake_postmark) as fleet:
        yield fleet


@pytest.fixture
def backup(fleet: Fleet, notifyq_dsn: str) -> Backup:
    """Answers a real dump of the database, without what is no secret: the key is in it, the token is not."""

    async def made() -> str:
        dump = (await task_dump.backup(notifyq_dsn)).decode(errors="replace")
        assert dump.count("password-reset:7") >= 2, "the search does not even find what is there"
        return dump

    return made


def secrets_in(dump: str) -> list[str]:
    """The token and the link in it, as they are, and as a column of bytes would show them."""
    encoded = [secret.encode().hex() for secret in SECRETS]
    return [secret for secret in (*SECRETS, *encoded) if secret in dump]


def password_reset(calls: list[int], fails: Callable[[], bool] = lambda: False) -> Builder[Any]:
    """A builder that makes the token when it makes the email."""

    @notifyq.email("password-reset", on_doubt="ask")
    def reset(*, user_id: int) -> Email:
        calls.append(user_id)
        if fails():
            raise RuntimeError(f"cannot sign {LINK} for {TOKEN}")
        return an_email(f"password-reset:{user_id}", subject="Your password", text=f"Click {LINK}")

    return reset


async def test_a_password_reset_leaves_no_token_in_a_dump_before_while_and_after(
    fleet: Fleet, backup: Backup
) -> None:
    """Whoever reads a backup must not be able to take over an account."""
    reset = password_reset([])
    id = await fleet.put(reset.deferred(user_id=7), key="password-reset:7")
    before = await backup()
    fleet.fake.fault(Hang(record=True))
    await fleet.start(builders=[reset], post_budget=10.0, lease=20.0)  # as long as the dump takes
    await fleet.fake.wait_posts(1)
    while_sending = await backup()
    assert (await fleet.email(id))["status"] == "processing"
    fleet.fake.release()
    await fleet.until_email(id, "sent")
    after = await backup()

    assert any(TOKEN in str(message.payload) for message in fleet.fake.accepted)
    assert [secrets_in(dump) for dump in (before, while_sending, after)] == [[], [], []]


@pytest.mark.parametrize("accepted", [True, False], ids=["accepted", "lost"])
async def test_a_password_reset_in_doubt_leaves_no_token_in_a_dump(
    fleet: Fleet, backup: Backup, accepted: bool
) -> None:
    """The provider did not answer in time; what is kept to ask about it later is no secret."""
    reset = password_reset([])
    fleet.fake.fault(Hang(record=accepted))
    await fleet.start(builders=[reset], settle=5.0)
    id = await fleet.put(reset.deferred(user_id=7), key="password-reset:7")
    await fleet.until_event("unknown", id, "email")
    in_doubt = await backup()
    await fleet.until_email(id, "sent")
    after = await backup()

    assert [secrets_in(dump) for dump in (in_doubt, after)] == [[], []]


REFUSALS = {
    "rejected": (refused(300, f"Invalid link {LINK} with {TOKEN}."), "dead"),
    "waits": (refused(412, f"While your account is pending approval, {LINK} cannot be sent."), "pending"),
    "no envelope": (Answer(status=422, body=f"<p>{LINK}</p>"), "doubt"),
    "unavailable": (Answer(status=503, body=f'{{"ErrorCode": 100, "Message": "{LINK}"}}'), "pending"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_refusal_that_quotes_the_token_leaves_none_in_a_dump_or_the_log(
    fleet: Fleet, backup: Backup, caplog: pytest.LogCaptureFixture, refusal: str
) -> None:
    """What the provider says of an email may quote the email."""
    answer, status = REFUSALS[refusal]
    reset = password_reset([])
    fleet.fake.fault(answer)
    await fleet.start(builders=[reset], settle=5.0)
    id = await fleet.put(reset.deferred(user_id=7), key="password-reset:7")

    async def refused_once() -> bool:
        row = await fleet.email(id)
        return bool(row["status"] == status and row["last_error"])

    await until(refused_once, what=f"the email is {status}, with a reason")

    assert secrets_in(await backup() + caplog.text) == []


async def test_a_builder_that_fails_shows_where_but_not_what_it_said(
    fleet: Fleet, backup: Backup, caplog: pytest.LogCaptureFixture
) -> None:
    """The text of an error may quote the very token; the place is enough to mend it."""
    broken = [True]
    reset = password_reset([], lambda: broken[0])
    await fleet.start(builders=[reset], backoff=0.2)
    id = await fleet.put(reset.deferred(user_id=7), key="password-reset:7")
    await fleet.until_event("builder failed", id, "email")
    email = await fleet.email(id)

    assert email["last_error"].startswith(
        "the builder failed: RuntimeError in reset (integration/test_deferred_emails.py:"
    )
    assert email["last_error"].endswith("; its text is withheld: it may quote the email")
    assert (email["attempts"] >= 1, fleet.fake.posts) == (True, [])
    assert secrets_in(await backup() + caplog.text) == []
    assert "RuntimeError in reset" in caplog.text

    broken[0] = False
    await fleet.until_email(id, "sent")


async def test_a_builder_that_fails_for_ever_ends_dead(fleet: Fleet) -> None:
    """With the last reason in the row."""
    reset = password_reset([], lambda: True)
    await fleet.start(builders=[reset], backoff=0.001)
    id = await fleet.put(reset.deferred(user_id=7), key="password-reset:7")
    email = await fleet.until_email(id, "dead")

    assert (email["reason"], email["attempts"]) == ("exhausted", 10)


async def test_an_async_builder_reads_its_record_when_it_sends(fleet: Fleet) -> None:
    """The address that was changed meanwhile is the one that counts."""

    @notifyq.email("order", connection=True)
    async def order(conn: Any, *, order_id: int) -> Email:
        address = await conn.fetchval("select address from orders where id = $1", order_id)
        if address is None:
            raise notifyq.Unrenderable("the order was deleted")
        return an_email(f"order:{order_id}", to=address)

    await fleet.pool.execute("create table orders (id int, address text)")
    await fleet.pool.execute("insert into orders values (7, 'old@example.com')")
    kept = await fleet.put(order.deferred(order_id=7), key="order:7")
    gone = await fleet.put(order.deferred(order_id=8), key="order:8")
    await fleet.pool.execute("update orders set address = 'new@example.com'")
    await fleet.start(builders=[order])
    await fleet.until_email(kept, "sent")
    dead = await fleet.until_email(gone, "dead")

    assert [message.to for message in fleet.fake.accepted] == [("new@example.com",)]
    assert (dead["reason"], dead["last_error"], dead["attempts"]) == (
        "unrenderable",
        "the order was deleted",
        1,
    )


def builds(make: Callable[[], Any]) -> Builder[Any]:
    """A builder that makes this."""

    @notifyq.email("b")
    def build() -> Email:
        made: Email = make()
        return made

    return build


@pytest.mark.parametrize(
    ("make", "status", "shown"),
    [
        (lambda: an_email("another"), "pending", "another key"),
        (lambda: an_email("k", stream="broadcasts"), "pending", "stream 'broadcasts'"),
        (lambda: None, "pending", "returned NoneType"),
        (lambda: an_email("k", subject="two\nlines"), "dead", "subject"),
        (lambda: exit(3), "pending", "SystemExit"),
        (lambda: asyncio.sleep(60), "pending", "did not end within 1.5 s"),
        (lambda: _cancelled(), "pending", "CancelledError"),
    ],
    ids=["key", "stream", "none", "invalid", "exit", "hangs", "cancelled"],
)
async def test_what_a_builder_must_not_make_is_not_sent_and_is_shown(
    fleet: Fleet, make: Callable[[], Any], status: str, shown: str
) -> None:
    """And whatever it does, the worker goes on."""
    bad = builds(make)

    @notifyq.email("good")
    def good() -> Email:
        return an_email("good")

    worker = await fleet.start(builders=[bad, good])
    id = await fleet.put(bad.deferred(), key="k")
    await fleet.until_event("unrenderable" if status == "dead" else "builder failed", id, "email")
    await fleet.until_email(await fleet.put(good.deferred(), key="good"), "sent")

    email = await fleet.email(id)
    assert email["status"] == status
    assert shown in email["last_error"]
    assert len(fleet.fake.accepted) == len(fleet.fake.posts) == 1
    assert fleet.is_running(worker)


async def _cancelled() -> Email:
    raise asyncio.CancelledError


async def test_stored_arguments_that_do_not_fit_are_shown_and_tried_again(fleet: Fleet) -> None:
    """The builder changed before the row was sent; mended, it goes."""
    reset = password_reset([])
    await fleet.start(builders=[reset])
    id = await fleet.pool.fetchval(
        """select id from notifyq.enqueue_email('k', '{"builder": "password-reset", "args": {"user": 7}}')"""
    )
    await fleet.until_event("builder failed", id, "email")

    assert "do not fit" in (await fleet.email(id))["last_error"]


async def test_a_retry_in_doubt_asks_first_and_makes_the_email_only_to_send_it(fleet: Fleet) -> None:
    """It had been accepted: the second token would have killed the first one's link."""
    calls: list[int] = []
    reset = password_reset(calls)
    fleet.fake.fault(Close(record=True))
    await fleet.start(builders=[reset])
    id = await fleet.put(reset.deferred(user_id=7), key="password-reset:7")
    await fleet.until_email(id, "sent")

    assert (calls, len(fleet.fake.accepted)) == ([7], 1)
    assert "found" in await fleet.events(id, "email")


async def test_a_deferred_email_has_a_key_and_it_is_used_once_ever(fleet: Fleet) -> None:
    """As with every email: after it was sent, too."""
    reset = password_reset([])
    await fleet.start(builders=[reset])
    first = await enqueue(fleet.pool, reset.deferred(user_id=7), key="password-reset:7")
    await fleet.until_email(first.id, "sent")
    again = await enqueue(fleet.pool, reset.deferred(user_id=7), key="password-reset:7")

    assert (again.id, again.created) == (first.id, False)
    with pytest.raises(InvalidEmail, match="key"):
        await enqueue(fleet.pool, reset.deferred(user_id=7), key="")


async def test_a_deferred_email_that_came_too_late_is_never_made(fleet: Fleet) -> None:
    """``send_before`` counts for it as for any other."""
    calls: list[int] = []
    reset = password_reset(calls)
    past = datetime.now(UTC) - timedelta(seconds=1)
    id = await fleet.put(reset.deferred(user_id=7), key="password-reset:7", send_before=past)
    await fleet.start(builders=[reset])
    email = await fleet.until_email(id, "dead")

    assert (email["reason"], calls) == ("expired", [])


async def test_an_email_of_an_unknown_builder_waits_untouched_while_others_go(fleet: Fleet) -> None:
    """A deploy: the old worker meets tomorrow's emails."""
    reset = password_reset([])
    await fleet.start()
    stranger = await fleet.put(reset.deferred(user_id=7), key="password-reset:7")
    version = "select xmin::text from notifyq.emails where id = $1"
    before = await fleet.pool.fetchval(version, stranger)
    other = await enqueue(fleet.pool, an_email("other"))
    await fleet.until_email(other.id, "sent")

    assert before == await fleet.pool.fetchval(
        "select xmin::text from notifyq.emails where id = $1", stranger
    )

    await fleet.start(builders=[reset])
    await fleet.until_email(stranger, "sent")


async def test_a_task_that_enqueues_an_email_in_its_transaction_commits_both(fleet: Fleet) -> None:
    """The email goes out if and only if the call is done."""

    @notifyq.task("ship", max_attempts=2, backoff=0.01)
    async def ship(ctx: notifyq.TaskContext, *, order_id: int) -> None:
        async with ctx.transaction() as conn:
            await enqueue(conn, an_email(f"shipped:{order_id}:{ctx.attempt}"))
            if ctx.attempt == 1:
                raise ValueError("not yet")

    await fleet.start(ship)
    id = await fleet.put(ship.call(order_id=7))
    await fleet.until_call(id, "done")

    rows = await fleet.pool.fetch("select key from notifyq.emails")
    assert [row["key"] for row in rows] == ["shipped:7:2"]


async def test_the_log_never_quotes_what_a_builder_was_given(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """At the finest level either."""
    with caplog.at_level(logging.DEBUG, logger="notifyq"):
        reset = password_reset([])
        await fleet.start(builders=[reset])
        await fleet.until_email(await fleet.put(reset.deferred(user_id=7), key="password-reset:7"), "sent")

    assert TOKEN not in caplog.text and "example" not in caplog.text


async def test_an_inserted_row_whose_builder_is_no_name_is_unrenderable(outbox: Outbox) -> None:
    """Put there by hand, it was an internal error that was tried again and again."""
    await outbox.start()
    await outbox.pool.execute(
        """insert into notifyq.emails (key, message) values ('k', '{"builder": null}')"""
    )

    assert (await outbox.until("dead"))["reason"] == "unrenderable"
