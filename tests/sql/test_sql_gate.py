"""The gate: closes after ten failures, probes seldom, opens on the first success, pulls forward smoothly."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from sqlclient import ACCOUNT, LEASE, Outbox


async def failed(db: Outbox, count: int = 1, *, probe: bool = False) -> str:
    """gate_failed; the state that follows."""
    state: str = await db.value("gate_failed", account=ACCOUNT, count=count, probe=probe, reason="503")
    return state


async def throttled(db: Outbox, retry_after: float | None = None, *, probe: bool = False) -> str:
    """gate_throttled; the state that follows."""
    state: str = await db.value(
        "gate_throttled", account=ACCOUNT, retry_after=retry_after, probe=probe, reason="429"
    )
    return state


async def succeeded(db: Outbox, *, probe: bool = False) -> bool:
    """gate_succeeded; whether it opened."""
    opened: bool = await db.value("gate_succeeded", account=ACCOUNT, probe=probe)
    return opened


async def until(db: Outbox) -> float:
    """Seconds until a shut gate is looked at again."""
    seconds: float = ((await db.gate())["until"] - db.now).total_seconds()
    return seconds


async def test_an_account_that_nobody_complained_of_is_open(db: Outbox) -> None:
    """It needs no row."""
    await db.put()
    (claim,) = await db.claim()

    assert (claim["gate"], claim["gate_failures"], claim["probing"]) == ("open", 0, False)


async def test_ten_failures_in_a_row_close_it(db: Outbox) -> None:
    """Nine do not, and a success between starts the count again."""
    assert [await failed(db) for _ in range(9)] == ["open"] * 9
    await succeeded(db)
    assert await failed(db, 9) == "open"
    assert await failed(db) == "closed"
    assert await until(db) == 1


async def test_another_account_stays_open(db: Outbox) -> None:
    """A worker deployed with a wrong token must not shut out the healthy ones."""
    await failed(db, 10)
    await db.put()

    assert await db.claimed(account="fake:b") == ["k"]


async def test_a_closed_gate_lets_nothing_through_and_says_when_to_come_again(db: Outbox) -> None:
    """Rows wait, uncharged."""
    await failed(db, 10)
    await db.put()
    (nothing,) = await db.claim(5)

    assert (nothing["id"], nothing["gate"], nothing["wake_in"]) == (None, "closed", 1)


async def test_one_due_email_is_the_probe(db: Outbox) -> None:
    """Of many that are due, one; nobody else may go while it is under way."""
    await failed(db, 10)
    await db.put("a")
    await db.put("b")
    db.later(1)
    (probe,) = await db.claim(5)
    (nothing,) = await db.claim(5, worker="w2")

    assert (probe["key"], probe["probing"]) == ("a", True)
    assert (nothing["id"], nothing["wake_in"]) == (None, LEASE.total_seconds())
    assert (await db.gate())["probes"] == 1


async def test_a_dead_prober_loses_its_right_with_its_lease(db: Outbox) -> None:
    """It cannot shut the gate for ever."""
    await failed(db, 10)
    await db.put("a")
    await db.put("b")
    db.later(1)
    await db.claim()
    db.later(LEASE.total_seconds())
    (second,) = await db.claim(worker="w2")

    assert (second["key"], second["probing"]) == ("b", True)


async def test_with_nothing_due_what_the_provider_put_off_tries_early(db: Outbox) -> None:
    """Or an outage would last as long as the longest backoff."""
    row_id = await db.in_state("processing")
    await db.pending(row_id, 1, 7200, postponed=True)
    own_wish = await db.put("later", run_after=db.at(60))
    await failed(db, 10)
    db.later(1)
    (probe,) = await db.claim(5)

    assert (probe["id"], probe["probing"]) == (row_id, True)
    assert await db.status(own_wish) == "pending"


async def test_with_nothing_at_all_to_send_no_probe_is_used_up(db: Outbox) -> None:
    """The next email that comes may go at once."""
    await failed(db, 10)
    db.later(1)
    await db.claim(5)
    await db.put()
    (probe,) = await db.claim(5)

    assert probe["probing"] is True


async def test_an_ask_uses_up_no_probe(db: Outbox) -> None:
    """With all free slots taken by asks nothing is sent, so nothing has probed."""
    await db.in_state("doubt")
    await failed(db, 10)
    await db.put("waiting")
    db.later(1)
    assert await db.claimed(1) == ["k"]
    (probe,) = await db.claim(1)

    assert (probe["key"], probe["probing"]) == ("waiting", True)


async def test_an_expired_email_uses_up_no_probe(db: Outbox) -> None:
    """It went nowhere: the provider is tried with the next one."""
    await failed(db, 10)
    await db.put("expired", run_after=db.at(-5), send_before=db.at(-1))
    await db.put("good")
    db.later(1)
    keys = [await db.claimed(1) for _ in range(2)]

    assert ["good"] in keys


async def test_failed_probes_wait_twice_as_long_each_up_to_thirty_seconds(db: Outbox) -> None:
    """1, 2, 4, 8, 16, 30, 30 … counted while it is shut, and from 1 again the next time."""
    await failed(db, 10)
    waits = [await until(db)]
    for _ in range(7):
        db.later(waits[-1])
        await failed(db, probe=True)
        waits.append(await until(db))

    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


async def test_stragglers_of_an_outage_do_not_lengthen_it(db: Outbox) -> None:
    """What was under way when the gate closed fails too, and says nothing new."""
    await failed(db, 10)
    await failed(db, 15)

    assert await until(db) == 1


async def test_ten_minutes_of_downtime_cost_25_probes_at_the_most(db: Outbox) -> None:
    """And none of the rows is charged for it."""
    await failed(db, 10)
    for n in range(3):
        await db.put(f"k{n}")
    down = db.at(600)
    while db.now < down:
        db.later(max(await until(db), 0.01))
        for claim in await db.claim(3):
            assert claim["probing"]
            await failed(db, probe=True)
            await db.pending(claim["id"], claim["claim_seq"], 120, charged=False, postponed=True)
    spent = await db.conn.fetchval("select max(attempts) from notifyq.emails")

    assert 15 <= (await db.gate())["probes"] <= 25
    assert spent == 0


@pytest.mark.parametrize(("retry_after", "wait"), [(0, 0), (7.5, 7.5), (300, 300), (86400, 300), (None, 1)])
async def test_a_429_closes_it_until_retry_after(db: Outbox, retry_after: float | None, wait: float) -> None:
    """At most five minutes; one second where the provider names no time."""
    assert await throttled(db, retry_after) == "closed"
    assert await until(db) == wait


async def test_a_429_without_a_time_waits_longer_each_time(db: Outbox) -> None:
    """Doubling, as long as the probes meet another one."""
    waits = []
    for probe in (False, True, True, True, True, True, True):
        await throttled(db, probe=probe)
        waits.append(await until(db))
        db.later(waits[-1])

    assert waits == [1, 2, 4, 8, 16, 32, 32]


async def test_a_burst_of_429_halves_the_pace_once(db: Outbox) -> None:
    """Twenty stragglers are one message; the longest Retry-After among them holds."""
    await throttled(db, 5)
    pace = (await db.gate())["pace"]
    await throttled(db, 9)
    await throttled(db, 2)

    assert (await db.gate())["pace"] == pace == 5
    assert await until(db) == 9


async def test_a_success_that_was_under_way_does_not_end_a_retry_after(db: Outbox) -> None:
    """The provider named a time."""
    await throttled(db, 60)

    assert await succeeded(db) is False
    assert await until(db) == 60


async def test_a_success_that_was_under_way_brings_the_next_probe_forward(db: Outbox) -> None:
    """After failures it is a good sign, though not the answer."""
    await failed(db, 10)
    for _ in range(6):
        await failed(db, probe=True)

    assert await succeeded(db) is False
    assert await until(db) == 0
    assert (await db.gate())["state"] == "closed"


async def test_a_blocked_account_is_looked_at_by_one_worker_each_thirty_seconds(db: Outbox) -> None:
    """And no row is claimed meanwhile."""
    await db.value("gate_blocked", account=ACCOUNT, reason="401")
    await db.put()
    looks = []
    for _ in range(120):
        db.later(1)
        looks += [await db.value("gate_look", account=ACCOUNT) for _ in range(2)]
        assert await db.claimed(5) == []

    assert sum(looks) == 4
    gate = await db.gate()
    assert (gate["state"], gate["reason"]) == ("blocked", "401")


async def test_a_blocked_account_stays_blocked_whatever_stragglers_say(db: Outbox) -> None:
    """Only a look at the account, or its own probe, mends it."""
    await db.value("gate_blocked", account=ACCOUNT, reason="401")
    await throttled(db, 5)
    await failed(db, 10)
    await succeeded(db)

    assert (await db.gate())["state"] == "blocked"


async def test_a_mended_account_sends_one_email_first(db: Outbox) -> None:
    """Half open: it shows whether the look was right, and no restart is needed."""
    await db.value("gate_blocked", account=ACCOUNT, reason="401")
    await db.put("a")
    await db.put("b")
    await db.value("gate_mended", account=ACCOUNT)
    (probe,) = await db.claim(5)
    assert (probe["key"], probe["probing"]) == ("a", True)
    assert await succeeded(db, probe=True) is True

    gate = await db.gate()
    assert (gate["state"], gate["reason"], gate["until"], gate["failures"]) == ("open", None, None, 0)
    assert await db.claimed(5) == ["b"]


async def test_the_first_success_pulls_forward_only_what_was_put_off_on_this_account(db: Outbox) -> None:
    """An outage of ten minutes costs ten minutes; an email for tomorrow stays for tomorrow."""
    mine = await db.in_state("processing", "mine")
    await db.pending(mine, 1, 7200, postponed=True)
    theirs = await db.put("theirs")
    await db.claim(account="fake:b")
    await db.pending(theirs, 1, 7200, postponed=True)
    own_fault = await db.in_state("processing", "own fault")
    await db.pending(own_fault, 1, 300, waiting=True)
    tomorrow = await db.put("tomorrow", run_after=db.at(86400))
    start = db.now
    await failed(db, 10)
    db.later(1)
    await succeeded(db, probe=True)
    waits = [
        ((await db.row(n))["run_after"] - start).total_seconds() for n in (mine, theirs, own_fault, tomorrow)
    ]

    assert waits == [1, 7200, 300, 86400]
    assert (await db.row(mine))["postponed"] is False


async def test_after_an_outage_the_pace_doubles_each_second_and_then_ends(db: Outbox) -> None:
    """No storm: what was not used is no right to a burst, and at 1,000 a second there is no pace."""
    for n in range(200):
        await db.put(f"k{n}")
    await failed(db, 10)
    db.later(1)
    await succeeded(db, probe=True)
    per_second = []
    for _ in range(5):
        sent = 0
        for _ in range(10):
            db.later(0.1)
            sent += len(await db.claimed(100))
        per_second.append(sent)
    for _ in range(10):
        db.later(1)
        await db.claim(1)

    assert per_second[0] <= 12
    assert per_second == sorted(per_second)
    assert all(later <= 2.6 * earlier for earlier, later in pairwise(per_second))
    assert (await db.gate())["pace"] is None


async def test_after_a_429_the_pace_grows_slowly(db: Outbox) -> None:
    """It is the pace itself that was too high."""
    await throttled(db, 1)
    db.later(1)
    await succeeded(db, probe=True)
    for _ in range(10):
        db.later(1)
        await db.claim(1)

    assert 15 < (await db.gate())["pace"] < 25


async def test_an_open_gate_costs_a_success_nothing(db: Outbox) -> None:
    """The common case writes no row."""
    assert await succeeded(db) is False
    assert await db.conn.fetchval("select count(*) from notifyq.gates") == 0


async def test_the_providers_own_name_is_kept(db: Outbox) -> None:
    """It is how two tokens are seen to be one account."""
    for server in ("s1", "s1", "s2"):
        await db.conn.execute("select notifyq.gate_server($1, $2)", ACCOUNT, server)

    assert (await db.gate())["server"] == "s2"


async def test_the_right_to_probe_lasts_for_the_probers_own_lease(db: Outbox) -> None:
    """Workers with other settings share the gate."""
    await failed(db, 10)
    await db.call("gate_probing", account=ACCOUNT, lease=timedelta(seconds=77))

    assert await until(db) == 77


async def test_more_refusals_do_not_put_off_the_next_look(db: Outbox) -> None:
    """Every email that was under way says the same; the look is still due thirty seconds after the first."""
    await db.value("gate_blocked", account=ACCOUNT, reason="401")
    db.later(29)
    await db.value("gate_blocked", account=ACCOUNT, reason="401 again")

    assert await until(db) == 1
    assert (await db.gate())["reason"] == "401"


async def test_what_was_put_off_past_its_send_before_does_not_try_early(db: Outbox) -> None:
    """A probe is a real email: it must still be worth sending."""
    row_id = await db.put(send_before=db.at(60))
    await db.claim()
    await db.pending(row_id, 1, 7200, postponed=True)
    await failed(db, 10)
    db.later(60)

    assert await db.claimed(5) == []
    assert (await db.gate())["probes"] == 0
