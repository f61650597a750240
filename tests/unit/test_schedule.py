"""When periodic tasks run, clocks that change included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyq import InvalidSettings
from notifyq.schedule import Due, Missed, Schedule

PARIS = ZoneInfo("Europe/Paris")
# 2026: clocks go from 02:00 to 03:00 on 29 March, and from 03:00 back to 02:00 on 25 October.
NIGHT_BEFORE_SPRING = datetime(2026, 3, 28, 12, tzinfo=UTC)
NIGHT_BEFORE_AUTUMN = datetime(2026, 10, 24, 12, tzinfo=UTC)


def ticks(expression: str, after: datetime, count: int, timezone: str = "Europe/Paris") -> list[str]:
    """The next *count* ticks after *after*, in UTC."""
    schedule = Schedule(expression=expression, timezone=timezone)
    found = []
    for _ in range(count):
        after = schedule.next_tick(after)
        found.append(after.astimezone(UTC).strftime("%d %H:%M"))
    return found


def test_a_fixed_time_follows_the_wall_clock_of_its_zone() -> None:
    """Three in the morning is one hour earlier in UTC when Paris has summer time."""
    assert ticks("0 3 * * *", datetime(2026, 1, 1, tzinfo=UTC), 1) == ["01 02:00"]
    assert ticks("0 3 * * *", datetime(2026, 7, 1, tzinfo=UTC), 1) == ["01 01:00"]


def test_a_fixed_time_that_spring_leaves_out_runs_right_after_the_gap() -> None:
    """02:30 does not exist on 29 March; 03:00 summer time is 01:00 UTC."""
    assert ticks("30 2 * * *", NIGHT_BEFORE_SPRING, 2) == ["29 01:00", "30 00:30"]


def test_a_fixed_time_that_autumn_repeats_runs_once() -> None:
    """02:30 comes twice on 25 October; a nightly report is still one."""
    assert ticks("30 2 * * *", NIGHT_BEFORE_AUTUMN, 2) == ["25 00:30", "26 01:30"]


@pytest.mark.parametrize("night", [NIGHT_BEFORE_SPRING, NIGHT_BEFORE_AUTUMN])
def test_every_hour_means_every_hour_also_when_clocks_change(night: datetime) -> None:
    """24 ticks in 24 hours, an hour apart in real time."""
    found = ticks("0 * * * *", night, 24)

    assert found == [(night + timedelta(hours=n)).strftime("%d %H:%M") for n in range(1, 25)]


@pytest.mark.parametrize("night", [NIGHT_BEFORE_SPRING, NIGHT_BEFORE_AUTUMN])
def test_every_quarter_of_an_hour_neither_rests_nor_runs_twice(night: datetime) -> None:
    """A wildcard hour goes by the clock that goes on, not by the hands that are moved."""
    found = ticks("*/15 * * * *", night, 96)

    assert found == [(night + n * timedelta(minutes=15)).strftime("%d %H:%M") for n in range(1, 97)]


LAST = datetime(2026, 1, 1, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("missed", "now", "expected"),
    [
        ("skip", datetime(2026, 1, 2, 2, 59, 59, tzinfo=UTC), None),
        ("skip", datetime(2026, 1, 2, 3, tzinfo=UTC), Due(datetime(2026, 1, 2, 3, tzinfo=UTC), run=True)),
        ("skip", datetime(2026, 1, 2, 3, 1, tzinfo=UTC), Due(datetime(2026, 1, 2, 3, tzinfo=UTC), run=True)),
        (
            "skip",
            datetime(2026, 1, 2, 3, 1, 1, tzinfo=UTC),
            Due(datetime(2026, 1, 2, 3, tzinfo=UTC), run=False),
        ),
        ("skip", datetime(2026, 1, 9, 8, tzinfo=UTC), Due(datetime(2026, 1, 9, 3, tzinfo=UTC), run=False)),
        ("one", datetime(2026, 1, 9, 8, tzinfo=UTC), Due(datetime(2026, 1, 9, 3, tzinfo=UTC), run=True)),
        ("one", datetime(2031, 1, 9, 8, tzinfo=UTC), Due(datetime(2031, 1, 9, 3, tzinfo=UTC), run=True)),
        ("one", LAST, None),
        ("one", LAST - timedelta(hours=1), None),
    ],
    ids=str,
)
def test_missed_ticks_are_skipped_or_run_as_one(missed: Missed, now: datetime, expected: Due | None) -> None:
    """However many were missed, the newest stands for all; a clock that was set back runs nothing."""
    assert expected == Schedule(expression="0 3 * * *", missed=missed).due(LAST, now)


EXPRESSIONS = ("* * * * *", "30 2 * * *", "*/7 */3 * * *", "0 3 * * 1", "15 2,3 * * *")


@given(
    st.sampled_from(EXPRESSIONS),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),
    st.timedeltas(timedelta(0), timedelta(days=3)),
)
def test_after_the_due_tick_there_is_none_left(expression: str, last: datetime, rest: timedelta) -> None:
    """Else it would be enqueued again at the next look."""
    schedule = Schedule(expression=expression, timezone="Europe/Paris", missed="one")
    last = last.replace(tzinfo=UTC)
    now = last + rest

    due = schedule.due(last, now)

    if due is not None:
        assert last < due.tick <= now
        assert schedule.due(due.tick.astimezone(UTC), now) is None
    assert schedule.next_tick(now) > now


@pytest.mark.timeout(5)
@pytest.mark.parametrize("expression", ["* * * * * *", "* * * * *", "* * 3 * * *"])
def test_millions_of_missed_ticks_cost_a_blink(expression: str) -> None:
    """A task of every second that rested for a year must not hold up the worker that finds it."""
    schedule = Schedule(expression=expression, missed="one")
    now = LAST + timedelta(days=370, hours=5)

    due = schedule.due(LAST, now)

    assert due is not None
    assert schedule.next_tick(due.tick) > now


def test_the_rarest_tick_is_found_after_years() -> None:
    """29 February comes every fourth year."""
    schedule = Schedule(expression="0 0 29 2 *", missed="one")

    due = schedule.due(datetime(2024, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC))

    assert due == Due(datetime(2024, 2, 29, tzinfo=UTC), run=True)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"expression": "nonsense"}, "cron"),
        ({"expression": "61 * * * *"}, "cron"),
        ({"expression": ""}, "cron"),
        ({"expression": "0 0 30 2 *"}, "cron"),
        ({"expression": "0 3 * * *", "timezone": "Europe/Atlantis"}, "time zone"),
        ({"expression": "0 3 * * *", "timezone": ""}, "time zone"),
        ({"expression": "0 3 * * *", "timezone": "../etc/passwd"}, "time zone"),
        ({"expression": "0 3 * * *", "missed": "all"}, "missed"),
    ],
)
def test_what_means_nothing_is_refused_when_declared(options: dict[str, str], word: str) -> None:
    """Not when the worker is running, at three in the morning."""
    with pytest.raises(InvalidSettings, match=word):
        Schedule(**options)  # type: ignore[arg-type]
