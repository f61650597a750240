"""What keeps the shape: who may import whom, what is pure, what is public, and that SQL and Python meet."""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

import notifyq
from notifyq import lifecycle, recorder, sqlfiles, task_lifecycle

ROOT = Path(notifyq.__file__).parent
SQL = ROOT.parent / "sql"

# Each module imports only from the lines above it, or from its left.
LAYERS: dict[str, str] = {
    "values": "errors address message_rules attachment message settings cleaning schedule arguments tasks "
    "builders",
    "decisions": "provider advice backoff clock_watch low_water lifecycle task_lifecycle",
    "edges": "sqlfiles blame cancellation db postmark_payload postmark_answers postmark_connection "
    "postmark_search postmark attempt",
    "the way in, the bell, the schema": "enqueue listener migrate",
    "the loop": "asking recorder rendering task_context task_run lane bell auditor upkeep "
    "email_work task_work ticker worker",
    "faces": "headline embedded_binaries embedded_folder embedded_supervisor embedded_start embedded "
    "testing admin demo cli",
}
PURE = ("values", "decisions")
IMPURE = {"asyncio", "asyncpg", "aiohttp", "anyio", "os", "time", "random", "socket", "logging", "subprocess"}
TOP = {"__init__", "__main__"}

# DESIGN §7: what other programs call.
CONTRACT = {
    "enqueue_email",
    "enqueue_task",
    "retry_email",
    "cancel_email",
    "resolve_email",
    "retry_task",
    "cancel_task",
}


def modules() -> list[str]:
    """The modules of the package; a folder counts as one."""
    names = {path.stem for path in ROOT.glob("*.py")} | {
        path.parent.name for path in ROOT.glob("*/__init__.py")
    }
    return sorted(names - TOP)


def place(module: str) -> int:
    """Its place from the bottom; the package's own face stands above the loop and below the other faces."""
    order = " ".join(LAYERS.values()).split()
    core = order.index("worker")
    return core + 1 if module in TOP else order.index(module) + 2 * (order.index(module) > core)


def files(module: str) -> list[Path]:
    """Its source files."""
    folder = ROOT / module
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [ROOT / f"{module}.py"]


@cache
def tree(path: Path) -> ast.Module:
    """The parsed source."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, anywhere in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            if node.module == "notifyq":
                yield from (f"notifyq.{alias.name}" for alias in node.names)
            elif node.module:
                yield node.module


def ours(path: Path) -> set[str]:
    """The modules of this package that a file imports; a name of the package itself is its face."""
    names = {name.split(".")[1] for name in imports(path) if name.startswith("notifyq.")}
    names |= {"__init__" for name in imports(path) if name == "notifyq"}
    return {name if name in modules() else "__init__" for name in names}


def test_every_module_has_its_place() -> None:
    """A new module must say what it is."""
    assert modules() == sorted(" ".join(LAYERS.values()).split())


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_what_stands_before_it(module: str) -> None:
    """So the package can be read from the top, and nothing runs in a circle."""
    wrong = {
        f"{path.name} imports {other}"
        for path in files(module)
        for other in ours(path) - {module}
        if place(other) > place(module)
    }

    assert wrong == set()


def test_the_package_itself_shows_the_core_only() -> None:
    """`import notifyq` must not bring a web page or a database server."""
    assert {m for m in ours(ROOT / "__init__.py") if m in LAYERS["faces"].split()} == set()


@pytest.mark.parametrize("module", [m for layer in PURE for m in LAYERS[layer].split()])
def test_values_and_decisions_are_pure(module: str) -> None:
    """No clock, no chance, no I/O: what they decide can be tested as a table."""
    used = {name.split(".")[0] for path in files(module) for name in imports(path)}

    assert used & IMPURE == set()


PUBLIC = sorted(notifyq.__all__)


def test_what_is_public_is_what_the_package_lists() -> None:
    """Each name once, and nothing that a user could take for public by mistake."""
    visible = {
        name
        for name, value in vars(notifyq).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }

    assert len(PUBLIC) == len(set(PUBLIC))
    assert visible - {"annotations"} == {name for name in PUBLIC if not is_module(name)}


def is_module(name: str) -> bool:
    """True for a public name that is a module."""
    return isinstance(getattr(notifyq, name), types.ModuleType)


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_has_a_docstring_with_an_example(name: str) -> None:
    """What cannot be shown in a line is not ready to be used."""
    text = inspect.getdoc(getattr(notifyq, name)) or ""

    assert re.search(r"Example|::$|>>> |``.*\(.*``", text, flags=re.MULTILINE), f"{name}: {text!r}"


# ---------------------------------------------------------------- SQL


@cache
def functions() -> dict[str, str]:
    """The SQL functions and their texts."""
    found: dict[str, str] = {}
    for text in sqlfiles.functions():
        for part in re.split(r"^create or replace function notifyq\.", text, flags=re.MULTILINE)[1:]:
            found[re.match(r"\w+", part)[0]] = part  # type: ignore[index]
    return found


@cache
def queries() -> dict[str, str]:
    """The named queries and their texts."""
    blocks: dict[str, str] = {}
    for file in sorted((SQL / "queries").glob("*.sql")):
        for part in re.split(r"^-- name: ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            name, _, body = part.partition("\n")
            blocks[name.strip()] = body
    return blocks


@cache
def strings() -> dict[str, set[str]]:
    """Every string of the package, by module; the parts of an f-string become a pattern."""
    found: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        words = found.setdefault(str(path.relative_to(ROOT)), set())
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(re.escape(node.value))
            elif isinstance(node, ast.JoinedStr):
                parts = (
                    re.escape(str(v.value)) if isinstance(v, ast.Constant) else r"\w+" for v in node.values
                )
                words.add("".join(parts))
    return found


def asked_for() -> Iterator[tuple[str, str]]:
    """(file, name) of each query that Python names where it runs it."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(tree(path)):
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            named = called == "query" or (called in ("fetch", "value") and "_link" in ast.unparse(node.func))
            if named:
                yield path.name, str(node.args[0].value)


@pytest.mark.parametrize("name", sorted(queries()))
def test_each_named_query_is_used(name: str) -> None:
    """SQL that nobody runs is SQL that nobody tests."""
    plain = [word for words in strings().values() for word in words if word != r"\w+"]

    assert any(re.fullmatch(word, name) for word in plain if len(word) < 60), f"{name} is not used"


def test_each_query_that_is_asked_for_exists() -> None:
    """A wrong name would be found by the user."""
    asked = set(asked_for())

    assert len(asked) > 20
    assert {(file, name) for file, name in asked if name not in queries()} == set()


def test_no_query_is_named_twice() -> None:
    """The second would hide the first."""
    names = [
        name
        for file in (SQL / "queries").glob("*.sql")
        for name in re.findall(r"^-- name: (\w+)", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]

    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", sorted(functions()))
def test_each_sql_function_is_called_or_promised(name: str) -> None:
    """By a query, by another function, by a trigger, or by other programs (the contract)."""
    callers = [text for other, text in functions().items() if other != name]
    triggers = [part for text in sqlfiles.functions() for part in re.findall(r"execute function .*", text)]
    everywhere = "\n".join([*callers, *triggers, *queries().values()])

    assert name in CONTRACT or re.search(rf"notifyq\.{name}\(", everywhere), f"nobody calls {name}"


def test_each_function_that_a_query_calls_exists() -> None:
    """So that a renamed function is noticed here."""
    text = "\n".join([*queries().values(), *functions().values()])
    called = set(re.findall(r"notifyq\.(\w+)\(", text))
    tables = {"emails", "tasks", "history", "gates", "chores", "workers", "periodic", "migrations"}

    assert called - tables <= functions().keys()


def test_the_contract_is_there() -> None:
    """Programs in other languages call these by name."""
    assert functions().keys() >= CONTRACT


@pytest.mark.parametrize("function", sorted(functions().keys() & CONTRACT))
def test_a_function_of_the_contract_takes_now_last(function: str) -> None:
    """Tests move time; programs leave it out."""
    head = functions()[function].split(") returns", 1)[0]

    assert re.search(r"p_now timestamptz default null\s*$", head), head


SPELLING = recorder._SPELLING


@pytest.mark.parametrize("kind", SPELLING, ids=lambda kind: kind.__name__)
def test_each_transition_has_its_sql_function(kind: type) -> None:
    """One constructor there, one verb here, and each field of the one is an array of the other, in order."""
    query, columns = SPELLING[kind]
    arrays = re.findall(r"p_(\w+) [\w ]+\[\]", functions()[query].split(") returns", 1)[0])

    assert query in queries()
    assert arrays[:2] == ["ids", "claim_seqs"]
    assert [name in (column, f"{column}s") for column, name in zip(columns, arrays[2:], strict=True)] == [
        True
    ] * len(columns)
    assert set(columns) <= kind.__annotations__.keys()


def test_no_transition_is_forgotten() -> None:
    """A decision that nobody can write down would be lost."""
    decided = {*get_args(lifecycle.Transition), *get_args(task_lifecycle.TaskTransition)}

    assert set(SPELLING) == decided
