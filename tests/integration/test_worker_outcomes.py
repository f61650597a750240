"""What each answer of the provider makes of a row: a real worker, a real server, a real fake Postmark."""

from __future__ import annotations

import pytest
from outbox import Outbox, emails, keys, until

from notifyq import enqueue_many
from notifyq.testing import Fault, faults


async def test_an_accepted_email_is_sent_with_the_providers_id(outbox: Outbox) -> None:
    """The receipt is the proof that the row's end is true."""
    await outbox.start()

    await outbox.put()

    row = await outbox.until("sent")
    (message,) = outbox.fake.accepted
    assert (message.message_id, str(row["uid"])) == (row["provider_message_id"], message.uid)
    assert (row["attempts"], len(outbox.fake.posts), row["lease_until"]) == (1, 1, None)
    assert row["sent_at"] is not None


@pytest.mark.parametrize(
    ("code", "reason"), [(300, "rejected"), (406, "suppressed"), (402, "rejected"), (500, "rejected")]
)
async def test_a_fault_of_the_message_is_final_at_once_and_is_logged(
    outbox: Outbox, code: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Trying the same words again would get the same answer. A suppression is no mistake: not logged."""
    outbox.fake.fault(faults.refused(code))
    await outbox.start()

    await outbox.put()

    row = await outbox.until("dead")
    assert (reason, 1) == (row["reason"], len(outbox.fake.posts))
    assert row["last_error"]
    await outbox.stop()
    line = f"email {row['id']} is dead ({reason}): {row['last_error']}; `notifyq show {row['id']}`"
    assert (line in caplog.messages) is (reason != "suppressed")
    assert ("is dead" in caplog.text) is (reason != "suppressed")


async def test_a_maintenance_answer_puts_it_off_by_about_two_minutes(outbox: Outbox) -> None:
    """503 with the envelope is a sure no: charged, and due in 60 s × 2^1, ± 20 %."""
    outbox.fake.fault(faults.maintenance())
    await outbox.start()

    await outbox.put()
    await outbox.until_event("deferred")

    row = await outbox.row()
    ended = await outbox.pool.fetchval("select at from notifyq.history where event = 'deferred'")
    assert (row["status"], row["attempts"]) == ("pending", 1)
    assert 96 <= (row["run_after"] - ended).total_seconds() <= 144


async def test_too_many_requests_waits_as_long_as_told_and_is_not_an_attempt(outbox: Outbox) -> None:
    """Throttling is the provider's pace, not this email's fault."""
    outbox.fake.fault(faults.too_many_requests("2"))
    await outbox.start()

    await outbox.put()

    row = await outbox.until("sent")
    first, second = outbox.fake.posts
    assert 2 <= second.arrived_at - first.arrived_at < 8
    assert row["attempts"] == 1


async def test_a_wrong_token_blocks_the_gate_and_keeps_every_row(outbox: Outbox) -> None:
    """At 2am a revoked token must not kill the backlog: everything goes out when it is mended."""
    outbox.fake.token = "another-token"
    env = {"POSTMARK_SERVER_TOKEN": "test-token"}
    await outbox.start(env=env, slots=4)
    await enqueue_many(outbox.pool, emails(keys(12)))
    await outbox.until_event("blocked", "k0")

    await outbox.until_statuses({"pending": 12})
    assert [r[0] for r in await outbox.pool.fetch("select distinct attempts from notifyq.emails")] == [0]
    assert await outbox.pool.fetchval("select state from notifyq.gates") == "blocked"
    assert len(outbox.fake.posts) <= 4

    outbox.fake.token = "test-token"
    await outbox.pool.execute("update notifyq.gates set until = clock_timestamp()")  # not wait for 30 s

    await outbox.until_statuses({"sent": 12})
    assert len(outbox.fake.accepted) == 12
    assert await outbox.pool.fetchval("select state from notifyq.gates") == "open"


LOST = {
    "close": (faults.Close(record=True), faults.Close(record=False)),
    "reset": (faults.Reset(record=True), faults.Reset(record=False)),
    "hang": (faults.Hang(record=True), faults.Hang(record=False)),
    "bad gateway": (faults.bad_gateway(record=True), faults.bad_gateway(record=False)),
    "500": (faults.unexpected(record=True), faults.unexpected(record=False)),
    "not json": (faults.not_json(record=True), faults.not_json(record=False)),
    "truncated": (faults.Truncated(record=True), faults.Truncated(record=False)),
}


@pytest.mark.parametrize("symptom", LOST)
async def test_an_answer_lost_after_acceptance_is_found_by_asking(outbox: Outbox, symptom: str) -> None:
    """The provider has it: one message, one POST, and the row learns its id."""
    fault: Fault = LOST[symptom][0]
    outbox.fake.fault(fault)
    await outbox.start()

    await outbox.put()

    row = await outbox.until("sent")
    assert [row["provider_message_id"]] == [message.message_id for message in outbox.fake.accepted]
    assert len(outbox.fake.posts) == 1
    assert await outbox.events() == ["unknown", "found"]


@pytest.mark.parametrize("symptom", LOST)
async def test_the_same_symptom_without_acceptance_is_sent_again_after_two_misses(
    outbox: Outbox, symptom: str
) -> None:
    """From outside the twin looks the same; only a settled search tells them apart."""
    fault: Fault = LOST[symptom][1]
    outbox.fake.fault(fault)
    await outbox.start(settle=0.4)

    await outbox.put()

    await outbox.until("sent")
    assert (len(outbox.fake.accepted), len(outbox.fake.posts)) == (1, 2)
    events = [event for event in await outbox.events() if event != "too early"]
    assert events == ["unknown", "not found", "not sent", "accepted"]


async def test_a_search_that_lags_is_waited_for(outbox: Outbox) -> None:
    """A miss before settle proves nothing: believing it would send twice."""
    outbox.fake.search_lag = 0.8
    outbox.fake.fault(faults.Close(record=True))
    await outbox.start(settle=1.0)

    await outbox.put()

    await outbox.until("sent")
    assert (len(outbox.fake.accepted), len(outbox.fake.posts)) == (1, 1)


async def test_a_refused_connection_is_a_sure_no(outbox: Outbox) -> None:
    """Nothing was sent, so nothing is in doubt and nobody is asked."""
    await outbox.fake.down()
    await outbox.start()

    await outbox.put()
    await outbox.until_event("deferred")

    assert ((await outbox.row())["status"], (await outbox.row())["attempts"]) == ("pending", 1)
    await outbox.fake.up()
    assert outbox.fake.searches == []


async def test_an_outage_costs_its_own_length_and_no_staircase(outbox: Outbox) -> None:
    """The gate notices, probes, and pulls the waiting rows forward when the provider is back."""
    await outbox.fake.down()
    await outbox.start()
    await enqueue_many(outbox.pool, emails(keys(15)))

    async def closed() -> bool:
        return bool(await outbox.pool.fetchval("select state = 'closed' from notifyq.gates"))

    await until(closed, what="the gate is closed")
    await outbox.fake.up()

    await outbox.until_statuses({"sent": 15}, seconds=30)
    assert len(outbox.fake.accepted) == 15


async def test_a_sender_that_is_not_set_up_makes_its_own_row_wait(outbox: Outbox) -> None:
    """One product's unconfirmed sender must not stop the others' mail, nor lose its own."""
    outbox.fake.senders = {"shop@example.com"}
    await outbox.start()

    await outbox.put("stranger", from_="stranger@example.com")
    await outbox.put("good")

    await outbox.until("sent", "good")
    await outbox.until_event("misconfigured", "stranger")
    row = await outbox.row("stranger")
    assert (row["status"], row["attempts"]) == ("pending", 0)
    assert (row["run_after"] - row["created_at"]).total_seconds() > 200


async def test_the_shunt_takes_every_recipient_also_of_rows_enqueued_before(outbox: Outbox) -> None:
    """A copy of the production database must never write to customers."""
    await outbox.put(to=["ann@example.com", "bob@example.com"], cc="cy@example.com", bcc="dan@example.com")

    await outbox.start(env={"EMAIL_SHUNT": "me@example.com"})

    await outbox.until("sent")
    (message,) = outbox.fake.accepted
    assert message.recipients == ("me@example.com",)


async def test_an_email_past_its_send_before_is_never_posted(outbox: Outbox) -> None:
    """A code that has run out confuses more than it helps."""
    await outbox.put()
    await outbox.pool.execute("update notifyq.emails set send_before = clock_timestamp() - interval '1 s'")

    await outbox.start()

    row = await outbox.until("dead")
    assert (row["reason"], outbox.fake.posts) == ("expired", [])
