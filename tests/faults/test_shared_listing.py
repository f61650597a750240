"""A search is believed only if it is new enough: one listing for many doubts, a search that is behind."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from canary_email import an_email
from outbox import Outbox

from notifyq import Postmark, WorkerSettings, build_postmark_payload
from notifyq.asking import Asker
from notifyq.db import linked
from notifyq.provider import Found, Missing
from notifyq.testing import faults


async def test_a_listing_from_before_the_doubt_is_no_answer_to_it(outbox: Outbox) -> None:
    """With a short settle, both misses could come from one listing that was taken before the POST: an email
    was believed lost and sent twice. A listing is shared for a small part of settle."""
    provider = Postmark(env=outbox.fake.env())
    await provider.open()
    settings = WorkerSettings(settle=0.4, post_budget=5, lease=10)
    late = uuid4()
    async with linked(outbox.pool, "test") as link:
        asker = Asker(provider, settings, link)
        now = datetime.now(UTC)
        for _ in range(11):  # the eleventh has no single search left, and lists
            await asker.ask(uuid4(), stream="outbound", doubt_since=now, settled=False)
        payload = build_postmark_payload(an_email("late"), {}, uid=late, claim=1)
        outbox.fake._ledger.accept("late", payload)
        _age(asker, 0.15)  # a good part of settle

        finding = await asker.ask(late, stream="outbound", doubt_since=now, settled=True)

    await provider.close()
    assert not isinstance(finding, Missing)
    assert isinstance(finding, Found)


async def test_a_search_that_does_not_show_a_later_message_yet_is_no_answer(outbox: Outbox) -> None:
    """The positive control: a search that lags for longer than was assumed is noticed where it can be, and
    its misses are not believed."""
    outbox.fake.search_lag = 2.5
    outbox.fake.fault(faults.Reset(record=True))
    await outbox.start(settle=0.5)
    await outbox.put("doubtful")
    await outbox.until_event("unknown", "doubtful")
    await outbox.put("later")

    await outbox.until("sent", "doubtful")

    assert "inconclusive" in await outbox.events("doubtful")
    assert sorted(outbox.fake.accepted_by_uid().values()) == [1, 1]


def _age(asker: Asker, seconds: float) -> None:
    """Make the listings that *asker* keeps older: time is moved, not waited for."""
    for stream, (taken_at, reaches, listed) in asker._listings.items():
        asker._listings[stream] = (taken_at - seconds, reaches, listed)
