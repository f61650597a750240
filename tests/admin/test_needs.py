"""What waits for a person: the first sentence and the list below it say it, each with its link."""

from __future__ import annotations

from dataclasses import replace

import pytest
from outbox import Outbox, a_worker
from visitor import Page, Rows, Visitor

from notifyq.admin import reads
from notifyq.headline import Facts, headline

WELL = Facts(
    gate="open",
    workers=1,
    heard=True,
    late=0.0,
    tasks_late=0.0,
    to_set_up=0,
    unserved=0,
    held=0,
    failed=0,
    tasks_failed=0,
)


@pytest.mark.parametrize(
    ("changes", "said", "flows"),
    [
        ({}, "Mail flows", True),
        ({"heard": False}, "Mail flows, a little late", True),
        ({"late": 59.0, "tasks_late": 59.0}, "Mail flows", True),
        ({"tasks_late": 61.0}, "Tasks are late", True),
        ({"to_set_up": 1}, "Something needs a look", True),
        ({"unserved": 1}, "Something needs a look", True),
        ({"held": 1}, "Something needs a look", True),
        ({"failed": 1}, "Something needs a look", True),
        ({"tasks_failed": 1, "heard": False}, "Something needs a look", True),
        ({"late": 61.0, "held": 1}, "Mail is late", True),
        ({"gate": "closed", "late": 61.0}, "The provider is away", False),
        ({"workers": 0, "gate": "closed"}, "No worker is running", False),
        ({"gate": "blocked", "workers": 0}, "Mail does not flow", False),
    ],
)
def test_the_worst_is_said_first(changes: dict[str, object], said: str, flows: bool) -> None:
    """Page and command read the same table."""
    found = headline(replace(WELL, **changes))  # type: ignore[arg-type]

    assert (found.words, found.flows) == (said, flows)


# What is done to one row, where the page's link leads, and what it says.
NEEDS = {
    "to set up": (
        "waits = 1, last_error = 'no sender'",
        "emails?status=pending&reason=setup",
        "1 to be set up",
    ),
    "held": ("", "emails?status=held", "1 held"),
    "dead": ("", "emails?status=dead&reason=failed", "1 email not sent"),
    "a builder": (
        'message = \'{"builder": "order shipped"}\'',
        "emails?status=pending&builder=order+shipped",
        "No worker knows the builder order shipped",
    ),
}


@pytest.mark.parametrize("what", NEEDS)
async def test_each_need_is_a_link_to_its_list(
    visitor: Visitor, rows: Rows, notifyq_dsn: str, what: str
) -> None:
    """From "something is wrong" to the rows in one click."""
    also, href, said = NEEDS[what]
    status = what if what in ("held", "dead") else "pending"
    later = "run_after = now() + interval '1 hour'"
    id = await rows.email(status=status, also=", ".join(filter(None, (also, later))))

    async with a_worker(notifyq_dsn):
        page = await visitor.get("")

    assert "<h1>Something needs a look</h1>" in page.text
    assert said in page.text
    link = next(link for link in page.links if link.endswith(href))
    assert f'data-row="{id}"' in (await visitor.get(link.removeprefix("./"))).text


async def test_tasks_that_died_or_that_nobody_knows_are_needs_too(
    visitor: Visitor, rows: Rows, notifyq_dsn: str
) -> None:
    """The lanes share a page."""
    dead = await rows.task("make-invoice", "dead")
    waiting = await rows.task("sync & send", "pending")

    async with a_worker(notifyq_dsn):
        page = await visitor.get("")

    assert "No worker knows the task sync &amp; send" in page.text
    assert "1 task failed" in page.text
    for href, id in (("reason=failed", dead), ("name=sync+%26+send", waiting)):
        link = next(link for link in page.links if "tasks?" in link and link.endswith(href))
        assert f'data-row="{id}"' in (await visitor.get(link.removeprefix("./"))).text


async def test_an_open_page_hears_that_the_last_worker_has_gone(page: Page, outbox: Outbox) -> None:
    """Nothing is written then: an overview that still said "Mail flows" would be the worst of all."""
    worker = await outbox.start()
    await page.open()
    await page.locator("h1", has_text="Mail flows").wait_for()

    await outbox.stop(worker)

    await page.locator("h1", has_text="No worker is running").wait_for()


async def test_a_short_list_is_counted_not_guessed(visitor: Visitor, rows: Rows) -> None:
    """The planner knows nothing of a young table: "about 0 emails" below three of them."""
    for key in "abc":
        await rows.email(key)

    assert "3 emails and no tasks are kept." in (await visitor.get("")).text


async def test_a_further_recipient_is_found_page_by_page(
    visitor: Visitor, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies are read for a stretch at a time; each page says how far, and none of them is passed over."""
    monkeypatch.setattr(reads, "BODIES", 10)
    wanted = {await rows.email("first", to="cy@example.com")}
    for number in range(45):
        cc = ["CY@example.com"] if number % 9 == 0 else []
        id = await rows.email(f"k{number}", cc=cc)
        wanted |= {id} if cc else set()
    seen: set[int] = set()
    query, pages = "emails?recipient=cy@example.com", 0
    while query:
        answer = await visitor.get(query)
        seen |= {int(part.partition('"')[0]) for part in answer.text.split('data-row="')[1:]}
        further = [link for link in answer.links if "before=" in link]
        query, pages = ("emails" + further[0] if further else ""), pages + 1

    assert (seen, pages) == (wanted, 5)


@pytest.mark.parametrize(
    ("ids", "reach", "older", "told"),
    [
        ([100, 99, 98], None, 99, None),
        ([100, 99, 3], 50, 99, None),
        ([100, 3, 2], 50, 50, 50),
        ([100], 50, 50, 50),
        ([100], None, None, None),
    ],
)
def test_no_cursor_passes_over_what_was_not_looked_at(
    ids: list[int], reach: int | None, older: int | None, told: int | None
) -> None:
    """A page of two: a first recipient found far below must not hide a further one above it."""
    page = reads.a_page([{"id": id} for id in ids], 2, reach, "", looked=10)

    assert (page.older, page.reach) == (older, told)
