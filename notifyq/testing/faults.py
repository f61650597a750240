"""What can go wrong between us and Postmark, as values.

A fault either stands before Postmark (``record=False``: nothing is accepted) or behind it
(``record=True``: the request is judged and, if good, accepted; then the answer is lost or spoilt).
The two look the same from outside, which is the point: a test of one proves nothing without its twin.

==================  ==================================================================
`CloseOnAccept`     new connections are closed as soon as they are made
`CloseUnread`       the connection is closed at the request's head; the body is not read
`Close`, `Reset`    the request is read, then the connection closed (FIN) or reset (RST)
`Hang`              no answer until ``fake.release()``
`LateAccept`        accepted *after* seconds, also when the client has left by then
`Answer`            any status, body and headers (see the functions below)
`Altered`           accepted; the usual 200 with keys dropped or changed
`Truncated`         a 200 whose body is cut short
`Drip`              the answer one byte at a time
`IgnoreFilter`      a search that shows every message of the stream
`ShowTwice`         a search that shows each message twice, under two ids
==================  ==================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

__all__ = [
    "Altered",
    "Answer",
    "Close",
    "CloseOnAccept",
    "CloseUnread",
    "Drip",
    "Fault",
    "Hang",
    "IgnoreFilter",
    "LateAccept",
    "Reset",
    "ShowTwice",
    "Target",
    "Truncated",
    "bad_gateway",
    "empty",
    "fault_named",
    "html",
    "maintenance",
    "no_error_code",
    "not_json",
    "nul_message",
    "partly_inactive",
    "redirect",
    "refused",
    "server_error",
    "too_many_requests",
    "unauthorized",
    "unexpected",
]

Target: TypeAlias = Literal["send", "search", "server"]
"""Which requests a fault meets: POSTs of email, searches (and details), or ``GET /server``."""


@dataclass(frozen=True, slots=True)
class CloseOnAccept:
    """Close each new connection at once. Counted by connections; kept-alive ones live on."""


@dataclass(frozen=True, slots=True)
class CloseUnread:
    """Close the connection when a request's head has come, its body unread (so it has no uid)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Read the request, then close the connection without an answer."""

    record: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Read the request, then reset the connection (RST)."""

    record: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Say nothing until ``fake.release()``: then answer if recorded, else close."""

    record: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LateAccept:
    """Accept only *after* seconds (None: at ``fake.release()``), even if the client has left; then answer."""

    after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Any answer. *content_type* None sends none; *headers* are added."""

    status: int = 200
    body: str = ""
    content_type: str | None = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    record: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """Accept, then answer the usual 200 without the keys in *drop* and with those in *change*."""

    drop: Sequence[str] = ()
    change: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """Announce a whole 200, send half of its body, and close."""

    record: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Drip:
    """Send the answer's *part* one byte each *gap* seconds, the rest at once."""

    gap: float = 0.01
    part: Literal["all", "head", "body"] = "all"
    record: bool = True


@dataclass(frozen=True, slots=True)
class IgnoreFilter:
    """A search that ignores its filters."""


@dataclass(frozen=True, slots=True)
class ShowTwice:
    """A search that shows a second copy of each message."""


Fault: TypeAlias = (
    CloseOnAccept
    | CloseUnread
    | Close
    | Reset
    | Hang
    | LateAccept
    | Answer
    | Altered
    | Truncated
    | Drip
    | IgnoreFilter
    | ShowTwice
)
"""Any of the values above."""


def refused(code: int, message: str = "Refused by the fake.", *, status: int = 422) -> Answer:
    """An answer in Postmark's envelope. Example: ``refused(300, "Invalid 'To' address: 'x'.")``."""
    return Answer(
        status=status,
        body=_json({"ErrorCode": code, "Message": message}),
        headers={"X-PM-ApiErrorCode": str(code)},
    )


def maintenance() -> Answer:
    """503 with Postmark's envelope, code 100: a planned outage. Certainly not accepted."""
    return refused(100, "Under maintenance.", status=503)


def unexpected(*, record: bool = False) -> Answer:
    """500 with Postmark's envelope, code 101."""
    return Answer(
        status=500,
        body=_json({"ErrorCode": 101, "Message": "An error that should not occur."}),
        headers={"X-PM-ApiErrorCode": "101"},
        record=record,
    )


def unauthorized() -> Answer:
    """401 with code 10, as for a wrong token."""
    return refused(10, "The request does not contain a valid Server token.", status=401)


def too_many_requests(retry_after: str | None = None, *, as_html: bool = False) -> Answer:
    """429; *retry_after* is the header as text (seconds, a date, nonsense), None for no header."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    if as_html:
        return html(429, headers=headers)
    body = _json({"ErrorCode": 429, "Message": "Too many requests."})
    return Answer(status=429, body=body, headers=headers)


def html(status: int, *, record: bool = False, headers: Mapping[str, str] | None = None) -> Answer:
    """A page from something in between, without Postmark's envelope."""
    body = f"<html><head><title>{status}</title></head><body>{status}</body></html>"
    return Answer(status=status, body=body, content_type="text/html", headers=headers or {}, record=record)


def bad_gateway(*, record: bool = False) -> Answer:
    """502 with a page: a gateway spoke, and nobody knows what lies behind it."""
    return html(502, record=record)


def server_error(*, record: bool = False) -> Answer:
    """500 in plain text."""
    return Answer(status=500, body="Internal Server Error", content_type="text/plain", record=record)


def redirect(url: str, *, status: int = 307) -> Answer:
    """A redirect, which must not be followed with a message in hand."""
    return Answer(status=status, content_type=None, headers={"Location": url})


def not_json(*, record: bool = True) -> Answer:
    """200 whose body is no JSON."""
    return Answer(body="<html>welcome</html>", content_type="text/html", record=record)


def empty(*, record: bool = True) -> Answer:
    """200 without a body."""
    return Answer(content_type=None, record=record)


def no_error_code() -> Altered:
    """Accepted, in the form of Postmark's slow spells: no ErrorCode, and a text about delays."""
    return Altered(drop=("ErrorCode",), change={"Message": "Accepted, but delivery may be delayed."})


def partly_inactive(*addresses: str) -> Altered:
    """Accepted, with a text that names *addresses* as inactive and left out."""
    return Altered(change={"Message": inactive_text(addresses)})


def nul_message(code: int = 300) -> Answer:
    """A refusal whose text holds U+0000, which Postgres cannot store."""
    return refused(code, "bad\0text")


def inactive_text(addresses: Iterable[str]) -> str:
    """The sentence out of which official clients read the inactive addresses of an accepted message."""
    named = ", ".join(addresses)
    return (
        f"Message OK, but will not deliver to these inactive addresses: {named}. "
        "Inactive recipients are ones that bounced hard, complained or were suppressed."
    )


def _json(value: object) -> str:
    return json.dumps(value)


_MAKERS: tuple[Callable[..., Answer | Altered], ...] = (
    refused,
    maintenance,
    unexpected,
    unauthorized,
    too_many_requests,
    html,
    bad_gateway,
    server_error,
    redirect,
    not_json,
    empty,
    no_error_code,
    nul_message,
)
_NAMES: dict[str, Callable[..., Fault]] = {
    **{kind.__name__: kind for kind in get_args(Fault)},
    **{make.__name__: make for make in _MAKERS},
    "partly_inactive": lambda addresses=(): partly_inactive(*addresses),
}


def fault_named(name: str, arguments: Mapping[str, Any]) -> Fault:
    """Make a fault by the name of its class or function here; for control over HTTP.

    Raises ValueError for an unknown name, TypeError for arguments that do not fit.
    Example: ``fault_named("Hang", {"record": True})``.
    """
    if name not in _NAMES:
        raise ValueError(f"no fault is called {name!r}; there are: {', '.join(sorted(_NAMES))}")
    return _NAMES[name](**arguments)
