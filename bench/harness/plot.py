"""Pictures as SVG text, drawn here: no library is needed to look at a result. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["bars", "lines", "ranges"]

WIDTH = 760
LEFT = 210
RIGHT = 110
ROW = 26
TOP = 44
INK, PALE, OURS, THEIRS = "#24292f", "#d0d7de", "#1f6feb", "#8c959f"
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df")


def bars(title: str, values: Mapping[str, float], unit: str, *, ours: str = "notifyq") -> str:
    """One horizontal bar for each name, the longest as wide as the picture.

    Example: ``bars("Drain", {"notifyq": 5000.0, "other": 600.0}, "emails/s")``
    """
    most = max(values.values(), default=1.0) or 1.0
    body = []
    for row, (name, value) in enumerate(values.items()):
        y = TOP + row * ROW
        width = (WIDTH - LEFT - RIGHT) * value / most
        body.append(_label(name, y))
        body.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="16" fill="{_fill(name, ours)}"/>')
        body.append(_text(LEFT + width + 6, y + 13, _number(value)))
    return _picture(f"{title} ({unit})", TOP + len(values) * ROW + 10, body)


def ranges(
    title: str, values: Mapping[str, tuple[float, float, float]], unit: str, *, ours: str = "notifyq"
) -> str:
    """p50, p95 and p99 of each name on one logarithmic scale: a dot, a thick and a thin line.

    Example: ``ranges("Latency", {"notifyq": (1.5, 2.0, 4.0)}, "ms")``
    """
    low = math.log10(min(low for low, _, _ in values.values()) * 0.8)
    high = math.log10(max(high for _, _, high in values.values()) * 1.2)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(value) - low) / (high - low)

    foot = TOP + len(values) * ROW
    body = [
        f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 8}" y2="{foot}" stroke="{PALE}"/>'
        + _text(x(tick), foot + 14, f"{tick:g}", "middle")
        for tick in _ticks(10**low, 10**high)
    ]
    for row, (name, (p50, p95, p99)) in enumerate(values.items()):
        y, fill = TOP + row * ROW + 8, _fill(name, ours)
        body.append(_label(name, y - 8))
        for end, thick in ((p99, 2), (p95, 6)):
            body.append(
                f'<line x1="{x(p50):.1f}" x2="{x(end):.1f}" y1="{y}" y2="{y}" '
                f'stroke="{fill}" stroke-width="{thick}"/>'
            )
        body.append(f'<circle cx="{x(p50):.1f}" cy="{y}" r="5" fill="{fill}"/>')
        body.append(_text(x(p99) + 6, y + 4, f"{_number(p50)} / {_number(p99)}"))
    return _picture(f"{title}: p50, p95, p99 ({unit}, logarithmic)", foot + 24, body)


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]], x_unit: str, y_unit: str) -> str:
    """One line for each name over a common x.

    Example: ``lines("Rate", {"notifyq": [(0.0, 800.0), (1.0, 790.0)]}, "s", "emails/s")``
    """
    points = [point for line in series.values() for point in line]
    x0, x1 = min(x for x, _ in points), max(x for x, _ in points) or 1.0
    top = max(y for _, y in points) or 1.0
    height = 220

    def place(point: tuple[float, float]) -> str:
        across = 60 + (WIDTH - 90) * (point[0] - x0) / ((x1 - x0) or 1.0)
        return f"{across:.1f},{TOP + height - height * point[1] / top:.1f}"

    body = [
        f'<line x1="60" x2="{WIDTH - 30}" y1="{TOP + height}" y2="{TOP + height}" stroke="{PALE}"/>',
        _text(54, TOP + 10, f"{top:,.3g}", "end"),
        _text(54, TOP + height, "0", "end"),
        _text(60, TOP + height + 16, f"{x0:g}"),
        _text(WIDTH - 30, TOP + height + 16, f"{x1:.0f} {x_unit}", "end"),
    ]
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        body.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" '
            f'points="{" ".join(map(place, line))}"/>'
        )
        body.append(
            f'<rect x="{70 + number * 190}" y="{TOP + height + 26}" width="12" height="12" fill="{colour}"/>'
            + _text(88 + number * 190, TOP + height + 36, name)
        )
    return _picture(f"{title} ({y_unit})", TOP + height + 50, body)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]


def _fill(name: str, ours: str) -> str:
    return OURS if name.startswith(ours) else THEIRS


def _label(name: str, y: float) -> str:
    return _text(LEFT - 8, y + 13, name, "end")


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{escape(text)}</text>'


def _picture(title: str, height: int, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="12" y="22" font-size="14" font-weight="600" fill="{INK}">{escape(title)}</text>'
        + "".join(body)
        + "</svg>\n"
    )
