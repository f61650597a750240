"""Who may see the page, and who may act: headers, sessions, tokens, origins.

Every answer carries a strict policy. Nothing acts but a POST that comes from our own page (``Origin``,
``Sec-Fetch-Site``) with a token that is bound to the session and to what it acts on. Sessions are signed
cookies; the key lives and dies with the process.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

__all__ = [
    "BODY_POLICY",
    "BODY_POLICY_WITH_IMAGES",
    "FILE_HEADERS",
    "PAGE_HEADERS",
    "Limiter",
    "Session",
    "Sessions",
    "comes_from_here",
    "is_loopback",
    "same_secret",
]

COOKIE: Final = "notifyq_session"
SESSION_SECONDS: Final = 12 * 3600.0

PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_COMMON: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
}
PAGE_HEADERS: Final[Mapping[str, str]] = {
    **_COMMON,
    "Content-Security-Policy": PAGE_POLICY,
    "X-Frame-Options": "DENY",
    # Not no-referrer: with it a browser says "Origin: null" of our own forms.
    "Referrer-Policy": "same-origin",
}

# The body of an email is a stranger's HTML. `sandbox` in the header makes the address itself as inert as
# the frame: no script, no form, no navigation of the window above, an origin of its own.
_BODY: Final = (
    "sandbox; default-src 'none'; {}; style-src 'unsafe-inline'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
BODY_POLICY: Final = _BODY.format("img-src data:")
BODY_POLICY_WITH_IMAGES: Final = _BODY.format("img-src data: http: https:")
BODY_HEADERS: Final[Mapping[str, str]] = {**_COMMON, "Referrer-Policy": "no-referrer"}
FILE_HEADERS: Final[Mapping[str, str]] = {
    **_COMMON,
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One browser. *inside*: it has given the password."""

    id: str
    inside: bool
    until: float


class Sessions:
    """Makes and reads the signed cookie, and the tokens that belong to it.

    Example: ``sessions.read(sessions.write(sessions.start(inside=True)))``
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._ended: OrderedDict[str, float] = OrderedDict()

    def start(self, *, inside: bool) -> Session:
        """A new session: also at login, so that a cookie known before is worth nothing after."""
        return Session(id=secrets.token_urlsafe(18), inside=inside, until=self._clock() + SESSION_SECONDS)

    def write(self, session: Session) -> str:
        """The cookie's value."""
        said = f"{session.id}.{int(session.inside)}.{int(session.until)}"
        return f"{said}.{self._sign('cookie', said)}"

    def read(self, cookie: str | None) -> Session | None:
        """The session of a cookie; None if it is not ours, over or ended."""
        said, _, signature = (cookie or "").rpartition(".")
        if not said or not same_secret(signature, self._sign("cookie", said)):
            return None
        id, inside, until = said.split(".")
        if float(until) < self._clock() or id in self._ended:
            return None
        return Session(id=id, inside=inside == "1", until=float(until))

    def end(self, session: Session) -> None:
        """Log out: the cookie is worth nothing from now on."""
        self._ended[session.id] = session.until
        while self._ended and next(iter(self._ended.values())) < self._clock():
            self._ended.popitem(last=False)

    def token(self, session: Session, scope: str) -> str:
        """What a form of *session* that acts on *scope* must carry.

        Example: ``sessions.token(session, "email/7/3")`` (the third claim of email 7).
        """
        return self._sign("token", f"{session.id}\n{scope}")

    def _sign(self, purpose: str, said: str) -> str:
        text = f"{purpose}\n{said}".encode("utf-8", "surrogatepass")
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


class Limiter:
    """At most *limit* times in *seconds* for one name, and ten times that for all names together.

    Example: ``limiter.wait("127.0.0.1")`` is 0 while it may go on, else the seconds to wait.
    """

    def __init__(self, limit: int, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._seconds = seconds
        self._clock = clock
        self._times: deque[tuple[float, str]] = deque(maxlen=limit * 10)

    def wait(self, name: str) -> float:
        """Seconds until *name* may try again; 0: now."""
        now = self._clock()
        while self._times and self._times[0][0] <= now - self._seconds:
            self._times.popleft()
        own = [at for at, who in self._times if who == name]
        if len(self._times) == self._times.maxlen:
            return self._times[0][0] + self._seconds - now
        return own[-self._limit] + self._seconds - now if len(own) >= self._limit else 0.0

    def count(self, name: str) -> None:
        """*name* has tried."""
        self._times.append((self._clock(), name))


def same_secret(given: str, known: str) -> bool:
    """Compare in constant time: over digests of bytes, so that no text and no length is an error.

    Example: ``same_secret("ä\\ud800", "secret") is False``
    """
    one, other = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (given, known))
    return hmac.compare_digest(one, other)


def comes_from_here(headers: Mapping[str, str]) -> bool:
    """True if a request was made by our own page: what the browser says of its origin must say so.

    Of the origin host and port are compared: a proxy may have ended TLS.

    Example: ``comes_from_here({"Origin": "https://evil.example", "Host": "127.0.0.1:8025"}) is False``
    """
    site, origin, host = (headers.get(name) for name in ("Sec-Fetch-Site", "Origin", "Host"))
    if site is None and origin is None:
        return False
    if site is not None and site != "same-origin":
        return False
    if origin is None:
        return True
    parts = urlsplit(origin)
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == (host or "").lower()


def is_loopback(host: str) -> bool:
    """True for a host that only this machine reaches: ``localhost``, ``127.0.0.1:8025``, ``[::1]``.

    Also asked of the ``Host`` of each request where there is no password: a foreign name that was made to
    point here (DNS rebinding) is not served.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    name = "::1" if host == "::1" else name
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
