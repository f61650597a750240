"""What may be an argument of a call, and that it comes back as it was."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import asyncpg.pgproto.pgproto
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyq.arguments import Parameters


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    placed: datetime
    colour: Colour | None = None
    notes: dict[str, str] = field(default_factory=dict)


@dataclass
class Picky:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise KeyError(f"secret {self.number}")


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict, total=False):
    loud: bool


ORDER = Order(
    UUID(int=7), [Line(sku="a", price=Decimal("1.10"))], datetime(2026, 1, 2, tzinfo=UTC), Colour.RED
)


def taking(annotation: Any) -> Parameters:
    """The parameters of a function with one, ``x``."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    return Parameters(function, skip=0)


def there_and_back(annotation: Any, value: Any) -> Any:
    """Pack, store as text, read, unpack."""
    parameters = taking(annotation)
    stored = json.loads(json.dumps(parameters.pack((value,), {}), ensure_ascii=False))
    return parameters.unpack(stored)["x"]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 7),
        (int, 2**70),
        (int, -(2**63)),
        (float, 0.1),
        (float, 1e308),
        (bool, True),
        (str, "Ålesund \U0001f4e7"),
        (str, "the text \\u0000, not the character"),
        (None, None),
        (bytes, b"\x00\xff"),
        (datetime, datetime(2026, 3, 29, 2, 30)),
        (datetime, datetime(2026, 3, 29, 2, 30, 0, 1, tzinfo=timezone(timedelta(hours=-3)))),
        (date, date(2024, 2, 29)),
        (time, time(23, 59, 59, 999999)),
        (timedelta, timedelta(days=-1, microseconds=1)),
        (UUID, UUID(int=1)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.BLUE),
        (Size, Size.SMALL),
        (Literal["a", 1], "a"),
        (int | None, None),
        (int | str, "1"),
        (UUID | int, UUID(int=3)),
        (datetime | None, datetime(2026, 1, 1, tzinfo=UTC)),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (tuple[Decimal, ...], (Decimal(1), Decimal("1.0"))),
        (frozenset[str], frozenset({"a", "b"})),
        (dict[str, list[UUID]], {"a": [UUID(int=1)]}),
        (dict[int, Colour], {1: Colour.RED}),
        (Point, Point(1, 2)),
        (Options, {"loud": True}),
        (Order, ORDER),
        (list[Order | None], [ORDER, None]),
        (Any, {"a": [1, "b", None, True]}),
    ],
)
def test_an_argument_comes_back_equal_and_of_its_type(annotation: Any, value: Any) -> None:
    """The worker's function must see what the caller gave."""
    back = there_and_back(annotation, value)

    assert value == back
    assert type(value) is type(back)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "7"),
        (int, 7.0),
        (int, True),
        (str, 7),
        (str, None),
        (float, float("nan")),
        (float | None, float("nan")),
        (list[Any], [float("nan")]),
        (float, float("inf")),
        (Decimal, Decimal("NaN")),
        (Decimal, 1.5),
        (str, "\ud800"),
        (dict[str, int], {"\udfff": 1}),
        (str, "a\x00b"),
        (list[str], ["a\x00b"]),
        (dict[str, int], {"\x00": 1}),
        (bytes, "not bytes"),
        (datetime, "2026-01-01"),
        (datetime, date(2026, 1, 1)),
        (date, datetime(2026, 1, 1)),
        (Colour, "red"),
        (str, Size.SMALL),
        (list[int], (1, 2)),
        (list[int], [1, "2"]),
        (dict[str, int], {1: 1}),
        (Any, {1: "a", "1": "b"}),
        (Any, UUID(int=1)),
        (Any, (1, 2)),
        (Any, object()),
        (Order, {"id": 1}),
        (Picky, object()),
        (int, lambda: 7),
        (float, 2**53 + 1),
    ],
)
def test_what_would_not_come_back_is_refused_at_the_call(annotation: Any, value: Any) -> None:
    """In the worker it would be too late: the caller is gone."""
    with pytest.raises(TypeError, match=r"function: x: "):
        taking(annotation).pack((value,), {})


def test_an_int_is_a_float_as_it_is_for_a_type_checker() -> None:
    """``price=1`` passes mypy for a float."""
    assert isinstance(there_and_back(float, 1), float)


def test_a_drivers_own_uuid_is_a_uuid() -> None:
    """Ids that asyncpg has read are of its own class."""
    driver_made = asyncpg.pgproto.pgproto.UUID(str(UUID(int=5)))

    assert there_and_back(UUID, driver_made) == UUID(int=5)


@pytest.mark.parametrize("fold", [0, 1])
def test_a_time_in_the_repeated_hour_of_autumn_is_stored_by_its_offset(fold: int) -> None:
    """By PEP 495 such a time equals none in another zone, so that == would refuse it one hour a year."""
    repeated = datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Paris"))

    back = there_and_back(datetime, repeated)

    assert (back.utcoffset(), back.replace(tzinfo=None)) == (
        repeated.utcoffset(),
        repeated.replace(tzinfo=None, fold=0),
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
ZONES = st.sampled_from(
    [None, UTC, ZoneInfo("Europe/Paris"), ZoneInfo("America/St_Johns"), ZoneInfo("Asia/Kathmandu")]
)
VALUES = st.one_of(
    st.tuples(st.just(datetime), st.datetimes(timezones=ZONES)),
    st.tuples(st.just(timedelta), st.timedeltas(timedelta(days=-99999), timedelta(days=99999))),
    st.tuples(st.just(Decimal), st.decimals(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just(dict[UUID, time | None]), st.dictionaries(st.uuids(), st.none() | st.times())),
    st.tuples(st.just(bytes), st.binary()),
    st.tuples(st.just(Any), JSON),
)


@given(VALUES)
def test_whatever_is_taken_comes_back(case: tuple[Any, Any]) -> None:
    """There is no third way between "refused at the call" and "the same in the worker"."""
    annotation, value = case
    parameters = taking(annotation)
    try:
        stored = parameters.pack((value,), {})
    except TypeError:
        return

    back = parameters.unpack(json.loads(json.dumps(stored)))["x"]

    if isinstance(value, datetime):
        assert back.utcoffset() == value.utcoffset()
        value, back = value.replace(tzinfo=None, fold=0), back.replace(tzinfo=None, fold=0)
    assert back == value


def example(first: int, *, second: str = "b") -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "first"),
        ((1,), {"third": 1}, "third"),
        ((1, "b"), {}, "by name"),
        ((1,), {"first": 2}, "first"),
    ],
)
def test_the_call_has_the_functions_own_parameters(args: Any, kwargs: Any, why: str) -> None:
    """A wrong name is an error where it is written."""
    with pytest.raises(TypeError, match=why):
        Parameters(example, skip=0).pack(args, kwargs)


def test_a_default_is_the_default_of_the_function_that_runs() -> None:
    """So a new default reaches calls that wait; what was given is kept."""
    assert Parameters(example, skip=0).pack((1,), {}) == {"first": 1}


@pytest.mark.parametrize("stored", [{}, {"first": "1"}, {"first": 1, "gone": 2}, {"first": None}])
def test_stored_arguments_that_do_not_fit_are_a_type_error(stored: dict[str, Any]) -> None:
    """The function has changed since, or SQL wrote them."""
    with pytest.raises(TypeError, match="example"):
        Parameters(example, skip=0).unpack(stored)


@pytest.mark.parametrize("stored", [{"x": {"number": -1}}, {"x": {"number": "a"}}])
def test_a_constructor_that_refuses_is_a_type_error_without_the_value(stored: dict[str, Any]) -> None:
    """Whatever a dataclass raises must not end the worker, nor show what it was given."""
    with pytest.raises(TypeError) as caught:
        taking(Picky).unpack(stored)

    assert "secret" not in str(caught.value)


def positional(x: int, /) -> None: ...
def many(*x: int) -> None: ...
def any_names(**x: int) -> None: ...


@pytest.mark.parametrize("function", [positional, many, any_names])
def test_parameters_without_a_name_are_refused_when_declared(function: Callable[..., Any]) -> None:
    """Stored arguments are found by name."""
    with pytest.raises(TypeError, match="cannot be stored by name"):
        Parameters(function, skip=0)


def test_a_function_without_its_first_parameter_is_refused_when_declared() -> None:
    """A task without a context could never be run."""

    def no_context() -> None: ...

    with pytest.raises(TypeError, match="no first parameter"):
        Parameters(no_context, skip=1)


def unresolved(x: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_annotations_that_name_nothing_are_a_type_error() -> None:
    """Imported for type checking only: said at the call, with the name."""
    with pytest.raises(TypeError, match="Missing"):
        Parameters(unresolved, skip=0).pack((1,), {})
