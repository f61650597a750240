"""Worker settings are valid once made, and say what is merely unwise."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from notifyq import InvalidSettings, WorkerSettings

DURATIONS = [f.name for f in fields(WorkerSettings) if isinstance(getattr(WorkerSettings(), f.name), float)]


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_duration_must_be_a_positive_number_of_seconds(name: str, value: float) -> None:
    """The error names the setting, so that the command can name the option."""
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(InvalidSettings, match=name):
        WorkerSettings(**arguments)


def test_a_lease_must_be_twice_the_post_budget() -> None:
    """Otherwise a POST could outlive its claim, and be made twice."""
    with pytest.raises(InvalidSettings, match="lease"):
        WorkerSettings(post_budget=10, lease=19.9)

    assert WorkerSettings(post_budget=10, lease=20).lease == 20


def test_there_is_at_least_one_slot() -> None:
    """A worker without slots would idle for ever without a word."""
    with pytest.raises(InvalidSettings, match="slots"):
        WorkerSettings(slots=0)


@pytest.mark.parametrize(("slots", "asks"), [(1, 1), (3, 1), (4, 1), (8, 2), (20, 5)])
def test_a_burst_of_doubts_takes_a_quarter_of_the_slots(slots: int, asks: int) -> None:
    """The rest goes on sending."""
    assert WorkerSettings(slots=slots).ask_slots == asks


def test_a_short_settle_is_allowed_with_a_warning() -> None:
    """Tests need it; the real provider's search needs longer."""
    assert WorkerSettings().warnings() == []
    (line,) = WorkerSettings(settle=59.9).warnings()

    assert "settle is 59.9 s" in line


def test_bodies_may_be_kept_for_ever() -> None:
    """None is the one duration that is not a number."""
    assert WorkerSettings(retention=None).retention is None


def test_settings_cannot_be_changed_once_made() -> None:
    """What was checked is what runs."""
    with pytest.raises(FrozenInstanceError):
        WorkerSettings().slots = 3  # type: ignore[misc]
