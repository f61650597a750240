"""A claim leaves out the old part of its index only while that pays, and never for long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from notifyq.low_water import MARGIN, WHOLE_EVERY, LowWater

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def slow(*, took: float = 0.2, everything: bool = True) -> LowWater:
    """A mark after two slow claims; the second began at 0."""
    mark = LowWater()
    for start in (-1.0, 0.0):
        assert mark.since(start) is None
        mark.note(NOW, started=start, ended=start + took, everything=everything)
    return mark


def test_a_fast_claim_looks_at_everything() -> None:
    """The rule is for a held snapshot; without one, every claim is exact."""
    mark = LowWater()
    for turn in range(5):
        assert mark.since(turn) is None
        mark.note(NOW, started=turn, ended=turn + 0.002, everything=True)


def test_one_slow_claim_or_first_look_says_nothing() -> None:
    """It waited for the disk, or its plan was made: all claims stay whole, and rings get their first look."""
    mark = LowWater()
    for turn in range(10):
        assert mark.since(turn) is None
        mark.note_first(started=turn, ended=turn + (0.5 if turn % 2 else 0.002))
        assert mark.since(turn + 0.5) is None
        mark.note(NOW, started=turn, ended=turn + (0.002 if turn % 2 else 0.5), everything=True)


def test_after_slow_claims_only_the_recent_part_is_looked_at_for_a_while() -> None:
    """And everything again after a few seconds: a long transaction may commit an old time."""
    mark = slow()

    assert mark.look_again_in is None
    assert mark.since(0.3) == NOW - MARGIN
    assert mark.look_again_in == WHOLE_EVERY
    mark.note(NOW + timedelta(seconds=1), started=0.3, ended=0.301, everything=True)
    assert mark.since(1) == NOW + timedelta(seconds=1) - MARGIN
    assert mark.since(0.2 + WHOLE_EVERY) is None


def test_what_a_full_claim_leaves_behind_is_not_left_out() -> None:
    """With a backlog the oldest rows are the next ones: the mark follows the last row that was taken."""
    mark = slow(everything=False)
    assert mark.since(1) is None, "nothing is known of what was left"

    mark.note(NOW, started=1, ended=1.2, everything=False, last_waited=30.0)
    assert mark.since(1.3) == NOW - timedelta(seconds=30) - MARGIN


def test_a_claim_that_cannot_keep_up_begins_later_each_time() -> None:
    """And never goes back."""
    mark = slow()
    for number, waited in enumerate((5.0, 4.0, 60.0), 1):
        mark.since(number)
        later = NOW + timedelta(seconds=number)
        mark.note(later, started=number, ended=number + 0.2, everything=False, last_waited=waited)

    assert mark.since(4) == NOW - MARGIN, "never back"
    mark.note(NOW + timedelta(seconds=9), started=4, ended=4.2, everything=False, last_waited=2.0)
    assert mark.since(4.5) == NOW + timedelta(seconds=7) - MARGIN


def test_a_look_at_everything_that_leaves_rows_puts_the_mark_back_to_them() -> None:
    """What a long transaction left behind the mark is drained by all claims that follow."""
    mark = slow()
    whole = 0.2 + WHOLE_EVERY
    assert mark.since(whole) is None
    later = NOW + timedelta(seconds=whole)
    mark.note(later, started=whole, ended=whole + 0.2, everything=False, last_waited=30.0)

    assert mark.since(whole + 0.3) == later - timedelta(seconds=30) - MARGIN


def test_a_fast_look_that_leaves_rows_puts_the_mark_back_too() -> None:
    """It may be needed by the very next claim."""
    mark = LowWater()
    mark.since(0)
    mark.note(NOW, started=0, ended=0.002, everything=True)
    mark.since(1)
    mark.note(NOW, started=1, ended=1.002, everything=False, last_waited=60.0)
    for start in (2.0, 3.0):
        assert mark.since(start) is None
        mark.note_first(started=start, ended=start + 0.02)

    assert mark.since(3.1) == NOW - timedelta(seconds=60) - MARGIN


def test_a_fast_claim_that_leaves_rows_sets_no_mark() -> None:
    """Without a held snapshot nothing is ever left out."""
    mark = LowWater()
    mark.since(0)
    mark.note(NOW, started=0, ended=0.002, everything=False, last_waited=1.0)
    mark.since(1)
    mark.note(NOW, started=1, ended=1.2, everything=False)

    assert mark.since(2) is None


def test_slow_first_looks_make_the_next_claim_partial() -> None:
    """Though the whole claims behind them, which found nothing to take, were fast."""
    mark = LowWater()
    mark.since(0)
    mark.note(NOW, started=0, ended=0.008, everything=True)
    for start in (1.0, 2.0):
        assert mark.since(start) is None
        mark.note_first(started=start, ended=start + 0.02)

    assert mark.since(2.1) == NOW - MARGIN


def test_a_ring_in_vain_is_followed_by_a_look_at_everything() -> None:
    """A transaction that took seconds left it older than the mark, and a slow disk slows every claim."""
    mark = slow(took=0.02)
    assert not mark.rung_in_vain(0.5), "that was a whole look"
    assert mark.since(0.5) is not None

    assert mark.rung_in_vain(0.5)
    assert mark.since(0.6) is None


def test_rings_in_vain_do_not_make_whole_looks_too_many() -> None:
    """Whatever they are for: a look of half a second comes every ten."""
    mark = slow(took=0.5)
    assert mark.since(1) is not None

    assert not mark.rung_in_vain(1)
    assert mark.since(1.1) is not None


def test_when_the_snapshot_is_gone_claims_are_whole_again() -> None:
    """The look at everything that follows is fast."""
    mark = slow()
    assert mark.since(6) is None
    mark.note(NOW, started=6, ended=6.001, everything=True)

    assert mark.since(6.1) is None


def test_the_slower_a_whole_look_the_rarer_it_is() -> None:
    """It may not take the time that emails wait for; what only it finds waits a minute at most."""
    for took, again in ((0.2, 5.0), (0.5, 10.0), (30.0, 60.0)):
        mark = slow(took=took)

        assert mark.since(took + again - 0.1) is not None
        assert mark.since(took + again) is None
