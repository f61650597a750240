"""What a provider that is down, deaf, slow or strict may cost: figures of the promise, one test each.

Time is scaled where the issue speaks of minutes: a test minute is a second. Backoff, settle and the pauses of
the gate are settings or columns, so the worker's own code runs unchanged; each test says what it scales.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import asyncpg
import pytest
from checker import Tally, check, watch
from outbox import Outbox, emails, keys, until

from notifyq import Postmark, enqueue_many
from notifyq.auditor import audit
from notifyq.db import linked
from notifyq.testing import faults


async def _checked(outbox: Outbox, *, all_end: bool = True, ignore_twice: bool = False) -> Tally:
    async with outbox.pool.acquire() as conn:
        return await check(
            conn, outbox.fake.accepted, all_end=all_end, twice_is_known=lambda _row: ignore_twice
        )


@pytest.fixture
async def watched(outbox: Outbox) -> Outbox:
    """An outbox whose moves are witnessed."""
    async with outbox.pool.acquire() as conn:
        await watch(conn)
    return outbox


async def test_a_search_that_lags_too_long_holds_what_may_not_be_twice(watched: Outbox) -> None:
    """Assumption A2 is broken on purpose: policy hold answers with a person, not with a second email."""
    watched.fake.search_lag = None
    watched.fake.fault(faults.Reset(record=True), times=None)
    await enqueue_many(watched.pool, emails(keys(20), on_doubt="hold"))
    await watched.start(settle=0.4)

    await watched.until_statuses({"held": 20}, seconds=30)

    assert max(watched.fake.accepted_by_uid().values()) == 1
    assert (await _checked(watched)).wrong == []


async def test_every_double_of_a_lagging_search_is_told_by_name(watched: Outbox) -> None:
    """With policy ask the broken assumption costs a second email, and the auditor names each one."""
    watched.fake.search_lag = None
    names = keys(12)
    await enqueue_many(watched.pool, emails(names))
    uids = {
        row["id"]: str(row["uid"]) for row in await watched.pool.fetch("select id, uid from notifyq.emails")
    }
    for uid in uids.values():
        watched.fake.fault(faults.Reset(record=True), uid=uid)
    # Nothing is accepted before every answer is lost, so that no later message can serve as a control.
    worker = await watched.start(settle=0.4, slots=20)
    await watched.until_statuses({"sent": 12}, seconds=40)
    await watched.stop(worker)
    doubles = {id for id, uid in uids.items() if watched.fake.accepted_by_uid()[uid] == 2}
    watched.fake.search_lag = 0.0

    async with linked(watched.pool, "audit") as link:
        provider = Postmark(env=watched.fake.env())
        await provider.open()
        told = await audit(link, provider, budget=5)
        await provider.close()

    assert len(doubles) >= 1
    assert doubles == set(told.twice)
    assert (await _checked(watched, ignore_twice=True)).wrong == []


async def test_the_audit_finds_what_died_at_its_second_post_though_the_first_arrived(watched: Outbox) -> None:
    """Policy resend never learns how its first POST ended; "rejected" may then be half the truth."""
    watched.fake.search_lag = None
    await enqueue_many(watched.pool, emails(keys(1), on_doubt="resend"))
    watched.fake.fault(faults.Reset(record=True))
    watched.fake.fault(faults.Answer(status=422, body='{"ErrorCode": 300, "Message": "no"}'))
    worker = await watched.start()
    await watched.until_statuses({"dead": 1}, seconds=20)
    await watched.stop(worker)
    assert "may have been accepted" in await watched.pool.fetchval("select last_error from notifyq.emails")
    watched.fake.search_lag = 0.0

    async with linked(watched.pool, "audit") as link:
        provider = Postmark(env=watched.fake.env())
        await provider.open()
        await audit(link, provider, budget=5)
        await provider.close()

    await watched.until_statuses({"sent": 1}, seconds=5)
    assert (await _checked(watched)).wrong == []


async def test_an_outage_costs_its_own_length(watched: Outbox) -> None:
    """Ten seconds stand for ten minutes; the pauses of the gate are not scaled, so the return may be noticed
    only at the end of the last one. Doubts from before are answered in 1.5 settle + 10 s."""
    watched.fake.fault(faults.Reset(record=True), times=2)
    watched.fake.fault(faults.Reset(record=False), times=1)
    await enqueue_many(watched.pool, emails(keys(3, "doubt")))
    settle = 2.0
    await watched.start(settle=settle, slots=10)
    await watched.fake.wait_posts(3)
    await watched.fake.down()
    await enqueue_many(watched.pool, emails(keys(60)))

    async def closed() -> bool:
        return bool(await watched.pool.fetchval("select state = 'closed' from notifyq.gates"))

    await until(closed, what="the gate is closed")
    await asyncio.sleep(10)  # the outage itself
    pause, probes = await watched.pool.fetchrow(  # type: ignore[misc]
        "select extract(epoch from until - clock_timestamp())::float, probes from notifyq.gates"
    )
    await watched.fake.up()
    back = time.monotonic()
    sure = "select count(*) from notifyq.emails where key not like 'doubt%' and status <> 'sent'"

    async def all_out() -> bool:
        return not await watched.pool.fetchval(sure)

    await until(all_out, seconds=pause + 60, what="what was not in doubt is out")
    sure_took = time.monotonic() - back
    await watched.until_statuses({"sent": 63}, seconds=pause + 1.5 * settle + 10)
    print(f"\n{probes} probes in 10 s; out {sure_took:.1f} s after the return, at a pause of {pause:.1f} s")
    assert await watched.pool.fetchval("select max(attempts) from notifyq.emails") <= 2
    assert (await _checked(watched)).wrong == []


async def test_ten_minutes_of_outage_take_at_most_twenty_five_probes(watched: Outbox) -> None:
    """By the database's own rules, in time that the test moves: who wakes when told and fails each probe."""
    await enqueue_many(watched.pool, emails(keys(2)))
    claim = (
        "select * from notifyq.claim_emails(p_worker => 'w', p_account => 'a', p_slots => 20, "
        "p_ask_slots => 0, p_builders => array[''], p_lease => '20 s', "
        "p_now => clock_timestamp() + $1 * interval '1 s')"
    )
    fail = "select notifyq.gate_failed('a', $1, $2, 'down', clock_timestamp() + $3 * interval '1 s')"
    put_off = (
        "select * from notifyq.email_pending($1, $2, '{120}', '{f}', '{t}', '{f}', '{f}', '{down}', "
        "'{deferred}', clock_timestamp() + $3 * interval '1 s')"
    )
    await watched.pool.fetch(fail, 10, False, 0.0)
    at, probes = 0.0, 0
    while at < 600:
        for row in await watched.pool.fetch(claim, at):
            if row["id"] is not None:
                probes += 1
                assert row["probing"]
                await watched.pool.fetch(put_off, [row["id"]], [row["claim_seq"]], at)
                await watched.pool.fetch(fail, 1, True, at)
        at += 0.5

    print(f"\n{probes} probes in 600 s")
    assert 20 <= probes <= 25
    assert await watched.pool.fetchval("select max(attempts) from notifyq.emails") == 0


async def test_a_wrong_token_for_an_hour_kills_nothing_and_is_asked_about_twice_a_minute(
    watched: Outbox,
) -> None:
    """401 for an hour, in a clock that SQL moves on: the gate grants at most one look in 30 s, the reason is
    there to be read, and no row is charged."""
    watched.fake.token = "another"
    await enqueue_many(watched.pool, emails(keys(30)))
    worker = await watched.start(env={"POSTMARK_SERVER_TOKEN": "test-token"}, slots=5)
    await watched.until_statuses({"pending": 30})
    await watched.until_event("blocked", "k0")
    await watched.stop(worker)
    posts = len(watched.fake.posts)

    looks = await watched.pool.fetchval(
        "select count(*) filter (where notifyq.gate_look(g.account, clock_timestamp() + s * interval '1 s')) "
        "from notifyq.gates g, generate_series(1, 3600) s"
    )

    assert looks <= 120
    assert posts <= 5
    gate = await watched.pool.fetchrow("select state, reason from notifyq.gates")
    assert (gate["state"], "token" in gate["reason"].lower()) == ("blocked", True)
    assert dict(Counter(r[0] for r in await watched.pool.fetch("select attempts from notifyq.emails"))) == {
        0: 30
    }
    assert (await _checked(watched, all_end=False)).wrong == []


async def test_one_bad_sender_among_a_hundred_stops_only_itself(watched: Outbox) -> None:
    """A fault of a row's configuration is no fault of the account."""
    watched.fake.senders = {"shop@example.com"}
    await enqueue_many(watched.pool, emails(keys(99)))
    await watched.put("bad", from_="stranger@example.com", priority=-1)
    await watched.start()

    await watched.until_statuses({"sent": 99, "pending": 1})

    assert (await watched.row("bad"))["attempts"] == 0
    assert await watched.pool.fetchval("select coalesce(max(state), 'open') from notifyq.gates") == "open"
    assert (await _checked(watched, all_end=False)).wrong == []


async def test_eight_workers_keep_to_the_pace_of_a_strict_provider(watched: Outbox, notifyq_dsn: str) -> None:
    """5 a second with 429: nothing dies, no throttle is charged, and after the first second no second has a
    storm, which is more than three times the allowed POSTs."""
    watched.fake.rate_limit(5)
    await enqueue_many(watched.pool, emails(keys(40)))
    async with asyncpg.create_pool(notifyq_dsn, min_size=0, max_size=40) as pool:
        for _ in range(8):
            await watched.start(pool=pool, slots=5, listen=False, poll=0.3)
        await watched.until_statuses({"sent": 40}, seconds=60)
        await watched.stop()

    first = watched.fake.posts[0].arrived_at
    seconds = Counter(int(post.arrived_at - first) for post in watched.fake.posts)
    print(f"\nPOSTs a second: {[seconds[s] for s in range(max(seconds) + 1)]}")
    assert max(seconds[second] for second in seconds if second > 0) <= 15
    assert await watched.pool.fetchval("select count(*) from notifyq.emails where attempts <> 1") == 0
    assert (await _checked(watched)).wrong == []
