"""What goes over the wire to Postmark for one email."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from notifyq.attachment import Attachment
from notifyq.errors import InvalidSettings, MissingSender
from notifyq.message import Address, Email
from notifyq.message_rules import WORKER_ADDS
from notifyq.postmark_payload import build_postmark_payload

UID = UUID("11111111-2222-4333-8444-555555555555")
GOOD: dict[str, Any] = {"key": "k", "to": "a@example.com", "subject": "s", "text": "t"}


def email(**changes: Any) -> Email:
    return Email(**{**GOOD, "from_": "shop@example.com", **changes})


def test_an_email_is_written_with_postmarks_names() -> None:
    """Each field in its place, nothing else."""
    full = email(
        to=[Address("a@example.com", "Doe, John"), "b@example.com"],
        cc="c@example.com",
        bcc="d@example.com",
        reply_to=["e@example.com", "f@example.com"],
        html="<p>",
        headers={"X-A": "b"},
        tag="g",
        metadata={"order": "7"},
        stream="broadcast",
        attachments=[
            Attachment("a.png", "image/png", b"\0\1", "logo"),
            Attachment("b.txt", "text/plain", b"b"),
        ],
    )

    assert build_postmark_payload(full, {}, uid=UID, claim=3) == {
        "From": "shop@example.com",
        "To": '"Doe, John" <a@example.com>, b@example.com',
        "Cc": "c@example.com",
        "Bcc": "d@example.com",
        "ReplyTo": "e@example.com, f@example.com",
        "Subject": "s",
        "HtmlBody": "<p>",
        "TextBody": "t",
        "Tag": "g",
        "Headers": [{"Name": "X-A", "Value": "b"}],
        "Metadata": {"order": "7", "notifyq": str(UID), "notifyq_claim": "3"},
        "MessageStream": "broadcast",
        "Attachments": [
            {"Name": "a.png", "Content": "AAE=", "ContentType": "image/png", "ContentID": "cid:logo"},
            {"Name": "b.txt", "Content": "Yg==", "ContentType": "text/plain"},
        ],
    }


def test_what_is_absent_is_left_out() -> None:
    """An empty HtmlBody is not the same as none to everybody."""
    assert build_postmark_payload(email(), {}) == {
        "From": "shop@example.com",
        "To": "a@example.com",
        "Subject": "s",
        "TextBody": "t",
    }


def test_the_sender_comes_from_the_environment_when_the_email_names_none() -> None:
    """One setting for the whole application, raw UTF-8 in the name."""
    payload = build_postmark_payload(email(from_=None), {"EMAIL_FROM": "Zoë <shop@example.com>"})

    assert payload["From"] == "Zoë <shop@example.com>"


def test_the_environment_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set after the import counts."""
    monkeypatch.delenv("EMAIL_SHUNT", raising=False)
    monkeypatch.setenv("EMAIL_FROM", "late@example.com")

    assert build_postmark_payload(email(from_=None))["From"] == "late@example.com"


@pytest.mark.parametrize("env", [{}, {"EMAIL_FROM": ""}])
def test_no_sender_at_all_is_an_error_of_its_own(env: dict[str, str]) -> None:
    """That row waits until EMAIL_FROM is set; it is not the message's fault."""
    with pytest.raises(MissingSender, match="EMAIL_FROM"):
        build_postmark_payload(email(from_=None), env)


MALFORMED = ["   ", "off", "a@example.com, b@example.com", "a@b", "A <a@example.com", "x" * 300]


@pytest.mark.parametrize("value", MALFORMED)
@pytest.mark.parametrize("name", ["EMAIL_FROM", "EMAIL_SHUNT"])
def test_a_malformed_address_in_the_environment_is_an_error_and_never_off(name: str, value: str) -> None:
    """A shunt with a typing mistake must not let test mail reach customers."""
    with pytest.raises(InvalidSettings) as caught:
        build_postmark_payload(email(from_=None), {"EMAIL_FROM": "x@example.com", name: value})

    assert caught.value.setting == name
    assert value.strip() == "" or value not in str(caught.value)


def test_a_default_sender_has_postmarks_limit() -> None:
    """255 characters, as for an email's own sender."""
    with pytest.raises(InvalidSettings):
        build_postmark_payload(email(from_=None), {"EMAIL_FROM": f"{'n' * 250} <a@example.com>"})


def test_a_shunt_gets_everything_alone() -> None:
    """No Cc and no Bcc may leak out of a test system."""
    full = email(to=["a@example.com", "b@example.com"], cc="c@example.com", bcc=Address("d@example.com", "D"))
    payload = build_postmark_payload(full, {"EMAIL_SHUNT": "Me <me@example.com>"})

    assert payload["To"] == "Me <me@example.com>"
    assert {"Cc", "Bcc"}.isdisjoint(payload)
    assert payload["Headers"] == [
        {"Name": "X-Original-To", "Value": "a@example.com, b@example.com, c@example.com, d@example.com"}
    ]


def test_fifty_original_recipients_fit_into_a_header_line() -> None:
    """RFC 5322 stops at 998 characters a line."""
    full = email(to=[f"{'x' * 60}{n}@example.com" for n in range(50)])
    value = build_postmark_payload(full, {"EMAIL_SHUNT": "me@example.com"})["Headers"][0]["Value"]

    assert len(value) < 950
    assert value.endswith(" more")


def test_an_empty_shunt_is_off() -> None:
    """Unset and empty are the same in a unit file."""
    assert build_postmark_payload(email(), {"EMAIL_SHUNT": ""})["To"] == "a@example.com"


def test_what_the_worker_adds_fits_into_the_margin_kept_for_it() -> None:
    """The size that was checked at enqueue must hold when the message is sent."""
    full = email(from_=None, to=[f"{'x' * 60}{n}@example.com" for n in range(50)])
    env = {"EMAIL_SHUNT": f"{'日' * 255} <me@example.com>", "EMAIL_FROM": f"{'日' * 230} <a@example.com>"}
    sent = len(
        json.dumps(build_postmark_payload(full, env, uid=UID, claim=2**62), ensure_ascii=False).encode()
    )
    stored = len(json.dumps(full.message(), ensure_ascii=False, separators=(",", ":")).encode())

    assert sent - stored < WORKER_ADDS


@pytest.mark.parametrize("value", ["nobody", "a@example.com,b@example.com", "Shop <shop>", "a b@example.com"])
@pytest.mark.parametrize("name", ["EMAIL_FROM", "EMAIL_SHUNT"])
def test_a_malformed_variable_is_told_its_rule_once(name: str, value: str) -> None:
    """Two rules that differ leave open which one counts: a name is allowed here, unlike in a field."""
    with pytest.raises(InvalidSettings) as caught:
        build_postmark_payload(email(from_=None), {"EMAIL_FROM": "shop@example.com", name: value})

    assert str(caught.value).count("must be") == 1
    assert "no name" not in str(caught.value) and value not in str(caught.value)
