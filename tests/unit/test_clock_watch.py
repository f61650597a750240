"""A step of the database's clock settles no doubt (H3 for doubts)."""

from __future__ import annotations

from notifyq.clock_watch import ClockWatch


def test_ages_are_not_believed_after_a_step_until_they_can_be_true_again() -> None:
    """A doubt may have become older by the step: for so long as settling takes, no miss counts."""
    watch = ClockWatch(distrust=180)
    watch.note(database=1_000_000, steady=100)

    stepped = watch.note(database=1_003_600 + 10, steady=110)

    assert stepped == 3600
    assert not watch.trusted(110)
    assert not watch.trusted(289)
    assert watch.trusted(290)


def test_a_step_back_is_a_step_too() -> None:
    """The next step forward may only undo it."""
    watch = ClockWatch(distrust=180)
    watch.note(database=1_000_000, steady=100)

    assert watch.note(database=999_000, steady=101) == -1001
    assert not watch.trusted(101)


def test_drift_and_slow_answers_are_no_step() -> None:
    """Clocks that part slowly, or an answer that took a second, cost nothing."""
    watch = ClockWatch(distrust=180)
    for turn in range(1000):
        assert watch.note(database=1_000_000 + turn * 30 + turn % 2, steady=turn * 29.5) is None

    assert watch.trusted(1000)
