"""What an operator does: over HTTP, with the row, the history and the provider's own ledger as witnesses."""

from __future__ import annotations

from typing import Any

import pytest
from outbox import Outbox
from visitor import Rows, Visitor


async def test_a_retried_email_is_pending_and_the_history_says_who(visitor: Visitor, rows: Rows) -> None:
    """The act goes through the SQL function, in the operator's name."""
    id = await rows.email(status="dead")

    answer = await visitor.send(f"emails/{id}", "retry")

    assert "It goes out as soon as a worker is free" in answer.text
    assert await rows.status(id) == "pending"
    assert await rows.acts(id) == [("retried", "page")]


async def test_a_row_that_moved_on_stays_as_it_is(visitor: Visitor, rows: Rows) -> None:
    """The page was open for an hour; meanwhile a colleague retried and it died again."""
    id = await rows.email(status="dead")
    form = (await visitor.get(f"emails/{id}")).form("retry")
    await rows.pool.execute("update notifyq.emails set claim_seq = claim_seq + 1 where id = $1", id)

    answer = await visitor.ask(
        "POST", f"emails/{id}/retry", data=form.fields, headers={"Origin": visitor.origin}
    )

    assert "Nothing was changed" in answer.text
    assert await rows.status(id) == "dead"
    assert await rows.acts(id) == []


async def test_a_pending_email_is_cancelled(visitor: Visitor, rows: Rows) -> None:
    """Cancel means that it is not sent."""
    id = await rows.email(status="pending")

    await visitor.send(f"emails/{id}", "cancel")

    assert await rows.status(id) == "dead"
    assert await rows.acts(id) == [("cancelled", "page")]


async def test_a_doubtful_email_that_is_cancelled_waits_for_a_person(visitor: Visitor, rows: Rows) -> None:
    """It may have been sent, so it cannot be taken back; it is only not sent again by itself."""
    id = await rows.email(status="doubt")

    page = await visitor.send(f"emails/{id}", "cancel")

    assert await rows.pool.fetchval("select on_doubt from notifyq.emails where id = $1", id) == "hold"
    assert "cancel" not in [form.action.rpartition("/")[2] for form in page.forms]


async def test_held_is_resolved_with_the_providers_id(visitor: Visitor, rows: Rows) -> None:
    """The id is the proof, and it is kept."""
    id = await rows.email(status="held")

    await visitor.send(f"emails/{id}", "resolve", message_id=" 0a129aee-e1cd ")

    row = await rows.pool.fetchrow("select * from notifyq.emails where id = $1", id)
    assert row is not None
    assert (row["status"], row["provider_message_id"]) == ("sent", "0a129aee-e1cd")
    assert await rows.acts(id) == [("resolved", "page")]


@pytest.mark.parametrize("nothing", ["", "   ", "x" * 201, "a\x00b"])
async def test_held_is_not_resolved_without_proof(visitor: Visitor, rows: Rows, nothing: str) -> None:
    """An empty field must not turn a doubt into "sent"."""
    id = await rows.email(status="held")

    answer = await visitor.send(f"emails/{id}", "resolve", message_id=nothing)

    assert "Nothing was changed" in answer.text
    assert await rows.status(id) == "held"


async def test_a_copy_goes_to_one_address_under_a_new_key(
    visitor: Visitor, rows: Rows, outbox: Outbox
) -> None:
    """And to nobody else: Cc and Bcc stay behind. The row that was copied is not touched."""
    id = await rows.email(cc="cc@example.com", bcc="bcc@example.com", subject="Your order")

    answer = await visitor.send(f"emails/{id}", "copy", to="Me <me@example.com>")
    await outbox.start()
    await outbox.fake.wait_accepted(1)

    (sent,) = outbox.fake.accepted
    assert sent.to == ("me@example.com",) and sent.payload["Subject"] == "Your order"
    assert "Cc" not in sent.payload and "Bcc" not in sent.payload
    new = int(answer.url.path.rpartition("/")[2])
    assert new != id and await rows.status(id) == "sent"
    assert await rows.acts(id) == [("copied", "page")] and await rows.acts(new) == [("copy", "page")]


@pytest.mark.parametrize(
    "address", ["", "me", "a@example.com, b@example.com", "a@example.com\r\nBcc: b@example.com"]
)
async def test_a_copy_goes_to_one_good_address_only(visitor: Visitor, rows: Rows, address: str) -> None:
    """A list in the field would send the email to strangers."""
    id = await rows.email()

    answer = await visitor.send(f"emails/{id}", "copy", to=address)

    assert "Nothing was sent" in answer.text
    assert await rows.pool.fetchval("select count(*) from notifyq.emails") == 1


async def test_send_again_makes_a_new_email_to_the_same_people(visitor: Visitor, rows: Rows) -> None:
    """What was sent stays sent: its key is used at most once, ever."""
    id = await rows.email(cc="cc@example.com")

    await visitor.send(f"emails/{id}", "again")

    old, new = await rows.pool.fetch("select * from notifyq.emails order by id")
    assert old["message"] == new["message"] and old["key"] != new["key"]
    assert (old["status"], new["status"]) == ("sent", "pending")


async def test_copies_are_limited(visitor: Visitor, rows: Rows) -> None:
    """The page is not a way to flood a mailbox."""
    id = await rows.email()
    form = (await visitor.get(f"emails/{id}")).form("copy")
    data = {**dict(form.fields), "to": "me@example.com"}

    statuses = [
        (await visitor.ask("POST", f"emails/{id}/copy", data=data, headers={"Origin": visitor.origin})).status
        for _ in range(21)
    ]

    assert statuses == [200] * 20 + [429]


@pytest.mark.parametrize(
    ("status", "acts"),
    [
        ("pending", {"cancel", "copy"}),
        ("processing", {"copy"}),
        ("doubt", {"cancel", "copy"}),
        ("sent", {"again", "copy"}),
        ("held", {"retry", "resolve", "cancel", "copy"}),
        ("dead", {"retry", "copy"}),
    ],
)
async def test_a_page_offers_what_is_possible(
    visitor: Visitor, rows: Rows, status: str, acts: set[str]
) -> None:
    """A button that can do nothing is a lie."""
    id = await rows.email(status=status)

    forms = (await visitor.get(f"emails/{id}")).forms

    assert {form.action.rpartition("/")[2] for form in forms} == acts


async def test_an_email_without_its_body_is_not_sent_again(visitor: Visitor, rows: Rows) -> None:
    """Retention took it."""
    id = await rows.email(status="dead", also="message = null")

    answer = await visitor.get(f"emails/{id}")

    assert answer.forms == [] and "The body has been removed" in answer.text


async def test_many_are_retried_after_a_confirmation(visitor: Visitor, rows: Rows) -> None:
    """It says how many first; a row that moved on in between is left alone, and that is told."""
    ids = [await rows.email(f"k{n}", "dead") for n in range(5)]
    page = await visitor.get("emails?status=dead")
    fields = [*page.form("emails/bulk").fields, *(("row", f"{id}:10") for id in ids), ("act", "retry")]

    asked = await visitor.ask("POST", "emails/bulk", data=fields, headers={"Origin": visitor.origin})
    assert "Retry 5 emails?" in asked.text
    assert await rows.status(ids[0]) == "dead"
    await rows.pool.execute("update notifyq.emails set claim_seq = 11 where id = $1", ids[4])
    form = asked.form("emails/bulk")
    done = await visitor.ask("POST", "emails/bulk", data=form.fields, headers={"Origin": visitor.origin})

    assert "4 of 5 were retried" in done.text
    assert [await rows.status(id) for id in ids] == ["pending"] * 4 + ["dead"]
    assert await rows.acts(ids[0]) == [("retried", "page")]


async def test_a_confirmation_cannot_be_changed(visitor: Visitor, rows: Rows) -> None:
    """Its token holds for the very rows that it named."""
    ids = [await rows.email(f"k{n}", "dead") for n in range(2)]
    page = await visitor.get("emails?status=dead")
    fields = [*page.form("emails/bulk").fields, ("row", f"{ids[0]}:10"), ("act", "retry")]
    asked = await visitor.ask("POST", "emails/bulk", data=fields, headers={"Origin": visitor.origin})
    form = asked.form("emails/bulk")

    more = await visitor.ask(
        "POST",
        "emails/bulk",
        data=[*form.fields, ("row", f"{ids[1]}:10")],
        headers={"Origin": visitor.origin},
    )

    assert more.status == 403
    assert [await rows.status(id) for id in ids] == ["dead", "dead"]


async def test_all_that_match_are_retried(visitor: Visitor, rows: Rows) -> None:
    """After an outage: more than fit on a page, but only those of the filter."""
    await rows.pool.execute(
        "insert into notifyq.emails (key, message, status, reason, finished_at) "
        'select \'k\' || n, \'{"to": [{"email": "a@example.com"}], "subject": "s", "text": "t"}\', \'dead\', '
        "case when n <= 120 then 'exhausted' else 'rejected' end, now() from generate_series(1, 150) n"
    )
    page = await visitor.get("emails?status=dead&reason=exhausted")
    fields = [*page.form("emails/bulk").fields, ("all", "1"), ("act", "retry")]

    asked = await visitor.ask("POST", "emails/bulk", data=fields, headers={"Origin": visitor.origin})
    assert "Retry 120 emails?" in asked.text
    await visitor.ask(
        "POST", "emails/bulk", data=asked.form("emails/bulk").fields, headers={"Origin": visitor.origin}
    )

    found: Any = await rows.pool.fetch("select status, count(*) as n from notifyq.emails group by 1")
    assert {row["status"]: row["n"] for row in found} == {"pending": 120, "dead": 30}


async def test_a_dead_call_of_a_task_runs_again(visitor: Visitor, rows: Rows) -> None:
    """Tasks read alike."""
    id = await rows.task()

    await visitor.send(f"tasks/{id}", "retry")

    assert await rows.pool.fetchval("select status from notifyq.tasks where id = $1", id) == "pending"
    assert await rows.acts(id, "task") == [("retried", "page")]


async def test_a_call_whose_key_is_active_leads_to_the_active_one(visitor: Visitor, rows: Rows) -> None:
    """Two calls with one key must not run at once; the page shows the one that is there."""
    dead, active = await rows.task(), await rows.task(status="pending")

    answer = await visitor.send(f"tasks/{dead}", "retry")

    assert answer.url.path.endswith(f"/tasks/{active}") and "active already" in answer.text
