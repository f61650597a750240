"""One case for each row of the tables of statuses, ErrorCodes and failures, and for what strangers answer."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from notifyq.postmark_answers import classify_answer, classify_failure
from notifyq.postmark_search import read_finding, read_health, read_page
from notifyq.provider import (
    Accepted,
    Blocked,
    Deferred,
    Found,
    Health,
    Inconclusive,
    Misconfigured,
    Missing,
    Rejected,
    Suppressed,
    Throttled,
    Unknown,
)

ID = "b7bc2f4a-e38e-4336-af7d-e6c392c2f817"
NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


def body(code: object = None, message: str = "text", **more: Any) -> bytes:
    return json.dumps({"ErrorCode": code, "Message": message, **more}).encode()


def classify(status: int, content: bytes, recipients: int = 1, **headers: str) -> Any:
    return classify_answer(status, headers, content, recipients, now=NOW)


HTML = b"<html><head><style>x{}</style></head><body><h1>Bad &amp; Gateway</h1></body></html>"

STATUSES: dict[str, tuple[int, bytes, type]] = {
    "200": (200, body(0, MessageID=ID), Accepted),
    "200 without ErrorCode": (200, json.dumps({"MessageID": ID, "Message": "delayed"}).encode(), Accepted),
    "200 with some inactive": (200, body(0, "Message OK, but will not deliver to x", MessageID=ID), Accepted),
    "200 with a code and no id": (200, body(300), Unknown),
    "200 with a code and an id": (200, body(300, MessageID=ID), Unknown),
    "200 without an id": (200, body(0), Unknown),
    "200 with an id of NUL": (200, body(0, MessageID="a\0b"), Unknown),
    "200 with a number for an id": (200, body(0, MessageID=7), Unknown),
    "200 with HTML": (200, HTML, Unknown),
    "200 empty": (200, b"", Unknown),
    "200 cut": (200, body(0, MessageID=ID)[:-5], Unknown),
    "200 with a list": (200, b"[]", Unknown),
    "200 deep": (200, b"[" * 60_000, Unknown),
    "201": (201, body(0, MessageID=ID), Unknown),
    "204": (204, b"", Unknown),
    "301": (301, b"", Unknown),
    "307": (307, body(0), Unknown),
    "400": (400, body(1002), Rejected),
    "400 HTML": (400, HTML, Unknown),
    "401": (401, body(10), Blocked),
    "401 HTML": (401, HTML, Blocked),
    "401 empty": (401, b"", Blocked),
    "403 with the envelope": (403, body(9999), Rejected),
    "403 HTML": (403, HTML, Unknown),
    "404 with the envelope": (404, body(9999), Blocked),
    "404 HTML": (404, HTML, Unknown),
    "408": (408, body(0), Unknown),
    "408 HTML": (408, HTML, Unknown),
    "413": (413, body(300), Rejected),
    "413 HTML": (413, HTML, Rejected),
    "415": (415, body(409), Rejected),
    "422 HTML": (422, HTML, Unknown),
    "422 without a code": (422, b'{"Message": "x"}', Unknown),
    "422 with a text for a code": (422, body("300"), Unknown),
    "422 with true for a code": (422, body(True), Unknown),
    "429": (429, body(9999), Throttled),
    "429 HTML": (429, HTML, Throttled),
    "500": (500, body(101), Unknown),
    "500 HTML": (500, HTML, Unknown),
    "502": (502, HTML, Unknown),
    "502 with an envelope": (502, body(100), Unknown),
    "503": (503, body(100), Deferred),
    "503 HTML": (503, HTML, Unknown),
    "504": (504, b"", Unknown),
}


@pytest.mark.parametrize("case", STATUSES)
def test_a_status_proves_what_the_table_says(case: str) -> None:
    """A wrong line here is a double or a lost email."""
    status, content, expected = STATUSES[case]

    assert type(classify(status, content)) is expected


CODES: dict[int, type] = {
    10: Blocked,
    11: Rejected,
    14: Blocked,
    100: Deferred,
    101: Unknown,
    300: Rejected,
    400: Misconfigured,
    401: Misconfigured,
    402: Rejected,
    403: Rejected,
    405: Blocked,
    406: Suppressed,
    409: Rejected,
    410: Rejected,
    411: Rejected,
    412: Misconfigured,
    413: Blocked,
    422: Blocked,
    614: Blocked,
    1101: Rejected,
    1109: Rejected,
    1120: Rejected,
    1121: Rejected,
    1122: Rejected,
    1123: Rejected,
    1235: Misconfigured,
    1236: Misconfigured,
    1480: Blocked,
    99999: Rejected,
}


@pytest.mark.parametrize("code", CODES)
def test_an_error_code_under_422_proves_what_the_table_says(code: int) -> None:
    """The message's fault, the recipient's, the row's or the account's: each has another fate."""
    assert classify(422, body(code)) == CODES[code](f"HTTP 422, ErrorCode {code}: text")


@pytest.mark.parametrize("text", ["Invalid 'From' address: 'x'.", "Error parsing 'From': x"])
def test_a_300_that_names_from_is_the_sender_that_is_wrong(text: str) -> None:
    """A bad default sender must not kill every email."""
    assert type(classify(422, body(300, text))) is Misconfigured
    assert type(classify(422, body(300, text.replace("From", "To")))) is Rejected


def test_an_inactive_recipient_among_several_is_unknown() -> None:
    """The others may have been served."""
    assert type(classify(422, body(406), recipients=2)) is Unknown


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("2", 2.0),
        ("0", 0.0),
        ("1.5", 1.5),
        (" 7 ", 7.0),
        ("99999", 3600.0),
        ("9" * 400, None),
        ("-1", None),
        ("abc", None),
        ("", None),
        ("nan", None),
        ("٣", None),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        ("Tue, 14 Nov 2030 22:00:00 GMT", 3600.0),
        ("Tue, 99 Nov 2023 22:00:00 GMT", None),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_retry_after_is_a_sensible_number_or_nothing(value: str | None, seconds: float | None) -> None:
    """A stranger's header must not stop the mail for a year, nor make a hot loop."""
    headers = {} if value is None else {"Retry-After": value}

    assert classify_answer(429, headers, b"", 1, now=NOW) == Throttled("HTTP 429", seconds)


def test_a_retry_after_date_without_a_clock_is_no_answer() -> None:
    """The function has no clock of its own."""
    headers = {"Retry-After": "Tue, 14 Nov 2023 22:13:50 GMT"}

    assert classify_answer(429, headers, b"", 1) == Throttled("HTTP 429", None)


# What the failure is, whether bytes may have left, and what that proves: the table of failures.
FAILURES: list[tuple[str, bool, type]] = [
    ("refused", False, Deferred),
    ("unresolved", False, Deferred),
    ("tls", False, Deferred),
    ("unconnected", False, Deferred),
    ("disconnected", True, Unknown),
    ("reset", True, Unknown),
    ("timeout", True, Unknown),
    ("cut", True, Unknown),
    ("something new", True, Unknown),
    ("something new", False, Deferred),
]


@pytest.mark.parametrize(("kind", "left", "expected"), FAILURES)
def test_a_failure_is_a_sure_no_only_before_bytes_left(kind: str, left: bool, expected: type) -> None:
    """The type of an exception does not tell whether anything was written."""
    outcome = classify_failure(kind, left, "SomeError")

    assert type(outcome) is expected
    assert "SomeError" in outcome.error  # type: ignore[union-attr]


def test_the_text_that_is_stored_tells_status_code_and_message() -> None:
    """It is what the operator reads at night."""
    assert classify(422, body(300, "Zero recipients specified")).error == (
        "HTTP 422, ErrorCode 300: Zero recipients specified"
    )
    assert classify(502, HTML).error == "HTTP 502: Bad & Gateway"
    assert classify(504, b"").error == "HTTP 504"


@pytest.mark.parametrize(
    "text",
    [
        "Found inactive addresses: ann@example.com, bob@example.com. Inactive recipients are",
        "Invalid 'To' address: 'Ann <ann@example.com>'.",
        "x" * 250 + " ann@example.com",
        "y" * 280 + "ann@example.com",
        "ann@example.com " * 300 + "ann",
    ],
)
def test_no_address_is_stored(text: str) -> None:
    """Errors are shown, logged and kept longer than the message."""
    for content in (body(406, text), text.encode(), text.replace("@", "&#64;").encode()):
        error = classify(422, content).error

        assert "@" not in error
        assert "ann" not in error
        assert len(error) <= 300


def test_what_is_stored_fits_into_a_database() -> None:
    """NUL or a lone surrogate in a provider's text must not keep its row from ending."""
    error = classify(422, body(300, "a\0b\r\nc\ud83dd\u2028e")).error

    assert error == "HTTP 422, ErrorCode 300: a b c?d e"


UID = UUID("11111111-2222-4333-8444-555555555555")
OTHER = UUID("99999999-2222-4333-8444-555555555555")


def hit(
    uid: object = UID, message_id: object = ID, received: str = "2026-01-01T10:00:00.1234567-05:00"
) -> Any:
    return {"MessageID": message_id, "Metadata": {"notifyq": str(uid)}, "ReceivedAt": received}


def page(*hits: Any, total: int | None = None) -> bytes:
    return json.dumps({"TotalCount": len(hits) if total is None else total, "Messages": hits}).encode()


def test_a_hit_is_proved_by_the_uid_in_its_own_metadata() -> None:
    """A filter that was ignored shows other people's mail."""
    assert read_finding(200, page(hit()), UID) == Found((ID,))
    assert read_finding(200, page(hit(OTHER, "o"), hit(str(UID).upper())), UID) == Found((ID,))
    assert read_finding(200, page(hit(), hit(message_id="second")), UID) == Found((ID, "second"))
    assert read_finding(200, page(), UID) == Missing()


@pytest.mark.parametrize(
    ("status", "content", "failed"),
    [
        (200, page(hit(OTHER)), False),
        (200, page({"MessageID": ID}), False),
        (200, page(*[hit(OTHER)] * 50), False),
        (200, page(total=3), False),
        (200, page(hit(message_id=None)), True),
        (200, HTML, True),
        (200, b"[]", True),
        (200, b'{"Messages": [1]}', True),
        (200, b'{"Messages": null}', True),
        (401, body(10), True),
        (422, body(700), True),
        (500, page(), True),
    ],
)
def test_a_search_that_cannot_prove_a_no_says_so(status: int, content: bytes, failed: bool) -> None:
    """Everything but a clean empty answer would send again on a guess."""
    finding = read_finding(status, content, UID)

    assert isinstance(finding, Inconclusive)
    assert finding.failed is failed


def test_a_page_knows_ours_and_how_far_back_it_reaches() -> None:
    """Both spellings of the time, seven digits of fraction."""
    read = read_page(
        200, page(hit(), {"MessageID": "x", "ReceivedAt": "2026-01-01T14:00:00.1234567Z", "Metadata": {}})
    )

    assert not isinstance(read, Inconclusive)
    assert read.ours == ((UID, ID),)
    assert read.oldest == pytest.approx(1767276000.1234567, abs=1e-5)
    assert read.full is False
    assert read_page(200, page(*[hit()] * 500)).full is True  # type: ignore[union-attr]


@pytest.mark.parametrize("received", ["", "yesterday", "2026-01-01T10:00:00", "9999-99-99T00:00:00Z"])
def test_a_page_with_an_unreadable_time_proves_nothing(received: str) -> None:
    """Without it nobody knows how far back the listing reaches."""
    assert isinstance(read_page(200, page(hit(received=received))), Inconclusive)


def test_health_tells_blocked_from_well_from_unknown() -> None:
    """A probe opens the gate only on a clear yes."""
    assert read_health(200, b'{"ID": 7, "Name": "x"}') == Health(server="postmark:7")
    assert read_health(401, body(10)) == Health(blocked="HTTP 401, ErrorCode 10: text")
    assert isinstance(read_health(403, HTML), Health)
    for status, content in [(200, HTML), (200, b'{"ID": true}'), (500, b""), (302, b"")]:
        assert isinstance(read_health(status, content), Inconclusive)
