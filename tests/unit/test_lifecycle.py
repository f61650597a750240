"""The decisions after each attempt, as tables, and what no sequence of them may ever do."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from notifyq.lifecycle import (
    ASKS_LIMIT,
    EMAIL_TRANSITIONS,
    SENT_BEFORE,
    Claim,
    Dead,
    Doubt,
    GateSignal,
    Held,
    Pending,
    Sent,
    Transition,
    after_ask,
    after_send,
    builder_failed,
    gate_signal,
    unrenderable,
)
from notifyq.provider import (
    Accepted,
    Blocked,
    Deferred,
    Finding,
    Found,
    Inconclusive,
    Misconfigured,
    Missing,
    Outcome,
    Rejected,
    Suppressed,
    Throttled,
    Unknown,
    Unstarted,
)
from notifyq.settings import WorkerSettings

SETTINGS = WorkerSettings()
SETTLE = SETTINGS.settle
MIDDLE = 0.5
"""The roll at which jitter changes nothing."""

SENDING = Claim(id=1, uid=UUID(int=1), key="k", claim_seq=1, attempts=1)
LAST = replace(SENDING, attempts=10)
PROBING = replace(SENDING, probing=True)
ASKING = replace(SENDING, asking=True, doubt_age=SETTLE)
SECOND = replace(ASKING, doubt_age=1.5 * SETTLE, misses=1)
EARLY = replace(ASKING, doubt_age=10.0)
FAILED = Inconclusive("no answer", failed=True)
UNCLEAR = Inconclusive("a full page")


def sent_on(claim: Claim, outcome: Outcome) -> Transition:
    """The decision about one POST."""
    return after_send(claim, outcome, SETTINGS, MIDDLE)


def asked_on(claim: Claim, finding: Finding, **facts: Any) -> Transition:
    """The decision about one search, with the least jitter."""
    return after_ask(claim, finding, SETTINGS, 0.0, **facts)


def status(transition: Transition) -> str:
    """The state that a transition leads to, as the state table names it."""
    match transition:
        case Dead(reason=reason):
            return f"dead: {reason}"
        case _:
            return type(transition).__name__.lower()


AFTER_SEND: dict[str, tuple[Claim, Outcome, Transition]] = {
    "accepted": (SENDING, Accepted("m-1"), Sent(message_id="m-1")),
    "accepted on the last attempt": (LAST, Accepted("m-1"), Sent(message_id="m-1")),
    "rejected": (SENDING, Rejected("no"), Dead(reason="rejected", error="no", event="rejected")),
    "rejected, after an earlier POST whose fate nobody knows": (
        replace(SENDING, resent=True),
        Rejected("no"),
        Dead(reason="rejected", error=f"no; {SENT_BEFORE}", event="rejected"),
    ),
    "suppressed": (SENDING, Suppressed("no"), Dead(reason="suppressed", error="no", event="suppressed")),
    "deferred": (
        SENDING,
        Deferred("503"),
        Pending(delay=120.0, event="deferred", error="503", postponed=True),
    ),
    "deferred, attempts spent": (
        LAST,
        Deferred("503"),
        Dead(reason="exhausted", error="503", event="exhausted"),
    ),
    "a deferred probe is not charged": (
        PROBING,
        Deferred("503"),
        Pending(delay=120.0, event="deferred", error="503", charged=False, postponed=True),
    ),
    "a deferred probe spends no last attempt": (
        replace(LAST, probing=True),
        Deferred("503"),
        Pending(delay=7200.0, event="deferred", error="503", charged=False, postponed=True),
    ),
    "throttled": (
        LAST,
        Throttled("429", 3.0),
        Pending(delay=0, event="throttled", error="429", charged=False, postponed=True),
    ),
    "blocked": (
        LAST,
        Blocked("401"),
        Pending(delay=0, event="blocked", error="401", charged=False, postponed=True),
    ),
    "misconfigured": (
        LAST,
        Misconfigured("no sender"),
        Pending(delay=300.0, event="misconfigured", error="no sender", charged=False, waiting=True),
    ),
    "misconfigured for the third time": (
        replace(SENDING, waits=2),
        Misconfigured("no sender"),
        Pending(delay=1200.0, event="misconfigured", error="no sender", charged=False, waiting=True),
    ),
    "late": (LAST, Unstarted("late"), Pending(delay=0, event="released", charged=False)),
    "shutting down": (LAST, Unstarted("shutting down"), Pending(delay=0, event="released", charged=False)),
    "expired at the last look": (
        SENDING,
        Unstarted("expired"),
        Dead(reason="expired", error="its send_before passed before a byte left", event="expired"),
    ),
    "unknown": (SENDING, Unknown("reset"), Doubt(delay=0, event="unknown", error="reset", fresh=True)),
    "unknown on the last attempt": (
        LAST,
        Unknown("reset"),
        Doubt(delay=0, event="unknown", error="reset", fresh=True),
    ),
    "an unknown probe is not charged": (
        PROBING,
        Unknown("reset"),
        Doubt(delay=0, event="unknown", error="reset", fresh=True, charged=False),
    ),
}

RESEND = replace(EARLY, on_doubt="resend")
RESENT = Pending(delay=0, event="resent", error="sent again, perhaps twice (policy resend)", resending=True)
TOO_EARLY = Doubt(delay=SETTLE - 10, event="too early")
NOT_SENT = Pending(delay=0, event="not sent")
HOLD = replace(SECOND, on_doubt="hold")

AFTER_ASK: dict[str, tuple[Claim, Finding, Transition]] = {
    "found early": (EARLY, Found(("m-1",)), Sent(message_id="m-1", event="found")),
    "found": (SECOND, Found(("m-1",)), Sent(message_id="m-1", event="found")),
    "found past send_before": (
        replace(SECOND, expires_in=-5.0),
        Found(("m-1",)),
        Sent(message_id="m-1", event="found"),
    ),
    "found twice: the oldest counts, the rest are copies": (
        ASKING,
        Found(("m-3", "m-2", "m-1")),
        Sent(message_id="m-1", event="found", copies=("m-3", "m-2")),
    ),
    "a miss before settle says nothing": (EARLY, Missing(), TOO_EARLY),
    "a failure before settle says nothing": (EARLY, FAILED, replace(TOO_EARLY, error="no answer")),
    "an early ask keeps an operator's miss": (
        replace(EARLY, misses=1),
        Missing(),
        replace(TOO_EARLY, misses=1),
    ),
    "the first miss": (ASKING, Missing(), Doubt(delay=SETTLE / 2, event="not found", misses=1)),
    "the second miss": (SECOND, Missing(), NOT_SENT),
    "the second miss, past send_before": (
        replace(SECOND, expires_in=-5.0),
        Missing(),
        Dead(reason="expired", error="it was not sent before its send_before", event="expired"),
    ),
    "the second miss, attempts spent": (
        replace(SECOND, attempts=10),
        Missing(),
        Dead(reason="exhausted", error="it was not sent, and its attempts are spent", event="exhausted"),
    ),
    "the second miss, policy hold": (
        HOLD,
        Missing(),
        Held(error="the answer to its POST was lost, and the provider does not show it"),
    ),
    "the second miss, policy hold, ordered by an operator": (
        replace(HOLD, ordered=True),
        Missing(),
        NOT_SENT,
    ),
    "policy resend, asked at once": (RESEND, Missing(), RESENT),
    "policy resend, the search failed": (RESEND, FAILED, RESENT),
    "policy resend is used up": (replace(RESEND, resent=True), Missing(), TOO_EARLY),
    "policy resend, ordered by an operator": (replace(RESEND, ordered=True), Missing(), TOO_EARLY),
    "policy resend, past send_before": (replace(RESEND, expires_in=-1.0), Missing(), TOO_EARLY),
    "policy resend, attempts spent": (replace(RESEND, attempts=10), Missing(), TOO_EARLY),
    "unclear after settle": (
        ASKING,
        UNCLEAR,
        Doubt(delay=SETTLE / 2, event="inconclusive", error="a full page", asks=1),
    ),
    "unclear between two misses": (
        SECOND,
        UNCLEAR,
        Doubt(delay=SETTLE / 2, event="inconclusive", error="a full page", asks=1, misses=1),
    ),
    "unclear for the fourth time": (
        replace(ASKING, asks=3),
        UNCLEAR,
        Doubt(delay=4 * SETTLE, event="inconclusive", error="a full page", asks=4),
    ),
    "unclear to the end": (
        replace(ASKING, asks=ASKS_LIMIT - 1),
        UNCLEAR,
        Held(error="it may have been sent, and the provider cannot say: a full page"),
    ),
    "unclear at 1.5 settle, policy hold": (
        HOLD,
        UNCLEAR,
        Held(error="it may have been sent, and the provider cannot say: a full page"),
    ),
    "failed at 1.5 settle, policy hold": (
        HOLD,
        FAILED,
        Doubt(delay=SETTLE / 2, event="inconclusive", error="no answer", asks=1, misses=1),
    ),
}


@pytest.mark.parametrize("case", AFTER_SEND)
def test_after_one_post(case: str) -> None:
    """Each outcome has one end, whatever else is true of the row."""
    claim, outcome, expected = AFTER_SEND[case]

    assert sent_on(claim, outcome) == expected


@pytest.mark.parametrize("case", AFTER_ASK)
def test_after_one_search(case: str) -> None:
    """A hit is proof at any time, a miss from settle on, a failure never."""
    claim, finding, expected = AFTER_ASK[case]

    assert asked_on(claim, finding) == expected


def test_the_time_from_the_claim_to_the_question_makes_a_doubt_older() -> None:
    """Settle runs while the row waits for its search."""
    assert asked_on(EARLY, Missing(), elapsed=SETTLE - 10) == AFTER_ASK["the first miss"][2]


def test_send_before_may_pass_between_the_claim_and_the_question() -> None:
    """An email that died while it was asked about is not sent late."""
    claim = replace(SECOND, expires_in=3.0)

    assert status(asked_on(claim, Missing(), elapsed=2.9)) == "pending"
    assert status(asked_on(claim, Missing(), elapsed=3.0)) == "dead: expired"


def test_a_search_that_fails_while_the_gate_is_shut_is_not_counted() -> None:
    """A provider that is away for everybody is no reason to bother a person about one row."""
    claim = replace(ASKING, asks=ASKS_LIMIT - 1)
    expected = Doubt(delay=SETTLE / 2, event="inconclusive", error="no answer", asks=claim.asks)

    assert asked_on(claim, FAILED, gate_open=False) == expected
    assert status(asked_on(claim, UNCLEAR, gate_open=False)) == "held"


@pytest.mark.parametrize("on_doubt", ["ask", "resend", "hold"])
def test_a_provider_that_refuses_repeats_leaves_nothing_in_doubt(on_doubt: str) -> None:
    """With an idempotency key an unknown fate is simply tried again."""
    claim = replace(SENDING, on_doubt=on_doubt)
    transition = after_send(claim, Unknown("reset"), SETTINGS, MIDDLE, repeats_safely=True)

    assert transition == Pending(delay=120.0, event="deferred", error="reset", postponed=True)


def test_a_builder_that_raises_is_tried_again_and_not_pulled_forward() -> None:
    """Its fault is ours, so the provider's return does not mend it."""
    assert builder_failed(SENDING, "ValueError", SETTINGS, MIDDLE) == Pending(
        delay=120.0, event="builder failed", error="ValueError"
    )
    assert status(builder_failed(LAST, "ValueError", SETTINGS, MIDDLE)) == "dead: exhausted"


SIGNALS: dict[str, tuple[Outcome, GateSignal | None]] = {
    "accepted": (Accepted("m"), GateSignal(kind="success")),
    "rejected": (Rejected("no"), GateSignal(kind="success")),
    "suppressed": (Suppressed("no"), GateSignal(kind="success")),
    "misconfigured": (Misconfigured("no"), GateSignal(kind="success")),
    "deferred": (Deferred("503"), GateSignal(kind="failure", reason="503")),
    "unknown": (Unknown("reset"), GateSignal(kind="failure", reason="reset")),
    "throttled": (Throttled("429", 7.0), GateSignal(kind="throttled", reason="429", retry_after=7.0)),
    "blocked": (Blocked("401"), GateSignal(kind="blocked", reason="401")),
    "unstarted": (Unstarted("late"), None),
}


@pytest.mark.parametrize("case", SIGNALS)
def test_what_an_attempt_says_about_the_provider(case: str) -> None:
    """A rejection proves that the provider works; an attempt that never began proves nothing."""
    outcome, expected = SIGNALS[case]

    assert gate_signal(SENDING, outcome) == expected
    assert gate_signal(PROBING, outcome) == (expected and replace(expected, probe=True))


# Which case shows which row of the state table; the others are the database's own (tests/sql).
SHOWN: dict[tuple[str, str], list[Transition]] = {
    ("processing (sending)", "accepted"): [sent_on(SENDING, Accepted("m"))],
    ("processing (sending)", "rejected"): [sent_on(SENDING, Rejected("no"))],
    ("processing (sending)", "suppressed"): [sent_on(SENDING, Suppressed("no"))],
    ("processing (sending)", "deferred"): [sent_on(SENDING, Deferred("503"))],
    ("processing (sending)", "deferred, attempts spent"): [sent_on(LAST, Deferred("503"))],
    ("processing (sending)", "throttled, blocked or misconfigured"): [
        sent_on(LAST, outcome) for outcome in (Throttled("429"), Blocked("401"), Misconfigured("no"))
    ],
    ("processing (sending)", "cannot be rendered"): [unrenderable("subject: is required")],
    ("processing (sending)", "given back before a byte left"): [sent_on(LAST, Unstarted("late"))],
    ("processing (sending)", "fate unknown"): [sent_on(LAST, Unknown("reset"))],
    ("processing (asking)", "found"): [asked_on(claim, Found(("m",))) for claim in (EARLY, ASKING, SECOND)],
    ("processing (asking)", "too early, inconclusive or failed"): [
        asked_on(EARLY, Missing()),
        asked_on(ASKING, UNCLEAR),
        asked_on(ASKING, FAILED),
    ],
    ("processing (asking)", "conclusive no"): [asked_on(SECOND, Missing())],
    ("processing (asking)", "conclusive no, past send_before"): [
        asked_on(replace(SECOND, expires_in=-1.0), Missing())
    ],
    ("processing (asking)", "conclusive no, attempts spent"): [
        asked_on(replace(SECOND, attempts=10), Missing())
    ],
    ("processing (asking)", "conclusive no, policy hold"): [asked_on(HOLD, Missing())],
    ("processing (asking)", "inconclusive to the end"): [
        asked_on(replace(ASKING, asks=ASKS_LIMIT - 1), UNCLEAR)
    ],
}
IN_SQL = {
    ("-", "enqueued"),
    ("pending", "claimed when due"),
    ("pending", "past send_before"),
    ("doubt", "claimed when due"),
    ("processing (sending)", "lease ended"),
    ("processing (asking)", "lease ended"),
    ("doubt", "nobody can ask"),
    ("held", "operator: retry"),
    ("dead", "operator: retry"),
    ("held", "operator: it was sent"),
    ("held", "operator: cancel"),
    ("pending", "operator: cancel"),
    ("doubt", "operator: cancel"),
    ("any but sent", "a receipt turns up"),
}


@pytest.mark.parametrize("row", EMAIL_TRANSITIONS, ids=" ".join)
def test_every_row_of_the_state_table_is_decided_here_or_by_the_database(row: tuple[str, str, str]) -> None:
    """The table is what the README draws: a row that no decision makes would be a lie."""
    origin, event, target = row
    if (origin, event) in IN_SQL:
        assert (origin, event) not in SHOWN
        return

    assert {status(transition) for transition in SHOWN[origin, event]} == {target}


def test_no_decision_is_missing_from_the_state_table() -> None:
    """The other way round: what can happen is drawn."""
    assert {(origin, event) for origin, event, _ in EMAIL_TRANSITIONS} == SHOWN.keys() | IN_SQL


OUTCOMES: st.SearchStrategy[Outcome] = st.sampled_from(
    [*(outcome for outcome, _ in SIGNALS.values()), Unstarted("expired")]
)
FINDINGS: st.SearchStrategy[Finding] = st.sampled_from([Found(("m",)), Missing(), UNCLEAR, FAILED])
POLICIES = st.sampled_from(["ask", "resend", "hold"])


def followed(claim: Claim, transition: Transition) -> Claim:
    """The next claim of the row, as the SQL functions make it of *transition*."""
    if isinstance(transition, Doubt):
        age = 0.0 if transition.fresh else claim.doubt_age
        return replace(
            claim,
            asking=True,
            doubt_age=age + transition.delay,
            misses=transition.misses,
            asks=transition.asks,
        )
    assert isinstance(transition, Pending)
    given_back = not transition.charged and not claim.asking
    return replace(
        claim,
        asking=False,
        attempts=claim.attempts - given_back + 1,
        misses=0,
        asks=0,
        doubt_age=0.0,
        resent=claim.resent or transition.resending,
        waits=claim.waits + 1 if transition.waiting else 0,
    )


@settings(max_examples=300)
@given(st.lists(st.tuples(OUTCOMES, FINDINGS, st.booleans()), max_size=80), POLICIES, st.integers(1, 4))
@example([(Unknown("reset"), Missing(), True)] * 80, "ask", 4)
def test_any_sequence_of_answers_ends_or_waits_and_never_sends_after_a_yes(
    answers: list[tuple[Outcome, Finding, bool]], policy: str, most: int
) -> None:
    """Sends that count stay within the attempts, asks within their limit, a blind resend happens once."""
    claim = replace(SENDING, max_attempts=most, on_doubt=policy)
    charged, resent = 0, 0
    for outcome, finding, gate_open in answers:
        if claim.asking:
            transition = after_ask(claim, finding, SETTINGS, 0.0, gate_open=gate_open)
            assert isinstance(finding, Found) == isinstance(transition, Sent)
            resent += isinstance(transition, Pending) and transition.resending
            if isinstance(transition, Pending) and not transition.resending:
                assert isinstance(finding, Missing) and claim.doubt_age >= 1.5 * SETTLE
        else:
            transition = after_send(claim, outcome, SETTINGS, MIDDLE)
            assert isinstance(outcome, Accepted) == isinstance(transition, Sent)
            charged += getattr(transition, "charged", True)
        assert charged <= most
        assert resent <= (policy == "resend")
        if isinstance(transition, Sent | Dead | Held):
            return
        claim = followed(claim, transition)
        assert claim.attempts <= most and claim.asks < ASKS_LIMIT


@given(POLICIES, st.sampled_from([Deferred("503"), Unknown("reset")]), st.sampled_from([Missing(), UNCLEAR]))
def test_a_row_that_is_answered_ends_within_a_bound(policy: str, outcome: Outcome, finding: Finding) -> None:
    """Ten sends at the most, each with its early ask and two misses or ten fruitless asks."""
    claim: Claim | None = SENDING
    steps = 0
    while claim is not None:
        steps += 1
        assert steps <= 10 * (1 + 1 + ASKS_LIMIT)
        transition = asked_on(claim, finding) if claim.asking else sent_on(claim, outcome)
        ended = isinstance(transition, Sent | Dead | Held)
        claim = None if ended else followed(claim, transition)
