"""The statistics of the benches: a wrong one would make every figure of the README wrong."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

HARNESS = Path(__file__).resolve().parents[2] / "bench" / "harness"

samples = st.lists(st.floats(min_value=1e-3, max_value=1e6), min_size=1, max_size=50)


def load(name: str) -> ModuleType:
    """A module of the harness by its file, since the benches are no part of the package."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", HARNESS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


stats = load("stats")
flames = load("flames")
plot = load("plot")
turns = load("turns").turns


def test_percentile_lies_between_neighbours() -> None:
    """p99 of few samples must not silently become the maximum or the one below it."""
    values = [float(n) for n in range(101)]

    assert (stats.percentile(values, 0.5), stats.percentile(values, 0.99)) == (50.0, 99.0)
    assert stats.percentile([10.0, 20.0], 0.25) == 12.5


@given(samples, st.floats(min_value=0, max_value=1))
def test_percentile_stays_within_the_sample(values: list[float], share: float) -> None:
    """No share of any sample may give a value that is outside it."""
    found = stats.percentile(values, share)

    assert min(values) <= found <= max(values)


def test_percentile_ignores_the_order_of_samples() -> None:
    """Latencies come in the order of time, not of size."""
    assert stats.percentile([3.0, 1.0, 2.0], 0.5) == 2.0


@pytest.mark.parametrize("describe", [lambda: stats.percentile([], 0.5), lambda: stats.summary([])])
def test_an_empty_sample_is_refused(describe: object) -> None:
    """A system that sent nothing must not get a figure."""
    with pytest.raises(ValueError):
        describe()  # type: ignore[operator]


def test_summary_tells_size_ends_and_percentiles() -> None:
    """The table is made of these."""
    found = stats.summary([float(n) for n in range(1, 102)])

    assert (found.n, found.p50, found.least, found.most) == (101, 51.0, 1.0, 101.0)
    assert found.p95 == pytest.approx(96.0)
    assert found.p99 == pytest.approx(100.0)


def test_ratio_is_of_pairs_not_of_medians() -> None:
    """A machine that slows down for both of a pair leaves their ratio alone."""
    theirs = [1.0, 10.0, 100.0]
    ours = [2.0 * value for value in theirs]

    found = stats.ratio_of_pairs(ours, theirs)

    assert (found.median, found.low, found.high, found.pairs) == (2.0, 2.0, 2.0, 3)


def test_ratio_interval_is_the_same_for_the_same_pairs() -> None:
    """The bootstrap draws from a seeded generator, so a result can be checked."""
    ours, theirs = [1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]

    assert stats.ratio_of_pairs(ours, theirs) == stats.ratio_of_pairs(ours, theirs)


def test_ratio_interval_is_wide_when_pairs_disagree() -> None:
    """An interval that ignored the spread would sell noise as a difference."""
    calm = stats.ratio_of_pairs([1.0, 1.01, 0.99, 1.0, 1.0], [1.0] * 5)
    wild = stats.ratio_of_pairs([0.2, 5.0, 1.0, 3.0, 0.4], [1.0] * 5)

    assert wild.high - wild.low > 10 * (calm.high - calm.low)


@given(samples)
def test_ratio_interval_holds_the_median(values: list[float]) -> None:
    """Whatever the pairs are, the middle lies between its bounds."""
    found = stats.ratio_of_pairs(values, [1.0] * len(values))

    assert found.low <= found.median <= found.high


@pytest.mark.parametrize(("ours", "theirs"), [([1.0], [1.0, 2.0]), ([], [])])
def test_ratio_refuses_what_are_no_pairs(ours: list[float], theirs: list[float]) -> None:
    """A round that one system missed must not shift the others against each other."""
    with pytest.raises(ValueError):
        stats.ratio_of_pairs(ours, theirs)


def test_folded_stacks_add_up_over_lines_of_one_function() -> None:
    """A function that is sampled at two of its lines is one box."""
    found = flames.fold("a (x.py:1);b (y.py:2) 3\na (x.py:9);b (y.py:4) 2\n")

    assert found == {("a (x.py)", "b (y.py)"): 5}


def test_a_flame_leaves_out_what_every_stack_shares() -> None:
    """The outermost frames are the same for all samples and would only make the picture tall."""
    picture = flames.draw("t", flames.fold("run (r.py:1);a (x.py:1) 1\nrun (r.py:1);b (x.py:2) 3"))

    assert "run (r.py)" not in picture
    assert "b (x.py): 75.0 %" in picture


def test_large_values_are_written_out_in_plots() -> None:
    """Nobody reads 2.7e+03 milliseconds."""
    assert "2,700 / 5,500" in plot.ranges("t", {"poll": (2700.0, 5000.0, 5500.0)}, "ms")


def test_plots_escape_what_they_are_told() -> None:
    """A name with an angle bracket would break the SVG."""
    assert "a &lt; b" in plot.bars("t", {"a < b": 1.0}, "s")
    assert "a &lt; b" in plot.ranges("t", {"a < b": (1.0, 2.0, 3.0)}, "ms")
    assert "a &lt; b" in plot.lines("t", {"a < b": [(0.0, 1.0), (1.0, 2.0)]}, "s", "ms")


@pytest.mark.parametrize("size", range(7))
def test_each_other_system_runs_right_beside_ours(size: int) -> None:
    """A ratio of two that ran minutes apart would be a ratio of two loads of the machine."""
    groups = turns("ours", list(range(size)))

    assert [one for group in groups for one in group if one != "ours"] == list(range(size))
    assert all(group.count("ours") == 1 and len(group) <= 3 for group in groups)
    assert all(
        abs(group.index("ours") - place) == 1
        for group in groups
        for place in range(len(group))
        if group[place] != "ours"
    )
