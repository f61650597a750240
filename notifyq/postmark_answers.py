"""What an answer of Postmark, or the lack of one, proves: pure tables.

Read the HTTP status first, then the ``ErrorCode`` in the body: the two overlap in numbers and not in
meaning. An answer counts as Postmark's own "no" only with its JSON envelope, since anybody between us
and Postmark can answer too, after the message went through. Whatever is in no table is `Unknown`: the
provider is asked later, and nothing is sent twice.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeAlias

import msgspec

from notifyq.cleaning import clean
from notifyq.provider import (
    Accepted,
    Blocked,
    Deferred,
    Misconfigured,
    Outcome,
    Rejected,
    Suppressed,
    Throttled,
    Unknown,
)

__all__ = ["classify_answer", "classify_failure", "describe", "message_id", "parse_json"]

MAX_ERROR: Final = 300
MAX_RETRY_AFTER: Final = 3600.0

_Verdict: TypeAlias = Callable[[str], Outcome]

# The ErrorCodes that are known to come back when sending, under a 4xx. A code that is not here is
# `Rejected` too: the envelope under a 4xx is Postmark's word that it took nothing, and a fault that
# nobody knows would not mend itself by repetition.
_BY_CODE: Final[Mapping[int, _Verdict]] = {
    10: Blocked,  # no such token
    11: Rejected,  # several errors
    14: Blocked,  # the account needs an approval
    100: Deferred,  # maintenance
    101: Unknown,  # "should not occur"
    300: Rejected,  # the catch-all of validation; see _is_about_the_sender
    400: Misconfigured,  # the sender is not a signature of this account
    401: Misconfigured,  # the sender is not confirmed
    402: Rejected,  # not JSON
    403: Rejected,  # a field that cannot be
    405: Blocked,  # out of credits
    406: Suppressed,  # an inactive recipient
    409: Rejected,  # JSON headers missing
    410: Rejected,  # too many in a batch
    411: Rejected,  # a forbidden attachment
    412: Misconfigured,  # pending approval: recipients must share the sender's domain
    413: Blocked,  # the account may not send
    422: Blocked,  # no such server or account
    614: Blocked,  # the plan's limit
    1002: Rejected,
    1101: Rejected,  # template faults
    1109: Rejected,
    1120: Rejected,
    1121: Rejected,
    1122: Rejected,
    1123: Rejected,
    1235: Misconfigured,  # no such stream
    1236: Misconfigured,  # a stream that cannot send
    1480: Blocked,  # our address is not on the server's list
}

# With Postmark's envelope and a code of no use: a wrong base URL fails every email alike, so it may not
# kill them.
_BY_STATUS: Final[Mapping[int, _Verdict]] = {404: Blocked, 405: Blocked, 408: Unknown}

_FAILURES: Final[Mapping[str, str]] = {
    "refused": "no connection",
    "unresolved": "the host's name does not resolve",
    "tls": "no TLS connection",
    "unconnected": "no connection in time",
    "timeout": "no answer in time",
    "disconnected": "the connection was closed without an answer",
    "reset": "the connection was reset",
    "cut": "the answer was cut short",
}

_ABOUT_THE_SENDER: Final = re.compile(r"""['"]From['"]""")
_MESSAGE_ID: Final = re.compile(r"[!-~]{1,200}")
_MARKUP: Final = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)


def classify_answer(
    status: int, headers: Mapping[str, str], body: bytes, recipients: int, *, now: float | None = None
) -> Outcome:
    """Say what an HTTP answer to ``POST /email`` proves.

    *body* is what could be read, *recipients* how many the message had, *now* the epoch second against
    which a ``Retry-After`` date is read (without it a date is ignored). Error texts are short, on one line
    and without addresses.

    Example: ``classify_answer(200, {}, b'{"MessageID": "1-2"}', 1) == Accepted("1-2")``.
    """
    answer = parse_json(body)
    code = _error_code(answer)
    if status == 200 and (accepted := _accepted(answer, code)) is not None:
        return accepted
    error = describe(status, body)
    if status == 401:
        return Blocked(error)
    if status == 413:
        return Rejected(error)
    if status == 429:
        return Throttled(error, _retry_after(headers.get("Retry-After"), now))
    if code is None or not isinstance(answer, dict):
        return Unknown(error)
    if status == 503:
        return Deferred(error)
    if 400 <= status < 500:
        return _refusal(status, code, str(answer.get("Message")), recipients)(error)
    return Unknown(error)


def classify_failure(kind: str, bytes_may_have_left: bool, detail: str = "") -> Outcome:
    """Say what a failed exchange proves: a sure "no" exactly while nothing can have left.

    *kind* is one of ``refused, unresolved, tls, unconnected, timeout, disconnected, reset, cut``, or any
    other word; *detail*, such as an exception's name, is shown beside it.

    Example: ``classify_failure("timeout", True)`` is `Unknown`, with False it is `Deferred`.
    """
    text = _FAILURES.get(kind, "the exchange failed")
    error = f"{text} ({detail})" if detail else text
    return Unknown(error) if bytes_may_have_left else Deferred(error)


def describe(status: int, body: bytes) -> str:
    """Give the one-line text to store: ``HTTP 422, ErrorCode 300: …``, without addresses.

    Example: ``describe(502, b"<h1>Bad Gateway</h1>")`` is ``"HTTP 502: Bad Gateway"``.
    """
    answer = parse_json(body)
    code = _error_code(answer)
    prefix = f"HTTP {status}" if code is None else f"HTTP {status}, ErrorCode {code}"
    if isinstance(answer, dict):
        text = str(answer.get("Message", ""))
    else:
        text = html.unescape(_MARKUP.sub(" ", body[:4_000].decode("utf-8", "replace")))
    cleaned = clean(text)
    return f"{prefix}: {cleaned}"[:MAX_ERROR] if cleaned else prefix


def message_id(value: object) -> str | None:
    """Give a provider's message id that is fit to be stored, or None."""
    return value if isinstance(value, str) and _MESSAGE_ID.fullmatch(value) else None


def parse_json(body: bytes) -> Any:
    """Read JSON that a stranger wrote: None for what is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        # More lenient (a lone surrogate): no reason to doubt an answer that can be read.
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _error_code(answer: Any) -> int | None:
    code = answer.get("ErrorCode") if isinstance(answer, dict) else None
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def _accepted(answer: Any, code: int | None) -> Accepted | None:
    found = message_id(answer.get("MessageID")) if isinstance(answer, dict) else None
    # In slow spells Postmark has left out the ErrorCode of messages that it had accepted.
    return Accepted(found) if found is not None and code in (None, 0) else None


def _refusal(status: int, code: int, message: str, recipients: int) -> _Verdict:
    verdict = _BY_CODE.get(code)
    if verdict is None or status == 408:
        return _BY_STATUS.get(status, Rejected)
    if code == 406 and recipients > 1:
        return Unknown  # the active recipients may have been served
    if code == 300 and _ABOUT_THE_SENDER.search(message):
        return Misconfigured
    return verdict


def _retry_after(value: str | None, now: float | None) -> float | None:
    """Seconds from 0 to an hour. Nonsense and negative numbers are None; a date in the past is 0."""
    if value is None:
        return None
    value = value.strip()
    if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", value, re.ASCII):
        return min(float(value), MAX_RETRY_AFTER)
    try:
        moment = parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return None if now is None else min(max(moment - now, 0.0), MAX_RETRY_AFTER)
