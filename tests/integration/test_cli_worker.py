"""``notifyq worker`` as a process, and the commands that show something: ``admin``, ``demo``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from click.testing import CliRunner
from command import LIMIT, MESSAGE, NOWHERE, QUICK, notifyq, rows, running, status, until

from notifyq import embedded
from notifyq.cli import main
from notifyq.testing import FakePostmark, faults

ONE_SERVER_IS_ENOUGH = True  # the statements are tested in tests/sql, on every server


async def test_a_worker_posts_what_plain_sql_enqueues_and_ends_with_0(
    notifyq_dsn: str, notifyq_pool: Any, fake_postmark: FakePostmark
) -> None:
    """The main job: a commit anywhere is a POST at once, a known key is none, SIGTERM is an orderly end."""
    enqueue = "select id, created from notifyq.enqueue_email('k1', $1::text::jsonb)"
    async with running(notifyq_dsn, "worker", *QUICK, **fake_postmark.env()) as process:
        await process.says("is ready")
        first = await notifyq_pool.fetchrow(enqueue, MESSAGE)
        await fake_postmark.wait_accepted(1, timeout=2)
        again = await notifyq_pool.fetchrow(enqueue, MESSAGE)
        facts = await asyncio.to_thread(status, notifyq_dsn)

        assert await process.end(signal.SIGTERM) == 0
    row = await notifyq_pool.fetchrow("select * from notifyq.emails")

    assert (first["created"], again["created"], again["id"]) == (True, False, first["id"])
    assert (row["status"], row["provider_message_id"]) == ("sent", fake_postmark.accepted[0].message_id)
    assert len(fake_postmark.posts) == 1
    assert (facts["flows"], facts["worker_connections"]) == (True, 1)
    log = "".join(process.lines)
    assert "settle is 2 s" in log
    assert "example.com" not in log and fake_postmark.token not in log


async def test_ctrl_c_is_an_orderly_end_too(notifyq_dsn: str, fake_postmark: FakePostmark) -> None:
    """In a terminal nobody sends SIGTERM."""
    async with running(notifyq_dsn, "worker", "--no-listen", **fake_postmark.env()) as process:
        await process.says("is ready")

        assert await process.end(signal.SIGINT) == 0


async def test_a_second_signal_does_not_wait_for_what_is_under_way(
    notifyq_dsn: str, notifyq_pool: Any, fake_postmark: FakePostmark
) -> None:
    """What is cut short is in doubt or under its lease; it is asked about later, and no one has to wait."""
    fake_postmark.fault(faults.Hang(record=True))
    async with running(
        notifyq_dsn, "worker", "--post-budget", "30", "--lease", "60", "--grace", "50", **fake_postmark.env()
    ) as process:
        await process.says("is ready")
        await notifyq_pool.fetch("select notifyq.enqueue_email('k1', $1::text::jsonb)", MESSAGE)
        await fake_postmark.wait_accepted(1)
        process.process.send_signal(signal.SIGTERM)
        await process.says("stops: 1 under way")
        async with asyncio.timeout(10):
            assert await process.end(signal.SIGTERM) == 0
    fake_postmark.release()

    assert await notifyq_pool.fetchval("select status from notifyq.emails") in ("processing", "doubt")


async def test_systemd_is_told_when_it_is_ready_and_when_it_stops(
    notifyq_dsn: str, fake_postmark: FakePostmark
) -> None:
    """``Type=notify``: what starts after the worker starts when mail can go out."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        path = f"{folder}/notify"
        heard.bind(path)
        heard.settimeout(LIMIT)
        env = fake_postmark.env() | {"NOTIFY_SOCKET": path}
        async with running(notifyq_dsn, "worker", **env) as process:
            ready = await asyncio.to_thread(heard.recv, 100)
            assert await process.end(signal.SIGTERM) == 0
        stopping = await asyncio.to_thread(heard.recv, 100)

    assert (ready, stopping) == (b"READY=1", b"STOPPING=1")


async def test_a_database_that_is_away_at_the_start_is_waited_for(fake_postmark: FakePostmark) -> None:
    """After a reboot the worker may be the first; it says so, and can be stopped."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    url = f"postgresql://user@127.0.0.1:{port}/name"
    async with running(url, "worker", **fake_postmark.env()) as process:
        await process.says("does not answer")

        assert await process.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("limit", [2, 3])
async def test_a_worker_that_gets_few_connections_sends_and_records_all_the_same(
    limit: int, notifyq_dsn: str, notifyq_pool: Any, fake_postmark: FakePostmark
) -> None:
    """A server that is nearly full: were the bell's connections taken first, no send could be recorded."""
    name = f"notifyq_limited_{secrets.token_hex(4)}"
    await notifyq_pool.execute(f"create role {name} login password 'x' connection limit {limit}")
    try:
        await notifyq_pool.execute(
            f"grant usage on schema notifyq to {name};"
            f"grant all on all tables in schema notifyq to {name};"
            f"grant all on all sequences in schema notifyq to {name}"
        )
        parts = urlsplit(notifyq_dsn)
        dsn = parts._replace(netloc=f"{name}:x@{parts.netloc.rpartition('@')[2]}").geturl()
        await notifyq_pool.executemany(
            "select notifyq.enqueue_email($1, $2::text::jsonb)", [(f"k{n}", MESSAGE) for n in range(60)]
        )
        async with running(dsn, "worker", *QUICK, **fake_postmark.env()) as process:
            await process.says("is ready")

            async def all_sent() -> bool:
                return not await notifyq_pool.fetchval(
                    "select count(*) from notifyq.emails where status <> 'sent'"
                )

            await until(all_sent)
            assert await process.end(signal.SIGTERM) == 0
        assert max(fake_postmark.posts_by_uid().values()) == 1
    finally:
        await notifyq_pool.execute(f"drop owned by {name}; drop role {name}")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "POSTMARK_SERVER_TOKEN"),
        ({"POSTMARK_SERVER_TOKEN": "t", "EMAIL_SHUNT": "nobody"}, "EMAIL_SHUNT"),
        ({"POSTMARK_SERVER_TOKEN": "t", "EMAIL_FROM": "a@example.com,b@example.com"}, "EMAIL_FROM"),
        ({"POSTMARK_SERVER_TOKEN": "t", "NOTIFYQ_LISTEN_URL": "nonsense"}, "NOTIFYQ_LISTEN_URL"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_setting_that_cannot_be_meant_stops_the_start(env: dict[str, str], words: str) -> None:
    """Above all a malformed shunt: never "off", and not found out only when the database is back."""
    result = notifyq(NOWHERE, "worker", **env)

    assert result.returncode == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_provider_that_is_no_url_stops_the_start(notifyq_dsn: str) -> None:
    """A typo must not look like a provider that is away."""
    result = notifyq(notifyq_dsn, "worker", POSTMARK_SERVER_TOKEN="t", POSTMARK_API_URL="nonsense")

    assert result.returncode == 1
    assert "POSTMARK_API_URL" in result.stderr and "Traceback" not in result.stderr


def test_a_worker_refuses_an_older_schema_and_says_what_to_run(notifyq_dsn: str) -> None:
    """It would not understand its rows."""
    rows(
        notifyq_dsn,
        "delete from notifyq.migrations where version = (select max(version) from notifyq.migrations)",
    )
    result = notifyq(notifyq_dsn, "worker", POSTMARK_SERVER_TOKEN="t")

    assert result.returncode == 1
    assert "run `notifyq migrate`" in result.stderr
    assert "Traceback" not in result.stderr


APP = """
import notifyq

@notifyq.task("greet")
async def greet(ctx, *, name: str) -> None:
    async with ctx.transaction() as conn:
        await conn.execute("create table greeted as select $$" + name + "$$ as name")

class Shop:
    mail = object()
"""


async def test_a_worker_serves_the_tasks_of_an_app_in_the_current_folder(
    notifyq_dsn: str, notifyq_pool: Any, fake_postmark: FakePostmark, tmp_path: Path, monkeypatch: Any
) -> None:
    """``--app`` finds what is declared, says so, and runs what ``notifyq enqueue`` puts in."""
    (tmp_path / "shop_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    async with running(
        notifyq_dsn, "worker", "--app", "shop_app:Shop.mail", **fake_postmark.env()
    ) as process:
        assert "1 task (greet), 0 builders" in await process.says("shop_app")
        await process.says("is ready")
        words = ("enqueue", "greet", "--arg", "name=Ann", "--json")
        enqueued = json.loads((await asyncio.to_thread(notifyq, notifyq_dsn, *words)).stdout)

        async def done() -> bool:
            status = await notifyq_pool.fetchval(
                "select status from notifyq.tasks where id = $1", enqueued["id"]
            )
            return bool(status == "done")

        await until(done)
        assert await process.end(signal.SIGTERM) == 0

    assert await notifyq_pool.fetchval("select name from greeted") == "Ann"


@pytest.mark.parametrize("app", ["no_such_app", "json:no_such_attribute"])
def test_an_app_that_is_not_there_is_one_line_and_exit_1(app: str) -> None:
    """A typo in a unit file."""
    result = notifyq(NOWHERE, "worker", "--app", app, POSTMARK_SERVER_TOKEN="t")

    assert result.returncode == 1
    assert "--app: " in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import notifyq\nnotifyq.WorkerSettings(slots=0)", "InvalidSettings: slots: must be at least 1"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("def (", "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
        ("raise ValueError('first\\nsecret second line')", "ValueError: first ("),
    ],
    ids=lambda case: case.partition(":")[0] if ": " in case else "",
)
def test_an_app_that_cannot_be_imported_is_one_line_that_names_its_place(
    source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it at a deploy needs the mistake and the line; the traceback is there if asked for."""
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    result = notifyq(NOWHERE, "worker", "--app", "broken", POSTMARK_SERVER_TOKEN="t")
    verbose = notifyq(NOWHERE, "worker", "--app", "broken", "--verbose", POSTMARK_SERVER_TOKEN="t")

    assert (result.returncode, result.stdout) == (1, "")
    assert words in result.stderr
    assert f"{tmp_path / 'broken.py'}, line {source.count(chr(10)) + 1}" in result.stderr
    assert result.stderr.count("\n") == 1
    assert verbose.returncode == 1 and "Traceback" in verbose.stderr


# Which database


def test_a_service_without_a_url_is_refused_rather_than_served_from_an_empty_database(tmp_path: Path) -> None:
    """A unit file that forgot it would run for weeks, send nothing and look healthy."""
    env = {"POSTMARK_SERVER_TOKEN": "t", "XDG_DATA_HOME": str(tmp_path), "INVOCATION_ID": "0" * 32}
    result = notifyq(None, "worker", **env)

    assert (result.returncode, result.stdout) == (1, "")
    assert "DATABASE_URL is not set" in result.stderr and "--embedded" in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not embedded.available(), reason="nothing to embed is installed")
async def test_a_worker_that_was_asked_for_it_serves_the_embedded_database_and_says_so(
    fake_postmark: FakePostmark,
) -> None:
    """One line: which database, where its data lies, and how to name another."""
    with tempfile.TemporaryDirectory(prefix="notifyq-cli-") as folder:
        os.chmod(folder, 0o755)  # the account that runs Postgres for root must enter it
        env = {**fake_postmark.env(), "XDG_DATA_HOME": folder}
        async with running(None, "worker", "--embedded", **env) as process:
            line = await process.says("no DATABASE_URL")
            await process.says("is ready")
            assert await process.end(signal.SIGTERM) == 0

    assert "WARNING" in line and f"{folder}/" in line and "set DATABASE_URL=postgresql://" in line


def test_the_unit_file_of_the_readme_names_the_database() -> None:
    """It is copied as it is, and the worker refuses to run without."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    unit = readme.partition("[Service]")[2].partition("[Install]")[0]

    assert "DATABASE_URL" in unit and "EnvironmentFile=" in unit


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize(("flags", "leaves"), [(["--exit"], True), (["--stay"], False), ([], None)])
def test_the_demo_decides_the_exit_code(
    code: int, flags: list[str], leaves: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 if the story did not end as told; the demo has tests of its own."""
    asked: list[bool | None] = []

    def play(*, exit_after_story: bool | None) -> int:
        asked.append(exit_after_story)
        return code

    monkeypatch.setattr("notifyq.demo.run", play)

    assert CliRunner().invoke(main, ["demo", *flags]).exit_code == code
    assert asked == [leaves]


async def test_admin_serves_the_page_until_it_is_stopped(notifyq_dsn: str) -> None:
    """By itself, on a port of its own."""
    async with running(notifyq_dsn, "admin", "--port", "0") as process:
        url = re.search(r"http://\S+", await process.says("the page is at"))
        assert url is not None
        async with aiohttp.ClientSession() as session, session.get(url[0] + "healthz") as answer:
            assert answer.status in (200, 503)

        assert await process.end(signal.SIGTERM) == 0


async def test_a_worker_can_serve_the_page_too(notifyq_dsn: str, fake_postmark: FakePostmark) -> None:
    """One process under systemd is enough."""
    words = ("worker", "--admin", "127.0.0.1:0")
    async with running(notifyq_dsn, *words, **fake_postmark.env()) as process:
        url = re.search(r"http://\S+", await process.says("the page is at"))
        await process.says("is ready")
        assert url is not None
        async with aiohttp.ClientSession() as session, session.get(url[0]) as answer:
            assert answer.status == 200

        assert await process.end(signal.SIGTERM) == 0


def test_the_page_is_not_shown_to_others_without_a_password(notifyq_dsn: str) -> None:
    """It shows people's mail."""
    result = notifyq(notifyq_dsn, "admin", "--host", "0.0.0.0", "--port", "0")

    assert result.returncode == 1
    assert "NOTIFYQ_ADMIN_PASSWORD" in result.stderr


def test_a_port_that_is_taken_is_one_line_and_exit_1(notifyq_dsn: str) -> None:
    """The usual mistake of a second start."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = notifyq(notifyq_dsn, "admin", "--port", str(taken.getsockname()[1]))

    assert result.returncode == 1
    assert "cannot listen" in result.stderr and result.stderr.count("\n") == 1
