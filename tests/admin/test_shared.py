"""Ten open pages look again at the same moment: what they share is read and drawn once, and never old."""

from __future__ import annotations

from typing import Any

from outbox import until
from visitor import Rows, Visitor

from notifyq.admin.filters import Filters
from notifyq.admin.reads import Listing, Reads
from notifyq.admin.render import Canvas


async def test_what_is_alike_for_all_readers_is_drawn_once() -> None:
    """Drawing takes milliseconds of a loop that also sends mail."""
    canvas, kept = Canvas(), dict[Any, Any]()
    values = {"filters": Filters(), "listing": Listing(rows=()), "root": "./", "now": None}

    first = await canvas.draw_once(kept, "here", "emails_rows.html", values)
    again = await canvas.draw_once(kept, "here", "emails_rows.html", {})
    alone = await canvas.draw_once(None, "here", "emails_rows.html", values)

    assert first == again == alone and "No email yet" in first


async def test_pages_that_are_open_read_the_same_list_once(rows: Rows) -> None:
    """Until the hub looks again; without an open page every read is made."""
    reads = Reads(rows.pool)
    reads.shared = {}
    before = await reads.rows_once("page_kept")
    await rows.email()

    assert await reads.rows_once("page_kept") is before
    reads.forget()
    assert (await reads.rows_once("page_kept"))[0]["emails"] == 1
    reads.shared = None
    await rows.email("another")
    assert (await reads.rows_once("page_kept"))[0]["emails"] == 2


async def test_an_operator_sees_the_own_act_at_once_while_pages_are_open(
    visitor: Visitor, rows: Rows
) -> None:
    """The list that follows the act must not be the one that was kept before it."""
    ids = [await rows.email(key, "dead") for key in "ab"]
    async with visitor.session.get(visitor.url + "live") as live:
        assert b"hello" in await live.content.readuntil(b"data")

        async def listed(path: str) -> list[int]:
            text = (await visitor.get(path)).text
            return [int(part.partition('"')[0]) for part in text.split('data-row="')[1:]]

        await until(lambda: _is(listed("emails?status=dead"), ids[::-1]), what="both are listed")
        await visitor.send(f"emails/{ids[0]}", "retry")
        assert await listed("emails?status=dead") == ids[1:]


async def _is(asked: Any, wanted: list[int]) -> bool:
    return bool(await asked == wanted)
