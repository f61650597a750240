"""The story: a sentence for everything that can happen, and for every state."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from notifyq.admin import story
from notifyq.admin.timeline import Timeline, percentile
from notifyq.lifecycle import EMAIL_TRANSITIONS

NOW = datetime(2026, 11, 30, 19, 0, tzinfo=UTC)
ROOT = Path(story.__file__).parents[2]


def an_email(**columns: Any) -> dict[str, Any]:
    return {
        "created_at": NOW - timedelta(minutes=10),
        "run_after": NOW - timedelta(minutes=10),
        "now": NOW,
        "status": "pending",
        "reason": None,
        "attempts": 0,
        "max_attempts": 10,
        "claim_seq": 0,
        "waits": 0,
        "postponed": False,
        "gate": None,
        "misses": 0,
        "on_doubt": "ask",
        "doubt_since": None,
        "lease_until": NOW + timedelta(seconds=15),
        "sent_at": NOW,
        "uid": UUID(int=0),
        **columns,
    }


def happened(event: str, minute: float = 0, **columns: Any) -> dict[str, Any]:
    return {
        "at": NOW - timedelta(minutes=10 - minute),
        "claim_seq": 1,
        "event": event,
        "detail": None,
        "actor": None,
        **columns,
    }


def events_in(*places: str) -> set[str]:
    """The events that the code and the SQL write down."""
    text = "\n".join((ROOT / place).read_text() for place in places)
    written = re.findall(r'event="([a-z ]+)"', text) + re.findall(r"(?:_seq|v_event :=),? '([a-z ]+)'", text)
    return set(written)


def test_every_event_of_an_email_has_a_sentence() -> None:
    """An event that is added later must be told, too."""
    written = events_in("notifyq/lifecycle.py", "sql/functions/emails.sql")

    assert len(written) > 15
    assert written - story._EMAIL_EVENTS.keys() == set()


def test_every_event_of_a_task_has_a_sentence() -> None:
    """The same for tasks."""
    written = events_in("notifyq/task_lifecycle.py", "sql/functions/tasks.sql")

    assert len(written) > 5
    assert written - story._TASK_EVENTS.keys() == set()


def test_every_state_of_an_email_has_a_headline() -> None:
    """Each end in the state table, with its reason."""
    ends = {end for _, _, end in EMAIL_TRANSITIONS} - {"processing", "-"}
    for end in sorted(ends):
        status, _, reason = end.partition(": ")
        row = an_email(status=status, reason=reason or None, doubt_since=NOW, attempts=1)

        told = story.tell_email(row, [])

        assert told.headline and told.meaning.endswith("."), end


@pytest.mark.parametrize(
    ("columns", "headline"),
    [
        ({}, "Waiting to be sent: it is due now"),
        ({"run_after": NOW + timedelta(hours=2)}, "Scheduled: it goes out in 2 h"),
        ({"run_after": NOW + timedelta(minutes=4), "attempts": 2}, "Not sent yet: the next try is in 4 min"),
        ({"postponed": True, "gate": "closed"}, "Waiting: the provider does not take mail now"),
        ({"waits": 1}, "Waiting: its sender or its stream is not set up"),
        ({"status": "processing"}, "A worker is sending it right now"),
        ({"status": "processing", "doubt_since": NOW}, "Asking the provider about it right now"),
    ],
)
def test_waiting_is_told_with_what_it_waits_for(columns: dict[str, Any], headline: str) -> None:
    """ "Pending" alone tells nobody whether to do something."""
    assert story.tell_email(an_email(**columns), []).headline == headline


def test_a_double_is_told_before_anything_else() -> None:
    """It is what this package promises not to do."""
    told = story.tell_email(an_email(status="sent"), [happened("accepted"), happened("duplicate", 1)])

    assert told.headline == "This email was sent twice" and told.tone == "bad"


def test_ten_of_the_same_are_read_as_one() -> None:
    """An outage is one step of the story."""
    refusals = [happened("deferred", n, detail="HTTP 503") for n in range(9)]

    told = story.tell_email(
        an_email(status="dead", reason="exhausted"), [*refusals, happened("exhausted", 9)]
    )

    assert [(step.title.partition(":")[0], step.times) for step in told.steps] == [
        ("Enqueued", 1),
        ("Not sent, for certain; it is tried again later", 9),
        ("Given up", 1),
    ]
    assert told.steps[1].after == "over 8 min"


def test_an_unknown_event_is_told_as_it_stands() -> None:
    """A newer worker may write what this page has not heard of."""
    assert story.tell_email(an_email(), [happened("teleported")]).steps[1].title == "Teleported"


# ------------------------------------------------------------------- the timeline


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 0.001), (0.99, 0.001), (1.0, 0.001 * 1.25**10)])
def test_a_percentile_is_the_end_of_its_bin(share: float, seconds: float) -> None:
    """Histograms add up over minutes, percentiles would not."""
    assert percentile({0: 99, 10: 1}, share) == pytest.approx(seconds)


async def test_a_minute_that_is_over_is_read_once() -> None:
    """So that the charts of a busy day cost what the last minutes cost."""
    asked: list[tuple[datetime, datetime]] = []

    async def fetch(_name: str, start: datetime, end: datetime) -> list[dict[str, Any]]:
        asked.append((start, end))
        minute = NOW - timedelta(minutes=5)
        return [{"minute": minute, "sent": True, "bin": 3, "count": 7}] if start <= minute < end else []

    timeline = Timeline(fetch)
    await timeline.refresh(NOW)
    assert timeline.complete and timeline.hour(NOW).whole.sent == timeline.day(NOW).whole.sent == 7
    assert max(end - start for start, end in asked) <= timedelta(minutes=62)
    asked.clear()
    await timeline.refresh(NOW + timedelta(minutes=1))

    ((start, end),) = asked
    assert end - start <= timedelta(minutes=5)
    assert timeline.hour(NOW).whole.sent == 7
