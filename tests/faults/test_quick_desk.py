"""The kill loop's quick desk answers exactly as the fake's own."""

from __future__ import annotations

import itertools

import pytest
from canary_email import an_email
from quick_desk import QuickDesk, make_quick

from notifyq import build_postmark_payload
from notifyq.testing import FakePostmark

UIDS = [f"00000000-0000-4000-8000-{number:012}" for number in range(30)]


@pytest.mark.parametrize("lag", [0.0, 6.0])
@pytest.mark.parametrize("reach", [45.0, 10 / 86400])
@pytest.mark.parametrize("stream", ["outbound", "other", None])
def test_a_quick_search_is_a_search(lag: float, reach: float, stream: str | None) -> None:
    """It replaces what the whole loop is judged by."""
    ticks = itertools.count(1_000_000_000.0)
    fake = FakePostmark(search_lag=lag, clock=lambda: next(ticks))
    for number, uid in enumerate([*UIDS, UIDS[3], UIDS[25]]):
        payload = build_postmark_payload(an_email(f"k{number}"), {}, uid=uid, claim=1)
        fake._ledger.accept(f"id-{number}", payload)
    slow = fake._desk
    make_quick(fake)
    now = next(ticks)
    fake.clock, slow.retention_days, fake.retention_days = (lambda: now), reach, reach
    slow.clock = fake.clock
    asked = {} if stream is None else {"messagestream": stream}

    assert isinstance(fake._desk, QuickDesk)
    for uid in (None, UIDS[3], UIDS[10], UIDS[25], "unknown"):
        for count, offset in ((500, 0), (7, 0), (7, 7), (7, 28), (0, 0)):
            query = {"count": str(count), "offset": str(offset), **asked}
            query |= {} if uid is None else {"metadata_notifyq": uid}
            assert fake._desk.search(query) == slow.search(query)
