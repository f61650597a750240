"""Previews: what a builder makes, seen before anything is sent."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from visitor import Page, Rows, Visitor

from notifyq import admin, builders

SOURCE = """
import notifyq

@notifyq.email("order-shipped", sample={"order_id": 7})
def order_shipped(*, order_id: int) -> notifyq.Email:
    return notifyq.Email(
        key=f"order-shipped:{order_id}", to="ann@example.com", from_="shop@example.com",
        subject="On its way", text="WORDS", html="<p id='there'>WORDS</p><script>alert(1)</script>",
    )

@notifyq.email("reads", connection=True, sample={})
async def reads(conn) -> notifyq.Email:
    await conn.execute("delete from notifyq.emails")

@notifyq.email("no sample")
def no_sample() -> notifyq.Email: ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program with builders, imported as a program's module is."""
    monkeypatch.setattr(builders, "registered", builders.registered)
    before = dict(builders.registered)
    file = tmp_path / "shop_for_previews.py"
    file.write_text(SOURCE.replace("WORDS", "The first words"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    builders.registered.clear()
    importlib.import_module("shop_for_previews")
    yield file
    sys.modules.pop("shop_for_previews")
    builders.registered.clear()
    builders.registered.update(before)


async def test_a_builder_is_shown_with_its_sample(visitor: Visitor, shop: Path, rows: Rows) -> None:
    """Rendered now, and nothing is enqueued."""
    page = await visitor.get("previews?name=order-shipped")
    body = await visitor.get("previews/body?name=order-shipped")

    assert "The first words" in page.text and "order-shipped:7" in page.text and "On its way" in page.text
    assert body.headers["Content-Security-Policy"].startswith("sandbox;")
    assert await rows.pool.fetchval("select count(*) from notifyq.emails") == 0
    payload = await visitor.get("previews?name=order-shipped&view=payload")
    assert "&#34;To&#34;: &#34;ann@example.com&#34;" in payload.text


async def test_a_builder_can_only_read(visitor: Visitor, shop: Path, rows: Rows) -> None:
    """Looking at a preview changes nothing, whatever the builder does."""
    await rows.email()

    page = await visitor.get("previews?name=reads")

    assert "ReadOnlySQLTransactionError" in page.text
    assert await rows.pool.fetchval("select count(*) from notifyq.emails") == 1


async def test_a_builder_without_a_sample_says_how_to_declare_one(visitor: Visitor, shop: Path) -> None:
    """And one that nobody knows is no error."""
    assert "declare one" in (await visitor.get("previews?name=no%20sample")).text
    assert "Choose a builder" in (await visitor.get("previews?name=nothing")).text
    assert (await visitor.get("previews/body?name=nothing")).status == 404


async def test_a_preview_follows_its_file(browser: Any, notifyq_pool: Any, shop: Path) -> None:
    """While somebody writes, the page shows the newest words by itself; half-written code changes nothing."""
    async with admin.serve(notifyq_pool, port=0, reload=True) as url:
        context = await browser.new_context()
        page = Page(await context.new_page(), url)
        await page.goto(f"{url}previews?name=order-shipped&view=html")
        await page.frame_locator(".frame iframe").locator("#there", has_text="The first words").wait_for()

        async with page.page.expect_response("**/previews?name=order-shipped*"):
            changed(shop, "def half(:")
        changed(shop, SOURCE.replace("WORDS", "The second words"))

        await page.frame_locator(".frame iframe").locator("#there", has_text="The second words").wait_for()
        await context.close()


def changed(file: Path, text: str) -> None:
    """Write the file, with a time that differs however coarse the clock of the disk is."""
    file.write_text(text)
    at = file.stat().st_mtime + len(text)
    os.utime(file, (at, at))
