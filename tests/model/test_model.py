"""The protocol, searched: nothing is sent twice or lost in any reachable state, and every rule is needed.

H-numbers of the notes on how such protocols break: a rule that closes a hole stands beside it in `GUILTY`,
an assumption that the README prints stands in `ASSUMED`.
"""

from __future__ import annotations

import time
from dataclasses import fields, replace

import pytest
from explore import explore
from protocol_model import Rules, World

HELD_ONCE = World(policy="hold", retries=1, search_fails=True, posts=2)
NO_BOUND_ON_LAG = World(search_in_time=False, posts=2, attempts=3)

CLEAN = {
    "two workers": World(),
    "three workers": World(accounts=(0, 0, 0), posts=3, attempts=3),
    "three workers, an operator, a search that fails": replace(HELD_ONCE, accounts=(0, 0, 0), cancels=1),
    "policy hold, an operator who retries and cancels": replace(
        HELD_ONCE,
        cancels=1,
    ),
    "policy resend": World(policy="resend", attempts=3),
    "policy resend, cancelled": World(policy="resend", attempts=3, cancels=1, posts=2),
    "a search that fails": World(search_fails=True, posts=2),
    "a search that lags for 1.5 settle": World(lag=3),
    "a search that lags for ever, policy hold": replace(
        NO_BOUND_ON_LAG,
        policy="hold",
    ),
    "a search that lags for ever, an acceptance was told": replace(
        NO_BOUND_ON_LAG,
        evidence_only=True,
    ),
    "send_before passes": World(expiry=True, posts=2, retries=1),
    "probes, and claims whose answer is lost": World(probes=True, lost_claims=True),
    "two accounts": World(accounts=(0, 1)),
    "two accounts, an operator": replace(HELD_ONCE, accounts=(0, 1)),
    "another row on the account": World(other_row=True),
    "every lease ends at once (the database's clock steps)": World(leases_end_early=True, posts=2),
}

GUILTY = {
    "no settle (H20)": ("settle", World()),
    "one miss is enough, lag of 1.5 settle (H40)": ("two_misses", World(lag=3)),
    "an ask starts settle again": ("settle_runs_on", World()),
    "a failed search is a no (H46)": ("failed_search_is_no_answer", World(search_fails=True, posts=2)),
    "a timeout is not sent (H20)": ("timeout_is_doubt", World()),
    "a 500 is not sent (H29)": ("error_500_is_doubt", World()),
    "the last attempt's unknown is exhausted (H16)": ("last_unknown_is_doubt", World()),
    "a doubt past send_before is expired unasked": ("expiry_asks_first", World(expiry=True, posts=2)),
    "ends are not fenced (H1)": ("fenced_ends", World()),
    "a takeover reads, then writes (H13)": ("fenced_takeover", World()),
    "a retry sets the fence back (H1)": ("fence_grows", World(retries=1)),
    "a lease that ran out is not sent": ("takeover_is_doubt", World()),
    "no last look before the write (H6)": ("last_look", World()),
    "a crash forgets a claim (H10)": ("durable_claim", World()),
    "a release gives back what waits to be written (H9)": ("releases_only_the_unheard", World()),
    "asks another account or stream (H42)": ("asks_where_it_was_sent", World(accounts=(0, 1))),
    "a retried row is asked about elsewhere (H42)": (
        "retry_asks_there_too",
        replace(HELD_ONCE, accounts=(0, 1)),
    ),
    "the uid is used again (H5, H41)": ("own_uid", World()),
    "a late 200 is refused (H35)": (
        "late_receipts",
        replace(
            NO_BOUND_ON_LAG,
            evidence_only=True,
        ),
    ),
    "an end ignores a receipt (H35)": (
        "honours_receipts",
        replace(
            NO_BOUND_ON_LAG,
            evidence_only=True,
        ),
    ),
    "resend more than once": ("resends_once", World(policy="resend", attempts=3)),
    "retry of a live row (H90)": ("retries_only_at_rest", World(retries=1)),
    "retry sends without asking (H93)": ("retry_asks_first", HELD_ONCE),
    "no positive control (H40)": ("positive_control", World(other_row=True)),
    "hold sends again": (
        "hold_is_not_ask",
        replace(
            NO_BOUND_ON_LAG,
            policy="hold",
        ),
    ),
}

ASSUMED = {
    "A1: accepted later than settle": World(accepts_in_time=False),
    "A2: findable later than 1.5 settle": World(search_in_time=False),
    "A5: a pause between the last look and the write": World(pauses_in_time=False),
    "A6: the database's clock jumps by a settle during a doubt": World(clock_steps=True),
}


def test_the_protocol_breaks_no_promise_in_any_reachable_state() -> None:
    """At most one acceptance, `sent` and `dead` are true, the fence only grows, nothing gets stuck."""
    began, states = time.perf_counter(), 0
    for name, world in CLEAN.items():
        verdict = explore(Rules(), world)
        assert verdict.fault is None, f"{name}: {verdict}"
        states += verdict.states
        print(f"{verdict.states:>9,}  {name}")
    print(f"{states:>9,}  states in all, {time.perf_counter() - began:.1f} s, no violation")

    assert states >= 100_000


@pytest.mark.parametrize(
    "world", [World(posts=2), World(posts=2, policy="hold", search_fails=True)], ids=["ask", "hold"]
)
def test_from_every_reachable_state_an_end_can_be_reached(world: World) -> None:
    """A row that can only go round in circles is lost, though it is never stuck."""
    assert explore(Rules(), world, every_row_ends=True).fault is None


@pytest.mark.parametrize("name", GUILTY)
def test_a_weakened_protocol_is_found_guilty(name: str) -> None:
    """A model that cannot see a broken rule proves nothing about a kept one."""
    rule, world = GUILTY[name]
    verdict = explore(replace(Rules(), **{rule: False}), world, fold_workers=False)
    print(f"{name}: {verdict}")

    assert verdict.fault is not None
    assert verdict.trace


@pytest.mark.parametrize("name", ASSUMED)
def test_an_assumption_that_fails_costs_a_double(name: str) -> None:
    """What the README assumes is assumed because nothing here can do without it."""
    verdict = explore(Rules(), ASSUMED[name], fold_workers=False)
    print(f"{name}: {verdict}")

    assert verdict.fault == "accepted 2 times"


def test_every_rule_of_the_model_has_its_weakened_variant() -> None:
    """A rule whose absence nobody notices is either no rule or not modelled."""
    assert {rule for rule, _ in GUILTY.values()} == {field.name for field in fields(Rules)}
