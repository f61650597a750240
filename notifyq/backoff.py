"""How long to wait before the next try. Pure: chance comes in as *roll*, a number in [0, 1)."""

from __future__ import annotations

__all__ = ["ask_again", "misconfigured", "reconnect", "send_again"]

JITTER = 0.2


def send_again(attempts: int, roll: float, *, base: float, cap: float) -> float:
    """Seconds until a deferred email is tried again: ``base × 2^attempts``, at most *cap*, ± 20 %.

    Example: with the defaults (60 s, 2 h) the first failure waits two minutes, the seventh two hours.
    """
    return _jitter(min(base * 2.0 ** min(attempts, 60), cap), roll)


def misconfigured(waits: int, roll: float) -> float:
    """Seconds until a row whose sender or stream is not set up is tried again: 5 min to 1 h, ± 20 %."""
    return _jitter(min(300.0 * 2.0 ** min(waits, 10), 3600.0), roll)


def ask_again(asks: int, roll: float, *, settle: float) -> float:
    """Seconds until a search that could not answer is repeated: half of *settle*, doubling to 1 h.

    Only ever shortened by chance (by up to 20 %): how long a doubt may take is part of the promise.
    """
    return min(0.5 * settle * 2.0 ** min(asks, 20), 3600.0) * (1 - JITTER * roll)


def reconnect(failures: int, roll: float) -> float:
    """Seconds until a lost database connection is tried again: 50 ms doubling to 3 s, jittered."""
    return min(0.05 * 2.0 ** min(failures, 10), 3.0) * (0.5 + 0.5 * roll)


def _jitter(seconds: float, roll: float) -> float:
    return seconds * (1 - JITTER + 2 * JITTER * roll)
