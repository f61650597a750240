"""The bell, searched: no wake-up is lost in any reachable state, and every rule is needed."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import fields, replace

import pytest
from bell_model import Row, Rules, World
from bell_search import search

ONE = (Row(),)
FROZEN = "the holder of the seat is frozen"
OFF = "nobody rang for it"
ONE_BREATH = "in one breath with a row that the holder took"
NO_EAR = "only a worker without an ear knows it"

WORLDS = {
    "two workers, two rows, slots that fill": World(urgent=0),
    "the same with a slot for urgent rows": World(),
    "an urgent row, and one that is not": World(rows=(Row(), Row(urgent=True))),
    "three workers, a name that one of them knows": World(workers=3, rows=(Row(known_to=(2,)),), urgent=0),
    "a name that one worker knows, and one that both know": World(
        rows=(Row(known_to=(1,)), Row()), bulk=2, urgent=0
    ),
    "rings come fast": World(urgent=0, dawns=1),
    "a worker dies": World(urgent=0, deaths=1),
    "one worker, its ear is cut off": World(workers=1, lost_ears=1),
    "two workers, an ear is cut off": World(rows=ONE, urgent=0, lost_ears=1),
    "a name that one worker knows, an ear is cut off": World(
        rows=(Row(known_to=(1,)),), urgent=0, lost_ears=1
    ),
    "one worker, its locks are lost": World(workers=1, lost_sessions=1, urgent=0),
    "two workers, the locks are lost": World(rows=ONE, urgent=0, lost_sessions=1),
    "a worker is frozen": World(rows=ONE, urgent=0, freezes=1),
    "the bell is off for one row": World(rows=(Row(off=True), Row()), workers=1),
    "a worker without an ear": World(rows=(Row(known_to=(1,)),), urgent=0, deaf=(1,)),
}

LONG = {
    "two workers, two rows, an ear is cut off": World(lost_ears=1),
    "two workers, two rows, the locks are lost": World(urgent=0, lost_sessions=1),
    "two workers, two rows, a freeze, a death": World(urgent=0, freezes=1, deaths=1),
    "three workers, two rows": World(workers=3, urgent=0),
    "three rows": World(rows=(Row(),) * 3, urgent=0),
}

ADMITTED = {
    "a worker is frozen": {FROZEN},
    "the bell is off for one row": {OFF},
    "a worker without an ear": {NO_EAR},
    "a name that one worker knows, and one that both know": {ONE_BREATH},
}

NAMED = World(rows=(Row(known_to=(1,)),), urgent=0)
ALONE = World(rows=ONE, workers=1, urgent=0)
GUILTY = {
    "the shared lock is not kept to the end of the transaction": ("shared_lock_to_the_end", ALONE),
    "no look after the grant": ("looks_after_grant", ALONE),
    "sleeps without the seat": ("sits_before_sleeping", World(rows=ONE)),
    "listens only after its last look": ("listens_before_the_last_look", ALONE),
    "sleeps on after its locks were lost": (
        "notices_a_lost_session",
        replace(ALONE, lost_sessions=1),
    ),
    "takes another ear for the one that subscribed": ("notices_another_ear", replace(ALONE, lost_ears=1)),
    "leaves the seat and keeps SLEEP": ("frees_sleep_when_leaving", World(urgent=0, rows=ONE, lost_ears=1)),
    "does not look between two waits for SLEEP": ("looks_after_a_vain_wait", World(workers=1, urgent=1)),
    "keeps a ring that it cannot serve to itself": ("calls_after_a_vain_ring", NAMED),
    "calls only when it was rung": ("calls_unasked", NAMED),
    "does not look when its ear is back": ("looks_when_its_ear_is_back", replace(NAMED, lost_ears=1)),
    "takes a claim that began too early for a look": (
        "awaits_a_look_begun_later",
        World(rows=(Row(known_to=(1,)), Row()), bulk=2, urgent=0),
    ),
    "a frozen holder keeps the seat": ("unseats_the_frozen", World(urgent=0, freezes=1)),
}


def test_no_wake_up_is_lost_in_any_reachable_state() -> None:
    """Where only the timer finds a row, the reason is one that the docstring of the bell admits."""
    began, states = time.perf_counter(), 0
    excused: dict[str, set[str]] = {}
    for name, world in WORLDS.items():
        found = search(Rules(), world)
        assert found.verdict.fault is None, f"{name}: {found.verdict}"
        states += found.verdict.states
        excused |= {name: set(found.excused)} if found.excused else {}
        print(f"{found.verdict.states:>9,}  {name}  {_said(found.excused)}")
    print(f"{states:>9,}  states in all, {time.perf_counter() - began:.1f} s, no violation")

    assert states >= 50_000
    assert excused == ADMITTED


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LONG)
def test_no_wake_up_is_lost_in_larger_worlds(name: str) -> None:
    """The same with more of everything, in minutes."""
    found = search(Rules(), LONG[name])
    print(f"{name}: {found.verdict}  {_said(found.excused)}")

    assert found.verdict.fault is None
    assert set(found.excused) <= {FROZEN}


@pytest.mark.parametrize("name", GUILTY)
def test_a_weakened_bell_is_found_guilty(name: str) -> None:
    """A model that cannot see a broken rule proves nothing about a kept one."""
    rule, world = GUILTY[name]
    found = search(replace(Rules(), **{rule: False}), world)
    print(f"{name}: {found.verdict}")

    assert found.verdict.fault is not None
    assert found.verdict.trace


def test_every_rule_of_the_bell_has_its_weakened_variant() -> None:
    """A rule whose absence nobody notices is either no rule or not modelled."""
    assert {rule for rule, _ in GUILTY.values()} == {field.name for field in fields(Rules)}


def _said(excused: Counter[str]) -> str:
    return ", ".join(f"{count:,} by the timer: {excuse}" for excuse, count in excused.items())
