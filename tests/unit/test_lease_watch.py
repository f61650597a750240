"""A lease is over when it has been unchanged for its whole length, and for no other reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from notifyq.upkeep import Lease, LeaseWatch, Look, Term, believed_age

UNTIL = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = Lease(lane="email", id=1, claim_seq=1, lease_until=UNTIL)
OTHER = replace(LEASE, id=2)
LENGTH = 20.0
TERM = Term(LENGTH, 0.0)


def at(moment: float, *, database: float | None = None, took: float = 0.0) -> Look:
    """A look that was answered at *moment*; the database's clock says the same, or what it is given."""
    return Look(asked=moment - took, answered=moment, database=moment if database is None else database)


def test_a_lease_is_over_one_length_after_it_was_first_seen() -> None:
    """Not a moment earlier: its holder may be about to write."""
    watch = LeaseWatch()

    assert watch.observe({LEASE: TERM}, at(100.0)) == []
    assert watch.observe({LEASE: TERM}, at(119.9)) == []
    assert watch.observe({LEASE: TERM}, at(120.0)) == [LEASE]


def test_a_lease_that_began_between_two_looks_is_over_when_it_ends() -> None:
    """A worker that looks once in a lease is in time: the lease that it finds has run for a while."""
    watch = LeaseWatch()
    watch.observe({}, at(100.0))

    assert watch.observe({LEASE: Term(LENGTH, 19.0)}, at(120.0)) == []
    assert watch.next_end({LEASE: TERM}, 120.0) == 1.0
    assert watch.observe({LEASE: Term(LENGTH, 19.9)}, at(120.9)) == []
    assert watch.observe({LEASE: Term(LENGTH, 20.0)}, at(121.0)) == [LEASE]


def test_the_first_look_of_all_believes_no_age() -> None:
    """Whether the database's clock was set before it, nobody here can know."""
    watch = LeaseWatch()

    assert watch.observe({LEASE: Term(LENGTH, 500.0)}, at(100.0)) == []
    assert watch.next_end({LEASE: TERM}, 100.0) == LENGTH


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_no_time_of_the_database_ends_a_lease(age: float, step: float) -> None:
    """A clock that steps, or a failover to a host with another one, must not end all leases at once."""
    watch = LeaseWatch()
    watch.observe({}, at(99.0))

    assert watch.observe({LEASE: Term(LENGTH, age + step)}, at(100.0, database=100.0 + step)) == []
    assert watch.observe({LEASE: Term(LENGTH, age + step)}, at(118.9, database=118.9 + step)) == []
    assert watch.observe({LEASE: Term(LENGTH, age + step)}, at(120.0, database=0.0)) == [LEASE]


@given(
    taken=st.floats(0.0, 20.0),
    delays=st.tuples(*[st.floats(0.0, 5.0)] * 4),
    step=st.floats(-3600.0, 3600.0),
    stepped=st.floats(0.0, 20.0),
)
def test_a_lease_is_never_believed_older_than_it_is(
    taken: float, delays: tuple[float, float, float, float], step: float, stepped: float
) -> None:
    """However slow the answers are, and whenever the database's clock is set, before or after it began."""

    def database(moment: float) -> float:
        return moment + (step if moment >= stepped else 0.0)

    first = Look(asked=-delays[0], answered=delays[1], database=database(0.0))
    second = Look(asked=20.0 - delays[2], answered=20.0 + delays[3], database=database(20.0))
    age = database(20.0) - database(taken)

    assert 0.0 <= believed_age(age, first, second) <= 20.0 - taken + 1e-6


@given(st.floats(0.0, 20.0), st.tuples(*[st.floats(0.0, 0.1)] * 4))
def test_while_no_clock_is_set_the_age_is_known_to_a_few_round_trips(
    taken: float, delays: tuple[float, float, float, float]
) -> None:
    """Else what a dead worker left would be taken over late."""
    first = Look(asked=-delays[0], answered=delays[1], database=500.0)
    second = Look(asked=20.0 - delays[2], answered=20.0 + delays[3], database=520.0)

    assert believed_age(20.0 - taken, first, second) >= 20.0 - taken - sum(delays) - 1e-6


def test_a_renewed_lease_starts_again() -> None:
    """Its holder lives: it moved the end."""
    watch = LeaseWatch()
    watch.observe({LEASE: TERM}, at(0.0))
    renewed = replace(LEASE, lease_until=UNTIL + timedelta(seconds=10))

    assert watch.observe({renewed: TERM}, at(15.0)) == []
    assert watch.observe({renewed: TERM}, at(34.9)) == []
    assert watch.observe({renewed: TERM}, at(35.0)) == [renewed]


def test_another_claim_of_the_same_row_starts_again() -> None:
    """The same row under a newer fence is another worker's work."""
    watch = LeaseWatch()
    watch.observe({LEASE: TERM}, at(0.0))

    assert watch.observe({replace(LEASE, claim_seq=2): TERM}, at(20.0)) == []


def test_an_email_and_a_task_of_one_number_are_two_leases() -> None:
    """The lanes count their rows apart."""
    watch = LeaseWatch()
    watch.observe({LEASE: TERM}, at(0.0))
    task = replace(LEASE, lane="task")

    assert watch.observe({LEASE: TERM, task: TERM}, at(20.0)) == [LEASE]


def test_a_lease_that_went_away_is_forgotten() -> None:
    """What was seen long ago does not count for what is seen now, and nothing is kept for ever."""
    watch = LeaseWatch()
    watch.observe({LEASE: TERM, OTHER: TERM}, at(0.0))
    watch.observe({OTHER: TERM}, at(10.0))

    assert len(watch) == 1
    assert watch.observe({LEASE: TERM, OTHER: TERM}, at(20.0)) == [OTHER]
    assert watch.observe({}, at(21.0)) == []
    assert len(watch) == 0


def test_each_lease_has_its_own_length() -> None:
    """Workers with other settings share the table."""
    watch = LeaseWatch()
    leases = {LEASE: Term(5.0, 0.0), OTHER: Term(60.0, 0.0)}
    watch.observe(leases, at(0.0))

    assert watch.next_end(leases, 2.0) == 3.0
    assert watch.observe(leases, at(5.0)) == [LEASE]
    assert watch.next_end({OTHER: Term(60.0, 0.0)}, 5.0) == 55.0
    assert watch.next_end({}, 5.0) is None
