"""A lease is over when its observer has seen it unchanged for its whole length, and for no other reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from notifyq.upkeep import Lease, LeaseWatch

UNTIL = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = Lease(lane="email", id=1, claim_seq=1, lease_until=UNTIL)
OTHER = replace(LEASE, id=2)
LENGTH = 20.0


def test_a_lease_is_over_one_length_after_it_was_first_seen() -> None:
    """Not a moment earlier: its holder may be about to write."""
    watch = LeaseWatch()

    assert watch.observe({LEASE: LENGTH}, 100.0) == []
    assert watch.observe({LEASE: LENGTH}, 119.9) == []
    assert watch.observe({LEASE: LENGTH}, 120.0) == [LEASE]


@given(st.timedeltas(timedelta(days=-4000), timedelta(days=4000)))
def test_no_time_of_the_database_ends_a_lease(step: timedelta) -> None:
    """A clock that steps, or a failover to a host with another one, must not end all leases at once."""
    lease = replace(LEASE, lease_until=UNTIL + step)
    watch = LeaseWatch()

    assert watch.observe({lease: LENGTH}, 0.0) == []
    assert watch.observe({lease: LENGTH}, LENGTH - 0.1) == []
    assert watch.observe({lease: LENGTH}, LENGTH) == [lease]


def test_a_renewed_lease_starts_again() -> None:
    """Its holder lives: it moved the end."""
    watch = LeaseWatch()
    watch.observe({LEASE: LENGTH}, 0.0)
    renewed = replace(LEASE, lease_until=UNTIL + timedelta(seconds=10))

    assert watch.observe({renewed: LENGTH}, 15.0) == []
    assert watch.observe({renewed: LENGTH}, 34.9) == []
    assert watch.observe({renewed: LENGTH}, 35.0) == [renewed]


def test_another_claim_of_the_same_row_starts_again() -> None:
    """The same row under a newer fence is another worker's work."""
    watch = LeaseWatch()
    watch.observe({LEASE: LENGTH}, 0.0)

    assert watch.observe({replace(LEASE, claim_seq=2): LENGTH}, 20.0) == []


def test_an_email_and_a_task_of_one_number_are_two_leases() -> None:
    """The lanes count their rows apart."""
    watch = LeaseWatch()
    watch.observe({LEASE: LENGTH}, 0.0)
    task = replace(LEASE, lane="task")

    assert watch.observe({LEASE: LENGTH, task: LENGTH}, 20.0) == [LEASE]


def test_a_lease_that_went_away_is_forgotten() -> None:
    """What was seen long ago does not count for what is seen now, and nothing is kept for ever."""
    watch = LeaseWatch()
    watch.observe({LEASE: LENGTH, OTHER: LENGTH}, 0.0)
    watch.observe({OTHER: LENGTH}, 10.0)

    assert len(watch) == 1
    assert watch.observe({LEASE: LENGTH, OTHER: LENGTH}, 20.0) == [OTHER]
    assert watch.observe({}, 21.0) == []
    assert len(watch) == 0


def test_each_lease_has_its_own_length() -> None:
    """Workers with other settings share the table."""
    watch = LeaseWatch()
    leases = {LEASE: 5.0, OTHER: 60.0}
    watch.observe(leases, 0.0)

    assert watch.next_end(leases, 2.0) == 3.0
    assert watch.observe(leases, 5.0) == [LEASE]
    assert watch.next_end({OTHER: 60.0}, 5.0) == 55.0
    assert watch.next_end({}, 5.0) is None
