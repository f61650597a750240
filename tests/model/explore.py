"""Breadth-first search over the protocol machine: the first violation found is the shortest one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from protocol_model import Machine, Rules, State, World, start


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """*fault*: what was violated (None: nothing), and the *trace* of steps that leads there."""

    states: int
    fault: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.fault is None:
            return f"{self.states:,} states, no violation"
        return "\n".join([f"{self.fault}, after {self.states:,} states:", *self.trace])


def explore(
    rules: Rules, world: World, *, every_row_ends: bool = False, fold_workers: bool = True
) -> Verdict:
    """Visit every state, or stop at the first violation.

    With *every_row_ends*, a state from which no end can be reached any more is a violation too.
    """
    machine = Machine(rules, world, fold_workers=fold_workers)
    first = start(world)
    came_from: dict[State, tuple[State | None, str]] = {first: (None, "")}
    leads_here: dict[State, list[State]] = {}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        alone = True
        for label, after in machine.steps(state):
            alone = alone and label.startswith("operator")
            if every_row_ends:
                leads_here.setdefault(after, []).append(state)
            if after in came_from:
                continue
            came_from[after] = (state, label)
            fault = machine.violation(state, after)
            if fault is not None:
                return _guilty(fault, after, came_from)
            queue.append(after)
        if alone and not machine.ended(state):
            return _guilty(f"stuck as {state.row.status}", state, came_from)
    if every_row_ends:
        endless = _endless(machine, came_from, leads_here)
        if endless is not None:
            return _guilty("no end can be reached any more", endless, came_from)
    return Verdict(states=len(came_from))


def _endless(
    machine: Machine, seen: dict[State, tuple[State | None, str]], leads_here: dict[State, list[State]]
) -> State | None:
    good = {state for state in seen if machine.ended(state)}
    queue = deque(good)
    while queue:
        for before in leads_here.get(queue.popleft(), ()):
            if before not in good:
                good.add(before)
                queue.append(before)
    return next((state for state in seen if state not in good), None)


def _guilty(fault: str, state: State, came_from: dict[State, tuple[State | None, str]]) -> Verdict:
    trace: list[str] = []
    at: State | None = state
    while at is not None:
        at, label = came_from[at]
        if label:
            trace.append(f"  {label}")
    return Verdict(states=len(came_from), fault=fault, trace=tuple(reversed(trace)))
