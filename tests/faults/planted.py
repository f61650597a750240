"""Planted bugs: one-line faults in the protocol's code, each of which the tests must catch.

``python tests/faults/planted.py`` copies the tree, plants one fault after the other, and runs the suite that
should see it. Each suite must be green on the sound copy first: a test that is always red catches nothing.
Prints "n of n".
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("notifyq", "sql", "tests", "pyproject.toml")

MODEL = ("tests/model",)
UNIT = (
    "tests/unit/test_lifecycle.py",
    "tests/unit/test_postmark_answers.py",
    "tests/unit/test_lease_watch.py",
)
SQL = ("tests/sql/test_sql_claim.py", "tests/sql/test_sql_ends.py", "tests/sql/test_sql_operator.py")
GATE = ("tests/sql/test_sql_gate.py",)
MACHINE = ("tests/faults/test_state_machine.py",)
WIRE = ("tests/faults/test_database_wire.py",)
BYTES = ("tests/faults/test_byte_offsets.py",)
CLIENT = ("tests/integration/test_postmark_client.py",)
OUTCOMES = ("tests/integration/test_worker_outcomes.py",)
CASES = ("tests/integration/test_cases_email.py",)
DRAIN = ("tests/faults/test_shutdown.py", "tests/integration/test_worker_drain.py")
OUTAGES = ("tests/faults/test_outages.py",)
POINTS = ("tests/faults/test_crash_points.py",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """In *file*, the only *sound* becomes *broken*. *seen_by* is the suite that is tried first."""

    name: str
    file: str
    sound: str
    broken: str
    seen_by: tuple[str, ...]
    count: int = 1


LIFE, EMAILS, GATES = "notifyq/lifecycle.py", "sql/functions/emails.sql", "sql/functions/gate.sql"

BUGS = (
    Bug(
        name="settle ignored",
        file=LIFE,
        seen_by=UNIT,
        sound="if age < settings.settle:",
        broken="if age < 0:",
    ),
    Bug(
        name="one miss is enough",
        file=LIFE,
        seen_by=UNIT,
        sound="MISSES_FOR_NO: Final = 2",
        broken="MISSES_FOR_NO: Final = 1",
    ),
    Bug(
        name="unknown is tried again",
        file=LIFE,
        seen_by=MACHINE,
        sound="if repeats_safely:",
        broken="if True:",
    ),
    Bug(
        name="resend for ever",
        file=LIFE,
        seen_by=UNIT,
        sound="not (claim.resent or claim.ordered or expired)",
        broken="not (claim.ordered or expired)",
    ),
    Bug(
        name="hold is not held",
        file=LIFE,
        seen_by=UNIT,
        sound='if claim.on_doubt == "hold" and not claim.ordered:',
        broken="if False:",
    ),
    Bug(
        name="a failed search is a no",
        file=LIFE,
        seen_by=UNIT,
        sound="if isinstance(finding, Missing):",
        broken="if not isinstance(finding, Found):",
    ),
    Bug(
        name="500 is not sent",
        file="notifyq/postmark_answers.py",
        seen_by=UNIT,
        sound="101: Unknown,",
        broken="101: Deferred,",
    ),
    Bug(
        name="a time-out is not sent",
        file="notifyq/postmark.py",
        seen_by=BYTES,
        sound="return classify_failure(kind, look.passed, detail)",
        broken="return classify_failure(kind, False, detail)",
    ),
    Bug(
        name="redirects are followed",
        file="notifyq/postmark.py",
        seen_by=CLIENT,
        sound='self._urls["/email"], data=data, allow_redirects=False',
        broken='self._urls["/email"], data=data, allow_redirects=True',
    ),
    Bug(
        name="always asks the stream outbound",
        file="notifyq/postmark_search.py",
        seen_by=CLIENT,
        sound='"metadata_notifyq": str(uid), "messagestream": stream',
        broken='"metadata_notifyq": str(uid), "messagestream": "outbound"',
    ),
    Bug(
        name="a hit is not proved",
        file="notifyq/postmark_search.py",
        seen_by=UNIT,
        sound="if _uid(hit) == uid]",
        broken="if hit]",
    ),
    Bug(
        name="the fence does not grow",
        file=EMAILS,
        seen_by=MACHINE,
        sound="claim_seq = e.claim_seq + 1,",
        broken="claim_seq = e.claim_seq,",
    ),
    Bug(
        name="sent without fence",
        file=EMAILS,
        seen_by=SQL,
        sound="e.claim_seq = d.claim_seq and e.lease_until is not null and e.receipt is null",
        broken="e.lease_until is not null and e.receipt is null",
    ),
    Bug(
        name="every end without fence",
        file=EMAILS,
        seen_by=SQL,
        count=4,
        sound="e.claim_seq = d.claim_seq and e.lease_until is not null\n",
        broken="e.lease_until is not null\n",
    ),
    Bug(
        name="a lost lease is pending again",
        file=EMAILS,
        seen_by=SQL,
        sound="set status = 'doubt', run_after = v_now,\n"
        "                doubt_since = coalesce(e.doubt_since, v_now)",
        broken="set status = 'pending', run_after = v_now,\n                doubt_since = null",
    ),
    Bug(
        name="a lease is ended without fence",
        file=EMAILS,
        seen_by=SQL,
        sound="e.claim_seq = d.claim_seq and e.lease_until = d.lease",
        broken="true",
    ),
    Bug(
        name="receipts are not honoured",
        file=EMAILS,
        seen_by=SQL,
        sound="e.lease_until is not null and e.receipt is not null;",
        broken="false;",
    ),
    Bug(
        name="retry touches what is under way",
        file=EMAILS,
        seen_by=SQL,
        sound="if v_email.status in ('held', 'dead') and v_email.message",
        broken="if v_email.status in ('held', 'dead', 'sent') and v_email.message",
    ),
    Bug(
        name="retry does not ask first",
        file=EMAILS,
        seen_by=SQL,
        sound="misses = (e.doubt_since is not null)::int, asks = 0,",
        broken="misses = 0, asks = 0, doubt_since = null,",
    ),
    Bug(
        name="claims are not durable",
        file="sql/functions/common.sql",
        seen_by=SQL,
        sound="perform set_config('synchronous_commit', 'on', true);",
        broken="perform set_config('synchronous_commit', 'off', true);",
    ),
    Bug(
        name="doubts expire",
        file=EMAILS,
        seen_by=MACHINE,
        sound="where e.status = 'pending' and e.send_before <= v_now and e.doubt_since is null",
        broken="where e.status in ('pending', 'doubt') and e.send_before <= v_now",
    ),
    Bug(
        name="a given-back attempt is charged",
        file=EMAILS,
        seen_by=SQL,
        sound="-- An ask is not an attempt, so there is none to give back.\n"
        "                attempts = e.attempts - (not d.charged and e.doubt_since is null)::int,",
        broken="attempts = e.attempts,",
    ),
    Bug(
        name="the last look is blind to the lease",
        file="notifyq/attempt.py",
        seen_by=CASES,
        sound="if now >= self._post_by:",
        broken="if False:",
    ),
    Bug(
        name="a shutdown does not stop a POST",
        file="notifyq/attempt.py",
        seen_by=DRAIN,
        sound="if self._draining():",
        broken="if False:",
    ),
    Bug(
        name="a cut-short POST is given back",
        file="notifyq/attempt.py",
        seen_by=POINTS,
        sound="if last_look.passed:",
        broken="if False:",
    ),
    Bug(
        name="a lost claim is not given back",
        file="notifyq/lane.py",
        seen_by=WIRE,
        sound="if self._unanswered:",
        broken="if False:",
    ),
    Bug(
        name="a record is tried only once",
        file="notifyq/recorder.py",
        seen_by=WIRE,
        sound="if is_about_the_data(error):",
        broken="if True:",
    ),
    Bug(
        name="a lease ends at first sight",
        file="notifyq/upkeep.py",
        seen_by=UNIT,
        sound=">= length]",
        broken=">= 0]",
    ),
    Bug(
        name="an ended connection ends the worker",
        file="notifyq/db.py",
        seen_by=WIRE,
        sound="    except InterfaceError:\n        return True",
        broken="    except InterfaceError:\n        raise",
    ),
    Bug(
        name="no positive control",
        file="notifyq/asking.py",
        seen_by=CASES,
        sound="if not (settled and isinstance(finding, Missing)):",
        broken="if True:",
    ),
    Bug(
        name="probes are charged for ever",
        file=GATES,
        seen_by=OUTAGES,
        sound="least(30, power(2,",
        broken="least(1, power(2,",
    ),
)


def main(names: list[str]) -> int:
    """Plant the bugs that *names* name (all without), and print which suite saw each."""
    chosen = [bug for bug in BUGS if not names or bug.name in names]
    with tempfile.TemporaryDirectory(prefix="notifyq-planted-") as folder:
        tree = Path(folder) / "tree"
        _copy(tree)
        sound: dict[tuple[str, ...], bool] = {}
        missed = []
        for bug in chosen:
            if bug.seen_by not in sound:
                sound[bug.seen_by] = not _is_red(tree, bug.seen_by)
            if not sound[bug.seen_by]:
                print(f"{bug.name}: {bug.seen_by} is not green on the sound tree", flush=True)
            if not sound[bug.seen_by] or not _is_caught(tree, bug):
                missed.append(bug.name)
    print(f"planted bugs: {len(chosen) - len(missed)} of {len(chosen)} caught")
    return 1 if missed else 0


def _copy(tree: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)


def _is_caught(tree: Path, bug: Bug) -> bool:
    path = tree / bug.file
    sound = path.read_text()
    if sound.count(bug.sound) != bug.count:
        print(f"{bug.name}: its line occurs {sound.count(bug.sound)} times, not {bug.count}", flush=True)
        return False
    path.write_text(sound.replace(bug.sound, bug.broken))
    began = time.monotonic()
    try:
        # The suite that should see it must: another one that happens to fail would prove nothing.
        seen_by = bug.seen_by if _is_red(tree, bug.seen_by) else None
    finally:
        path.write_text(sound)
    how = "NOT CAUGHT" if seen_by is None else f"caught by {seen_by[0]}"
    print(f"{bug.name}: {how} ({time.monotonic() - began:.0f} s)", flush=True)
    return seen_by is not None


def _is_red(tree: Path, suite: tuple[str, ...]) -> bool:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree), "NOTIFYQ_PLANTED": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *suite],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode not in (0, 1):
        raise SystemExit(f"{suite}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return run.returncode == 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
