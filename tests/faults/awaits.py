"""Every await of the package, by name: the function it stands in and its number there (``Lane.run #2``).

Names move only when an await comes, goes, or changes its function: not when a line is added.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import notifyq

PACKAGE = Path(notifyq.__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Wait:
    """One await; its lines are counted from the first line of its function (as a code object counts)."""

    function: str
    number: int
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.function} #{self.number}"

    def holds(self, line: int) -> bool:
        """True if *line* is one of its own."""
        return self.first <= line <= self.last


@cache
def awaits_of(module: str) -> tuple[Wait, ...]:
    """The awaits of a module of the package, named by its file without ``.py``."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    return tuple(wait for name, node in _functions(tree, "") for wait in _waits(name, node))


@cache
def _all_by_function() -> dict[str, list[Wait]]:
    found: dict[str, list[Wait]] = defaultdict(list)
    for path in sorted(PACKAGE.glob("*.py")):
        for wait in awaits_of(path.stem):
            found[wait.function].append(wait)
    return found


def place_by_name(place: str) -> str:
    """Turn ``Lane.run > Lane._sleep +7`` into ``Lane.run > Lane._sleep #1``.

    A line that holds no await (the end of an ``async with``) belongs to the await before it.
    """
    chain, _, line = place.rpartition(" +")
    waits = _all_by_function().get(chain.split(" > ")[-1], [])
    number = next((wait.number for wait in waits if wait.holds(int(line))), None)
    if number is None:
        number = max((wait.number for wait in waits if wait.first <= int(line)), default=0)
    return f"{chain} #{number}"


def _waits(name: str, node: ast.AsyncFunctionDef) -> Iterator[Wait]:
    start = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    found = [one for one in _own(node) if isinstance(one, ast.Await | ast.AsyncWith | ast.AsyncFor)]
    for number, one in enumerate(sorted(found, key=lambda wait: (wait.lineno, wait.col_offset)), 1):
        last = one.end_lineno if isinstance(one, ast.Await) else one.body[0].lineno - 1
        last = max(last or one.lineno, one.lineno)
        yield Wait(function=name, number=number, first=one.lineno - start, last=last - start)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(child, ast.AsyncFunctionDef):
                yield f"{prefix}{child.name}", child
            yield from _functions(child, f"{prefix}{child.name}.<locals>.")


def _own(function: ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions within it."""
    queue: list[ast.AST] = list(function.body)
    while queue:
        node = queue.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            queue.extend(ast.iter_child_nodes(node))
