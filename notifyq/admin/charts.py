"""Small charts as SVG: shapes only, every colour and font from the style sheet. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from notifyq.admin.timeline import Bar, Window
from notifyq.admin.words import duration

__all__ = ["latency", "throughput"]

WIDTH: Final = 600
HEIGHT: Final = 96
FLOOR: Final = 0.001
"""Latencies below a millisecond stand on the floor of the chart."""


def throughput(window: Window, *, label: str) -> Markup:
    """Bars of what was sent, with what died on top, in another colour.

    Example: ``throughput(timeline.hour(now), label="Sent in each minute of the last hour")``
    """
    top = max([bar.sent + bar.dead for bar in window.bars] + [1])
    step = WIDTH / len(window.bars)
    gap = min(2.0, step * 0.25)
    shapes = []
    for index, bar in enumerate(window.bars):
        if not bar.sent + bar.dead:
            continue
        sent, dead = _height(bar.sent, top), _height(bar.dead, top)
        x, width = index * step + gap / 2, step - gap
        said = f"{bar.sent:,} sent" + (f", {bar.dead:,} not sent" if bar.dead else "")
        shapes.append(
            f"<g><title>{_when(bar)}: {said}</title>"
            + _rect("sent", x, HEIGHT - sent, width, sent)
            + _rect("dead", x, HEIGHT - sent - dead, width, dead)
            + "</g>"
        )
    return _svg("throughput", label, shapes)


def latency(window: Window, *, label: str) -> Markup:
    """How long emails took, p50 and p99, on a scale of powers of ten.

    Example: ``latency(timeline.day(now), label="Enqueue to accepted")``
    """
    shapes = [
        f'<line class="grid" x1="0" x2="{WIDTH}" y1="{_log(value):.1f}" y2="{_log(value):.1f}"/>'
        for value in (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
    ]
    shapes += [
        *_line("p99", [bar.p99 for bar in window.bars]),
        *_line("p50", [bar.p50 for bar in window.bars]),
    ]
    shapes += [
        f'<rect class="hover" x="{index * WIDTH / len(window.bars):.1f}" y="0"'
        f' width="{WIDTH / len(window.bars):.1f}" height="{HEIGHT}">'
        f"<title>{_when(bar)}: p50 {duration(bar.p50)}, p99 {duration(bar.p99)}</title></rect>"
        for index, bar in enumerate(window.bars)
        if bar.p50 is not None and bar.p99 is not None
    ]
    return _svg("latency", label, shapes)


def _line(name: str, values: Sequence[float | None]) -> list[str]:
    """A line that breaks where nothing was sent; a value alone is a dot."""
    step = WIDTH / len(values)
    runs: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{(index + 0.5) * step:.1f},{_log(value):.1f}")
    return [
        f'<polyline class="{name}" points="{" ".join(run)}"/>'
        if len(run) > 1
        else f'<polyline class="{name} alone" points="{run[0]} {run[0]}"/>'
        for run in runs
        if run
    ]


def _svg(name: str, label: str, shapes: Sequence[str]) -> Markup:
    # Every part is a number, a name of ours or a time: nothing in it came from a message.
    return Markup(  # noqa: S704
        f'<svg class="chart {name}" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img">'
        f"<title>{Markup.escape(label)}</title>{''.join(shapes)}"
        f'<line class="floor" x1="0" x2="{WIDTH}" y1="{HEIGHT - 0.5}" y2="{HEIGHT - 0.5}"/></svg>'
    )


def _rect(name: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _height(count: int, top: int) -> float:
    return max(2.0, count / top * (HEIGHT - 6)) if count else 0.0


def _log(seconds: float) -> float:
    """The y of a latency: 1 ms at the floor, 1,000 s at the top."""
    share = math.log10(min(max(seconds, FLOOR), 1000.0) / FLOOR) / 6
    return HEIGHT - 4 - share * (HEIGHT - 8)


def _when(bar: Bar) -> str:
    return f"{bar.at:%H:%M} UTC"
