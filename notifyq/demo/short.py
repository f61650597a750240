"""The demo's shortened durations, and the sentence that owns up to them."""

from __future__ import annotations

from typing import Final

from notifyq.settings import WorkerSettings

__all__ = ["SEARCH_LAG", "SHORT", "shortened"]

SHORT: Final = WorkerSettings(post_budget=1.5, lease=3, settle=1.5, grace=3, backoff=0.3)

SEARCH_LAG: Final = 0.5
"""Seconds until the fake's search shows an accepted message. Postmark's lags too, by a while of its own."""


def shortened() -> str:
    """Say what is shortened, beside the defaults.

    Example: ``"Durations are shortened: a lease is 3 s (20 s by default), …"``
    """
    usual = WorkerSettings()
    pairs = (
        ("a worker that died is believed dead after", SHORT.lease, usual.lease),
        ("a lost answer is settled after", SHORT.settle, usual.settle),
        ("a first retry waits", 2 * SHORT.backoff, 2 * usual.backoff),
    )
    said = ", ".join(f"{what} {short:g} s ({default:g} s by default)" for what, short, default in pairs)
    return f"Durations are shortened: {said}."
