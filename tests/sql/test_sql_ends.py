"""The ends of an attempt: fenced, and never without the evidence of a receipt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias

import pytest
from sqlclient import Outbox

End: TypeAlias = Callable[[Outbox, int, int], Awaitable[object]]
ENDS: dict[str, tuple[End, str]] = {
    "email_dead": (lambda db, row_id, seq: db.dead(row_id, seq), "dead: rejected"),
    "email_pending": (lambda db, row_id, seq: db.pending(row_id, seq), "pending"),
    "email_doubt": (lambda db, row_id, seq: db.doubt(row_id, seq), "doubt"),
    "email_held": (lambda db, row_id, seq: db.held(row_id, seq), "held"),
}
# `held` needs a doubt, so it ends an ask; the others end a send as well.
FROM = {"email_held": "asking"}


async def under_claim(db: Outbox, end: str) -> tuple[int, int]:
    """A claimed row that *end* may end, and its fence."""
    if FROM.get(end) == "asking":
        row_id = await db.in_state("doubt")
        await db.claim()
        return row_id, 2
    return await db.in_state("processing"), 1


@pytest.mark.parametrize("end", ENDS)
async def test_an_end_with_the_right_fence_is_recorded(db: Outbox, end: str) -> None:
    """The lease goes with it."""
    row_id, seq = await under_claim(db, end)
    record, status = ENDS[end]

    assert await record(db, row_id, seq) == [row_id]
    assert await db.status(row_id) == status
    assert (await db.row(row_id))["lease_until"] is None


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("off", [-1, 1])
async def test_an_end_with_a_wrong_fence_changes_nothing(db: Outbox, end: str, off: int) -> None:
    """A worker that lost its claim has no say."""
    row_id, seq = await under_claim(db, end)
    before = await db.row(row_id), await db.events(row_id)

    assert await ENDS[end][0](db, row_id, seq + off) == []
    assert (await db.row(row_id), await db.events(row_id)) == before


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("state", ["pending", "doubt", "held", "sent", "dead"])
async def test_an_end_needs_a_claim(db: Outbox, end: str, state: str) -> None:
    """The right number is not enough once the row rests."""
    row_id = await db.in_state(state)
    before = await db.row(row_id)

    assert await ENDS[end][0](db, row_id, before["claim_seq"]) == []
    assert await db.row(row_id) == before


async def test_accepted_is_sent_with_the_providers_id(db: Outbox) -> None:
    """The one good end."""
    row_id = await db.in_state("processing")
    db.later(2)

    assert await db.sent(row_id, 1, "m-7") == "recorded"
    row = await db.row(row_id)
    assert (row["status"], row["provider_message_id"], row["sent_at"]) == ("sent", "m-7", db.now)
    assert await db.events(row_id) == ["accepted"]


@pytest.mark.parametrize("state", ["pending", "doubt", "held", "dead"])
async def test_a_late_receipt_makes_any_resting_row_sent(db: Outbox, state: str) -> None:
    """A worker that holds a 200 writes it down even when its claim is gone: evidence is never thrown away."""
    row_id = await db.in_state(state)

    assert await db.sent(row_id, 0, "m-1") == "receipt"
    row = await db.row(row_id)
    assert (row["status"], row["provider_message_id"], row["reason"]) == ("sent", "m-1", None)
    assert (await db.events(row_id))[-1] == "receipt"


async def test_the_same_receipt_twice_is_known(db: Outbox) -> None:
    """A worker repeats what it was not told was written."""
    row_id = await db.in_state("sent")

    assert await db.sent(row_id, 1, "m-1") == "known"
    assert await db.events(row_id) == ["accepted"]


async def test_another_receipt_of_a_sent_row_is_a_duplicate_kept_by_name(db: Outbox) -> None:
    """Sent twice: told, and the first id stands."""
    row_id = await db.in_state("sent")

    assert await db.sent(row_id, 0, "m-2") == "duplicate"
    assert (await db.row(row_id))["provider_message_id"] == "m-1"
    assert (await db.events(row_id))[-1] == "duplicate"


async def under_a_newer_claim(db: Outbox) -> int:
    """A row whose first claim was accepted while the second (an ask) runs."""
    row_id = await db.in_state("doubt")
    await db.claim(worker="w2")
    assert await db.sent(row_id, 1, "m-1") == "receipt"
    row = await db.row(row_id)
    assert (row["status"], row["receipt"], row["claim_seq"]) == ("processing", "m-1", 2)
    return row_id


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_of_a_newer_claim_honours_an_older_receipt(db: Outbox, end: str) -> None:
    """No second send follows a receipt, whatever the newer claim came to."""
    row_id = await under_a_newer_claim(db)

    assert await ENDS[end][0](db, row_id, 2) == []
    row = await db.row(row_id)
    assert (row["status"], row["provider_message_id"], row["receipt"]) == ("sent", "m-1", None)


async def test_a_lease_that_ends_honours_an_older_receipt(db: Outbox) -> None:
    """The worker that was to find it in the row is dead."""
    row_id = await under_a_newer_claim(db)
    (row,) = await db.conn.fetch("select id, claim_seq from notifyq.emails where id = $1", row_id)
    await db.lease_ended(row)

    assert await db.status(row_id) == "sent"


async def test_a_newer_claim_that_was_accepted_too_is_a_duplicate(db: Outbox) -> None:
    """Two copies went out: the older id stands, the newer one is in the history."""
    row_id = await under_a_newer_claim(db)

    assert await db.sent(row_id, 2, "m-2") == "duplicate"
    row = await db.row(row_id)
    assert (row["status"], row["provider_message_id"]) == ("sent", "m-1")


async def test_a_newer_claim_that_found_the_same_message_is_no_duplicate(db: Outbox) -> None:
    """The receipt and the search speak of one message."""
    row_id = await under_a_newer_claim(db)

    assert await db.sent(row_id, 2, "m-1", "found") == "known"
    assert await db.status(row_id) == "sent"
    assert "duplicate" not in await db.events(row_id)


async def test_a_batch_is_answered_id_by_id(db: Outbox) -> None:
    """One lost claim in a group commit does not hide the others."""
    first, second = await db.put("a"), await db.put("b")
    await db.claim(2)
    await db.doubt(second, 1)
    rows = await db.call(
        "email_sent",
        ids=[first, second],
        claim_seqs=[1, 1],
        message_ids=["m-a", "m-b"],
        events=["accepted"] * 2,
    )

    assert {row["id"]: row["answer"] for row in rows} == {first: "recorded", second: "receipt"}


async def test_two_claims_of_one_row_in_one_batch_are_a_duplicate(db: Outbox) -> None:
    """A process that took its own lost row again may hold both acceptances when the database returns."""
    row_id = await db.in_state("doubt")
    await db.claim()
    rows = await db.call(
        "email_sent", ids=[row_id] * 2, claim_seqs=[1, 2], message_ids=["m-1", "m-2"], events=["accepted"] * 2
    )

    assert "duplicate" in [row["answer"] for row in rows]


async def test_an_unknown_id_is_answered_and_harms_nobody(db: Outbox) -> None:
    """A row that somebody deleted."""
    assert await db.sent(-1, 1) == "unknown"


async def test_pending_gives_back_an_attempt_that_is_not_charged(db: Outbox) -> None:
    """429, a shut gate, a release, a probe: attempts count sends that the provider may have seen."""
    row_id = await db.in_state("processing")
    await db.pending(row_id, 1, 30, charged=False, postponed=True)
    row = await db.row(row_id)

    assert (row["attempts"], row["run_after"], row["postponed"]) == (0, db.at(30), True)
    assert (row["claim_seq"], row["last_error"]) == (1, "later")


async def test_an_ask_gives_no_attempt_back(db: Outbox) -> None:
    """It took none; the doubt is over and settle with it."""
    row_id = await db.in_state("doubt")
    await db.claim()
    await db.pending(row_id, 2, charged=False)
    row = await db.row(row_id)

    assert (row["attempts"], row["doubt_since"], row["misses"]) == (1, None, 0)


async def test_waits_count_while_a_row_is_not_set_up_and_then_start_again(db: Outbox) -> None:
    """The wait doubles with them."""
    row_id = await db.in_state("processing")
    for expected in (1, 2):
        await db.pending(row_id, expected, waiting=True)
        assert (await db.row(row_id))["waits"] == expected
        await db.claim()
    await db.pending(row_id, 3)

    assert (await db.row(row_id))["waits"] == 0


async def test_a_blind_resend_is_remembered_for_life(db: Outbox) -> None:
    """Once in the row's life, whatever follows."""
    row_id = await db.in_state("doubt")
    await db.claim()
    await db.pending(row_id, 2, resending=True)
    (claim,) = await db.claim()
    assert claim["resent"]
    await db.doubt(row_id, 3)
    (again,) = await db.claim()

    assert again["resent"]


async def test_a_fresh_doubt_starts_settle_and_an_ask_does_not(db: Outbox) -> None:
    """Settle runs from the last byte, however often the provider is asked."""
    row_id = await db.in_state("doubt")
    began = db.now
    db.later(50)
    await db.claim()
    await db.doubt(row_id, 2, 70, fresh=False, misses=1, asks=2)
    row = await db.row(row_id)

    assert (row["doubt_since"], row["run_after"]) == (began, db.at(70))
    assert (row["misses"], row["asks"], row["attempts"]) == (1, 2, 1)


async def test_a_doubtful_probe_is_not_charged(db: Outbox) -> None:
    """Nor is a probe whose answer was lost."""
    row_id = await db.in_state("processing")
    await db.doubt(row_id, 1, charged=False)

    assert (await db.row(row_id))["attempts"] == 0


async def test_a_long_error_is_cut_to_what_the_row_takes(db: Outbox) -> None:
    """An end must not fail for what somebody else wrote."""
    row_id = await db.in_state("processing")
    await db.dead(row_id, 1, error="x" * 5000)

    assert len((await db.row(row_id))["last_error"]) == 1000


async def test_copies_are_noted_once_each(db: Outbox) -> None:
    """The auditor looks every day; a double is told once."""
    row_id = await db.in_state("sent")
    noted = [await db.value("note_copies", id=row_id, message_ids=["m-1", "m-2", "m-3"]) for _ in range(2)]

    assert noted == [2, 0]


# ---------------------------------------------------------------- leases


async def test_a_send_whose_lease_ended_is_in_doubt_from_now_on(db: Outbox) -> None:
    """Its bytes may have left until the very end of it."""
    await db.put()
    (claim,) = await db.claim()
    db.later(25)

    assert await db.lease_ended(claim) == [claim["id"]]
    row = await db.row(claim["id"])
    assert (row["status"], row["doubt_since"], row["run_after"]) == ("doubt", db.now, db.now)
    assert row["attempts"] == 1


async def test_an_ask_whose_lease_ended_goes_on_being_in_doubt(db: Outbox) -> None:
    """Settle is not restarted, and a miss is not forgotten."""
    row_id = await db.in_state("doubt")
    began = db.now
    await db.claim()
    await db.doubt(row_id, 2, fresh=False, misses=1)
    (claim,) = await db.claim()
    db.later(25)
    await db.lease_ended(claim)
    row = await db.row(row_id)

    assert (row["status"], row["doubt_since"], row["misses"]) == ("doubt", began, 1)


async def test_only_the_very_lease_that_was_seen_is_ended(db: Outbox) -> None:
    """A renewed lease, a newer claim or a row at rest stays."""
    await db.put()
    (claim,) = await db.claim()
    until = (await db.row(claim["id"]))["lease_until"]
    older = {"id": claim["id"], "claim_seq": claim["claim_seq"] - 1}
    newer = {"id": claim["id"], "claim_seq": claim["claim_seq"] + 1}

    assert await db.lease_ended(claim, until + timedelta(microseconds=1)) == []
    assert await db.lease_ended(older, until) == []  # type: ignore[arg-type]
    assert await db.lease_ended(newer, until) == []  # type: ignore[arg-type]
    await db.sent(claim["id"], 1)
    assert await db.lease_ended(claim, until) == []
    assert await db.status(claim["id"]) == "sent"


async def test_a_claim_that_its_process_never_heard_of_goes_back_as_it_was(db: Outbox) -> None:
    """The answer to the claim was lost, so nothing was sent under it: no attempt, no doubt."""
    asked = await db.in_state("doubt", "asked")
    known, unknown = await db.put("known"), await db.put("unknown")
    await db.claim(3)
    foreign = await db.put("foreign")
    await db.claim(worker="w2")
    released = await db.call("release_lost_emails", worker="w1", known=[known])

    assert sorted(row[0] for row in released) == sorted([asked, unknown])
    assert [await db.status(n) for n in (asked, unknown, known, foreign)] == [
        "doubt",
        "pending",
        "processing",
        "processing",
    ]
    assert ((await db.row(unknown))["attempts"], (await db.row(asked))["attempts"]) == (0, 1)
    assert (await db.row(unknown))["claim_seq"] == 1


# ---------------------------------------------------------------- upkeep


async def test_a_doubt_is_held_only_if_no_worker_of_its_account_is_there(db: Outbox) -> None:
    """A fleet of two accounts, of which one is busy: its doubts are late, not lost."""
    row_id = await db.in_state("doubt")
    account = (await db.row(row_id))["account"]
    db.now += timedelta(minutes=10)
    await db.call("worker_seen", name="w", listening=True, tasks=[], builders=[], account=account)
    assert await hold_unaskable(db, "fake:other") == 0

    db.now += timedelta(minutes=4)

    assert await hold_unaskable(db, "fake:other") == 1


async def hold_unaskable(db: Outbox, account: str) -> int:
    """The sweep's part that holds what nobody can ask about."""
    held: int = await db.value(
        "hold_unaskable", account=account, grace=timedelta(seconds=120), oldest=timedelta(days=6)
    )
    return held


async def test_a_doubt_on_an_account_that_no_worker_has_is_held(db: Outbox) -> None:
    """After a grace in which its own workers would have asked."""
    row_id = await db.in_state("doubt")
    db.later(120)
    assert await hold_unaskable(db, "fake:b") == 0
    db.later(1)

    assert await hold_unaskable(db, "fake:b") == 1
    assert await db.status(row_id) == "held"
    assert "another provider account" in (await db.row(row_id))["last_error"]


async def test_a_doubt_older_than_the_provider_remembers_is_held(db: Outbox) -> None:
    """Then "not there" would be true of every message."""
    row_id = await db.in_state("doubt")
    db.later(6 * 86400)
    assert await hold_unaskable(db, "fake:a") == 0
    db.later(1)

    assert await hold_unaskable(db, "fake:a") == 1
    assert await db.status(row_id) == "held"


async def test_retention_empties_bodies_in_steps_and_keeps_the_keys(db: Outbox) -> None:
    """The key is used at most once, ever; what is not at its end keeps its body."""
    done = [await db.in_state("sent", f"k{n}") for n in range(3)]
    waiting = await db.in_state("pending", "waiting")
    db.later(30 * 86400 + 1)
    purged = [await db.value("purge_emails", older=timedelta(days=30), limit=2) for _ in range(3)]

    assert purged == [2, 1, 0]
    assert [(await db.row(n))["message"] for n in done] == [None] * 3
    assert (await db.row(waiting))["message"] is not None
    assert await db.put("k0") == done[0]


async def test_retention_leaves_what_ended_lately(db: Outbox) -> None:
    """An operator may still look at it or send it again."""
    row_id = await db.in_state("dead")
    db.later(30 * 86400)

    assert await db.value("purge_emails", older=timedelta(days=30)) == 0
    assert (await db.row(row_id))["message"] is not None


async def test_the_sweep_does_all_three(db: Outbox) -> None:
    """Expiry, what nobody can ask about, retention: figures for the log."""
    gone = await db.in_state("sent", "gone")
    doubt = await db.in_state("doubt", "doubt")
    expired = await db.put("late", send_before=db.at(60))
    db.later(40 * 86400)
    (swept,) = await db.call(
        "sweep_emails",
        account="fake:a",
        grace=timedelta(seconds=120),
        oldest_doubt=timedelta(days=6),
        retention=timedelta(days=30),
    )

    assert tuple(swept) == (1, 1, 1)
    assert [await db.status(n) for n in (gone, doubt, expired)] == ["sent", "held", "dead: expired"]


async def test_a_chore_is_taken_once_in_its_time(db: Outbox) -> None:
    """However many workers ask; for the first time when it has been known for as long."""
    every = timedelta(days=1)

    async def take() -> bool:
        taken: bool = await db.value("take_chore", name="audit", every=every)
        return taken

    assert [await take(), await take()] == [False, False]
    db.later(86399)
    assert await take() is False
    for _ in range(2):
        db.later(86400)
        assert [await take(), await take()] == [True, False]
