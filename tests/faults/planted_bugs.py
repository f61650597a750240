"""The planted bugs: one-line faults in the protocol's code, each with the quickest tests that see it.

`planted.py` plants them. A bug whose line is gone from the code is an error there: mend it here.
"""

from __future__ import annotations

from dataclasses import dataclass

LIFE_TESTS = "tests/unit/test_lifecycle.py"
ANSWERS = "tests/unit/test_postmark_answers.py"
LEASES = "tests/unit/test_lease_watch.py"
CLAIM = "tests/sql/test_sql_claim.py"
ENDS = "tests/sql/test_sql_ends.py"
OPERATOR = "tests/sql/test_sql_operator.py"
GATE = "tests/sql/test_sql_gate.py"
TASKS = "tests/sql/test_task_functions.py"
CLIENT = "tests/integration/test_postmark_client.py"
DRAIN = "tests/integration/test_worker_drain.py"
LISTING = "tests/faults/test_shared_listing.py"
WIRE = "tests/faults/test_database_wire.py"
LAST_LOOK = "tests/faults/test_last_look.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """In *file*, the *count* places of *sound* become *broken*, and the test *seen_by* turns red."""

    name: str
    file: str
    sound: str
    broken: str
    seen_by: str
    count: int = 1


LIFE, EMAILS, GATES = "notifyq/lifecycle.py", "sql/functions/emails.sql", "sql/functions/gate.sql"

BUGS = (
    Bug(
        name="settle ignored",
        file=LIFE,
        seen_by=LIFE_TESTS,
        sound="if age < settings.settle:",
        broken="if age < 0:",
    ),
    Bug(
        name="one miss is enough",
        file=LIFE,
        seen_by=LIFE_TESTS,
        sound="MISSES_FOR_NO: Final = 2",
        broken="MISSES_FOR_NO: Final = 1",
    ),
    Bug(
        name="unknown is tried again",
        file=LIFE,
        seen_by=LIFE_TESTS,
        sound="if repeats_safely:",
        broken="if True:",
    ),
    Bug(
        name="resend for ever",
        file=LIFE,
        seen_by=LIFE_TESTS,
        sound="not (claim.resent or claim.ordered or expired)",
        broken="not (claim.ordered or expired)",
    ),
    Bug(
        name="hold is not held",
        file=LIFE,
        seen_by=LIFE_TESTS,
        sound='if claim.on_doubt == "hold" and not claim.ordered:',
        broken="if False:",
    ),
    Bug(
        name="a failed search is a no",
        file=LIFE,
        seen_by=LIFE_TESTS,
        sound="if isinstance(finding, Missing):",
        broken="if not isinstance(finding, Found):",
    ),
    Bug(
        name="500 is not sent",
        file="notifyq/postmark_answers.py",
        seen_by=ANSWERS,
        sound="101: Unknown,",
        broken="101: Deferred,",
    ),
    Bug(
        name="a time-out is not sent",
        file="notifyq/postmark.py",
        seen_by=CLIENT + "::test_no_answer_in_time_is_unknown_and_the_connection_is_gone",
        sound="return classify_failure(kind, look.passed, detail)",
        broken="return classify_failure(kind, False, detail)",
    ),
    Bug(
        name="what is on no list was not sent",
        file="notifyq/postmark_answers.py",
        seen_by=ANSWERS,
        sound="if code is None or not isinstance(answer, dict):\n        return Unknown(error)",
        broken="if code is None or not isinstance(answer, dict):\n        return Deferred(error)",
    ),
    Bug(
        name="the last look's no is not heard",
        file="notifyq/postmark_connection.py",
        seen_by=CLIENT + "::test_nothing_leaves_on_a_new_connection_once_the_claim_is_gone",
        sound="if self.objection is not None:",
        broken="if False:",
    ),
    Bug(
        name="always asks the stream outbound",
        file="notifyq/postmark_search.py",
        seen_by=CLIENT + "::test_find_searches_by_uid_on_the_given_stream",
        sound='"metadata_notifyq": str(uid), "messagestream": stream',
        broken='"metadata_notifyq": str(uid), "messagestream": "outbound"',
    ),
    Bug(
        name="a hit is not proved",
        file="notifyq/postmark_search.py",
        seen_by=ANSWERS,
        sound="if _uid(hit) == uid]",
        broken="if hit]",
    ),
    Bug(
        name="the fence does not grow",
        file=EMAILS,
        seen_by=CLAIM + "::test_a_claim_is_a_lease_a_fence_and_an_attempt",
        sound="claim_seq = e.claim_seq + 1,",
        broken="claim_seq = e.claim_seq,",
    ),
    Bug(
        name="sent without fence",
        file=EMAILS,
        seen_by=ENDS + "::test_every_end_of_a_newer_claim_honours_an_older_receipt",
        sound="e.claim_seq = d.claim_seq and e.lease_until is not null and e.receipt is null",
        broken="e.lease_until is not null and e.receipt is null",
    ),
    Bug(
        name="every end without fence",
        file=EMAILS,
        seen_by=ENDS + "::test_an_end_with_a_wrong_fence_changes_nothing",
        count=4,
        sound="e.claim_seq = d.claim_seq and e.lease_until is not null\n",
        broken="e.lease_until is not null\n",
    ),
    Bug(
        name="a lost lease is pending again",
        file=EMAILS,
        seen_by=ENDS + "::test_a_send_whose_lease_ended_is_in_doubt_from_now_on",
        sound="set status = 'doubt', run_after = v_now,\n"
        "                doubt_since = coalesce(e.doubt_since, v_now)",
        broken="set status = 'pending', run_after = v_now,\n                doubt_since = null",
    ),
    Bug(
        name="a lease is ended without fence",
        file=EMAILS,
        seen_by=ENDS + "::test_only_the_very_lease_that_was_seen_is_ended",
        sound="e.claim_seq = d.claim_seq and e.lease_until = d.lease",
        broken="true",
    ),
    Bug(
        name="receipts are not honoured",
        file=EMAILS,
        seen_by=ENDS + "::test_every_end_of_a_newer_claim_honours_an_older_receipt",
        sound="e.lease_until is not null and e.receipt is not null;",
        broken="false;",
    ),
    Bug(
        name="retry touches what is under way",
        file=EMAILS,
        seen_by=OPERATOR + "::test_an_act_moves_what_it_may_and_says_whether_it_did",
        sound="if v_email.status in ('held', 'dead') and v_email.message",
        broken="if v_email.status in ('held', 'dead', 'sent') and v_email.message",
    ),
    Bug(
        name="retry does not ask first",
        file=EMAILS,
        seen_by=OPERATOR + "::test_a_retried_row_that_was_in_doubt_is_asked_about_once_more",
        sound="misses = (e.doubt_since is not null)::int, asks = 0,",
        broken="misses = 0, asks = 0, doubt_since = null,",
    ),
    Bug(
        name="claims are not durable",
        file="sql/functions/common.sql",
        seen_by=CLAIM + "::test_a_claim_is_durable_whatever_the_role_says",
        sound="perform set_config('synchronous_commit', 'on', true);",
        broken="perform set_config('synchronous_commit', 'off', true);",
    ),
    Bug(
        name="doubts expire",
        file=EMAILS,
        seen_by=LAST_LOOK + "::test_no_sweep_expires_what_may_have_been_accepted",
        sound="where e.send_before <= v_now and e.finished_at is null and e.lease_until is null "
        "and e.doubt_since is null",
        broken="where e.send_before <= v_now and e.finished_at is null and e.lease_until is null",
        count=2,
    ),
    Bug(
        name="a given-back attempt is charged",
        file=EMAILS,
        seen_by=ENDS + "::test_pending_gives_back_an_attempt_that_is_not_charged",
        sound="-- An ask is not an attempt, so there is none to give back.\n"
        "                attempts = e.attempts - (not d.charged and e.doubt_since is null)::int,",
        broken="attempts = e.attempts,",
    ),
    Bug(
        name="the last look is blind to the lease",
        file="notifyq/attempt.py",
        seen_by=LAST_LOOK
        + "::test_a_worker_held_up_between_claim_and_post_posts_nothing_it_could_not_finish",
        sound="if now >= self._post_by:",
        broken="if False:",
    ),
    Bug(
        name="a shutdown does not stop a POST",
        file="notifyq/attempt.py",
        seen_by=LAST_LOOK + "::test_a_worker_that_drains_between_claim_and_post_posts_nothing",
        sound="if self._draining():",
        broken="if False:",
    ),
    Bug(
        name="a cut-short POST is given back",
        file="notifyq/attempt.py",
        seen_by=DRAIN + "::test_cancellation_leaves_no_row_in_a_working_state",
        sound="if last_look.passed:",
        broken="if False:",
    ),
    Bug(
        name="a lost claim is not given back",
        file="notifyq/lane.py",
        seen_by=WIRE + "::test_a_cut_at_any_message_costs_no_email",
        sound="if self._unanswered:",
        broken="if False:",
    ),
    Bug(
        name="a record is tried only once",
        file="notifyq/recorder.py",
        seen_by=WIRE + "::test_a_receipt_is_written_for_as_long_as_it_takes",
        sound="if is_about_the_data(error):",
        broken="if True:",
    ),
    Bug(
        name="a lease ends at first sight",
        file="notifyq/upkeep.py",
        seen_by=LEASES,
        sound=">= length]",
        broken=">= 0]",
    ),
    Bug(
        name="an ended connection ends the worker",
        file="notifyq/db.py",
        seen_by=WIRE + "::test_a_link_comes_back_after_its_connection_was_ended",
        sound="    except InterfaceError:\n        return True",
        broken="    except InterfaceError:\n        raise",
    ),
    Bug(
        name="no positive control",
        file="notifyq/asking.py",
        seen_by=LISTING + "::test_a_search_that_does_not_show_a_later_message_yet_is_no_answer",
        sound="if not (settled and isinstance(finding, Missing)):",
        broken="if True:",
    ),
    Bug(
        name="an outage is probed each second",
        file=GATES,
        seen_by=GATE + "::test_failed_probes_wait_twice_as_long_each_up_to_thirty_seconds",
        sound="least(30, power(2,",
        broken="least(1, power(2,",
    ),
    Bug(
        name="the last look is blind to send_before",
        file="notifyq/attempt.py",
        seen_by=LAST_LOOK + "::test_an_email_that_expires_between_claim_and_post_is_not_posted",
        sound="if self._expires_at is not None and now >= self._expires_at:",
        broken="if False:",
    ),
    Bug(
        name="a call ends without fence",
        file="sql/functions/tasks.sql",
        seen_by=TASKS,
        count=4,
        sound="t.claim_seq = d.claim_seq and t.lease_until is not null",
        broken="t.lease_until is not null",
    ),
)
