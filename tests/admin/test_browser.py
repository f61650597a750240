"""The page in a real browser: what a person at 2am does, from looking to mending."""

from __future__ import annotations

import re
import time
from statistics import median
from typing import Any

from outbox import Outbox
from visitor import Page, Rows

from notifyq import Email, enqueue
from notifyq.testing import faults

AN_EMAIL = {"to": "ann@example.com", "from_": "shop@example.com", "text": "Thank you."}


async def test_a_new_email_appears_within_a_second(page: Page, rows: Rows) -> None:
    """Without a reload, measured from the commit to the row on the screen."""
    await rows.email("first")
    await page.open("emails")
    await page.evaluate("window.stillThere = true")
    took = []

    for number in range(5):
        started = time.monotonic()
        async with rows.pool.acquire() as conn:
            made = await enqueue(conn, Email(key=f"k{number}", subject=f"Number {number}", **AN_EMAIL))
        await page.locator(f"tr[data-row='{made.id}']").wait_for()
        took.append(time.monotonic() - started)

    assert median(took) < 1.0, took
    assert await page.evaluate("window.stillThere")


async def test_the_overview_follows(page: Page, rows: Rows) -> None:
    """Counts and the first sentence change in place."""
    await page.open()
    assert await page.locator("a.count", has_text="held").locator("b").inner_text() == "0"

    await rows.email(status="held")

    await page.locator("a.count", has_text="held").locator("b", has_text="1").wait_for()
    await page.locator("#needed", has_text="its answer was lost").wait_for()
    assert await page.locator("#failed-badge").inner_text() == "1 failed"


async def test_only_an_open_page_asks_the_database(page: Page, rows: Rows) -> None:
    """An idle page process makes no statement: the hub rests when the last page goes."""
    await page.open()
    await page.goto("about:blank")

    async def pulses() -> list[Any]:
        return await rows.pool.fetch(
            "select query_start from pg_stat_activity where query like '%newest as%' "
            "and query_start > clock_timestamp() - interval '1 s' and pid <> pg_backend_pid()"
        )

    deadline = time.monotonic() + 10
    while await pulses():
        assert time.monotonic() < deadline
        await page.wait_for_timeout(100)


async def test_an_email_is_filtered_opened_and_read(page: Page, rows: Rows) -> None:
    """By its recipient, as a customer's complaint names it; text first, then HTML in its frame."""
    await rows.email("other", to="bob@example.com")
    await rows.email("wanted", html="<h1 id='hello'>Hello Ann</h1>", text="Hello in text")
    await page.open("emails")

    await page.get_by_label("Recipient in To, Cc, Bcc").fill("ann@example.com")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile("recipient=ann"))
    assert await page.locator("tr[data-row]").count() == 1
    await page.locator("tr[data-row] a").first.click()

    assert await page.locator("pre.text").inner_text() == "Hello in text"
    await page.get_by_role("link", name="HTML").click()
    frame = page.frame_locator(".frame iframe")
    assert await frame.locator("#hello").inner_text() == "Hello Ann"
    assert await page.locator(".frame iframe").get_attribute("sandbox") == ""
    await page.get_by_role("link", name="On a phone").click()
    assert (await page.locator(".frame iframe").bounding_box())["width"] == 375


async def test_a_dead_email_is_retried_and_seen_to_be_sent(page: Page, rows: Rows, outbox: Outbox) -> None:
    """One click, one real worker, and the story goes on by itself."""
    id = await rows.email(status="dead")
    await outbox.start()
    await page.open(f"emails/{id}")
    assert "all its attempts are spent" in await page.locator("h2#story-title").inner_text()

    await page.get_by_role("button", name="Retry").click()
    await page.locator("h2#story-title", has_text=re.compile("^Sent$")).wait_for()

    assert len(outbox.fake.accepted) == 1
    assert "An operator said: send it" in await page.locator(".steps").inner_text()


async def test_an_attempt_is_watched_as_it_happens(page: Page, outbox: Outbox) -> None:
    """A claim leaves nothing in the history, so a page of a row under way looks at every change."""
    outbox.fake.fault(faults.Hang(record=True))
    id = (await outbox.put("k")).id
    await page.open(f"emails/{id}")

    await outbox.start(post_budget=5.0, lease=10.0)
    await page.locator("h2#story-title", has_text="A worker is sending it right now").wait_for()
    outbox.fake.release()
    await page.locator("h2#story-title", has_text=re.compile("^Sent$")).wait_for()


async def test_many_are_retried_with_a_confirmation(page: Page, rows: Rows, outbox: Outbox) -> None:
    """After an outage, from the keyboard and the mouse."""
    for number in range(4):
        await rows.email(f"k{number}", "dead")
    await page.open("emails?status=dead")
    assert await page.get_by_role("button", name="Retry").is_disabled()

    await page.get_by_label("Select all shown").check()
    assert await page.locator("#picked").inner_text() == "4 selected"
    await page.get_by_role("button", name="Retry").click()
    await page.get_by_role("heading", name="Retry 4 emails?").wait_for()
    await page.get_by_role("button", name="Retry 4").click()

    await page.get_by_text("4 of 4 were retried.").wait_for()
    await outbox.start()
    await outbox.fake.wait_accepted(4)


async def test_held_is_resolved(page: Page, rows: Rows) -> None:
    """With the id that the person found in the provider's activity."""
    id = await rows.email(status="held")
    await page.open(f"emails/{id}")
    assert await page.locator("h2#story-title").inner_text() == "Held: you decide"

    await page.get_by_label("The provider's message id").fill("0a129aee-e1cd-480d-b08d-4f48548ff48d")
    await page.get_by_role("button", name="It was sent").click()

    await page.locator("h2#story-title", has_text=re.compile("^Sent$")).wait_for()
    assert await rows.status(id) == "sent"


async def test_what_is_typed_survives_a_live_update(page: Page, rows: Rows) -> None:
    """An update under the hand of a person must not take the message id away."""
    id = await rows.email(status="held")
    await page.open(f"emails/{id}")
    field = page.get_by_label("The provider's message id")
    await field.fill("0a129aee")

    await rows.pool.execute(
        "insert into notifyq.history (lane, row_id, claim_seq, event) values ('email', $1, 4, 'held')", id
    )

    await page.locator(".steps li", has_text="Held: only a person").wait_for()
    assert await field.input_value() == "0a129aee"
    assert await page.evaluate("document.activeElement.id") == "message-id"


async def test_the_keyboard_is_enough(page: Page, rows: Rows) -> None:
    """j and k walk, x selects, o opens, u goes back, ? helps, r retries."""
    ids = [await rows.email(f"k{number}", "dead") for number in range(3)]
    await page.open("emails")

    for key in "jjkjx":
        await page.keyboard.press(key)
    assert await page.locator("tr.at").get_attribute("data-row") == str(ids[1])
    assert await page.locator("#picked").inner_text() == "1 selected"
    await page.keyboard.press("?")
    assert await page.locator("#help").is_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("o")
    await page.wait_for_url(f"**/emails/{ids[1]}")
    await page.keyboard.press("r")
    await page.wait_for_url(re.compile("did=retried"))
    await page.keyboard.press("u")
    await page.wait_for_url("**/emails")

    assert await rows.status(ids[1]) == "pending"


async def test_new_rows_do_not_push_away_what_is_read(page: Page, rows: Rows) -> None:
    """With something selected they wait behind one line; the selection stays."""
    id = await rows.email("first", "dead")
    await page.open("emails")
    await page.get_by_label(f"Select email {id}").check()
    top = (await page.locator(f"tr[data-row='{id}']").bounding_box())["y"]

    newer = await rows.email("second", "dead")

    await page.locator("#news:not([hidden])").wait_for()
    assert await page.locator("#picked").inner_text() == "1 selected"
    assert abs((await page.locator(f"tr[data-row='{id}']").bounding_box())["y"] - top) < 45
    await page.get_by_role("button", name="There are new emails").click()
    await page.locator(f"tr[data-row='{newer}']").wait_for()


async def test_dark_is_what_the_system_says_or_the_reader(page: Page, rows: Rows) -> None:
    """The choice outlives a reload, without a flash of the other."""
    await page.page.emulate_media(color_scheme="dark")
    await page.open()
    background = "getComputedStyle(document.body).backgroundColor"
    assert await page.evaluate(background) == "rgb(15, 18, 23)"

    await page.get_by_role("button", name="Switch between light and dark").click()
    assert await page.evaluate(background) == "rgb(245, 246, 248)"
    await page.open("emails")

    assert await page.evaluate("document.documentElement.dataset.theme") == "light"


async def test_a_phone_scrolls_one_way_only(page: Page, rows: Rows) -> None:
    """At 360 pixels, with long words everywhere."""
    long = "x" * 200
    id = await rows.email(f"key{long}", "held", subject=long, text=long, tag="t" * 90, html=f"<p>{long}</p>")
    await rows.pool.execute("update notifyq.emails set last_error = $1", long)
    task = await rows.task(name=long)
    await page.page.set_viewport_size({"width": 360, "height": 740})

    one = f"emails/{id}"
    for path in (
        "",
        "emails",
        "emails?status=held",
        one,
        f"{one}?view=phone",
        f"{one}?view=payload",
        f"tasks/{task}",
    ):
        await page.open(path)
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, path


async def test_everything_works_without_a_script(browser: Any, url: str, rows: Rows) -> None:
    """Also where one is blocked, the page shows and acts."""
    id = await rows.email(status="dead")
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()

    await page.goto(f"{url}emails?status=dead")
    await page.get_by_label(f"Select email {id}").check()
    await page.get_by_role("button", name="Retry").click()
    await page.get_by_role("button", name="Retry 1").click()

    assert "1 of 1 were retried" in await page.locator("body").inner_text()
    assert await rows.status(id) == "pending"
    await context.close()


async def test_the_password_is_asked_for_in_a_browser(browser: Any, notifyq_pool: Any, rows: Rows) -> None:
    """The real cookie, the real Origin and the real Sec-Fetch-Site of a browser pass the door."""
    from notifyq import admin

    id = await rows.email(status="dead")
    async with admin.serve(notifyq_pool, port=0, password="correct horse") as url:
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"{url}emails/{id}")
        await page.get_by_label("Password").fill("correct horse")
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Retry").click()
        await page.wait_for_url(re.compile("did=retried"))
        await context.close()

    assert await rows.status(id) == "pending"
