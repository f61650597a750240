"""axe-core finds nothing serious on any page, light or dark, wide or narrow."""

from __future__ import annotations

from typing import Any

import pytest
from visitor import Rows

from notifyq import Attachment

STATUSES = ("pending", "processing", "doubt", "sent", "held", "dead")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_has_a_serious_violation(
    browser: Any, url: str, rows: Rows, axe: str, scheme: str, width: int
) -> None:
    """Every page in every state, with the help open, too."""
    paths = [""]
    for status in STATUSES:
        file = Attachment("a.txt", "text/plain", b"x")
        id = await rows.email(status, status, html="<b>hi</b>", tag="order", attachments=[file])
        paths.append(f"emails/{id}")
    task = await rows.task()
    await rows.email("x", "dead", also="message = null")
    await rows.email("y", "pending", also="waits = 1, last_error = 'no sender'")
    deferred = await rows.raw("z", {"builder": "order-shipped", "args": {"order_id": 7}})
    views = [f"emails/1?view={view}" for view in ("html", "phone", "payload")]
    lists = [
        "emails",
        "emails?status=dead",
        "emails?reason=setup",
        "emails?builder=order-shipped",
        "emails?recipient=nobody@example.com&since=x",
        "tasks",
    ]
    paths += [
        *views,
        *lists,
        f"tasks/{task}",
        f"emails/{deferred}",
        "nowhere",
        "emails/1?did=retried",
        "emails/1?did=stale",
    ]
    # Our policy lets no tool in: it is set aside for the tool alone.
    context = await browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 800}, bypass_csp=True
    )
    page = await context.new_page()

    found = []
    for path in paths:
        await page.goto(url + path)
        found += await violations(page, axe, path)
    await page.goto(url)
    await page.keyboard.press("?")
    found += await violations(page, axe, "help")
    await context.close()

    assert not found, "\n".join(found)


async def violations(page: Any, axe: str, where: str) -> list[str]:
    """What axe-core finds that is serious or critical."""
    await page.evaluate(axe)
    # The body of an email is its sender's, so its frame is not looked into.
    result = await page.evaluate("axe.run(document, { iframes: false })")
    return [
        f"{where}: {one['id']} at {one['nodes'][0]['target']}"
        for one in result["violations"]
        if one["impact"] in ("serious", "critical")
    ]
