"""The statistics of the benches. Pure: numbers in, numbers out, and the same ones for the same input."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ratio", "Summary", "median", "percentile", "ratio_of_pairs", "summary"]

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Summary:
    """A sample in five numbers and its size, in the unit of the sample.

    Example: ``summary([1.0, 2.0, 3.0]).p50 == 2.0``
    """

    n: int
    p50: float
    p95: float
    p99: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the ratios of *pairs*, and the bounds of its 95 % interval."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which *share* (0 to 1) of *values* lie, interpolated between neighbours.

    Raises ValueError for an empty sample. Example: ``percentile([1.0, 3.0], 0.5) == 2.0``
    """
    if not values:
        raise ValueError("an empty sample has no percentiles")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """The middle of *values*. Raises ValueError for an empty sample."""
    return percentile(values, 0.5)


def summary(values: Sequence[float]) -> Summary:
    """Describe a sample. Raises ValueError for an empty one."""
    return Summary(
        n=len(values),
        p50=percentile(values, 0.5),
        p95=percentile(values, 0.95),
        p99=percentile(values, 0.99),
        least=min(values),
        most=max(values),
    )


def ratio_of_pairs(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 1) -> Ratio:
    """How many times *theirs* is *ours*, pair by pair: the median ratio with a bootstrapped interval.

    The two of a pair ran one after the other, so what disturbs the machine for longer than a pair
    disturbs both alike and leaves their ratio.

    Raises ValueError unless both have the same length, above 0.

    Example: ``ratio_of_pairs([2.0, 4.0], [1.0, 2.0]).median == 2.0``
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError("pairs need two samples of the same length, with at least one value each")
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    draw = random.Random(seed)
    medians = [statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)]
    return Ratio(
        median=statistics.median(ratios),
        low=percentile(medians, 0.025),
        high=percentile(medians, 0.975),
        pairs=len(ratios),
    )
