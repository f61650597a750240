"""What a person is told to do about a blocked account."""

from __future__ import annotations

import pytest

from notifyq.advice import advice


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("HTTP 401, ErrorCode 10: No Account or Server API tokens", "POSTMARK_SERVER_TOKEN"),
        ("HTTP 401: Unauthorized", "POSTMARK_SERVER_TOKEN"),
        ("HTTP 422, ErrorCode 405: Not allowed to send", "credits"),
        ("HTTP 422, ErrorCode 1480: no such address", "this machine's address"),
        ("HTTP 404, ErrorCode 9: nothing", "POSTMARK_API_URL"),
        ("HTTP 422, ErrorCode 614: the plan", "the account at Postmark"),
        (None, "the account at Postmark"),
    ],
)
def test_the_advice_names_the_thing_to_look_at(reason: str | None, words: str) -> None:
    """A reason alone does not say where to begin."""
    assert words in advice(reason)
