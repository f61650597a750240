"""Faults that programs of this kind had in public, each as a small case with its right end.

The cases are numbered as in the collection that they come from; the values alone (names, addresses, sizes)
are tested in ``tests/unit/test_message.py``, and here the whole way to the provider is.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from bisect import bisect_left

import pytest
from outbox import Outbox, an_email, emails, keys, until

from notifyq import Address, Attachment, Email, InvalidEmail, enqueue, enqueue_many
from notifyq.message_rules import MAX_MESSAGE
from notifyq.testing import Fault, drain, faults

# -- 1. A timeout in a batch forgets everything that was sent


async def test_case_1_a_hanging_post_holds_back_no_other_receipt(outbox: Outbox) -> None:
    """Four are accepted and recorded while the fifth hangs; a second run sends none of them again."""
    outbox.fake.fault(faults.Hang(record=False), times=None, when=lambda body: body["Subject"] == "hangs")
    worker = await outbox.start(post_budget=8, lease=16, grace=0.2)
    await outbox.put("hanging", subject="hangs")
    await outbox.fake.wait_posts(1)

    await enqueue_many(outbox.pool, emails(keys(4)))

    await outbox.until_statuses({"sent": 4, "processing": 1})
    assert outbox.fake.requests_in_flight == 1
    await outbox.stop(worker)
    outbox.fake.clear_faults()
    outbox.fake.release()
    await outbox.start()
    await outbox.until_statuses({"sent": 5})
    assert set(outbox.fake.accepted_by_uid().values()) == {1}
    assert sorted(outbox.fake.posts_by_uid().values()) == [1, 1, 1, 1, 2]


# -- 2. The answer was lost, so it was sent again (the symptoms and their twins: test_worker_outcomes.py)


async def test_case_2_a_lagging_search_still_means_one_post(outbox: Outbox) -> None:
    """The provider accepted and hangs, and its search is behind for most of settle."""
    outbox.fake.search_lag = 1.5
    outbox.fake.fault(faults.Hang(record=True))
    await outbox.start(settle=2.0)

    await outbox.put()

    await outbox.until("sent")
    assert (len(outbox.fake.posts), len(outbox.fake.accepted)) == (1, 1)


async def test_case_2_policy_hold_leaves_the_unknown_to_a_person(outbox: Outbox) -> None:
    """An invoice that may have gone out is not sent again by a machine."""
    outbox.fake.fault(faults.Hang(record=False))
    await outbox.start(settle=0.3)

    await outbox.put(on_doubt="hold")

    row = await outbox.until("held")
    assert len(outbox.fake.posts) == 1
    assert row["last_error"]


async def test_case_2_policy_resend_does_not_wait_and_does_it_once(outbox: Outbox) -> None:
    """A login code that comes late is useless: one blind repeat, then as any other doubt."""
    outbox.fake.fault(faults.Close(record=False), times=2)
    await outbox.start(settle=0.5)

    await outbox.put(on_doubt="resend")

    await outbox.until("sent")
    events = await outbox.events()
    assert events.count("resent") == 1
    assert (len(outbox.fake.posts), events[:3]) == (3, ["unknown", "resent", "unknown"])


# -- 3. The outbox said SENT although nothing was sent

NOT_SENT: dict[str, Fault] = {
    "429": faults.too_many_requests("3600"),
    "500": faults.server_error(),
    "502": faults.bad_gateway(),
    "503": faults.maintenance(),
    "422/300": faults.refused(300),
    "401": faults.unauthorized(),
    "redirect": faults.redirect("http://127.0.0.1:9/"),
    "200, empty": faults.empty(record=False),
    "200, not json": faults.not_json(record=False),
    "200 without an id": faults.Answer(body='{"ErrorCode": 0, "Message": "OK"}'),
    "200 with an error code": faults.Answer(body='{"ErrorCode": 300, "Message": "no"}'),
    "timeout": faults.Hang(record=False),
    "closed": faults.Close(record=False),
}


@pytest.mark.parametrize("answer", NOT_SENT)
async def test_case_3_nothing_but_a_200_with_an_id_makes_a_row_sent(outbox: Outbox, answer: str) -> None:
    """No silence counts as success: there is an answer to each row, and it is the right one."""
    outbox.fake.fault(NOT_SENT[answer], times=None)
    await outbox.start(settle=60)

    await outbox.put()

    async def judged() -> bool:
        return bool(await outbox.events())

    await until(judged, what="the answer is judged")
    row = await outbox.row()
    assert row["status"] in {"pending", "doubt", "dead", "processing"}
    assert (row["provider_message_id"], row["sent_at"]) == (None, None)
    assert row["last_error"]
    assert outbox.fake.accepted == []


# -- 4. One bad row stalls the queue


async def test_case_4_a_bad_row_dies_alone(outbox: Outbox) -> None:
    """Enqueue refuses it; forced into the table by SQL it is dead with its reason, and the others go."""
    with pytest.raises(InvalidEmail) as refused:
        an_email(subject="foo\r\n bar")
    assert refused.value.field == "subject"
    bad = {"to": [{"email": "a@example.com"}], "subject": "foo\r\n bar", "text": "t"}
    forced = "insert into notifyq.emails (key, message) values ($1, $2::text::jsonb)"
    await outbox.pool.execute(forced, "bad", json.dumps(bad))
    await outbox.pool.execute(forced, "empty", "{}")
    await outbox.put("good")

    await outbox.start(slots=1)

    await outbox.until("sent", "good")
    rows = [await outbox.until("dead", key) for key in ("bad", "empty")]
    assert [(row["reason"], bool(row["last_error"])) for row in rows] == [("unrenderable", True)] * 2
    assert len(outbox.fake.posts) == 1


# -- 5, 6. Injection through a name, and a comma in it

NAMES = [
    "Doe, John",
    "Ennis BA (Hons), PG Dip",
    'O"Brien',
    "Back\\slash",
    'Zoë "Z" Ünal',
    "ACME; Inc.",
    "x> , <evil@example.com",
]


@pytest.mark.parametrize("name", NAMES)
async def test_case_5_and_6_a_name_stays_a_name(outbox: Outbox, name: str) -> None:
    """Whatever it holds: one recipient, the intended one, on the provider's side of the wire."""
    await enqueue(outbox.pool, an_email(to=Address("ann@example.com", name)))

    await drain(outbox.pool, outbox.fake)

    (message,) = outbox.fake.accepted
    assert message.recipients == ("ann@example.com",)


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("to", {"to": ("a@example.com", "a\nBcc: e@example.com")}),
        ("headers", {"headers": {"X-A": "a\rb"}}),
        ("headers", {"headers": {"X-A: b\r\nBcc": "c"}}),
        ("headers", {"headers": {"": "c"}}),
        ("headers", {"headers": {"X:A": "c"}}),
    ],
)
async def test_case_5_a_line_break_gets_nowhere(field: str, parts: dict[str, object]) -> None:
    """Refused with the field's name, before any SQL."""
    with pytest.raises(InvalidEmail) as refused:
        if field == "to":
            address, name = parts["to"]  # type: ignore[misc]
            Address(address, name)
        else:
            an_email(**parts)

    assert refused.value.field.startswith(("name", "headers"))


# -- 7. NUL and lone surrogates


@pytest.mark.parametrize("text", ["a\0b", "a\ud83db"])
@pytest.mark.parametrize(
    "part", ["subject", "text", "html", "tag", "metadata key", "metadata value", "header", "key"]
)
def test_case_7_what_postgres_or_json_cannot_hold_is_refused_by_name(part: str, text: str) -> None:
    """At the call that made it; in a worker it would fail for ever."""
    parts: dict[str, object] = {
        "metadata key": {"metadata": {text: "v"}},
        "metadata value": {"metadata": {"k": text}},
        "header": {"headers": {"X-A": text}},
    }.get(part, {part: text})
    key = str(parts.pop("key", "k"))

    with pytest.raises(InvalidEmail) as refused:
        Email(
            **{"key": key, "to": "a@example.com", "subject": "s", "text": "t", **parts}  # type: ignore[arg-type]
        )

    assert refused.value.field.startswith(part.split()[0])


async def test_case_7_a_nul_in_the_providers_answer_stops_nothing(outbox: Outbox) -> None:
    """The answer is stored, and Postgres cannot store U+0000: the row must still end."""
    outbox.fake.fault(faults.nul_message())
    await outbox.start()

    await outbox.put()

    row = await outbox.until("dead")
    assert (row["reason"], "bad" in row["last_error"]) == ("rejected", True)


# -- 8. Too large


def with_attachment(size: int) -> Email:
    """An email with an attachment of *size* raw bytes."""
    return an_email(attachments=[Attachment("a.pdf", "application/pdf", b"x" * size)])


def is_refused(size: int) -> bool:
    """True if an attachment of *size* bytes is too large."""
    try:
        with_attachment(size)
    except InvalidEmail:
        return True
    return False


async def test_case_8_the_largest_message_goes_out_whole(outbox: Outbox) -> None:
    """About 7.5 MiB raw; a byte too many is refused where it was made."""
    largest = bisect_left(range(8_000_000), True, lo=7_000_000, key=is_refused) - 1
    await enqueue(outbox.pool, with_attachment(largest))

    await drain(outbox.pool, outbox.fake, limit=30)

    (message,) = outbox.fake.accepted
    assert 4 * largest // 3 == pytest.approx(MAX_MESSAGE, rel=0.001)
    assert len(b64decode(message.payload["Attachments"][0]["Content"])) == largest


async def test_case_8_a_413_is_final_and_its_page_is_kept(outbox: Outbox) -> None:
    """A proxy's page without the envelope: no retry makes the message smaller."""
    outbox.fake.fault(faults.html(413), times=None)
    await outbox.start()

    await outbox.put()

    row = await outbox.until("dead")
    assert (row["reason"], len(outbox.fake.posts)) == ("rejected", 1)
    assert "413" in row["last_error"]


# -- 9. Wrong credentials kill everything


async def test_case_9_a_bad_token_loses_nothing_and_says_so(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    """Fifty rows wait, a few POSTs are made, the log is loud; with a good token all of them go."""
    caplog.set_level(logging.WARNING, "notifyq")
    outbox.fake.token = "new-token"
    await enqueue_many(outbox.pool, emails(keys(50)))
    await outbox.start(slots=5, env={"POSTMARK_SERVER_TOKEN": "test-token"})

    async def blocked() -> bool:
        return await outbox.pool.fetchval("select state from notifyq.gates") == "blocked"

    await until(blocked, what="the gate is blocked")
    await outbox.until_statuses({"pending": 50})
    assert len(outbox.fake.posts) <= 5
    assert "blocked" in caplog.text
    told = [line for line in caplog.messages if "refuses this account: HTTP 401" in line]
    assert len(told) == 1 and told[0].endswith("; look at POSTMARK_SERVER_TOKEN")
    assert "test-token" not in caplog.text

    outbox.fake.token = "test-token"
    await outbox.pool.execute("update notifyq.gates set until = clock_timestamp()")

    await outbox.until_statuses({"sent": 50}, seconds=40)
    assert set(outbox.fake.accepted_by_uid().values()) == {1}


# -- 10. Throttling


@pytest.mark.parametrize("header", ["2", None, "0", "-1", "abc"])
async def test_case_10_a_throttled_lane_slows_down_as_a_whole(outbox: Outbox, header: str | None) -> None:
    """Not only the row: nobody storms, nothing is charged, and everything is sent in bounded time."""
    outbox.fake.fault(faults.too_many_requests(header), times=4)
    await outbox.start(slots=4)
    await enqueue_many(outbox.pool, emails(keys(12)))

    await outbox.until_statuses({"sent": 12}, seconds=40)

    assert len(outbox.fake.posts) <= 12 + 4
    assert await outbox.pool.fetchval("select max(attempts) from notifyq.emails") == 1


@pytest.mark.parametrize("header", ["99999", "Fri, 31 Dec 2399 23:59:59 GMT"])
async def test_case_10_an_absurd_retry_after_is_capped(outbox: Outbox, header: str) -> None:
    """A typing error at the provider must not stop the mail for a day."""
    outbox.fake.fault(faults.too_many_requests(header))
    await outbox.start()
    await outbox.put()
    await outbox.until_event("throttled")

    wait = await outbox.pool.fetchval(
        "select extract(epoch from until - clock_timestamp()) from notifyq.gates"
    )
    assert 200 < wait <= 300


async def test_case_10_several_workers_respect_one_limit(outbox: Outbox) -> None:
    """The gate belongs to the fleet: at ten a second, three workers send thirty with few refusals."""
    outbox.fake.rate_limit(10)
    for _ in range(3):
        await outbox.start(listen=False, poll=0.2, slots=4)
    await enqueue_many(outbox.pool, emails(keys(30)))

    await outbox.until_statuses({"sent": 30}, seconds=60)

    assert await outbox.pool.fetchval("select max(attempts) from notifyq.emails") == 1
    assert set(outbox.fake.accepted_by_uid().values()) == {1}


# -- 11. Enqueue against the transaction (rows, keys and bells: test_enqueue.py)


async def test_case_11_what_was_rolled_back_is_never_posted(outbox: Outbox) -> None:
    """A worker is awake the whole time, and the commit after it proves that it looked."""
    await outbox.start()
    async with outbox.pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await enqueue(conn, an_email("undone", subject="undone"))
        await transaction.rollback()
        async with conn.transaction():
            await enqueue(conn, an_email("done"))

    await outbox.until("sent", "done")
    assert [post.answer for post in outbox.fake.posts] == ["200"]
    assert await outbox.statuses() == {"sent": 1}
