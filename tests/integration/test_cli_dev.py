"""``notifyq dev``: all of it in one process, for an app in development."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from command import LIMIT, NOWHERE, notifyq, running

ONE_SERVER_IS_ENOUGH = True

APP = """
import notifyq

@notifyq.task("greet")
async def greet(ctx) -> None:
    async with ctx.transaction() as conn:
        await notifyq.enqueue(conn, notifyq.Email(key="hi", to="ann@example.com", subject="Hi Ann", text="t"))
"""


async def test_dev_runs_an_app_s_task_prints_its_email_and_shows_it_on_the_page(
    notifyq_dsn: str, notifyq_pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command from an app to its email before one's eyes, without a token, a sender or a second shell."""
    (tmp_path / "dev_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    words = ("dev", "--app", "dev_app", "--admin", "127.0.0.1:0")
    async with running(notifyq_dsn, *words, stdout=asyncio.subprocess.PIPE) as process:
        assert "1 task (greet)" in await process.says("dev_app")
        assert "dev@example.com" in await process.says("EMAIL_FROM is not set")
        url = re.search(r"http://\S+", await process.says("the page is at"))
        assert url is not None and process.process.stdout is not None
        await process.says("is ready")
        await notifyq_pool.fetch("select notifyq.enqueue_task('greet')")
        async with asyncio.timeout(LIMIT):
            printed = (await process.process.stdout.readline()).decode()
        async with aiohttp.ClientSession() as session, session.get(url[0] + "emails") as answer:
            shown = await answer.text()
        code = await process.end(signal.SIGINT)

    assert printed == "sent to ann@example.com: Hi Ann\n"
    assert (answer.status, code) == (200, 0)
    assert "hi" in re.findall(r"[\w:-]+", shown)
    assert await notifyq_pool.fetchval("select message ->> 'from' is null from notifyq.emails")


@pytest.mark.parametrize(
    ("url", "env"),
    [
        ("postgresql://app@db.example.com/app", {}),
        ("postgresql://app@localhost/app?host=db.example.com", {}),
        ("postgresql:///app", {"PGHOST": "db.example.com"}),
        ("postgresql://app@localhost/app?service=example.com", {}),
        ("postgresql://app@localhost/app?servicefile=/etc/example.com", {}),
        ("postgresql://app@localhost/app", {"PGSERVICE": "example.com"}),
        ("postgresql://app@localhost:5432,db.example.com:5432/app", {}),
    ],
)
def test_dev_never_touches_a_database_that_is_elsewhere(url: str, env: dict[str, str]) -> None:
    """It may be the real one: its mail would be marked as sent and reach nobody."""
    result = notifyq(url, "dev", "--admin", "127.0.0.1:0", **env)

    assert (result.returncode, result.stdout) == (1, "")
    assert "must be on this machine" in result.stderr and "example.com" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_dev_says_in_one_line_that_its_port_is_taken(notifyq_dsn: str) -> None:
    """The usual mistake of a second start."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        fake = notifyq(notifyq_dsn, "dev", "--admin", "127.0.0.1:0", "--port", port)
        page = notifyq(notifyq_dsn, "dev", "--admin", f"127.0.0.1:{port}")

    assert (fake.returncode, page.returncode) == (1, 1)
    assert "the fake Postmark cannot listen on port" in fake.stderr and fake.stderr.count("\n") == 1
    assert "the page cannot listen on" in page.stderr and page.stderr.count("\n") == 1


def test_dev_waits_for_no_database_that_is_away() -> None:
    """A person sits there."""
    result = notifyq(NOWHERE, "dev", "--admin", "127.0.0.1:0")

    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "does not answer" in result.stderr
