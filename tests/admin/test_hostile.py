"""A stranger's HTML in a real browser: no script runs, no request leaves, the page stays usable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from outbox import until
from visitor import Page, Rows


class Stranger:
    """A server that nobody may reach: it counts every connection, also one without a request."""

    def __init__(self) -> None:
        self.connections = 0
        self.url = ""
        self.host = ""

    def meet(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody came."""
        self.connections += 1
        writer.close()


@pytest.fixture
async def stranger() -> AsyncIterator[Stranger]:
    async with listening() as stranger:
        yield stranger


@asynccontextmanager
async def listening() -> AsyncIterator[Stranger]:
    """A stranger on a port of its own."""
    stranger = Stranger()
    server = await asyncio.start_server(stranger.meet, "127.0.0.1", 0)
    stranger.host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    stranger.url = f"http://{stranger.host}"
    async with server:
        yield stranger


# What must not happen, each by itself; URL is the stranger's.
BODIES = {
    "a script": "<script>document.title = 'owned'; fetch('URL/script')</script>",
    "a script from elsewhere": "<script src='URL/s.js'></script>",
    "onerror": "<img src='x' onerror=\"top.location = 'URL/onerror'\">",
    "onload": "<body onload=\"location = 'URL/onload'\"><svg onload=\"location='URL/svg'\">",
    "meta refresh": "<meta http-equiv='refresh' content='0; url=URL/refresh'>",
    "a base": "<base href='URL/'><img src='relative.png'><a id='link' href='relative'>x</a>",
    "a form": "<form id='f' action='URL/form' method='post'><button id='link' form='f'>Send</button></form>",
    "a nested frame": "<iframe src='URL/frame'></iframe><iframe srcdoc=\"<img src='URL/inner'>\"></iframe>",
    "an object": "<object data='URL/object'></object><embed src='URL/embed'><applet code='URL/x'></applet>",
    "the end of a frame": "</iframe></html><script>document.title='owned'</script><img src='URL/after'>",
    "quotes against srcdoc": "\"'></iframe><img src=\"URL/quote\">&quot;&#39;><img src='URL/entity'>",
    "CSS that fetches": (
        "<style>@import url('URL/import.css'); @font-face { font-family: f; src: url('URL/font') } "
        "body { background: url('URL/background'); font-family: f; cursor: url('URL/cursor'), auto }"
        "</style><link rel='stylesheet' href='URL/link.css'><p style=\"background: url('URL/inline')\">x</p>"
    ),
    "a tracking pixel": "<img src='URL/p.gif' width='1' height='1'><img srcset='URL/1x.png 1x' src=''>",
    "media": "<video src='URL/v' poster='URL/poster' autoplay></video><audio src='URL/a' autoplay></audio>",
    "hints": (
        "<link rel='preconnect' href='URL'><LINK REL='dns-prefetch' HREF='//HOST'><link\nrel='preload' "
        "as='image' href='URL/preload'><link/rel='prefetch' href='URL/fetch'><link rel='icon' href='URL/i'>"
        "<link rel='modulepreload' href='URL/module'><link rel='manifest' href='URL/manifest'>"
    ),
    "SVG": "<svg><image href='URL/svg.png'/><use href='URL/use.svg#x'/><script>top.x = 1</script></svg>",
    "tables of old": "<table background='URL/table'><tr><td background='URL/cell'>x</td></tr></table>",
    "a link": "<a id='link' href='URL/reset?token=secret' target='_top' ping='URL/ping'>Reset</a>",
    "a link out of the frame": "<a id='link' href='URL/reset' target='_blank'>Reset</a>",
    "a javascript link": "<a id='link' href=\"javascript:top.document.title='owned'\">Click</a>",
}


@pytest.mark.parametrize("what", BODIES)
async def test_a_hostile_body_does_nothing(page: Page, rows: Rows, stranger: Stranger, what: str) -> None:
    """In its frame, in its frame at phone width, and opened by itself; what can be clicked is clicked."""
    html = BODIES[what].replace("URL", stranger.url).replace("HOST", stranger.host)
    id = await rows.email(html=f"<p id='there'>Dear reader</p>{html}", subject="Harmless")

    for path in (f"emails/{id}?view=html", f"emails/{id}?view=phone"):
        await page.goto(page.url_of(path))
        frame = page.frame_locator(".frame iframe")
        await frame.locator("#there").wait_for()
        await click(frame)
        await unguarded_twin(page, what)
        assert await page.title() == "Harmless · notifyq"
        assert page.page.url == page.url_of(path)
        await page.get_by_role("link", name="Text", exact=True).click()
        assert await page.locator("pre.text").inner_text() == "Thank you."
    await page.goto(page.url_of(f"emails/{id}/body"))
    await page.locator("#there").wait_for()
    if what not in (
        "a link",
        "a link out of the frame",
    ):  # opened by itself, a link is the person's own click
        await click(page)
    await unguarded_twin(page, what)

    assert "owned" not in await page.title()
    assert page.left() == []
    assert stranger.connections == 0
    assert page.dialogs == []


async def click(frame: Any) -> None:
    """Click what the stranger wants to be clicked, if there is something."""
    if await frame.locator("#link").count():
        await frame.locator("#link").click(timeout=2000)


async def unguarded_twin(page: Page, what: str) -> None:
    """Wait until the same body, opened later and without our guard, has reached a stranger of its own.

    That nothing happens cannot be waited for; this is how long it would have taken to happen.
    """
    tab = await page.page.context.new_page()
    async with listening() as witness:
        body = BODIES[what].replace("URL", witness.url).replace("HOST", witness.host)
        html = f"{body}<meta http-equiv='refresh' content='0; url={witness.url}/refresh'>"
        await tab.goto(f"data:text/html,{quote(html)}", wait_until="commit")
        await until(lambda: visited(witness), what="the twin has reached its stranger")
    await tab.close()


async def visited(stranger: Stranger) -> bool:
    """Whether somebody came."""
    return stranger.connections > 0


async def test_images_are_loaded_when_they_are_asked_for(page: Page, rows: Rows, stranger: Stranger) -> None:
    """Per view, by the browser; also the proof that the watchers above would have seen a request."""
    id = await rows.email(html=f"<p id='there'>x</p><img src='{stranger.url}/p.gif'>")
    await page.open(f"emails/{id}?view=html")
    assert stranger.connections == 0

    async with page.page.expect_request(f"{stranger.url}/p.gif") as asked:
        await page.get_by_role("link", name="Load images").click()

    request = await asked.value
    assert not (await request.all_headers()).get("referer")
    await page.open(f"emails/{id}?view=html")
    assert page.left() == [f"{stranger.url}/p.gif"]


async def test_ten_megabytes_of_html_do_not_stop_the_page(page: Page, rows: Rows) -> None:
    """It is shown when it is asked for; everything else stays quick."""
    id = await rows.raw(
        "big",
        {
            "to": [{"email": "a@example.com"}],
            "subject": "Big",
            "text": "Dear reader",
            "html": "<p id='there'>x</p>" + "<div><b>x</b></div>" * 500_000,
        },
    )

    await page.open(f"emails/{id}")
    assert await page.locator("pre.text").inner_text() == "Dear reader"
    await page.get_by_role("link", name="HTML").click()
    assert "This HTML is 9." in await page.locator(".pane").inner_text()
    assert await page.locator("iframe").count() == 0
    await page.get_by_role("link", name="Show it").click()
    await page.frame_locator(".frame iframe").locator("#there").wait_for()
    await page.get_by_role("link", name="Payload", exact=True).click()
    assert "It could not be sent as it is: html" in await page.locator(".pane").inner_text()
