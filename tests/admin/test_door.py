"""Who gets in, and what may act: over HTTP, without a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from visitor import Rows, Visitor
from yarl import URL

from notifyq import InvalidSettings, admin
from notifyq.admin.app import _GET, _POST
from notifyq.admin.safety import Limiter, Sessions, comes_from_here, is_loopback, same_secret

PASSWORD = "correct horse ü"
ACTS = [path for name, path, _ in _POST if name not in ("log_in", "log_out")]
PAGES = [
    "",
    "emails",
    "emails/1",
    "emails/1?view=html",
    "emails/1?view=payload",
    "emails/999",
    "tasks",
    "tasks/1",
]


@asynccontextmanager
async def a_visitor(url: str) -> AsyncIterator[Visitor]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield Visitor(session, url)


@asynccontextmanager
async def mounted(application: web.Application, prefix: str = "/") -> AsyncIterator[str]:
    """Our page inside somebody's application."""
    site = web.Application()
    site.add_subapp(prefix, application)
    runner = web.AppRunner(site, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}{prefix}"
    await runner.cleanup()


# ------------------------------------------------------------------- start


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "mail.example.com"])
async def test_without_a_password_only_loopback_is_served(notifyq_pool: Any, host: str) -> None:
    """The page shows reset links: it is never open by default."""
    with pytest.raises(InvalidSettings, match="NOTIFYQ_ADMIN_PASSWORD"):
        async with admin.serve(notifyq_pool, host=host, port=0):
            pass


async def test_a_mounted_page_needs_somebody_who_says_who_may_see_it(notifyq_pool: Any) -> None:
    """Behind a proxy every request comes from loopback, so that proves nothing."""
    with pytest.raises(InvalidSettings, match="authorise"):
        admin.app(notifyq_pool)


async def test_an_empty_password_is_refused(notifyq_pool: Any) -> None:
    """An unset variable in a template of somebody's deployment must not open the page."""
    with pytest.raises(InvalidSettings, match="empty"):
        admin.app(notifyq_pool, password=" ")


async def test_with_a_password_any_address_may_be_served(notifyq_pool: Any) -> None:
    """The password is the condition, nothing else."""
    async with admin.serve(notifyq_pool, host="0.0.0.0", port=0, password=PASSWORD) as url:
        port = url.rstrip("/").rpartition(":")[2]
        async with a_visitor(f"http://127.0.0.1:{port}/") as visitor:
            assert (await visitor.get("")).status == 401


async def test_a_foreign_name_that_points_at_loopback_is_not_served(visitor: Visitor) -> None:
    """DNS rebinding: a stranger's page could read this one through a name of its own."""
    answer = await visitor.get("emails", Host="evil.example:8025")

    assert answer.status == 421


# ------------------------------------------------------------------- acts


async def test_nothing_acts_without_a_token(visitor: Visitor, rows: Rows) -> None:
    """Every act of the table, with the right origin and a session, but no token or a made-up one."""
    ids = [await rows.email(status, status) for status in ("dead", "held", "pending", "sent")]
    await rows.task()
    before = await rows.everything()
    await visitor.get("")

    for path in ACTS:
        for id in (*ids, 1):
            for token in ({}, {"token": ""}, {"token": "0" * 64}, {"token": "ü"}):
                fields = {
                    "claim_seq": "10",
                    "act": "retry",
                    "confirmed": "1",
                    "row": f"{id}:10",
                    "to": "a@b.co",
                }
                answer = await visitor.ask(
                    "POST",
                    _at(path, id),
                    data={**fields, "message_id": "x", **token},
                    headers={"Origin": visitor.origin},
                )
                assert answer.status == 403, path
    assert await rows.everything() == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://127.0.0.1:1"},
        {},
    ],
)
async def test_nothing_acts_from_elsewhere(visitor: Visitor, rows: Rows, headers: dict[str, str]) -> None:
    """A token that leaked is of no use to another site."""
    id = await rows.email(status="dead")
    form = (await visitor.get(f"emails/{id}")).form("retry")
    before = await rows.everything()

    answer = await visitor.ask("POST", f"emails/{id}/retry", data=form.fields, headers=headers)

    assert answer.status == 403
    assert await rows.everything() == before


async def test_nothing_acts_by_get(visitor: Visitor, rows: Rows) -> None:
    """A link in an email, or a prefetching browser, must not send anything."""
    id = await rows.email(status="dead")
    fields = dict((await visitor.get(f"emails/{id}")).form("retry").fields)
    before = await rows.everything()

    for path in ACTS:
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
            answer = await visitor.ask(
                method, _at(path, id), params=fields, headers={"Origin": visitor.origin}
            )
            assert answer.status in (404, 405), (method, path)
    assert await rows.everything() == before


async def test_a_token_is_good_for_one_row_in_one_version_and_one_act(visitor: Visitor, rows: Rows) -> None:
    """So that a replayed form changes nothing else."""
    one, other = await rows.email("one", "dead"), await rows.email("other", "dead")
    held = await rows.email("held", "held")
    fields = dict((await visitor.get(f"emails/{one}")).form("retry").fields)
    before = await rows.everything()
    wrong = [
        (f"emails/{other}/retry", fields),
        (f"emails/{one}/cancel", fields),
        (f"emails/{held}/retry", fields),
        (f"emails/{one}/retry", {**fields, "claim_seq": "11"}),
    ]

    for path, data in wrong:
        answer = await visitor.ask("POST", path, data=data, headers={"Origin": visitor.origin})
        assert answer.status == 403
    assert await rows.everything() == before


async def test_another_sessions_token_is_refused(url: str, visitor: Visitor, rows: Rows) -> None:
    """A token is bound to the cookie that it came with."""
    id = await rows.email(status="dead")
    async with a_visitor(url) as other:
        fields = (await other.get(f"emails/{id}")).form("retry").fields
    await visitor.get("")

    answer = await visitor.ask("POST", f"emails/{id}/retry", data=fields, headers={"Origin": visitor.origin})

    assert answer.status == 403


# ------------------------------------------------------------------- headers


async def test_every_answer_has_the_strict_headers(visitor: Visitor, rows: Rows) -> None:
    """Also errors, files of our own, and what nobody thought of."""
    await rows.email(html="<b>hello</b>")
    await rows.task()
    others = ["badge", "badge.json", "healthz", "static/notifyq.js", "static/nothing", "nowhere", "emails/x"]

    for path in (*PAGES, *others):
        headers = (await visitor.get(path)).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy, path
        assert "unsafe" not in policy, path
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "same-origin"
        assert "no-store" in headers["Cache-Control"] or path.startswith("static/")


async def test_no_page_has_a_script_or_style_of_its_own(visitor: Visitor, rows: Rows) -> None:
    """The policy forbids them, so one would be dead code: data never lands in either."""
    await rows.email(html="<b>hello</b>")
    await rows.task()

    for path in PAGES:
        text = (await visitor.get(path)).text
        assert "<style" not in text and ' style="' not in text and " onclick" not in text
        assert text.count("<script") == text.count('<script src="')


async def test_a_body_is_inert_by_its_own_headers(visitor: Visitor, rows: Rows) -> None:
    """Opened by itself it must be as harmless as in its frame."""
    id = await rows.email(html="<script>alert(1)</script>")

    headers = (await visitor.get(f"emails/{id}/body")).headers

    policy = headers["Content-Security-Policy"]
    assert policy.startswith("sandbox;") and "default-src 'none'" in policy
    assert (
        "img-src data:;" in policy and "form-action 'none'" in policy and "frame-ancestors 'self'" in policy
    )
    assert "allow-" not in policy and "script" not in policy
    assert headers["Referrer-Policy"] == "no-referrer" and headers["X-Content-Type-Options"] == "nosniff"
    with_images = (await visitor.get(f"emails/{id}/body?images=1")).headers["Content-Security-Policy"]
    assert with_images.startswith("sandbox;") and "img-src data: http: https:;" in with_images


async def test_cookies_are_strict(visitor: Visitor) -> None:
    """No script reads them, no other site's request carries them."""
    cookie = (await visitor.get("")).headers["Set-Cookie"]

    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    secure = await visitor.ask("GET", "", headers={"X-Forwarded-Proto": "https", "Cookie": "x=y"})
    assert "Secure" in secure.headers.get("Set-Cookie", "Secure")


# ------------------------------------------------------------------- login


@pytest.fixture
async def locked(notifyq_pool: Any) -> AsyncIterator[Visitor]:
    async with admin.serve(notifyq_pool, port=0, password=PASSWORD) as url, a_visitor(url) as visitor:
        yield visitor


async def test_without_the_password_nothing_is_seen(locked: Visitor, rows: Rows) -> None:
    """Every address asks for it, except the ones that tell nothing."""
    await rows.email(subject="A secret subject", html="<b>secret</b>")
    addresses = [path for name, path, _ in _GET if name not in ("healthz", "static")]

    for path in addresses:
        answer = await locked.get(_at(path, 1))
        assert answer.status == 401, path
        assert "secret" not in answer.text.lower()


async def test_the_password_opens_the_page_that_was_asked_for(locked: Visitor, rows: Rows) -> None:
    """A deep link survives the login."""
    await rows.email(subject="Your order")

    answer = await locked.send("emails/1", "login", password=PASSWORD)

    assert answer.status == 200 and "Your order" in answer.text
    assert str(answer.url).endswith("/emails/1")


async def test_a_login_leads_nowhere_else(locked: Visitor) -> None:
    """The place to go to comes from the form: an open redirect otherwise."""
    answer = await locked.send("", "login", password=PASSWORD, trail="//evil.example/")

    assert str(answer.url) == locked.url


async def test_a_login_ends_the_session_before_it(locked: Visitor) -> None:
    """A cookie that somebody planted is worth nothing after the login."""
    before = (await locked.get("")).headers["Set-Cookie"].partition(";")[0]
    await locked.send("", "login", password=PASSWORD)

    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as other:
        planted = await Visitor(other, locked.url).get("", Cookie=before)

    assert planted.status == 401


async def test_a_logout_ends_the_session_on_the_server(locked: Visitor) -> None:
    """Who copied the cookie is out, too."""
    await locked.send("", "login", password=PASSWORD)
    kept = {cookie.key: cookie.value for cookie in locked.session.cookie_jar}
    await locked.send("", "logout")

    async with aiohttp.ClientSession(cookies=kept, cookie_jar=aiohttp.CookieJar(unsafe=True)) as other:
        assert (await Visitor(other, locked.url).get("")).status == 401


async def test_guessing_is_slowed_down(locked: Visitor) -> None:
    """After five wrong passwords in a minute even the right one waits."""
    for _ in range(5):
        assert (await locked.send("", "login", password="wrong ü")).status == 401

    answer = await locked.send("", "login", password=PASSWORD)

    assert answer.status == 429 and int(answer.headers["Retry-After"]) > 0


async def test_a_strict_cookie_survives_a_link_from_elsewhere(locked: Visitor) -> None:
    """The browser leaves it out once; the page asks again by itself instead of ending the session."""
    answer = await locked.get("", **{"Sec-Fetch-Site": "cross-site"})

    assert answer.status == 200 and 'http-equiv="refresh"' in answer.text
    assert "Set-Cookie" not in answer.headers


async def test_a_program_reads_the_badge_with_the_password(locked: Visitor, rows: Rows) -> None:
    """For a page that people visit anyway. It reads that, and nothing else."""
    await rows.email("a", "held")
    await rows.email("b", "dead")
    key = {"Authorization": f"Bearer {PASSWORD}".encode().decode("latin-1")}

    badge = await locked.get("badge.json", Authorization="Bearer " + PASSWORD)
    elsewhere = await locked.get("emails", Authorization="Bearer " + PASSWORD)

    assert key and badge.status == 200 and '"failed": 2' in badge.text
    assert elsewhere.status == 401
    assert (await locked.get("badge.json", Authorization="Bearer wrong")).status == 401


# ------------------------------------------------------------------- mounted


OPERATORS: list[tuple[Any, str]] = [
    (True, "page"),
    ("ann@example.com", "ann@example.com"),
    (admin.Operator(name="ann@example.com"), "ann@example.com"),
    *((said, "") for said in (False, None, "", 1, admin.Operator(name=""))),
]


@pytest.mark.parametrize(("verdict", "name"), OPERATORS)
async def test_the_host_application_says_who_may(
    notifyq_pool: Any, rows: Rows, verdict: Any, name: str
) -> None:
    """Its answer is the operator's name, and the name is in the history."""
    id = await rows.email(status="dead")

    async def authorise(request: web.Request) -> Any:
        return verdict

    async with (
        mounted(admin.app(notifyq_pool, authorise=authorise), "/mail/") as url,
        a_visitor(url) as visitor,
    ):
        answer = await visitor.get(f"emails/{id}")
        if not name:
            assert answer.status == 403 and "Your order" not in answer.text
            return
        await visitor.send(f"emails/{id}", "retry")

    assert await rows.acts(id) == [("retried", name)]


async def test_every_link_is_relative_to_the_mount(notifyq_pool: Any, rows: Rows) -> None:
    """A proxy may take a prefix away, an application may add one: the page does not mind."""
    await rows.email(html="<b>x</b>")
    await rows.task()
    application = admin.app(notifyq_pool, authorise=lambda request: True)

    async with mounted(application, "/deep/down/") as url, a_visitor(url) as visitor:
        for path in PAGES:
            answer = await visitor.get(path)
            for link in answer.links:
                assert not link.startswith("/") and "://" not in link, link
                target = answer.url.join(URL(link))
                assert target.path.startswith("/deep/down/"), link
        cookie = next(iter(visitor.session.cookie_jar))
        assert cookie["path"] == "/deep/down/"


# ------------------------------------------------------------------- the parts


@pytest.mark.parametrize("given", ["", "wrong", PASSWORD + " ", "ü", "\ud800", "x" * 10_000])
def test_no_text_is_an_error_when_secrets_are_compared(given: str) -> None:
    """On texts the library's own comparison raises for what is not ASCII: a 500 that a stranger causes."""
    assert same_secret(given, PASSWORD) is False
    assert same_secret(PASSWORD, PASSWORD) is True


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8025", True),
        ("localhost:8025", True),
        ("[::1]:8025", True),
        ("::1", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("[", False),
    ],
)
def test_loopback_is_judged_by_the_name(host: str, local: bool) -> None:
    """It decides both what may be bound and which names are answered."""
    assert is_loopback(host) is local


def test_an_origin_is_compared_by_host_and_port() -> None:
    """A proxy may have ended TLS, so the scheme may differ; nothing else may."""
    assert comes_from_here({"Origin": "https://mail.example", "Host": "mail.example"})
    assert not comes_from_here({"Origin": "https://mail.example:444", "Host": "mail.example"})
    assert not comes_from_here({"Origin": "file://mail.example", "Host": "mail.example"})


def test_a_session_ends_by_the_clock_and_cannot_be_made_up() -> None:
    """The signature covers who it is, whether the password was given, and until when."""
    now = 0.0
    sessions = Sessions(clock=lambda: now)
    cookie = sessions.write(sessions.start(inside=False))

    assert sessions.read(cookie) is not None
    assert sessions.read(cookie.replace(".0.", ".1.")) is None
    assert sessions.read("a.b.c.d") is None and sessions.read("") is None and sessions.read("é") is None
    assert Sessions(clock=lambda: now).read(cookie) is None
    now = 13 * 3600.0
    assert sessions.read(cookie) is None


def test_a_limiter_forgets() -> None:
    """Who waited may try again; one name does not use up another's tries."""
    now = 0.0
    limiter = Limiter(2, 60, clock=lambda: now)
    limiter.count("a")
    limiter.count("a")

    assert limiter.wait("a") == 60 and limiter.wait("b") == 0
    now = 60.0
    assert limiter.wait("a") == 0


def _at(path: str, id: int) -> str:
    return path.lstrip("/").replace("{id:[0-9]{1,18}}", str(id)).replace("{number:[0-9]{1,4}}", "0")
