"""Search the bell: from every state, prompt steps alone must lead to one with nothing left to take."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from bell_model import Bells, Rules, State, World
from explore import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The *verdict*, and in how many states only the timer helps, by what excuses it."""

    verdict: Verdict
    excused: Counter[str]


def search(rules: Rules, world: World) -> Searched:
    """Visit every state, or stop at the first that breaks a promise."""
    bells = Bells(rules, world)
    seen: list[State] = [bells.first()]
    number = {seen[0]: 0}
    came_from: list[tuple[int, str]] = [(-1, "")]
    prompted_by: list[list[int]] = [[]]
    at = 0
    while at < len(seen):
        for label, after, prompt in bells.steps(seen[at]):
            there = number.get(after)
            if there is None:
                there = number[after] = len(seen)
                seen.append(after)
                came_from.append((at, label))
                prompted_by.append([])
                fault = bells.violation(after)
                if fault is not None:
                    return Searched(verdict=_guilty(fault, there, seen, came_from), excused=Counter())
            if prompt:
                prompted_by[there].append(at)
        at += 1
    good = [not bells.takeable(state) for state in seen]
    _spread(good, prompted_by)
    excuses = {n: bells.excuse(seen[n]) for n, is_good in enumerate(good) if not is_good}
    admitted = [is_good or excuses[n] is not None for n, is_good in enumerate(good)]
    _spread(admitted, prompted_by)
    if not all(admitted):
        fault = "only the timer finds a row"
        return Searched(verdict=_guilty(fault, admitted.index(False), seen, came_from), excused=Counter())
    excused = Counter(excuse for excuse in excuses.values() if excuse is not None)
    return Searched(verdict=Verdict(states=len(seen)), excused=excused)


def _spread(good: list[bool], prompted_by: list[list[int]]) -> None:
    """Good is also whatever leads to a good state by prompt steps."""
    queue = deque(number for number, is_good in enumerate(good) if is_good)
    while queue:
        for before in prompted_by[queue.popleft()]:
            if not good[before]:
                good[before] = True
                queue.append(before)


def _guilty(fault: str, at: int, seen: list[State], came_from: list[tuple[int, str]]) -> Verdict:
    trace: list[str] = []
    while at > 0:
        at, label = came_from[at]
        trace.append(f"  {label}")
    return Verdict(states=len(seen), fault=fault, trace=tuple(reversed(trace)))
