"""The fake's rules are pure: each refusal of Postmark, its addresses, its search and its time."""

from __future__ import annotations

import ast
import json
import random
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import notifyq.testing
from notifyq.testing.addresses import BadAddress, Mailbox, parse_addresses
from notifyq.testing.desk import Desk
from notifyq.testing.eastern import parse_moment, stamp
from notifyq.testing.ledger import Ledger
from notifyq.testing.rules import Account, Refusal, check_message

GOOD: dict[str, Any] = {"From": "a@example.com", "To": "b@example.com", "Subject": "s", "TextBody": "t"}
FIFTY = ", ".join(f"u{number}@example.com" for number in range(50))


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 30, 17, tzinfo=ZoneInfo("UTC")).timestamp()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def desk(clock: Clock) -> Desk:
    return Desk(token="t", ledger=Ledger(clock), account=Account(), clock=clock)


def send(desk: Desk, **fields: Any) -> Any:
    return desk.send(json.dumps({**GOOD, **fields}).encode())


def search(desk: Desk, **query: str) -> Any:
    return desk.search({"count": "500", "offset": "0", **query})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"Surprise": 1}, 403),
        ({"To": ["b@example.com"]}, 403),
        ({"TrackOpens": "yes"}, 403),
        ({"TrackLinks": "Some"}, 300),
        ({"MessageStream": "nowhere"}, 1235),
        ({"MessageStream": "inbound"}, 1236),
        ({"To": "broken"}, 300),
        ({"To": ""}, 300),
        ({"To": "Doe, Jane <b@example.com>"}, 300),
        ({"To": "müller@example.com"}, 300),
        ({"To": "b@müller.example"}, 300),
        ({"To": "b@@example.com"}, 300),
        ({"To": "b@example..com"}, 300),
        ({"To": "b@example.com\r\nBcc: x@example.com"}, 300),
        ({"To": "b@example.com,"}, 300),
        ({"Cc": "broken"}, 300),
        ({"Bcc": "broken"}, 300),
        ({"ReplyTo": "broken"}, 300),
        ({"From": "broken"}, 300),
        ({"From": None}, 300),
        ({"From": "a@example.com, b@example.com"}, 300),
        ({"To": FIFTY, "Cc": "one@example.com"}, 300),
        ({"TextBody": ""}, 300),
        ({"TextBody": "x" * (5 * 1024 * 1024 + 1)}, 300),
        ({"Subject": "x" * 2001}, 300),
        ({"Subject": "😀" * 1001}, 300),
        ({"Subject": "a\nb"}, 300),
        ({"From": f'"{"x" * 250}" <a@example.com>'}, 300),
        ({"Tag": "x" * 1001}, 300),
        ({"Metadata": {str(number): "x" for number in range(11)}}, 300),
        ({"Metadata": {"k" * 21: "x"}}, 300),
        ({"Metadata": {"k": "x" * 81}}, 300),
        ({"Metadata": {"k": "1", "K": "2"}}, 300),
        ({"Metadata": {"k": {"a": 1}}}, 300),
        ({"Metadata": {"k": None}}, 300),
        ({"Headers": [{"Name": "X"}]}, 403),
        ({"Headers": [{"Name": "X", "Value": "a\r\nb"}]}, 300),
        ({"Attachments": [{"Name": "a.EXE", "Content": "", "ContentType": "x/y"}]}, 411),
        ({"Attachments": [{"Name": "a.txt", "Content": "?", "ContentType": "x/y"}]}, 300),
        ({"Attachments": [{"Name": "a.txt"}]}, 403),
    ],
)
def test_a_message_is_refused_with_the_code_that_postmark_gives(change: dict[str, Any], code: int) -> None:
    """A fake that accepts what Postmark refuses proves nothing."""
    refusal = check_message({**GOOD, **change}, Account())

    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.status) == (code, 422)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"To": '"Doe, Jane" <b@example.com>'},
        {"To": FIFTY},
        {"TextBody": None, "HtmlBody": "<p>"},
        {"Subject": "😀" * 1000},
        {"Subject": None, "Cc": None, "Metadata": None},
        {"Metadata": {"k" * 20: "x" * 80, "number": 7}},
        {"Tag": "x" * 1000},
        {"Attachments": [{"Name": "a.pdf", "Content": "QQ==", "ContentType": "x/y", "ContentID": None}]},
        {"Headers": [{"Name": "X-A", "Value": "b"}]},
        {"MessageStream": "broadcast"},
    ],
)
def test_a_message_at_the_limits_passes(change: dict[str, Any]) -> None:
    """A fake that refuses what Postmark accepts would make us refuse good emails."""
    assert check_message({**GOOD, **change}, Account()) is None


def test_an_error_in_an_address_names_the_field_and_the_part() -> None:
    """The client tells a fault of From from a fault of the message by this text."""
    refusal = check_message({**GOOD, "To": "Doe, Jane <b@example.com>"}, Account())

    assert refusal == Refusal(300, "Invalid 'To' address: 'Doe'.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("b@example.com", (Mailbox("b@example.com"),)),
        ("Jane <b@example.com>", (Mailbox("b@example.com", "Jane"),)),
        ('"Doe, Jane" <b@example.com>', (Mailbox("b@example.com", "Doe, Jane"),)),
        (r'"a \"b\" \\ <c>" <b@example.com>', (Mailbox("b@example.com", r'a "b" \ <c>'),)),
        ("Ünal <b@x.com> , c@x.com", (Mailbox("b@x.com", "Ünal"), Mailbox("c@x.com"))),
    ],
)
def test_an_address_list_is_read_as_it_was_meant(text: str, expected: tuple[Mailbox, ...]) -> None:
    """A comma, a quote or an angle bracket inside a quoted name is part of the name."""
    assert parse_addresses(text) == expected


@pytest.mark.parametrize(
    "text", ['"Doe, Jane <b@x.com>', 'a "b" <c@x.com>', "<b@x.com", "a b@x.com", "a<b>c@x.com"]
)
def test_a_broken_address_is_refused(text: str) -> None:
    """What cannot be read for sure is not guessed at."""
    with pytest.raises(BadAddress):
        parse_addresses(text)


def test_only_known_senders_may_send_when_they_are_set() -> None:
    """ErrorCode 400 is a fault of the account's set-up, and a verified domain covers all its addresses."""
    account = Account(senders=["Shop@one.example", "two.example"])

    codes = [
        getattr(check_message({**GOOD, "From": sender}, account), "code", 0)
        for sender in ("shop@one.example", "other@one.example", "any@TWO.example", "a@sub.two.example")
    ]

    assert codes == [0, 400, 0, 400]


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"\xff", b'{"a": NaN}', b"[" * 100_000])
def test_what_is_no_json_object_is_402(desk: Desk, body: bytes) -> None:
    """Whatever the bytes are, the answer is Postmark's envelope and not a crash."""
    assert desk.send(body).label == "422/402"


def test_a_message_over_ten_megabytes_is_300_with_the_number(desk: Desk) -> None:
    """Seen on the real wire: over-size below 50 MB is no 413."""
    reply = desk.send(b"x" * 10_485_761)

    assert (reply.label, "10485760" in reply.body["Message"]) == ("422/300", True)


def test_an_accepted_message_is_answered_in_postmarks_shape(desk: Desk) -> None:
    """Clients parse exactly these keys, the lower-case UUID and the seven digits."""
    reply = send(desk, To="Jane <b@example.com>", Metadata={"notifyq": "u", "n": 1})

    message = desk.ledger.accepted[0]
    assert reply.body == {
        "To": "Jane <b@example.com>",
        "SubmittedAt": "2026-11-30T17:00:00.0000000Z",
        "MessageID": message.message_id,
        "ErrorCode": 0,
        "Message": "OK",
    }
    assert (message.uid, message.metadata, message.to) == (
        "u",
        {"notifyq": "u", "n": "1"},
        ("b@example.com",),
    )
    desk.zulu = False
    assert send(desk).body["SubmittedAt"] == "2026-11-30T12:00:00.0000000-05:00"


def test_a_batch_answers_each_item_in_its_place(desk: Desk) -> None:
    """Inside one 200, a bad item has two keys and does not disturb its neighbours."""
    reply = desk.send_batch(json.dumps([GOOD, {**GOOD, "To": "x"}, GOOD]).encode())

    assert [item["ErrorCode"] for item in reply.body] == [0, 300, 0]
    assert set(reply.body[1]) == {"ErrorCode", "Message"}
    assert len(desk.ledger.accepted) == len(reply.message_ids) == 2


def test_a_batch_of_more_than_500_is_refused_whole(desk: Desk) -> None:
    """ErrorCode 410 fails all of it."""
    assert desk.send_batch(json.dumps([GOOD] * 501).encode()).label == "422/410"
    assert desk.ledger.accepted == []


def test_the_test_token_accepts_and_stores_nothing(desk: Desk) -> None:
    """Such a message can never be found by search."""
    reply = desk.send(json.dumps(GOOD).encode(), test=True)

    assert reply.body["Message"] == "Test job accepted"
    assert desk.ledger.accepted == []


def test_a_suppressed_recipient_is_406_on_its_stream_alone(desk: Desk) -> None:
    """Suppression lists are per stream, and clients read the address out of the sentence."""
    desk.account.suppressed["outbound"] = {"b@example.com"}

    reply = send(desk, To="Jane <B@example.com>")

    assert reply.label == "422/406"
    assert "Found inactive addresses: b@example.com. Inactive" in reply.body["Message"]
    assert send(desk, MessageStream="broadcast").label == "200"


@pytest.mark.parametrize(("partial", "label"), [("serve", "200"), ("refuse_but_serve", "422/406")])
def test_some_suppressed_recipients_leave_the_others_served(desk: Desk, partial: Any, label: str) -> None:
    """Today's real answer is unknown; in both forms a message was accepted, which is why it is ambiguous."""
    desk.account.suppressed["outbound"] = {"b@example.com"}
    desk.partial = partial

    reply = send(desk, Cc="c@example.com")

    assert (reply.label, len(desk.ledger.accepted)) == (label, 1)
    assert "inactive addresses: b@example.com" in reply.body["Message"]


@pytest.mark.parametrize(
    "query",
    [
        {"offset": "0"},
        {"count": "1"},
        {"count": "x", "offset": "0"},
        {"count": "0", "offset": "0"},
        {"count": "501", "offset": "0"},
        {"count": "500", "offset": "9501"},
        {"count": "1", "offset": "0", "metadata_a": "1", "metadata_b": "2"},
        {"count": "1", "offset": "0", "unheard_of": "1"},
        {"count": "1", "offset": "0", "status": "eaten"},
        {"count": "1", "offset": "0", "fromdate": "2026-01-01T00:00:00Z"},
    ],
)
def test_a_search_that_breaks_a_rule_is_700(desk: Desk, query: dict[str, str]) -> None:
    """A client that forgets count and offset must not see an empty answer, which would read as "no"."""
    assert desk.search(query).label == "422/700"


def test_a_search_filters_and_shows_the_newest_first(desk: Desk, clock: Clock) -> None:
    """Each documented filter narrows; the stream is outbound unless it is said."""
    for number in range(3):
        clock.now += 10
        send(
            desk,
            Subject=f"s{number}",
            Tag=f"t{number}",
            Bcc=f"bcc{number}@example.com",
            From=f"a{number}@example.com",
            Metadata={"NotifyQ": f"u{number}"},
        )
    send(desk, MessageStream="broadcast")

    subjects = [item["Subject"] for item in search(desk).body["Messages"]]
    assert subjects == ["s2", "s1", "s0"]
    filters = {
        "metadata_notifyq": "u1",
        "recipient": "BCC1@example.com",
        "tag": "t1",
        "subject": "s1",
        "fromemail": "a1@example.com",
    }
    for name, value in filters.items():
        found = search(desk, **{name: value}).body
        assert (found["TotalCount"], found["Messages"][0]["Subject"]) == (1, "s1"), name
    assert search(desk, messagestream="broadcast").body["TotalCount"] == 1
    assert search(desk, status="queued").body["TotalCount"] == 0
    assert search(desk, count="1", offset="1").body["Messages"][0]["Subject"] == "s1"


def test_search_dates_are_read_as_us_eastern(desk: Desk) -> None:
    """17:00 UTC is noon there in November; both ends are inclusive."""
    send(desk)

    for query, expected in [
        ({"fromdate": "2026-11-30T12:00:00"}, 1),
        ({"fromdate": "2026-11-30T12:00:01"}, 0),
        ({"todate": "2026-11-30T12:00:00"}, 1),
        ({"todate": "2026-11-30T11:59:59"}, 0),
        ({"fromdate": "2026-11-30", "todate": "2026-11-30"}, 1),
        ({"todate": "2026-11-29"}, 0),
    ]:
        assert search(desk, **query).body["TotalCount"] == expected, query


def test_a_search_lags_and_forgets(desk: Desk, clock: Clock) -> None:
    """A miss proves nothing before the lag is over, nor after the retention."""
    send(desk)
    desk.search_lag = 90
    seen = []
    for now in (0, 89, 90, 45 * 86_400, 45 * 86_400 + 1):
        clock.now = desk.ledger.accepted[0].accepted_epoch + now
        seen.append(search(desk).body["TotalCount"])
    desk.search_lag = None

    assert seen == [0, 0, 1, 1, 0]
    assert search(desk).body["TotalCount"] == 0


def test_details_of_an_unknown_message_are_701(desk: Desk) -> None:
    """Unknown and expired ids look the same."""
    send(desk)

    assert desk.details(desk.ledger.accepted[0].message_id).body["TextBody"] == "t"
    assert desk.details("nobody").label == "422/701"


def test_eastern_time_agrees_with_the_time_zone_database() -> None:
    """The rule is written out by hand, so it is held against the real one over twenty years."""
    zone, chance = ZoneInfo("America/New_York"), random.Random(7)
    first = int(datetime(2010, 1, 1, tzinfo=zone).timestamp())
    edges = [
        datetime(2026, 3, 8, 7, tzinfo=ZoneInfo("UTC")),
        datetime(2026, 11, 1, 6, tzinfo=ZoneInfo("UTC")),
    ]
    seconds = [int(edge.timestamp()) + near for edge in edges for near in (-3600, -1, 0, 1, 3600)]

    for second in seconds + [first + chance.randrange(630_000_000) for _ in range(2000)]:
        local = datetime.fromtimestamp(second, zone)
        assert stamp(second) == local.strftime("%Y-%m-%dT%H:%M:%S.0000000") + f"{local:%z}"[:3] + ":00"
        if local.hour != 1:  # that hour comes twice in November
            assert parse_moment(local.strftime("%Y-%m-%dT%H:%M:%S")) == (second, second + 1)


def test_the_fake_does_not_know_the_code_it_tests() -> None:
    """It is the other side of the wire: an error shared by both sides would stay unseen."""
    own = {"database.py", "drain.py", "plugin.py"}
    folder = Path(notifyq.testing.__file__).parent
    imported = {
        node.module
        for file in folder.glob("*.py")
        if file.name not in own
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("notifyq")
    }

    assert {name for name in imported if not str(name).startswith("notifyq.testing")} == set()
