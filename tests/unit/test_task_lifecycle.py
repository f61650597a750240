"""The decision after each run of a call: pure, so that every case is a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyq.task_lifecycle import (
    TASK_TRANSITIONS,
    Ending,
    Failed,
    GaveUp,
    Invalid,
    NotStarted,
    Postponed,
    RetryPolicy,
    Returned,
    Stopped,
    TaskClaim,
    TaskDead,
    TaskDone,
    TaskPending,
    TaskTransition,
    after_run,
    attempts_allowed,
)

POLICY = RetryPolicy(base=60.0, cap=7200.0)
EXHAUSTED = TaskDead(reason="exhausted", error="e", event="exhausted")


def claimed(attempts: int, max_attempts: int = 3) -> TaskClaim:
    """A claim on its attempt number *attempts*."""
    return TaskClaim(id=1, name="n", key=None, claim_seq=9, attempts=attempts, max_attempts=max_attempts)


@pytest.mark.parametrize(
    ("attempts", "ending", "expected"),
    [
        (1, Returned(), TaskDone()),
        (3, Returned(), TaskDone()),
        (1, Failed("e"), TaskPending(delay=120.0, event="failed", error="e")),
        (2, Failed("e"), TaskPending(delay=240.0, event="failed", error="e")),
        (3, Failed("e"), EXHAUSTED),
        (1, Postponed(5.0, "e"), TaskPending(delay=5.0, event="postponed", error="e")),
        (3, Postponed(5.0, "e"), EXHAUSTED),
        (1, GaveUp("why"), TaskDead(reason="gave_up", error="why", event="gave up")),
        (1, Invalid("why"), TaskDead(reason="invalid", error="why", event="invalid")),
        (1, Stopped("e"), TaskPending(delay=0.0, event="stopped", error="e")),
        (3, Stopped("e"), EXHAUSTED),
        (1, NotStarted(), TaskPending(delay=0.0, event="released", charged=False)),
        (3, NotStarted(), TaskPending(delay=0.0, event="released", charged=False)),
    ],
    ids=str,
)
def test_each_ending_has_one_consequence(attempts: int, ending: Ending, expected: TaskTransition) -> None:
    """The table of the life cycle, line by line, at the middle of the jitter."""
    assert expected == after_run(claimed(attempts), ending, POLICY, 0.5)


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_a_failed_run_waits_twice_as_long_each_time_up_to_the_cap(attempts: int, roll: float) -> None:
    """± 20 %, so that calls which failed together do not come back together."""
    transition = after_run(claimed(attempts, 101), Failed("e"), POLICY, roll)

    assert isinstance(transition, TaskPending)
    middle = min(60.0 * 2**attempts, 7200.0)
    assert 0.8 * middle <= transition.delay <= 1.2 * middle


def test_no_end_of_a_run_leaves_a_finished_call_or_comes_from_a_waiting_one() -> None:
    """Only an operator moves a row that has ended; only a claim makes it work."""
    for source, event, target in TASK_TRANSITIONS:
        if source == "dead":
            assert event == "operator: retry"
        assert source != "done"
        assert target.partition(":")[0] in {"pending", "processing", "done", "dead"}


@pytest.mark.parametrize(
    ("stored", "declared", "allowed"), [(10, 3, 3), (10, 50, 50), (10, 10, 10), (4, 3, 4), (1, 10, 1)]
)
def test_a_row_that_was_given_no_number_runs_as_often_as_its_task_declares(
    stored: int, declared: int, allowed: int
) -> None:
    """What somebody said when they enqueued it wins; 10 is what a row says of itself."""
    assert attempts_allowed(stored, declared) == allowed
