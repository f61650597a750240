"""What may be kept and shown of a text that somebody else wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyq.cleaning import clean, without_quotes


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such user:\nann@example.com", "no such user: (address)"),
        ("<Ann@Example.com>, bob@example.org", "<(address)>, (address)"),
        ("see https://shop.example/reset?token=s3cret now", "see (link) now"),
        ('href="HTTP://x.example/a"', 'href="(link)"'),
        ("postgresql://user:pw@host/db", "(link)"),
        ("a\x00b\x1b[31mc\u2028d", "a b [31mc d"),
        ("\ud800", "?"),
        ("  ", ""),
        ("ratio 3:4, path a/b", "ratio 3:4, path a/b"),
    ],
)
def test_one_line_without_addresses_links_and_control_characters(text: str, shown: str) -> None:
    """It goes into a table, a log and a page, and is read by more people than the mail is."""
    assert shown == clean(text)


@given(st.text())
def test_any_text_becomes_one_that_postgres_and_a_log_line_can_hold(text: str) -> None:
    """An error about an error would end what it is about."""
    shown = clean(text)

    assert shown.encode().decode() == shown
    assert shown.isprintable() or not any(c in shown for c in "\x00\n\r\x1b\x7f\u2028")
    assert "\x00" not in shown
    assert len(shown.splitlines()) <= 1


def test_half_an_address_at_the_cut_is_not_shown() -> None:
    """Cut in its middle, an address would not be seen as one."""
    shown = clean("x " * 995 + "somebody.with.a.long.name@example.com " * 3)

    assert "somebody" not in shown
    assert len(shown) <= 2_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no 'tok-9f8e7d', nor TOK-9F8E7D.", "no '(quoted)', nor (quoted)."),
        ("a part of it: tok-9f8e", "a part of it: (quoted)"),
        ("code 48392 expired", "code (quoted) expired"),
        ("correct-horse-battery", "(quoted)"),
        ("HTTP 422, ErrorCode 300: reset your password", "HTTP 422, ErrorCode 300: reset your password"),
        ("tok-0000 is not in it", "tok-0000 is not in it"),
    ],
)
def test_what_may_be_a_token_is_not_quoted(text: str, shown: str) -> None:
    """The token of a deferred email lies in no table, so the refusal that quotes it must not either."""
    email = ["Reset your password: 422 300", "?t=tok-9f8e7d or 48392, Correct-Horse-Battery"]

    assert without_quotes(text, email) == shown
