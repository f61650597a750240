"""`Postmark`: the provider, on one aiohttp session.

What an answer proves is decided in `notifyq.postmark_answers` and `notifyq.postmark_search`, which are
pure; here bytes are exchanged. No redirect is followed (it would hand the token to a stranger), no proxy
setting is read, nothing is sent a second time, and the token is in no log, error or repr.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Final
from uuid import UUID

import aiohttp
import msgspec
from yarl import URL

from notifyq.cancellation import Budget
from notifyq.errors import InvalidSettings, MissingSender
from notifyq.message import Email
from notifyq.postmark_answers import classify_answer, classify_failure
from notifyq.postmark_connection import LastLook, WarmConnector, keep_spare, post, read_at_most
from notifyq.postmark_payload import payload_for, shunt
from notifyq.postmark_search import find_params, page_params, read_finding, read_health, read_page
from notifyq.provider import (
    Finding,
    Health,
    Inconclusive,
    Listed,
    Misconfigured,
    Outcome,
    StillOurs,
    Unknown,
    Unstarted,
)

__all__ = ["Postmark"]

DEFAULT_URL: Final = "https://api.postmarkapp.com"
MAX_ANSWER: Final = 64 * 1024
MAX_LISTING: Final = 16 * 1024 * 1024
FIRST_SPARE_SECONDS: Final = 1.0
LISTING_PAGES: Final = 10
LISTING_MARGIN: Final = 3600.0
LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
NOT_OPEN: Final = "call open() first"
NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None)  # aiohttp rounds long ones up; ours are outside

# The most specific first: TimeoutError is an OSError.
_KINDS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (aiohttp.ClientConnectorDNSError, "unresolved"),
    (aiohttp.ClientSSLError, "tls"),
    (aiohttp.ClientConnectorError, "refused"),
    (TimeoutError, "timeout"),
    (aiohttp.ServerDisconnectedError, "disconnected"),
    (aiohttp.ClientPayloadError, "cut"),
    (OSError, "reset"),
)

_log = logging.getLogger("notifyq.postmark")


class Postmark:
    """Send through one Postmark server (`notifyq.provider.Provider`).

    Without *token*, `open` reads ``POSTMARK_SERVER_TOKEN``; without *api_url*, ``POSTMARK_API_URL``. *env* is
    the environment, unless given ``os.environ`` as it is at `open`. At most *connections* are open at once,
    and one spare.

    Example::

        provider = Postmark()
        await provider.open()
        try:
            await provider.health(budget=5)
        finally:
            await provider.close()
    """

    name = "postmark"
    repeats_safely = False

    def __init__(
        self,
        token: str | None = None,
        *,
        api_url: str | None = None,
        env: Mapping[str, str] | None = None,
        connections: int = 100,
    ) -> None:
        self._token = token
        self._api_url = api_url
        self._env = env
        self._process_env: Mapping[str, str] = os.environ
        self._connections = connections
        self._secret = b""
        self._session: aiohttp.ClientSession | None = None
        self._connector: WarmConnector | None = None
        self._spare: asyncio.Task[None] | None = None
        self._urls: dict[str, URL] = {}
        self._request: aiohttp.ClientRequest | None = None
        self._head = b""

    def __repr__(self) -> str:
        """Show that there is a token, never which."""
        return f"Postmark(token={'***' if self._token else None})"

    @property
    def account(self) -> str:
        """``postmark:`` and twelve digits of the token's hash. Raises `InvalidSettings` without a token."""
        return f"postmark:{hashlib.sha256(self._known_token().encode()).hexdigest()[:12]}"

    async def open(self) -> None:
        """Start the session and open the spare connection, for which it waits a second; may be called twice.

        Raises `InvalidSettings` without a token, for a URL that is none, and for an ``EMAIL_SHUNT`` that is
        no address.
        """
        if self._session is not None:
            return
        shunt(self._environment())
        base = self._base_url()
        self._token = token = self._known_token()
        self._secret = token.encode()
        self._urls = {path: URL(base + path) for path in ("/email", "/messages/outbound", "/server")}
        # A copy: each look-up in os.environ itself costs an encoding, and every email would pay for it.
        self._process_env = dict(os.environ)
        self._connector = WarmConnector(limit=self._connections)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            timeout=NO_TIMEOUT,
            headers=_headers(token),
        )
        self._request = aiohttp.ClientRequest("POST", self._urls["/email"])
        self._head = _head(self._urls["/email"], token)
        tried = asyncio.Event()
        keeping = keep_spare(self._connector, self._warm, tried)
        self._spare = asyncio.create_task(keeping, name="notifyq-spare")
        try:
            async with asyncio.timeout(FIRST_SPARE_SECONDS):
                await tried.wait()
        except TimeoutError:
            return  # a slow provider delays no start
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of every connection; may be called twice."""
        session, self._session = self._session, None
        self._process_env = os.environ
        spare, self._spare = self._spare, None
        try:
            if spare is not None:
                spare.cancel()
                await asyncio.wait((spare,))
            if self._connector is not None:
                await self._connector.drop_spare()
        finally:
            if session is not None:
                await session.close()

    async def send(
        self, email: Email, *, uid: UUID, claim: int, budget: float, still_ours: StillOurs
    ) -> Outcome:
        """POST *email* once, within *budget* seconds, and say what came of it."""
        env = self._environment()
        try:
            only = shunt(env)
            payload = payload_for(email, env, only, uid=uid, claim=claim)
        except (MissingSender, InvalidSettings) as error:
            return Misconfigured(str(error))
        recipients = 1 if only else len(email.to) + len(email.cc) + len(email.bcc)
        look = LastLook(still_ours)
        try:
            with Budget(budget):
                await self._post(msgspec.json.encode(payload), look)
        except Exception as error:  # the edge: whatever a network does is an outcome
            return _failed(look, error, recipients)
        finally:
            look.end()
        return _answered(look, recipients)

    async def find(self, uid: UUID, *, stream: str, budget: float) -> Finding:
        """Search the messages of *stream* for *uid*."""
        answer = await self._get("/messages/outbound", find_params(uid, stream), budget, MAX_LISTING)
        return answer if isinstance(answer, Inconclusive) else read_finding(*answer, uid)

    async def listing(self, *, stream: str, since: float, budget: float) -> Listed | Inconclusive:
        """List our messages of *stream* back to an hour before *since*, in at most ten pages."""
        deadline = time.monotonic() + budget
        messages: dict[UUID, tuple[str, ...]] = {}
        oldest: float | None = None
        for number in range(LISTING_PAGES):
            params = page_params(stream, number * 500)
            answer = await self._get("/messages/outbound", params, deadline - time.monotonic(), MAX_LISTING)
            page = answer if isinstance(answer, Inconclusive) else read_page(*answer)
            if isinstance(page, Inconclusive):
                return page
            for uid, message_id in page.ours:
                # A message that arrives meanwhile pushes others on to the next page: seen twice, but one.
                messages[uid] = tuple(dict.fromkeys((*messages.get(uid, ()), message_id)))
            if not page.full or page.oldest is None:
                return Listed(messages, None)
            oldest = page.oldest if oldest is None else min(oldest, page.oldest)
            if oldest < since - LISTING_MARGIN:
                break
        return Listed(messages, None if oldest is None else oldest + LISTING_MARGIN)

    async def health(self, *, budget: float) -> Health | Inconclusive:
        """Ask ``GET /server`` whether the token is good, and whose it is."""
        answer = await self._get("/server", {}, budget, MAX_ANSWER)
        return answer if isinstance(answer, Inconclusive) else read_health(*answer)

    async def _post(self, body: bytes, look: LastLook) -> None:
        connector, request = self._connector, self._request
        if self._session is None or connector is None or request is None:
            raise RuntimeError(NOT_OPEN)
        try:
            await post(connector, request, self._head, body, look, MAX_ANSWER)
        finally:
            look.body = self._without_token(look.body)

    async def _get(
        self, path: str, params: Mapping[str, str], budget: float, most: int
    ) -> tuple[int, bytes] | Inconclusive:
        session = self._opened()
        try:
            async with (
                asyncio.timeout(budget),
                session.get(self._urls[path], params=params, allow_redirects=False) as response,
            ):
                body = await read_at_most(response.content, most)
                if not response.content.at_eof():
                    response.close()
                return response.status, self._without_token(body)
        except Exception as error:  # the edge, as in send
            return Inconclusive(f"the request failed ({type(error).__name__})", failed=True)

    def _without_token(self, body: bytes) -> bytes:
        """A page that shows our request does not show our token."""
        return body.replace(self._secret, b"***")

    async def _warm(self) -> None:
        async with self._opened().get(self._urls["/server"], allow_redirects=False):
            pass

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError(NOT_OPEN)
        return self._session

    def _known_token(self) -> str:
        given = self._token or self._environment().get("POSTMARK_SERVER_TOKEN", "")
        token = given.strip()
        if not token:
            rule = "is not set: set it to the server API token of your Postmark server"
            raise InvalidSettings("POSTMARK_SERVER_TOKEN", rule)
        if not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidSettings("POSTMARK_SERVER_TOKEN", "must be plain ASCII without blanks")
        return token

    def _base_url(self) -> str:
        given = (self._api_url or self._environment().get("POSTMARK_API_URL") or DEFAULT_URL).strip()
        rule = "must be an address such as https://api.postmarkapp.com"
        try:
            url = URL(given)
        except ValueError:
            raise InvalidSettings("POSTMARK_API_URL", rule) from None
        if (
            url.scheme not in ("http", "https")
            or not url.host
            or url.query_string
            or url.fragment
            or url.user
        ):
            raise InvalidSettings("POSTMARK_API_URL", rule)
        if url.scheme == "http" and url.host not in LOOPBACK:
            _log.warning(
                "POSTMARK_API_URL is http, not https: the token and all emails can be read on the way"
            )
        return given.rstrip("/")

    def _environment(self) -> Mapping[str, str]:
        return self._process_env if self._env is None else self._env


def _headers(token: str) -> dict[str, str]:
    return {
        "X-Postmark-Server-Token": token,
        "Accept": "application/json",
        "Content-Type": "application/json",
        "User-Agent": "notifyq",
    }


def _head(url: URL, token: str) -> bytes:
    """Every POST begins with it."""
    fields = {"Host": url.host_port_subcomponent or "", **_headers(token)}
    lines = [f"POST {url.raw_path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def _answered(look: LastLook, recipients: int) -> Outcome:
    if look.status is None:
        return Unknown("no answer")
    return classify_answer(look.status, look.headers, look.body, recipients, now=time.time())


def _failed(look: LastLook, error: Exception, recipients: int) -> Outcome:
    if look.objection is not None:
        return Unstarted(look.objection)
    if look.status is not None and not isinstance(outcome := _answered(look, recipients), Unknown):
        return outcome  # the body was lost, but some statuses speak for themselves
    kind = next((kind for cause, kind in _KINDS if isinstance(error, cause)), "other")
    if kind == "timeout" and not look.passed:
        kind = "unconnected"
    detail = type(error).__name__ if look.status is None else f"HTTP {look.status}"
    return classify_failure(kind, look.passed, detail)
