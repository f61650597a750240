"""Waits grow, stay within their bounds, and are spread by chance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyq import backoff

ROLLS = st.floats(0, 1, exclude_max=True)
COUNTS = st.integers(0, 10_000)


@given(COUNTS, ROLLS, st.floats(0.001, 1e5), st.floats(0.001, 1e6))
def test_a_deferred_email_waits_its_doubling_share_up_to_the_cap(
    attempts: int, roll: float, base: float, cap: float
) -> None:
    """± 20 % of base × 2^attempts, whatever the numbers: no overflow, nothing negative."""
    plain = min(base * 2.0 ** min(attempts, 60), cap)
    wait = backoff.send_again(attempts, roll, base=base, cap=cap)

    assert 0.8 * plain * 0.999 <= wait <= 1.2 * plain * 1.001


@pytest.mark.parametrize(("attempts", "minutes"), [(1, 2), (2, 4), (3, 8), (6, 64), (7, 120), (500, 120)])
def test_the_defaults_double_from_two_minutes_to_two_hours(attempts: int, minutes: float) -> None:
    """The figures that the README names."""
    assert backoff.send_again(attempts, 0.5, base=60, cap=7200) == pytest.approx(60 * minutes)


@given(COUNTS, ROLLS)
def test_a_misconfigured_row_waits_five_minutes_to_an_hour(waits: int, roll: float) -> None:
    """Somebody is mending its sender; an hour is the longest that the row then lies about."""
    assert 240 * 0.999 <= backoff.misconfigured(waits, roll) <= 4320 * 1.001


@given(COUNTS, ROLLS, st.floats(0.1, 600))
def test_chance_only_shortens_the_wait_for_the_next_question(asks: int, roll: float, settle: float) -> None:
    """How long a doubt may take is part of the promise, so jitter must not lengthen it."""
    longest = backoff.ask_again(asks, 0.0, settle=settle)
    wait = backoff.ask_again(asks, roll, settle=settle)

    assert longest <= 3600
    assert 0.8 * longest * 0.999 <= wait <= longest


@given(COUNTS, ROLLS)
def test_a_lost_connection_is_tried_again_soon_and_never_hotly(failures: int, roll: float) -> None:
    """Many workers come back to one restarted database."""
    assert 0.025 <= backoff.reconnect(failures, roll) <= 3.0


@pytest.mark.parametrize(
    "wait",
    [
        lambda n: backoff.send_again(n, 0.5, base=60, cap=7200),
        lambda n: backoff.misconfigured(n, 0.5),
        lambda n: backoff.ask_again(n, 0.5, settle=120),
        lambda n: backoff.reconnect(n, 0.5),
    ],
    ids=["send_again", "misconfigured", "ask_again", "reconnect"],
)
def test_waits_double_and_never_shrink(wait: object) -> None:
    """With the same roll the next wait is twice the last, until the cap."""
    assert callable(wait)
    waits = [wait(n) for n in range(20)]

    assert waits[1] == pytest.approx(2 * waits[0])
    assert waits == sorted(waits)


def test_two_rolls_give_two_waits() -> None:
    """Rows that failed together must not come back together."""
    assert backoff.send_again(1, 0.1, base=60, cap=7200) != backoff.send_again(1, 0.9, base=60, cap=7200)
