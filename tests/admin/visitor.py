"""Who comes to the page: `Rows` makes rows in any state, `Visitor` is a client, `Page` a browser's page."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import aiohttp
import asyncpg
from yarl import URL

from notifyq import Email, enqueue

MESSAGE = {
    "to": "ann@example.com",
    "from_": "shop@example.com",
    "subject": "Your order",
    "text": "Thank you.",
}

# status -> the columns that a row in it must have.
STATES = {
    "pending": "status = 'pending'",
    "processing": (
        "status = 'processing', claim_seq = 1, attempts = 1, lease_until = now() + interval '20 s', "
        "leased_at = now(), claimed_by = 'another-worker'"
    ),
    "doubt": (
        "status = 'doubt', claim_seq = 1, attempts = 1, doubt_since = now(), account = 'nobody', "
        "run_after = now() + interval '1 hour', last_error = 'the connection was reset'"
    ),
    "sent": (
        "status = 'sent', claim_seq = 1, attempts = 1, sent_at = now(), finished_at = now(), "
        "provider_message_id = 'b7bc2f4a'"
    ),
    "held": (
        "status = 'held', claim_seq = 4, attempts = 1, doubt_since = now() - interval '10 min', "
        "on_doubt = 'hold', account = 'nobody', last_error = 'its answer was lost'"
    ),
    "dead": (
        "status = 'dead', reason = 'exhausted', claim_seq = 10, attempts = 10, finished_at = now(), "
        "last_error = 'connection refused'"
    ),
}


class Rows:
    """Emails and calls of tasks, put straight into the state that a test wants to see."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self.pool = pool

    async def email(self, key: str = "k", status: str = "sent", *, also: str = "", **parts: Any) -> int:
        """One email in *status*; its id. *also*: further columns, as SQL."""
        made = Email(key=key, **{**MESSAGE, **parts})
        async with self.pool.acquire() as conn, conn.transaction():
            id = (await enqueue(conn, made)).id
            for changes in filter(None, (STATES[status], also)):
                await conn.execute(f"update notifyq.emails set {changes} where id = $1", id)
        return id

    async def raw(self, key: str, message: dict[str, Any]) -> int:
        """One email whose message nobody checked, as another program's SQL could leave it."""
        return await self.pool.fetchval(
            "insert into notifyq.emails (key, message) values ($1, $2::text::jsonb) returning id",
            key,
            json.dumps(message),
        )

    async def task(self, name: str = "make-invoice", status: str = "dead") -> int:
        """One call of a task."""
        return await self.pool.fetchval(
            "insert into notifyq.tasks (name, key, args, status, reason, attempts, claim_seq, finished_at) "
            "values ($1, 'invoice:7', '{\"order_id\": 7}', $2::text, "
            "case when $2::text = 'dead' then 'exhausted' end, "
            "1, 1, case when $2::text in ('dead', 'done') then now() end) returning id",
            name,
            status,
        )

    async def status(self, id: int) -> str:
        """An email's status."""
        return await self.pool.fetchval("select status from notifyq.emails where id = $1", id)

    async def acts(self, id: int, lane: str = "email") -> list[tuple[str, str]]:
        """What people did to a row: (event, actor)."""
        found = await self.pool.fetch(
            "select event, actor from notifyq.history where row_id = $1 and lane = $2 and actor is not null "
            "order by id",
            id,
            lane,
        )
        return [(row["event"], row["actor"]) for row in found]

    async def everything(self) -> list[Any]:
        """All that an act could change, to see that nothing did."""
        emails = await self.pool.fetch(
            "select id, status, claim_seq, on_doubt from notifyq.emails order by id"
        )
        tasks = await self.pool.fetch("select id, status from notifyq.tasks order by id")
        noted = await self.pool.fetchval("select count(*) from notifyq.history")
        return [[tuple(row) for row in emails], [tuple(row) for row in tasks], noted]


@dataclass
class Form:
    """A form of a page: where it posts to, and its fields."""

    action: str
    fields: list[tuple[str, str]]


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(given.get("action", ""), []))
        elif tag == "input" and self.forms and "name" in given and given.get("type") != "checkbox":
            self.forms[-1].fields.append((given["name"], given.get("value", "")))
        for name in ("href", "src", "action"):
            if name in given:
                self.links.append(given[name])


@dataclass
class Answer:
    """What came back."""

    status: int
    text: str
    headers: Any
    url: Any

    @property
    def forms(self) -> list[Form]:
        """The forms of the page that go somewhere."""
        return [form for form in self._parsed().forms if form.action]

    @property
    def links(self) -> list[str]:
        """Everything that the page points to."""
        return self._parsed().links

    def form(self, action: str) -> Form:
        """The form that posts to an address which ends so."""
        return next(form for form in self.forms if form.action.endswith(action))

    def _parsed(self) -> _Forms:
        parser = _Forms()
        parser.feed(self.text)
        return parser


class Visitor:
    """A client that behaves like a browser where it matters: cookies, Origin, hidden fields."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    @property
    def origin(self) -> str:
        """The origin of the page."""
        return re.sub(r"(https?://[^/]+)/.*", r"\1", self.url)

    async def get(self, path: str, **headers: str) -> Answer:
        """Open an address."""
        return await self.ask("GET", path, headers=headers)

    async def send(self, page: str, action: str, **values: str) -> Answer:
        """Open *page*, fill in the form that posts to *action*, send it."""
        form = (await self.get(page)).form(action)
        fields = [(name, value) for name, value in form.fields if name not in values]
        target = str(URL(self.url).join(URL(page)).join(URL(form.action)))
        return await self.ask(
            "POST", target, data=[*fields, *values.items()], headers={"Origin": self.origin}
        )

    async def ask(self, method: str, path: str, **more: Any) -> Answer:
        """Any request at all."""
        target = path if path.startswith("http") else self.url + path
        async with self.session.request(method, target, **more) as answer:
            return Answer(answer.status, await answer.text(errors="replace"), answer.headers, answer.url)


class Page:
    """A page of playwright's, that keeps the address of ours, its requests and the errors of its scripts."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.requests: list[Any] = []
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self.forbidden: list[Any] = []
        page.on("request", lambda request: self.requests.append(request))
        page.on("requestfailed", self._failed)
        page.on("dialog", lambda dialog: self.dialogs.append(dialog.message))
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    def url_of(self, path: str) -> str:
        """One of our addresses."""
        return self.url + path

    def left(self) -> list[str]:
        """Requests that went to others than us: asked for, and not forbidden by a policy before they left."""
        left = [request.url for request in self.requests if request not in self.forbidden]
        return [url for url in left if not url.startswith((self.url, "data:", "about:"))]

    def _failed(self, request: Any) -> None:
        if request.failure in ("csp", "origin"):
            self.forbidden.append(request)

    async def open(self, path: str = "") -> None:
        """Open one of our addresses, and wait until live updates run."""
        await self.page.goto(self.url + path)
        if await self.page.locator("#live").count():
            await self.page.locator("#live[data-state=on]").wait_for(state="attached")
