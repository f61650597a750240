"""Fixtures of the operator's page: rows in every state, the page itself, a client, a browser."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import asyncpg
import pytest
from visitor import Page, Rows, Visitor

from notifyq import admin

CHROMIUM = shutil.which("chromium")


@pytest.fixture
def rows(notifyq_pool: asyncpg.Pool[asyncpg.Record]) -> Rows:
    """Makes rows in any state."""
    return Rows(notifyq_pool)


@pytest.fixture
async def url(notifyq_pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[str]:
    """The page on a free port of loopback, without a password."""
    async with admin.serve(notifyq_pool, port=0) as url:
        yield url


@pytest.fixture
async def visitor(url: str) -> AsyncIterator[Visitor]:
    """A client without a browser, that fills in forms as a browser does."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield Visitor(session, url)


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    """A headless Chromium."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    playwright_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    async with playwright_api.async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield launched
        await launched.close()


@pytest.fixture
async def page(browser: Any, url: str) -> AsyncIterator[Page]:
    """A page of that browser, which notes every request and every error of a script."""
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    page = Page(await context.new_page(), url)
    yield page
    await context.close()
    assert page.errors == []


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, fetched with npm for this run; its licence (MPL-2.0) stays with it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, so there is no axe-core")
    folder = tmp_path_factory.mktemp("axe")
    packed = subprocess.run(
        [npm, "pack", "--silent", "axe-core@4"], cwd=folder, capture_output=True, text=True, timeout=90
    )
    if packed.returncode:
        pytest.skip("npm could not fetch axe-core")
    with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()
