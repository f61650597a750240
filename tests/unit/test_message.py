"""What an `Email` refuses, what it leaves alone, and that it survives storage."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notifyq import message_rules as rules
from notifyq.attachment import Attachment
from notifyq.errors import InvalidEmail
from notifyq.message import Address, Email

GOOD: dict[str, Any] = {"key": "k", "to": "a@example.com", "subject": "s", "text": "t"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def email(**changes: Any) -> Email:
    return Email(**{**GOOD, **changes})


def refused(make: Callable[[], object]) -> InvalidEmail:
    with pytest.raises(InvalidEmail) as caught:
        make()
    return caught.value


CONTROLS = ["\r", "\n", "\r\n", "\x00", "\x01", "\t", "\x7f", "\x85", "\u2028", "\u2029"]
SURROGATES = ["\ud83d", "\udc00"]

HEADER_PLACES: dict[str, Callable[[str], object]] = {
    "key": lambda bad: email(key=f"k{bad}k"),
    "subject": lambda bad: email(subject=f"s{bad}s"),
    "to.email": lambda bad: email(to=f"a{bad}@example.com"),
    "cc[0].email": lambda bad: email(cc=[f"a@exa{bad}mple.com"]),
    "from.email": lambda bad: email(from_=f"a@example.com{bad}"),
    "name": lambda bad: Address("a@example.com", f"A{bad}B"),
    "headers": lambda bad: email(headers={f"X-A{bad}B": "v"}),
    "headers['X-A']": lambda bad: email(headers={"X-A": f"v{bad}v"}),
    "tag": lambda bad: email(tag=f"t{bad}t"),
    "metadata": lambda bad: email(metadata={f"k{bad}": "v"}),
    "metadata['k']": lambda bad: email(metadata={"k": f"v{bad}"}),
    "content_type": lambda bad: Attachment("a.txt", f"text/plain{bad}", b""),
    "content_id": lambda bad: Attachment("a.txt", "text/plain", b"", f"x{bad}"),
}


@pytest.mark.parametrize("bad", CONTROLS + SURROGATES, ids=ascii)
@pytest.mark.parametrize("field", HEADER_PLACES)
def test_nothing_that_ends_a_header_gets_into_one(field: str, bad: str) -> None:
    """A line break in a header adds a header, a NUL kills the insert, a lone surrogate the JSON."""
    error = refused(lambda: HEADER_PLACES[field](bad))

    assert error.field == field
    assert bad not in str(error)


@pytest.mark.parametrize("bad", CONTROLS + SURROGATES, ids=ascii)
def test_an_attachment_name_is_one_line(bad: str) -> None:
    """It ends in a MIME header."""
    assert refused(lambda: Attachment(f"a{bad}.txt", "text/plain", b"")).field == "name"


@pytest.mark.parametrize("bad", ["\x00", *SURROGATES], ids=ascii)
@pytest.mark.parametrize("field", ["text", "html"])
def test_a_body_holds_no_nul_and_no_lone_surrogate(field: str, bad: str) -> None:
    """Postgres refuses both inside jsonb, which would break the caller's transaction."""
    assert refused(lambda: email(**{field: f"né{bad}"})).field == field
    assert refused(lambda: email(**{field: f"n{bad}"})).field == field


@pytest.mark.parametrize("text", ["a\r\nb\tc", "\ufeffstart", "\u202eabc", "\x01", "Zoë 🎉"], ids=ascii)
def test_a_body_keeps_everything_else(text: str) -> None:
    """What is merely odd is the writer's text."""
    made = email(text=text, html=text)

    assert (made.text, made.html) == (text, text)


@pytest.mark.parametrize("text", ["Zoë 🎉", "\ufeffstart", "\u202eabc", "日本語"], ids=ascii)
def test_names_and_subjects_stay_unicode(text: str) -> None:
    """Postmark takes UTF-8; encoded-words would be shown as they are."""
    made = email(subject=text, to=Address("a@example.com", text))

    assert (made.subject, made.to[0].name) == (text, text)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "a",
        "@example.com",
        "a@",
        "a@@example.com",
        "a@example",
        "a@example..com",
        "a@.example.com",
        "a@example.com.",
        "a@-example.com",
        "a@exa_mple.com",
        "a@1.2.3.4",
        "a@[1.2.3.4]",
        ".a@example.com",
        "a.@example.com",
        "a..b@example.com",
        "a b@example.com",
        " a@example.com",
        "a@example.com ",
        "a@example.com,b@example.com",
        "a@example.com, b@example.com",
        "a@example.com;b@example.com",
        "Ann <a@example.com>",
        "<a@example.com>",
        '"a,b"@example.com',
        "jörg@example.com",
        "a@bü cher.example",
        "a@xn--.example",
        "a" * 65 + "@example.com",
        "a@" + "x" * 64 + ".com",
        "a@" + "xxx." * 70 + "com",
        "a@" + "ü" * 3000 + ".com",
        None,
        7,
    ],
    ids=lambda bad: ascii(bad)[:40],
)
def test_what_is_not_one_plain_address_is_refused(bad: Any) -> None:
    """A joined list, a hidden name or a half address would send to somebody else or to nobody."""
    assert refused(lambda: Address(bad)).field == "email"


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        ("Ann.O'Neil+tag@Example.COM", "Ann.O'Neil+tag@example.com"),
        ("a@bücher.example", "a@xn--bcher-kva.example"),
        ("a@BÜCHER.example", "a@xn--bcher-kva.example"),
        ("a@faß.example", "a@xn--fa-hia.example"),  # IDNA 2003 would have made this fass.example
        ("a@XN--BCHER-KVA.example", "a@xn--bcher-kva.example"),
        ("a@例え.テスト", "a@xn--r8jz45g.xn--zckzah"),
    ],
)
def test_domains_become_plain_lower_case_ascii(given_: str, kept: str) -> None:
    """Postmark wants punycode, and a local part is nobody's to change."""
    assert Address(given_).email == kept


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("Ann Example", "Ann Example <j@example.com>"),
        ("Doe, John", '"Doe, John" <j@example.com>'),
        ("Ennis BA (Hons), PG Dip", '"Ennis BA (Hons), PG Dip" <j@example.com>'),
        ('O"Brien', '"O\\"Brien" <j@example.com>'),
        ("Back\\slash", '"Back\\\\slash" <j@example.com>'),
        ('Zoë "Z" Ünal', '"Zoë \\"Z\\" Ünal" <j@example.com>'),
        ("ACME; Inc.", '"ACME; Inc." <j@example.com>'),
        ("x> , <evil@example.com", '"x> , <evil@example.com" <j@example.com>'),
        ("", "j@example.com"),
    ],
)
def test_a_display_name_stays_one_recipient(name: str, written: str) -> None:
    """A comma or an angle bracket in a name must not become a second recipient."""
    address = Address("j@example.com", name)

    assert address.formatted() == written
    assert Address.parse(written) == address


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=100))
def test_whatever_the_name_the_address_reads_back(name: str) -> None:
    """Quoting is complete, not a list of known cases."""
    address = Address("j@example.com", name)

    assert Address.parse(address.formatted()) == address


@pytest.mark.parametrize(
    "text", ["A <a@example.com>, B <b@example.com>", "a@example.com, b@example.com", "A <a>", ""]
)
def test_parse_reads_one_mailbox_only(text: str) -> None:
    """A setting that names two senders is a mistake."""
    assert refused(lambda: Address.parse(text)).field == "email"


@pytest.mark.parametrize("key", [None, "", "   "])
def test_a_missing_key_explains_both_mistakes(key: Any) -> None:
    """The key is the business rule; who has none needs to know why it is asked for."""
    error = refused(lambda: email(key=key))

    assert error.field == "key"
    for part in ("random", "every click", "silently never", "for example"):
        assert part in str(error)


def test_a_forgotten_key_is_the_same_error_and_no_type_error() -> None:
    """The explanation must meet the person who did not write key= at all."""
    assert refused(lambda: Email(to="a@example.com", subject="s", text="t")).field == "key"


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "key too long": ("key", {"key": "k" * 501}),
    "no recipient": ("to", {"to": []}),
    "no recipient, none": ("to", {"to": None}),
    "51 recipients": (
        "to",
        {"to": ["a@example.com"] * 30, "cc": ["a@example.com"] * 20, "bcc": "a@example.com"},
    ),
    "51 reply-to": ("reply_to", {"reply_to": ["a@example.com"] * 51}),
    "second is bad": ("to[1].email", {"to": ["a@example.com", "b"]}),
    "a joined list": ("to.email", {"to": "a@example.com, b@example.com"}),
    "subject too long": ("subject", {"subject": "🎉" * 1000 + "!"}),
    "subject not a text": ("subject", {"subject": None}),
    "no body": ("text", {"text": None}),
    "empty bodies": ("text", {"text": "", "html": ""}),
    "text over 5 MB": ("text", {"text": "x" * (rules.MAX_BODY + 1)}),
    "html over 5 MB in UTF-8": ("html", {"html": "ü" * (rules.MAX_BODY // 2 + 1)}),
    "from over 255": ("from", {"from_": Address("a@example.com", "n" * 250)}),
    "tag too long": ("tag", {"tag": "t" * 1001}),
    "naive run_after": ("run_after", {"run_after": datetime(2026, 1, 1)}),
    "naive send_before": ("send_before", {"send_before": datetime(2026, 1, 1)}),
    "send_before first": ("send_before", {"run_after": NOW, "send_before": NOW}),
    "run_after no time": ("run_after", {"run_after": 5}),
    "metadata: 9 fields": ("metadata", {"metadata": {f"k{n}": "v" for n in range(9)}}),
    "metadata: long name": ("metadata", {"metadata": {"k" * 21: "v"}}),
    "metadata: no name": ("metadata", {"metadata": {"": "v"}}),
    "metadata: long value": ("metadata['k']", {"metadata": {"k": "v" * 81}}),
    "metadata: number": ("metadata['k']", {"metadata": {"k": 1}}),
    "metadata: case": ("metadata", {"metadata": {"a": "1", "A": "2"}}),
    "metadata: ours": ("metadata['NotifyQ']", {"metadata": {"NotifyQ": "1"}}),
    "metadata: ours too": ("metadata['notifyq_claim']", {"metadata": {"notifyq_claim": "1"}}),
    "metadata: a list": ("metadata", {"metadata": []}),
    "headers: empty name": ("headers", {"headers": {"": "v"}}),
    "headers: colon": ("headers", {"headers": {"X-A: b": "v"}}),
    "headers: not ASCII": ("headers", {"headers": {"X-Ä": "v"}}),
    "headers: number": ("headers['X-A']", {"headers": {"X-A": 1}}),
    "forbidden stream": ("stream", {"stream": "a b"}),
    "empty stream": ("stream", {"stream": ""}),
    "priority": ("priority", {"priority": 2**31}),
    "priority true": ("priority", {"priority": True}),
    "on_doubt": ("on_doubt", {"on_doubt": "maybe"}),
    "attachment": ("attachments[0]", {"attachments": ["a.txt"]}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_sent_is_refused_with_its_field(case: str) -> None:
    """The error must come from the line that wrote the value, not from the worker at night."""
    field, changes = REFUSED[case]

    assert refused(lambda: email(**changes)).field == field


def test_a_name_has_a_limit() -> None:
    """A name of a megabyte is not a name."""
    assert refused(lambda: Address("a@example.com", "n" * 256)).field == "name"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "From",
            "SENDER",
            "Bcc",
            "Subject",
            "Date",
            "Message-ID",
            "Content-Type",
            "MIME-Version",
            "To",
            "Cc",
        ),
        *("Return-Path", "Received", "Reply-To", "Content-Transfer-Encoding", "X-PM-Tag"),
        "X-Original-To",
    ],
)
def test_headers_that_belong_to_others_may_not_be_set(name: str) -> None:
    """They are the envelope, the provider's, or ours."""
    assert refused(lambda: email(headers={name: "v"})).field == f"headers[{name!r}]"


@pytest.mark.parametrize("name", ["run.exe", "RUN.EXE", "a.pdf.vbs", "run.exe.", "run.exe ", ".bat"])
def test_files_that_postmark_forbids_are_refused(name: str) -> None:
    """ErrorCode 411, found before it costs an attempt."""
    assert refused(lambda: Attachment(name, "application/octet-stream", b"")).field == "name"


@pytest.mark.parametrize("name", ["exe", "report.pdf", "exe.pdf", "rechnung ü.pdf", "no extension"])
def test_other_files_pass(name: str) -> None:
    """A name without a dot has no extension."""
    assert Attachment(name, "application/pdf", b"x").name == name


@pytest.mark.parametrize("bad", ["", "pdf", "application/", "a b/c", 5])
def test_a_content_type_has_two_parts(bad: Any) -> None:
    """Postmark would answer 403 for less."""
    assert refused(lambda: Attachment("a.pdf", bad, b"")).field == "content_type"


def test_the_limits_themselves_pass() -> None:
    """A limit is the last value that works."""
    made = email(
        key="k" * 500,
        to=["a@example.com"] * 50,
        subject="🎉" * 1000,
        tag="t" * 1000,
        metadata={f"{n}" + "k" * 19: "v" * 80 for n in range(8)},
        text="x" * (5 * 1024 * 1024),
    )

    assert len(made.to) == 50


def _with_json_of(size: int) -> Email:
    """An email whose stored JSON with its attachment is exactly *size* bytes."""
    attachment = Attachment("a.dat", "application/octet-stream", b"\0" * (rules.MAX_MESSAGE // 4 * 3 - 3000))
    without = len(json.dumps(email(attachments=[attachment]).message(), separators=(",", ":")))
    return email(attachments=[attachment], text="t" * (1 + size - without))


def test_the_whole_message_has_postmarks_limit_less_what_the_worker_adds() -> None:
    """Too large is a 413 or a 422 later; the margin keeps room for sender, metadata and X-Original-To."""
    assert _with_json_of(rules.MAX_MESSAGE)
    assert refused(lambda: _with_json_of(rules.MAX_MESSAGE + 1)).field == "attachments"
    assert rules.MAX_REQUEST == 10_485_760


def test_a_body_that_json_makes_six_times_longer_is_counted_as_it_is_written() -> None:
    """Control characters travel as six bytes each."""
    assert refused(lambda: email(text="\x01" * 2_000_000)).field == "html"


def test_empty_is_none() -> None:
    """An empty body or tag means that there is none."""
    made = email(html="", tag="")

    assert (made.html, made.tag) == (None, None)


def test_recipients_may_be_one_or_several() -> None:
    """A tuple of addresses, however they were given."""
    one, two = Address("a@example.com"), Address("b@example.com")

    assert email(to=one).to == (one,)
    assert email(to="a@example.com").to == (one,)
    assert email(to=(address for address in [one, "b@example.com"])).to == (one, two)


def test_an_email_cannot_be_changed() -> None:
    """Valid once made means valid for ever."""
    made = email(metadata={"k": "v"}, headers={"X-A": "b"})

    with pytest.raises(dataclasses.FrozenInstanceError):
        made.subject = "x"  # type: ignore[misc]
    for mapping in (made.metadata, made.headers):
        with pytest.raises(TypeError):
            mapping["k"] = "w"  # type: ignore[index]
    assert hash(made) == hash(email(metadata={"k": "v"}, headers={"X-A": "b"}))
    assert dataclasses.replace(made, subject="new").subject == "new"


def test_a_repr_tells_nothing() -> None:
    """Reprs end in logs and error trackers."""
    secret = "hidden"
    made = email(
        key=secret,
        to=Address(f"{secret}@example.com", secret),
        subject=secret,
        text=secret,
        attachments=[Attachment(secret, "text/plain", secret.encode())],
    )

    assert secret not in repr(made) + repr(made.to) + repr(made.attachments)


def test_a_stored_message_is_as_short_as_it_can_be() -> None:
    """The shape that other programs write with plain SQL."""
    assert email().message() == {"to": [{"email": "a@example.com"}], "subject": "s", "text": "t"}


FULL: dict[str, Any] = {
    "to": [{"email": "a@example.com", "name": "A"}],
    "from": {"email": "b@example.com"},
    "cc": [{"email": "c@example.com"}],
    "bcc": [{"email": "d@example.com"}],
    "reply_to": [{"email": "e@example.com"}],
    "subject": "s",
    "html": "<p>",
    "text": "t",
    "headers": {"X-A": "b"},
    "tag": "g",
    "metadata": {"m": "1"},
    "stream": "broadcast",
    "attachments": [{"name": "a.png", "content_type": "image/png", "content": "AAE=", "content_id": "i"}],
}


def test_every_field_of_a_stored_message_is_kept() -> None:
    """What one side writes the other reads."""
    made = Email.from_message("k", FULL, priority=-1, on_doubt="hold", run_after=NOW)

    assert made.message() == FULL
    assert (made.priority, made.on_doubt, made.run_after) == (-1, "hold", NOW)


BAD_MESSAGES: dict[str, tuple[str, Any]] = {
    "not an object": ("message", []),
    "unknown field": ("message", {**FULL, "txt": "x"}),
    "no subject": ("subject", {"to": FULL["to"], "text": "t"}),
    "no to": ("to", {"subject": "s", "text": "t"}),
    "to is an object": ("to", {**FULL, "to": {"email": "a@example.com"}}),
    "to holds texts": ("to[0]", {**FULL, "to": ["a@example.com"]}),
    "bad name": ("to[0].name", {**FULL, "to": [{"email": "a@example.com", "name": "a\nb"}]}),
    "name is a number": ("to[0].name", {**FULL, "to": [{"email": "a@example.com", "name": 0}]}),
    "address with more": ("to[0]", {**FULL, "to": [{"email": "a@example.com", "nme": "x"}]}),
    "no email": ("from.email", {**FULL, "from": {}}),
    "subject with a break": ("subject", {**FULL, "subject": "foo\r\n bar"}),
    "text is a number": ("text", {**FULL, "text": 5}),
    "headers is a list": ("headers", {**FULL, "headers": []}),
    "metadata is a text": ("metadata", {**FULL, "metadata": ""}),
    "not base64": (
        "attachments[0].content",
        {**FULL, "attachments": [{**FULL["attachments"][0], "content": "!"}]},
    ),
    "base64 of what": ("attachments[0].content", {**FULL, "attachments": [{"name": "a"}]}),
    "forbidden file": (
        "attachments[0].name",
        {**FULL, "attachments": [{**FULL["attachments"][0], "name": "a.exe"}]},
    ),
    "attachments is a text": ("attachments", {**FULL, "attachments": "x"}),
}


@pytest.mark.parametrize("case", BAD_MESSAGES)
def test_a_row_from_plain_sql_meets_the_same_checks(case: str) -> None:
    """One bad row must die alone, with its reason, and stall nobody."""
    field, message = BAD_MESSAGES[case]

    assert refused(lambda: Email.from_message("k", message)).field == field


def test_json_null_is_absent() -> None:
    """Other languages write it for what they do not have."""
    nulls = dict.fromkeys(["from", "cc", "html", "headers", "tag", "metadata", "stream", "attachments"])

    assert Email.from_message("k", {**email().message(), **nulls}) == email()


lines = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=40)
bodies = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200)
addresses = st.builds(
    Address, st.sampled_from(["a@example.com", "b.c+d@sub.example.org", "x@bücher.example"]), name=lines
)
files = st.builds(
    Attachment,
    st.sampled_from(["a.txt", "ü.pdf"]),
    st.just("application/pdf"),
    st.binary(max_size=50),
    st.none() | st.just("cid:logo"),
)
times = st.datetimes(
    min_value=datetime(2000, 1, 1),
    max_value=datetime(9000, 1, 1),
    timezones=st.just(timezone(timedelta(hours=2))),
)
emails = st.builds(
    Email,
    key=st.just("k"),
    to=st.lists(addresses, min_size=1, max_size=3),
    subject=lines,
    text=bodies.filter(bool),
    html=st.none() | bodies,
    from_=st.none() | addresses,
    cc=st.lists(addresses, max_size=2),
    bcc=st.lists(addresses, max_size=2),
    reply_to=st.lists(addresses, max_size=2),
    headers=st.dictionaries(st.sampled_from(["X-A", "X-B"]), lines),
    tag=st.none() | lines,
    metadata=st.dictionaries(st.sampled_from(["a", "b"]), lines),
    stream=st.none() | st.just("outbound"),
    attachments=st.lists(files, max_size=2),
    run_after=st.none() | times,
    priority=st.integers(-5, 5),
    on_doubt=st.sampled_from(["ask", "resend", "hold"]),
)


@given(emails)
@settings(max_examples=200, deadline=None)
def test_an_email_survives_storage(original: Email) -> None:
    """What was enqueued is what is sent, through real JSON."""
    stored = json.loads(json.dumps(original.message()))
    again = Email.from_message(
        original.key,
        stored,
        run_after=original.run_after,
        send_before=original.send_before,
        priority=original.priority,
        on_doubt=original.on_doubt,
    )

    assert again == original


def test_a_file_that_postgres_wrote_in_base64_is_read() -> None:
    """Postgres' own encode() breaks its lines after 76 characters."""
    content = b"invoice " * 40
    stored = {"name": "a.txt", "content_type": "text/plain", "content": base64.encodebytes(content).decode()}
    message = {"to": [{"email": "a@example.com"}], "subject": "s", "text": "t", "attachments": [stored]}

    assert Email.from_message("k", message).attachments[0].content == content
