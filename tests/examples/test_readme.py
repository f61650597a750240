"""The README is true: its examples are pieces of files that run, its picture is drawn from the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import notifyq
from notifyq.lifecycle import EMAIL_TRANSITIONS

HERE = Path(__file__).parent
README = (HERE.parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- example: (\S+) -->\n```python\n(.*?)```", README, flags=re.DOTALL)


def squeezed(code: str) -> str:
    """*code* without the layout that a formatter may change."""
    return re.sub(r"\s+", "", code)


def picture() -> str:
    """The state table as a Mermaid diagram: one arrow for each pair of states, with its events."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for source, event, target in EMAIL_TRANSITIONS:
        for state in ("pending", "doubt", "held", "dead") if source == "any but sent" else (source,):
            # A claim either asks or sends, never both.
            end = ("asking" if state == "doubt" else "sending") if target == "processing" else target
            arrows.setdefault((_box(state), _box(end)), []).append(event.replace(":", ""))
    lines = [f"    {a} --> {b}: {' · '.join(events)}" for (a, b), events in arrows.items() if a != b]
    return "\n".join(["stateDiagram-v2", *lines])


def _box(state: str) -> str:
    plain = state.split(":")[0]
    return {"-": "[*]", "processing (sending)": "sending", "processing (asking)": "asking"}.get(plain, plain)


@pytest.mark.parametrize(("file", "code"), EXAMPLES, ids=[file for file, _ in EXAMPLES])
def test_an_example_is_part_of_a_file_that_runs(file: str, code: str) -> None:
    """An example that nobody runs is wrong after the next change."""
    assert squeezed(code) in squeezed((HERE / file).read_text(encoding="utf-8"))


def test_the_picture_is_drawn_from_the_state_table() -> None:
    """One source for the code, its test and the reader."""
    shown = re.search(r"<!-- states -->\n```mermaid\n(.*?)\n```", README, flags=re.DOTALL)

    assert shown is not None
    assert shown[1] == picture()


@pytest.mark.parametrize(
    "name", ["Email", "enqueue", "Worker", "Postmark", "task", "periodic", "email", "Unrenderable"]
)
def test_what_a_newcomer_needs_is_named_in_the_readme(name: str) -> None:
    """The names that the examples stand on are public."""
    assert f"notifyq.{name}" in README
    assert name in notifyq.__all__


def test_every_setting_of_the_environment_is_in_the_table() -> None:
    """An undocumented setting is a secret."""
    package = HERE.parents[1] / "notifyq"
    code = "\n".join(file.read_text(encoding="utf-8") for file in package.rglob("*.py"))
    used = set(re.findall(r'"((?:NOTIFYQ|POSTMARK)_[A-Z_]+|EMAIL_FROM|EMAIL_SHUNT|DATABASE_URL)"', code))

    assert {name for name in used if name not in README and not name.startswith("NOTIFYQ_TEST")} <= {
        "NOTIFYQ_POSTGRES_BIN",  # for the embedded server only; its own page says so
        "POSTMARK_API_TEST",  # a token of Postmark's, not a setting
    }
