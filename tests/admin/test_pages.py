"""What the pages show: lists and their filters, one email, files, health, badge."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import aiohttp
import asyncpg
import pytest
from outbox import Outbox, until
from visitor import Rows, Visitor

from notifyq import Address, Attachment, admin
from notifyq.admin import words
from notifyq.admin.filters import Filters, moment

NOW = datetime(2026, 11, 30, 19, 0, tzinfo=UTC)


def shown(text: str) -> list[int]:
    """The ids in a list, as they stand."""
    return [int(part.partition('"')[0]) for part in text.split('data-row="')[1:]]


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("", ["g", "f", "e", "d", "c", "b", "a"]),
        ("status=dead", ["d", "c"]),
        ("reason=rejected", ["d"]),
        ("status=held", ["b"]),
        ("status=sent", ["a"]),
        ("status=pending", ["g", "f", "e"]),
        ("recipient=BOB@example.com", ["e", "b"]),
        ("recipient=bob@example.com&status=held", ["b"]),
        ("tag=reset", ["c"]),
        ("recipient=cy@example.com", ["d"]),
        ("recipient=dee@example.com&status=dead", ["d"]),
        ("recipient=EVE@example.com&tag=none", []),
        ("recipient=eve@example.com", ["d"]),
        ("recipient=ve@example.com", []),
        ("recipient=dee@example.com&key=d", ["d"]),
        ("recipient=dee@example.com&key=c", []),
        ("reason=failed", ["d"]),
        ("reason=failed&key=c", []),
        ("reason=setup", ["f"]),
        ("reason=setup&key=f", ["f"]),
        ("reason=setup&key=e", []),
        ("reason=setup&recipient=ann@example.com", ["f"]),
        ("builder=order-shipped", ["g"]),
        ("status=pending&builder=order-shipped", ["g"]),
        ("key=d", ["d"]),
        ("key=d&status=sent", []),
        ("since=2d&until=1h", ["b", "a"]),
        ("since=1h", ["g", "f", "e", "d", "c"]),
        ("since=nonsense", ["g", "f", "e", "d", "c", "b", "a"]),
        ("status=nonsense&before=abc", ["g", "f", "e", "d", "c", "b", "a"]),
        ("recipient=nobody@example.com", []),
    ],
)
async def test_a_list_shows_what_its_filters_say(
    visitor: Visitor, rows: Rows, query: str, keys: list[str]
) -> None:
    """Each filter, alone and together; what cannot be meant is left out."""
    ids = {
        "a": await rows.email("a", "sent", also="created_at = now() - interval '1 day'"),
        "b": await rows.email(
            "b", "held", also="created_at = now() - interval '3 hours'", to="Bob@example.com"
        ),
        "c": await rows.email("c", "dead", also="reason = 'suppressed'", tag="reset"),
        "d": await rows.email(
            "d",
            "dead",
            also="reason = 'rejected'",
            to=["ann@example.com", Address("Cy@Example.com", "Cy")],
            cc=["dee@example.com"],
            bcc=["Eve@example.com"],
        ),
        "e": await rows.email("e", "pending", to="bob@example.com"),
        "f": await rows.email("f", "pending", also="waits = 1"),
        "g": await rows.raw("g", {"builder": "order-shipped", "args": {"to": "cy@example.com"}}),
    }

    answer = await visitor.get(f"emails?{query}")

    assert shown(answer.text) == [ids[key] for key in keys]
    if not keys:
        assert "No email matches" in answer.text


async def test_a_key_is_found_by_its_beginning(visitor: Visitor, rows: Rows) -> None:
    """Operators know "order:10", not the whole key; a key that fits exactly goes first."""
    ids = [await rows.email(key) for key in ("order:1", "order:10", "order:100", "reset:1")]

    assert shown((await visitor.get("emails?key=order:")).text) == ids[2::-1]
    assert shown((await visitor.get("emails?key=order:10")).text) == [ids[1]]
    assert shown((await visitor.get("emails?key=%25")).text) == []


async def test_a_list_is_read_page_by_page(visitor: Visitor, rows: Rows) -> None:
    """By the last id, so that new rows push nothing from one page to the next."""
    await rows.pool.execute(
        "insert into notifyq.emails (key, message) select 'k' || n, '{\"builder\": \"b\"}' "
        "from generate_series(1, 120) n"
    )
    seen: list[int] = []
    query = "emails"
    while True:
        answer = await visitor.get(query)
        seen += shown(answer.text)
        older = [link for link in answer.links if "before=" in link]
        if not older:
            break
        await rows.email(f"new{len(seen)}", "pending")
        query = "emails" + older[0]

    assert seen == list(range(120, 0, -1))


@pytest.mark.parametrize(
    ("query", "count"), [("", 3), ("status=dead", 1), ("name=sync", 1), ("status=done&key=invoice", 1)]
)
async def test_tasks_are_listed_alike(visitor: Visitor, rows: Rows, query: str, count: int) -> None:
    """The same filters where they make sense."""
    await rows.task("make-invoice", "dead")
    await rows.task("make-invoice", "done")
    await rows.task("sync", "pending")

    assert len(shown((await visitor.get(f"tasks?{query}")).text)) == count


async def test_an_empty_page_says_what_to_do(visitor: Visitor) -> None:
    """The first thing that a new user sees."""
    assert "notifyq.enqueue(conn, email)" in (await visitor.get("emails")).text
    assert "make_invoice.call" in (await visitor.get("tasks")).text
    assert "Nothing failed" in (await visitor.get("")).text


async def test_an_email_shows_its_story_its_parts_and_its_text_first(
    visitor: Visitor, outbox: Outbox, rows: Rows
) -> None:
    """From a real worker and a real provider."""
    await outbox.put(
        "k", subject="Your order", text="Thank you.", html="<b>Thanks</b>", headers={"X-Shop": "corner"}
    )
    await outbox.start()
    row = await outbox.until("sent")

    page = (await visitor.get(f"emails/{row['id']}")).text

    assert "Sent: the provider accepted it" in page and row["provider_message_id"] in page
    assert "Thank you." in page and "X-Shop" in page and "<b>Thanks</b>" not in page
    assert "1 of 10" in page


async def test_the_payload_is_the_one_that_was_sent(visitor: Visitor, outbox: Outbox) -> None:
    """What the page shows is what the provider got."""
    await outbox.put("k", html="<b>hi</b>", tag="order", metadata={"order": "7"})
    await outbox.start()
    row = await outbox.until("sent")

    payload = json.loads((await visitor.get(f"emails/{row['id']}/payload.json")).text)

    assert payload == outbox.fake.accepted[0].payload


async def test_a_message_that_cannot_be_sent_says_why(visitor: Visitor, rows: Rows) -> None:
    """Written by another program, past our checks: the page must still open."""
    odd = [
        {"to": [{"email": "a@example.com"}], "subject": 7, "headers": ["x"], "attachments": ["x", {}]},
        {"to": "a@example.com", "text": ["x"], "metadata": "x"},
        {},
        {"builder": "order-shipped", "args": {"order_id": 7}},
    ]
    for number, message in enumerate(odd):
        id = await rows.raw(f"odd{number}", message)
        answer = await visitor.get(f"emails/{id}?view=payload")
        assert answer.status == 200
    assert "order-shipped" in answer.text and "&#34;order_id&#34;: 7" in answer.text


async def test_what_is_shown_is_escaped(visitor: Visitor, rows: Rows) -> None:
    """Subjects, errors, header names, keys: all of it came from elsewhere."""
    evil = "<script>alert(1)</script>"
    id = await rows.raw(
        f"key{evil}",
        {
            "to": [{"email": "a@example.com", "name": evil}],
            "subject": evil,
            "text": evil,
            "tag": evil,
            "headers": {evil: evil},
            "metadata": {evil: evil},
            "attachments": [{"name": evil, "content_type": evil, "content": "eA=="}],
        },
    )
    await rows.pool.execute("update notifyq.emails set last_error = $1 where id = $2", evil, id)
    await rows.pool.execute(
        "insert into notifyq.history (lane, row_id, claim_seq, event, detail, actor) "
        "values ('email', $1, 1, $2, $2, $2), ('email', $1, 1, 'retried', $2, $2)",
        id,
        evil,
    )
    await rows.pool.execute(
        "insert into notifyq.gates (account, state, reason, until) values ($1, 'blocked', $1, now())", evil
    )

    for path in (
        "",
        "emails",
        f"emails/{id}",
        f"emails/{id}?view=payload",
        f"emails?key={evil}&since={evil}",
    ):
        assert "<script>alert" not in (await visitor.get(path)).text, path


async def test_an_attachment_is_only_ever_saved(visitor: Visitor, rows: Rows) -> None:
    """Whatever it says it is: an SVG or an HTML file shown from here would be a page of ours."""
    name = 'a"b\r\nX: y.html'.replace("\r\n", "")
    id = await rows.email(attachments=[Attachment(name, "text/html", b"<script>alert(1)</script>")])

    answer = await visitor.get(f"emails/{id}/attachments/0")

    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="a_bX_ y.html"')
    assert answer.headers["Content-Security-Policy"].startswith("sandbox;")
    assert answer.text == "<script>alert(1)</script>"
    assert (await visitor.get(f"emails/{id}/attachments/1")).status == 404


async def test_an_inline_image_is_shown_from_the_message(visitor: Visitor, rows: Rows) -> None:
    """A frame cannot fetch cid:, so it gets the bytes; anything but an image stays outside."""
    id = await rows.email(
        html='<img src="cid:logo"><img src="cid:evil">',
        attachments=[
            Attachment("logo.png", "image/png", b"png", content_id="logo"),
            Attachment("evil.svg", "image/svg+xml", b"<svg/>", content_id="evil"),
        ],
    )

    body = (await visitor.get(f"emails/{id}/body")).text

    assert body == '<img src="data:image/png;base64,cG5n"><img src="cid:evil">'


async def test_health_follows_the_listener_and_the_gate(visitor: Visitor, outbox: Outbox) -> None:
    """200 only while mail can flow; otherwise the reason, and nothing else."""

    async def is_well() -> bool:
        return (await visitor.get("healthz")).status == 200

    before = await visitor.get("healthz")
    assert (before.status, json.loads(before.text)["reason"]) == (503, "no listener is proven")

    worker = await outbox.start()
    await until(is_well, what="the page is healthy")
    await outbox.pool.execute(
        "insert into notifyq.gates (account, state, reason, until) "
        "values ($1, 'blocked', 'a secret reason', now() + interval '30 s')",
        worker._provider.account,
    )
    blocked = await visitor.get("healthz")
    assert (blocked.status, json.loads(blocked.text)["reason"]) == (503, "the gate is blocked")
    assert "secret" not in blocked.text
    await outbox.pool.execute(
        "update notifyq.gates set until = now() - interval '1 hour' where state = 'blocked'"
    )
    assert await is_well(), "a gate that no worker has anything to do with any more does not count"
    await outbox.stop(worker)
    assert not await is_well()


async def test_the_overview_says_what_is_wrong_first(visitor: Visitor, rows: Rows, outbox: Outbox) -> None:
    """One sentence, the most important one."""
    await rows.email(status="pending", also="run_after = now() - interval '5 min'")
    assert "No worker is running" in (await visitor.get("")).text

    await rows.pool.execute("update notifyq.emails set run_after = now() + interval '1 hour'")
    worker = await outbox.start()

    async def flows() -> bool:
        return "<h1>Mail flows</h1>" in (await visitor.get("")).text

    await until(flows, what="mail flows")
    await outbox.pool.execute(
        "insert into notifyq.gates (account, state, reason, until) "
        "values ($1, 'blocked', 'HTTP 401, code 10: bad token', now() + interval '30 s')",
        worker._provider.account,
    )
    page = (await visitor.get("")).text
    assert "Mail does not flow" in page and "bad token" in page


async def test_the_badge_counts_what_a_person_has_to_look_at(visitor: Visitor, rows: Rows) -> None:
    """Not what was cancelled or suppressed, and not what is long past."""
    await rows.email("a", "held")
    await rows.email("b", "dead")
    await rows.email("c", "dead", also="reason = 'suppressed'")
    await rows.email("d", "dead", also="finished_at = now() - interval '8 days'")

    badge = json.loads((await visitor.get("badge.json")).text)

    await rows.task("make-invoice", "dead")

    said = json.loads((await visitor.get("badge.json")).text)

    assert (badge["failed"], badge["held"], badge["dead"]) == (2, 1, 3)
    assert (said["failed"], said["dead_this_week"], said["tasks_dead_this_week"]) == (3, 1, 1)
    snippet = (await visitor.get("badge")).text
    assert ">3 failed<" in snippet and "dead in the last 7 days" in snippet


async def test_a_database_that_is_away_is_a_page_too() -> None:
    """At 2am that is the moment when the page is opened."""
    async with (
        asyncpg.create_pool("postgresql://127.0.0.1:1/x", min_size=0, max_size=2) as pool,
        admin.serve(pool, port=0) as url,
        aiohttp.ClientSession() as session,
    ):
        visitor = Visitor(session, url)
        page, health = await visitor.get(""), await visitor.get("healthz")

    assert page.status == 503 and "The database does not answer" in page.text
    assert health.status == 503


@pytest.mark.parametrize(
    ("text", "back"),
    [
        ("15m", 15 * 60),
        ("2h", 7200),
        ("3d", 3 * 86400),
        ("2026-11-30T18:00", 3600),
        ("2026-11-30T20:00+01:00", 0),
    ],
)
def test_times_are_typed_as_people_think(text: str, back: int) -> None:
    """Back from now, or a date in UTC."""
    assert moment(text, NOW) == NOW - timedelta(seconds=back)


@pytest.mark.parametrize("text", ["", "x", "2 fortnights", "9999999d", "2026-13-01"])
def test_what_is_no_time_is_none(text: str) -> None:
    """It is shown as such, never an error page."""
    assert moment(text, NOW) is None


def test_a_changed_filter_begins_at_the_newest_row() -> None:
    """A cursor belongs to the list that it was made for."""
    filters = Filters.read({"status": "dead", "before": "100", "key": "a&b"})

    assert filters.query(status="held") == "?status=held&key=a%26b"
    assert filters.query(before=50) == "?status=dead&key=a%26b&before=50"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0042, "4.2 ms"),
        (0.25, "250 ms"),
        (2.5, "2.5 s"),
        (59, "59 s"),
        (60, "1 min"),
        (150, "2 min 30 s"),
        (7260, "2 h 1 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_lengths_of_time_are_as_fine_as_they_matter(seconds: float, said: str) -> None:
    """Milliseconds for a fast queue, days for a slow one."""
    assert words.duration(seconds) == said
