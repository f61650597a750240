"""The pytest plugin in other people's projects: each async framework, warnings as errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from notifyq import Email, enqueue
from notifyq.testing import FakePostmark, drain
from notifyq.testing.database import Databases

ONE_SERVER_IS_ENOUGH = True
REPOSITORY = Path(__file__).parents[2]
PLUGIN = "notifyq.testing.plugin"

BODY = """
import asyncio, asyncpg, pytest
from notifyq import Email, enqueue
from notifyq.testing import drain

def test_a_plain_test_gets_a_database(notifyq_dsn):
    async def ask():
        conn = await asyncpg.connect(notifyq_dsn)
        count = await conn.fetchval("select count(*) from notifyq.emails")
        await conn.close()
        return count
    assert 0 == asyncio.run(ask())

{marks}
async def test_an_email_goes_out(notifyq_pool, fake_postmark):
    async with notifyq_pool.acquire() as conn, conn.transaction():
        await enqueue(conn, Email(key="k", to="a@example.com", from_="b@example.com", subject="s", text="t"))
    await drain(notifyq_pool, fake_postmark)
    assert ["a@example.com"] == [message.to[0] for message in fake_postmark.accepted]
"""

ANYIO_ON_ASYNCIO = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""

FRAMEWORKS = {
    "pytest-asyncio, strict": ("@pytest.mark.asyncio", "asyncio_mode = strict", ""),
    "pytest-asyncio, auto": ("", "asyncio_mode = auto", ""),
    "pytest-asyncio, one loop": ('@pytest.mark.asyncio(loop_scope="session")', "asyncio_mode = strict", ""),
    "anyio": ("@pytest.mark.anyio", "addopts = -p no:aiohttp -p no:asyncio", ANYIO_ON_ASYNCIO),
    "anyio beside pytest-asyncio": ("@pytest.mark.anyio", "asyncio_mode = strict", ANYIO_ON_ASYNCIO),
}


@pytest.fixture
def project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, notifyq_server: Databases
) -> pytest.Pytester:
    """A project that is not ours, whose tests use the server of this run."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("NOTIFYQ_TEST_DSN", notifyq_server.dsn)
    return pytester


def _write(project: pytest.Pytester, marks: str, settings: str, conftest: str) -> None:
    loop = "" if "no:asyncio" in settings else "asyncio_default_fixture_loop_scope = function\n"
    project.makeini(f"[pytest]\nfilterwarnings = error\n{loop}{settings}\n")
    project.makeconftest(
        f"import sys\npytest_plugins = [] if {PLUGIN!r} in sys.modules else [{PLUGIN!r}]\n{conftest}"
    )
    project.makepyfile(BODY.replace("{marks}", marks))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_fixtures_work_with_every_async_framework(project: pytest.Pytester, framework: str) -> None:
    """A user chooses the framework; a fixture of another kind, or in another loop, would hang or warn."""
    _write(project, *FRAMEWORKS[framework])

    result = project.runpytest_subprocess("-p", "no:randomly", timeout=60)

    result.assert_outcomes(passed=2)


def test_a_plain_test_that_names_an_async_fixture_is_told_so(project: pytest.Pytester) -> None:
    """Otherwise it would be handed a generator."""
    _write(project, "", "asyncio_mode = strict", "")
    project.makepyfile("def test_it(fake_postmark): pass")

    result = project.runpytest_subprocess(timeout=60)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fake_postmark needs an async test*"])


def test_without_a_server_the_user_is_told_both_ways_out(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No binaries and no URL: an error about what to install or set, not a traceback."""
    monkeypatch.delenv("NOTIFYQ_TEST_DSN")
    monkeypatch.setenv("NOTIFYQ_POSTGRES_BIN", os.devnull)
    _write(project, "", "asyncio_mode = auto", "")

    result = project.runpytest_subprocess(timeout=60)

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*NOTIFYQ_TEST_DSN*"])


async def test_drain_says_in_one_sentence_that_nobody_is_set_up_to_send(
    notifyq_pool: Any, fake_postmark: FakePostmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first mistake of a newcomer, and the error itself, not a group that hides it."""
    monkeypatch.delenv("EMAIL_FROM", raising=False)
    made = await enqueue(notifyq_pool, Email(key="k", to="a@example.com", subject="s", text="t"))

    with pytest.raises(RuntimeError) as refused:
        await drain(notifyq_pool, fake_postmark)

    said = str(refused.value)
    assert said.startswith(f"email {made.id} waits: ")
    assert said.count("EMAIL_FROM") == 1 and said.count("sender") == 1 and "set up" not in said


async def test_drain_in_vain_is_the_timeout_that_it_promises(
    notifyq_pool: Any, fake_postmark: FakePostmark
) -> None:
    """``pytest.raises(TimeoutError)`` must see it, with the rows that have not ended."""
    fake_postmark.account_fault(405)
    email = Email(key="k", to="a@example.com", from_="b@example.com", subject="s", text="t")
    made = await enqueue(notifyq_pool, email)

    with pytest.raises(TimeoutError, match=f"email {made.id} is pending"):
        await drain(notifyq_pool, fake_postmark, limit=1)
