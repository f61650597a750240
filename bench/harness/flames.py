"""A flame picture from folded stacks: each box is a function, as wide as its share of the samples. Pure."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

__all__ = ["draw", "fold"]

WIDTH = 1100
ROW = 17
TOP = 40
LEAST = 0.4
"""Boxes narrower than this, in percent, are left out."""
LETTER = 6.3


@dataclass(slots=True)
class Box:
    """One function under its callers: how many samples fell in it, and what it called."""

    count: int = 0
    inner: dict[str, Box] = field(default_factory=dict)


def fold(text: str) -> Counter[tuple[str, ...]]:
    """Read lines ``outer;inner count`` into stacks and counts; line numbers are dropped.

    Example: ``fold("a (x.py:1);b (x.py:2) 3")`` is ``{("a (x.py)", "b (x.py)"): 3}``
    """
    samples: Counter[tuple[str, ...]] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        if stack and count.isdigit():
            samples[tuple(re.sub(r":\d+\)$", ")", frame) for frame in stack.split(";"))] += int(count)
    return samples


def draw(title: str, samples: Counter[tuple[str, ...]]) -> str:
    """The picture, as SVG text. What all stacks share at the outside is left away."""
    root = _tree(samples)
    while len(root.inner) == 1 and next(iter(root.inner.values())).count == root.count:
        root = next(iter(root.inner.values()))
    boxes = list(_boxes(root, 0.0, 0, root.count or 1))
    height = TOP + ROW * (1 + max((depth for _, _, depth, _ in boxes), default=0)) + 10
    drawn = "".join(_drawn(*box) for box in boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="ui-monospace, monospace" font-size="10.5">'
        '<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="12" y="22" font-size="14" font-weight="600">{escape(title)}</text>{drawn}</svg>\n'
    )


def _tree(samples: Counter[tuple[str, ...]]) -> Box:
    root = Box()
    for stack, count in samples.items():
        root.count += count
        box = root
        for frame in stack:
            box = box.inner.setdefault(frame, Box())
            box.count += count
    return root


def _boxes(box: Box, left: float, depth: int, total: int) -> Iterable[tuple[str, float, int, float]]:
    """(name, left %, depth, width %) of all that is wide enough."""
    for name, inner in sorted(box.inner.items()):
        share = 100.0 * inner.count / total
        if share >= LEAST:
            yield name, left, depth, share
            yield from _boxes(inner, left, depth + 1, total)
        left += share


def _drawn(name: str, left: float, depth: int, share: float) -> str:
    x, width = WIDTH * left / 100, WIDTH * share / 100
    y = TOP + depth * ROW
    room = int((width - 6) / LETTER)
    label = name if len(name) <= room else name[: max(0, room - 1)] + "…"
    shown = f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(label)}</text>' if room >= 4 else ""
    return (
        f'<g><title>{escape(name)}: {share:.1f} %</title><rect x="{x:.1f}" y="{y}" '
        f'width="{max(0.5, width - 0.6):.1f}" height="{ROW - 1}" fill="{_colour(name)}"/>{shown}</g>'
    )


def _colour(name: str) -> str:
    """One hue for a package, a little different for each function."""
    package = re.search(r"\(([^/)]*)", name)
    hue = {"notifyq": 212, "aiohttp": 28, "asyncio": 120, "anyio": 280, "asyncpg": 0, "json": 50}.get(
        package[1] if package else "", 200
    )
    grey = 12 if hue == 200 else 70
    return f"hsl({hue}, {grey}%, {74 + zlib.crc32(name.encode()) % 12}%)"
