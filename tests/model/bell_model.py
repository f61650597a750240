"""The bell as a small machine: enqueues that ring or not, workers that sit, sleep, look, call, and break.

What `notifyq/bell.py` and `notifyq.ring()` do is said here again in a few lines each; every rule is a
switch in `Rules`, so that a weakened bell is one word, and a search must find its counter-example.

Steps are *prompt* (they come by themselves within a second: a lock that is free is granted, a ring is
heard, a lane that was rung looks) or not (somebody enqueues, commits or breaks something, a POST ends, the
timer of seconds comes round). What must hold is said with prompt steps alone: see `Bells.fault`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

NOBODY: Final = -1

# An enqueue, in its order of life.
AHEAD, SILENT, RINGING, PENDING, OVER = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the bell keeps to. All True is ours."""

    shared_lock_to_the_end: bool = True
    looks_after_grant: bool = True
    sits_before_sleeping: bool = True
    listens_before_the_last_look: bool = True
    notices_a_lost_session: bool = True
    notices_another_ear: bool = True
    frees_sleep_when_leaving: bool = True
    looks_after_a_vain_wait: bool = True
    calls_after_a_vain_ring: bool = True
    calls_unasked: bool = True
    looks_when_its_ear_is_back: bool = True
    awaits_a_look_begun_later: bool = True
    unseats_the_frozen: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One enqueue: which workers know its name, whether it is urgent, and whether its bell is off."""

    known_to: tuple[int, ...] = (0, 1, 2)
    urgent: bool = False
    off: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Who is there and what may happen: so many faults, dawns and lock waits in vain in all."""

    rows: tuple[Row, ...] = (Row(), Row())
    workers: int = 2
    bulk: int = 1
    urgent: int = 1
    deaths: int = 0
    freezes: int = 0
    lost_ears: int = 0
    lost_sessions: int = 0
    dawns: int = 0
    deaf: tuple[int, ...] = ()


class Worker(NamedTuple):
    """*ear*: 0 away, 1 there, 2 subscribed to the bell. *sees*: the rows that a claim under way can see.

    *look*: so many claims must end until the last ring is judged; *took*: they brought something.
    """

    life: str = "up"
    bell: str = "out"
    ear: int = 1
    session: bool = True
    bulk: int = 0
    urgent: int = 0
    rung: bool = False
    sees: int | None = None
    backlog: bool = False
    ring: bool = False
    look: int = 0
    took: bool = False
    owes_call: bool = False
    short: bool = False


class Budget(NamedTuple):
    """What may still break."""

    deaths: int
    freezes: int
    lost_ears: int
    lost_sessions: int
    dawns: int


class State(NamedTuple):
    """Everything there is.

    *shadowed*: rows that came in one breath with another that the holder took. *found_out*: somebody's
    timer has found what the frozen holder of the seat did not hear of.
    """

    rows: tuple[int, ...]
    workers: tuple[Worker, ...]
    left: Budget
    seat: int = NOBODY
    sleep: int = NOBODY
    shadowed: int = 0
    found_out: bool = False


Step: TypeAlias = tuple[str, State, bool]
"""What happens, what is then, and whether it is prompt."""

SITTING: Final = ("looking", "asking", "asleep", "day")


class Bells:
    """All steps that *rules* allow in *world*."""

    def __init__(self, rules: Rules, world: World) -> None:
        self.rules = rules
        self.world = world
        self._in_order = list(range(len(world.rows)))
        self._like_rows = len(set(world.rows)) == 1
        everybody = set(range(world.workers))
        self._like_workers = not world.deaf and all(everybody <= set(row.known_to) for row in world.rows)

    def first(self) -> State:
        """Nothing is enqueued; nobody sits yet."""
        world = self.world
        workers = tuple(Worker(ear=0 if n in world.deaf else 1) for n in range(world.workers))
        left = Budget(world.deaths, world.freezes, world.lost_ears, world.lost_sessions, world.dawns)
        return State((AHEAD,) * len(world.rows), workers, left)

    def steps(self, state: State) -> Iterator[Step]:
        """What may happen next. Where all rows are over, nothing of interest can."""
        if all(status == OVER for status in state.rows):
            return
        for label, after, prompt in self._all_steps(state):
            yield label, self._canonical(after), prompt

    def _canonical(self, state: State) -> State:
        """Workers and rows that are alike are the same in any order; what is over is forgotten."""
        rows, workers, left, seat, sleep, shadowed, found_out = state
        if self._like_rows:
            bits = [[status, shadowed >> row & 1] for row, status in enumerate(rows)]
            for worker in workers:
                for row, facts in enumerate(bits):
                    facts.append(-1 if worker.sees is None else worker.sees >> row & 1)
            order = sorted(range(len(rows)), key=bits.__getitem__)
            if order != self._in_order:
                rows = tuple(rows[row] for row in order)
                shadowed = _moved(shadowed, order)
                workers = tuple(
                    w if w.sees is None else w._replace(sees=_moved(w.sees, order)) for w in workers
                )
        workers = tuple(map(_forget, workers))
        if self._like_workers:
            numbers = sorted(
                range(len(workers)),
                key=lambda n: (n == seat, n == sleep, workers[n].sees is None, _key(workers[n])),
            )
            workers = tuple(workers[n] for n in numbers)
            seat = NOBODY if seat == NOBODY else numbers.index(seat)
            sleep = NOBODY if sleep == NOBODY else numbers.index(sleep)
        return State(rows, workers, left, seat, sleep, shadowed, found_out and seat != NOBODY)

    def _all_steps(self, state: State) -> Iterator[Step]:
        yield from self._enqueues(state)
        for n, worker in enumerate(state.workers):
            if worker.life != "up":
                continue
            name = f"worker {n + 1}"
            for what, after in self._own(state, n, worker):
                yield f"{name} {what}", after, True
            for what, after in self._world(state, n, worker):
                yield f"{name}: {what}", after, False

    def violation(self, state: State) -> str | None:
        """What must never be."""
        listening = sum(w.life == "up" and w.session and w.bell in SITTING for w in state.workers)
        if listening > 1:
            return "two workers listen"
        if state.sleep not in (NOBODY, state.seat):
            return "SLEEP is held without the SEAT"
        return None

    # ------------------------------------------------ what is left

    def takeable(self, state: State) -> list[tuple[int, int]]:
        """Each row that is due, with each worker that lives, knows it and has a slot for it."""
        return [
            (row, n)
            for row, status in enumerate(state.rows)
            if status == PENDING
            for n, worker in enumerate(state.workers)
            if worker.life == "up" and self._fits(row, n, worker)
        ]

    def excuse(self, state: State) -> str | None:
        """Why only the timer finds what is left here: one of what the bell's docstring admits."""
        frozen = state.seat != NOBODY and state.workers[state.seat].life == "frozen"
        if frozen and not state.found_out:
            return "the holder of the seat is frozen"
        left = self.takeable(state)
        if all(self.world.rows[row].off for row, _ in left):
            return "nobody rang for it"
        if all(state.shadowed >> row & 1 for row, _ in left):
            return "in one breath with a row that the holder took"
        if all(n in self.world.deaf for _, n in left):
            return "only a worker without an ear knows it"
        return None

    def _fits(self, row: int, n: int, worker: Worker) -> bool:
        what = self.world.rows[row]
        return n in what.known_to and self._slots(worker) > 0 and (what.urgent or self._bulk_room(worker) > 0)

    def _slots(self, worker: Worker) -> int:
        return self.world.bulk + self.world.urgent - worker.bulk - worker.urgent

    def _bulk_room(self, worker: Worker) -> int:
        return min(self._slots(worker), self.world.bulk - worker.bulk)

    # ------------------------------------------------ enqueues

    def _enqueues(self, state: State) -> Iterator[Step]:
        for row, status in enumerate(state.rows):
            if status == AHEAD:
                yield f"row {row + 1} is inserted", self._insert(state, row), False
            elif status in (SILENT, RINGING):
                rolled_back = state._replace(rows=_put(state.rows, row, OVER))
                yield f"row {row + 1} is committed", self._commit(state, row), False
                yield f"row {row + 1} is rolled back", rolled_back, False

    def _insert(self, state: State, row: int) -> State:
        """`notifyq.ring()`: the shared try fails if SLEEP is held or waited for."""
        waited_for = any(w.bell == "asking" and w.session for w in state.workers if w.life != "dead")
        rings = (state.sleep != NOBODY or waited_for) and not self.world.rows[row].off
        return state._replace(rows=_put(state.rows, row, RINGING if rings else SILENT))

    def _commit(self, state: State, row: int) -> State:
        rang = state.rows[row] == RINGING
        state = state._replace(rows=_put(state.rows, row, PENDING))
        if rang:
            workers = (w._replace(ring=w.ring or w.ear == 2) for w in state.workers)
            state = state._replace(workers=tuple(workers))
        return state

    def _all_silent_have_ended(self, state: State) -> bool:
        kept = self.rules.shared_lock_to_the_end
        return not any(
            status == SILENT and kept and not self.world.rows[row].off
            for row, status in enumerate(state.rows)
        )

    # ------------------------------------------------ a worker's own steps

    def _own(self, state: State, n: int, worker: Worker) -> Iterator[tuple[str, State]]:
        yield from self._bell(state, n, worker)
        yield from self._ear(state, n, worker)
        yield from self._lane(state, n, worker)

    def _may_sit(self, worker: Worker) -> bool:
        early = self.rules.listens_before_the_last_look
        ear = 2 if self.rules.notices_another_ear and early else 1
        session = worker.session or not self.rules.notices_a_lost_session
        return self._slots(worker) > 0 and worker.ear >= ear and session

    def _bell(self, state: State, n: int, worker: Worker) -> Iterator[tuple[str, State]]:
        must_leave = worker.bell in SITTING and not self._may_sit(worker)
        match worker.bell:
            case "out" if self._slots(worker) > 0 and worker.ear == 1:
                if not self.rules.sits_before_sleeping:
                    yield "listens", _with(state, n, bell="looking", ear=2, rung=True)
                elif state.seat == NOBODY:
                    ear = 2 if self.rules.listens_before_the_last_look else 1
                    sits = _with(state, n, bell="looking", ear=ear, rung=True, look=0, short=False)
                    yield "takes the seat", sits._replace(seat=n)
            case "asleep" | "looking" | "day" if must_leave or (worker.short and worker.bell == "asleep"):
                yield "leaves the seat", self._leave(state, n)
            case "asleep" if worker.ear == 1 and not worker.rung and worker.sees is None:
                yield "subscribes late", _with(state, n, ear=2)
            case "looking" if not worker.rung and worker.sees is None:
                yield "asks for SLEEP", _with(state, n, bell="asking")
            case "asking":
                yield from self._asked(state, n, worker)
            case "day" if worker.sees is None and not worker.rung:
                yield "looks by day", _with(state, n, rung=True)
                yield "has seen enough of the day", _with(state, n, bell="looking")
            case _:
                pass

    def _asked(self, state: State, n: int, worker: Worker) -> Iterator[tuple[str, State]]:
        if not worker.session:
            yield "is told that its session is lost", self._leave(state, n)
            return
        calls = worker.owes_call or (self.rules.calls_unasked and self.world.workers > 1)
        if state.sleep == NOBODY and self._all_silent_have_ended(state):
            asleep = _with(
                state,
                n,
                bell="asleep",
                rung=worker.rung or self.rules.looks_after_grant,
                owes_call=calls,
            )
            yield "is granted SLEEP", asleep._replace(sleep=n)
        else:
            rung = worker.rung or self.rules.looks_after_a_vain_wait
            waited = _with(state, n, bell="looking", rung=rung, owes_call=calls)
            yield "has waited for SLEEP in vain", waited

    def _leave(self, state: State, n: int) -> State:
        worker = state.workers[n]
        away = {"bell": "out", "ear": min(worker.ear, 1), "session": True, "ring": False}
        state = _with(state, n, **away, look=0, took=False, short=False)
        if not worker.session:
            return state
        frees = self.rules.frees_sleep_when_leaving and state.sleep == n
        return state._replace(
            seat=NOBODY if state.seat == n else state.seat, sleep=NOBODY if frees else state.sleep
        )

    def _ear(self, state: State, n: int, worker: Worker) -> Iterator[tuple[str, State]]:
        if worker.ear == 0 and n not in self.world.deaf:
            looks = worker.rung or self.rules.looks_when_its_ear_is_back
            yield "has an ear again", _with(state, n, ear=1, rung=looks)
        if worker.ring:
            early = worker.sees is not None and self.rules.awaits_a_look_begun_later
            heard = {"rung": True, "look": 1 + early, "took": False} if worker.bell in SITTING else {}
            yield "hears a ring", _with(state, n, ring=False, **heard)
        if worker.owes_call and worker.ear:
            called = (w._replace(rung=w.rung or (i != n and w.ear > 0)) for i, w in enumerate(state.workers))
            yield "calls", _with(state._replace(workers=tuple(called)), n, owes_call=False)

    def _lane(self, state: State, n: int, worker: Worker) -> Iterator[tuple[str, State]]:
        if worker.sees is not None:
            yield "ends its claim", self._claim(state, n, worker)
        elif worker.rung:
            if self._slots(worker):
                sees = sum(1 << row for row, status in enumerate(state.rows) if status == PENDING)
                begun = _with(state, n, rung=False, sees=sees)
                if not any(status in (SILENT, RINGING) for status in state.rows):
                    # Nothing can become visible while the claim is under way: it may as well be one step.
                    yield "claims", self._claim(begun, n, begun.workers[n])
                else:
                    yield "begins a claim", begun
            else:
                yield "has no slot to look with", self._judge(_with(state, n, rung=False), n, 0)

    def _claim(self, state: State, n: int, worker: Worker) -> State:
        sees, now = worker.sees or 0, worker
        rows = list(state.rows)
        for row in sorted(range(len(rows)), key=lambda row: not self.world.rows[row].urgent):
            if sees >> row & 1 and rows[row] == PENDING and self._fits(row, n, now):
                rows[row] = OVER
                urgent = self.world.rows[row].urgent
                now = now._replace(bulk=now.bulk + (not urgent), urgent=now.urgent + urgent, took=True)
        backlog = now.backlog
        if self._bulk_room(worker) > 0:
            backlog = self._bulk_room(now) <= 0
        now = now._replace(sees=None, backlog=backlog, took=now.took and worker.look > 0)
        after = state._replace(rows=tuple(rows), workers=_put(state.workers, n, now))
        return self._judge(after, n, sees)

    def _judge(self, state: State, n: int, seen: int) -> State:
        """Once the look that a ring asked for is over: was there something for others to take?"""
        worker = state.workers[n]
        if worker.look == 0:
            return state
        if worker.look > 1 and self._slots(worker) > 0:
            return _with(state, n, look=worker.look - 1)
        short = self._bulk_room(worker) <= 0
        calls = (short or not worker.took) and self.rules.calls_after_a_vain_ring and self.world.workers > 1
        if worker.took and not short:
            hidden = sum(1 << row for row, status in enumerate(state.rows) if status == PENDING) & seen
            state = state._replace(shadowed=state.shadowed | hidden)
        return _with(state, n, look=0, took=False, short=short, owes_call=state.workers[n].owes_call or calls)

    # ------------------------------------------------ what is done to a worker

    def _world(self, state: State, n: int, worker: Worker) -> Iterator[tuple[str, State]]:
        left = state.left
        for kind in ("bulk", "urgent"):
            if getattr(worker, kind):
                freed = {kind: getattr(worker, kind) - 1, "rung": worker.rung or worker.backlog}
                yield f"a POST of its {kind} slots ends", _with(state, n, **freed)
        if worker.bell == "asleep" and left.dawns:
            day = _with(state, n, bell="day", rung=True)
            day = day._replace(sleep=NOBODY if state.sleep == n else state.sleep)
            yield "rings come fast", day._replace(left=left._replace(dawns=left.dawns - 1))
        if left.deaths:
            dead = self._without_locks(state, n, Worker(life="dead", ear=0))
            yield "is killed", dead._replace(left=left._replace(deaths=left.deaths - 1))
        if left.freezes:
            yield (
                "is frozen",
                _with(state, n, life="frozen")._replace(left=left._replace(freezes=left.freezes - 1)),
            )
        if left.lost_ears and worker.ear:
            deaf = _with(state, n, ear=0, ring=False)
            yield "its ear is cut off", deaf._replace(left=left._replace(lost_ears=left.lost_ears - 1))
        if left.lost_sessions and n == state.seat:
            lost = self._without_locks(state, n, worker._replace(session=False))
            yield (
                "its lock session is ended",
                lost._replace(left=left._replace(lost_sessions=left.lost_sessions - 1)),
            )
        if any(finder == n for _, finder in self.takeable(state)) and not worker.rung:
            yield "its timer comes round", self._timer(state, n)

    def _without_locks(self, state: State, n: int, worker: Worker) -> State:
        return state._replace(
            workers=_put(state.workers, n, worker),
            seat=NOBODY if state.seat == n else state.seat,
            sleep=NOBODY if state.sleep == n else state.sleep,
        )

    def _timer(self, state: State, n: int) -> State:
        state = _with(state, n, rung=True)
        holder = state.seat
        if holder == NOBODY or state.workers[holder].life != "frozen":
            return state
        state = state._replace(found_out=True)
        if self.rules.unseats_the_frozen:
            state = self._without_locks(state, holder, state.workers[holder]._replace(session=False))
        return state


def _forget(worker: Worker) -> Worker:
    if worker.backlog and not (worker.bulk or worker.urgent):
        worker = worker._replace(backlog=False)
    return worker


def _moved(mask: int, order: list[int]) -> int:
    return sum((mask >> row & 1) << place for place, row in enumerate(order))


def _key(worker: Worker) -> tuple[object, ...]:
    return worker._replace(sees=worker.sees or 0)


def _with(state: State, n: int, **changes: object) -> State:
    worker = state.workers[n]._replace(**changes)  # type: ignore[arg-type]
    return state._replace(workers=_put(state.workers, n, worker))


def _put(values: tuple[Worker, ...] | tuple[int, ...], n: int, value: Worker | int) -> tuple:  # type: ignore[type-arg]
    return (*values[:n], value, *values[n + 1 :])
