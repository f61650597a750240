"""Arguments of a task or a builder, as JSON and back, by the annotations of its function.

The rule: **an argument is stored if it comes back equal, and of the same type.** Numbers, texts,
booleans, None, lists, tuples, sets, dicts, dataclasses, enums, `datetime`, `date`, `time`, `timedelta`,
`UUID`, `Decimal` and bytes do, nested too, as does any union of them that JSON can tell apart; the
annotation says what a stored text becomes again. An aware datetime comes back with its offset, not with
its zone's name; an int given for a float comes back as that float. Whatever does not come back is a
TypeError at the call, not a surprise in the worker.

Only what was given is stored: a parameter that was left out takes the default of the function that runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from typing import Any, get_type_hints
from uuid import UUID

import msgspec

__all__ = ["Parameters"]


class Parameters:
    """The parameters of *function*, without its first *skip* ones (a context, a connection).

    Annotations are looked up when they are first needed: they may name what is defined later.
    """

    def __init__(self, function: Callable[..., Any], *, skip: int) -> None:
        self._function = function
        self._hints: dict[str, Any] | None = None
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        if skip and not (parameters and _takes_what_the_worker_brings(parameters[0])):
            raise TypeError(
                f"{function.__qualname__} takes no first parameter (a context, or a connection): "
                "its first one is what the worker brings, not an argument"
            )
        self._signature = signature.replace(parameters=parameters[skip:])
        for parameter in parameters[skip:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise TypeError(
                    f"{function.__qualname__}: *{parameter.name} cannot be stored by name; "
                    "use named parameters"
                )

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of one call as JSON. Raises TypeError, which names the parameter.

        Example: ``pack((), {"order_id": 7}) == {"order_id": 7}``
        """
        bound = self._bind(args, kwargs)
        return {name: self._store(name, value) for name, value in bound.items()}

    def unpack(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a stored call, as its function wants them. Raises TypeError."""
        bound = self._bind((), stored)
        return {name: self._restore(name, value) for name, value in bound.items()}

    def check_names(self, given: Mapping[str, Any]) -> None:
        """Raise TypeError unless these are the names of one call's arguments; values do not matter.

        Example: ``check_names({"order_id": 7})``
        """
        self._bind((), given)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            why = self._misfit(args, kwargs) or str(error)
        takes = ", ".join(self._signature.parameters) or "no arguments"
        raise TypeError(f"{self._function.__qualname__}: {why}; it takes {takes}")

    def _misfit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """What is wrong with a call's names, so that it is seen at a glance which one is meant."""
        parameters = self._signature.parameters
        if len(args) > sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values()):
            return "give arguments by name"
        if unexpected := [name for name in kwargs if name not in parameters]:
            return f"unexpected {', '.join(map(repr, unexpected))}"
        needed = list(parameters.values())[len(args) :]
        missing = [p.name for p in needed if p.default is p.empty and p.name not in kwargs]
        return f"missing {', '.join(map(repr, missing))}" if missing else ""

    def _hint(self, name: str) -> Any:
        if self._hints is None:
            try:
                self._hints = get_type_hints(self._function)
            except Exception as error:
                raise TypeError(f"its annotations cannot be looked up: {error}") from None
        return self._hints.get(name, Any)

    def _store(self, name: str, value: Any) -> Any:
        try:
            stored = msgspec.json.decode(msgspec.json.encode(value))
            back = self._convert(name, stored)
        except Exception as error:  # the constructor of a dataclass may raise anything
            raise self._refusal(name, _reason(error)) from None
        if _holds_nul(stored):
            raise self._refusal(name, "holds NUL, which Postgres cannot store")
        if not _same(value, back):
            raise self._refusal(
                name,
                f"does not come back from JSON as it was; it is a {type(value).__name__}, "
                f"its annotation says {self._hint(name)!r}",
            )
        return stored

    def _restore(self, name: str, stored: Any) -> Any:
        try:
            return self._convert(name, stored)
        except Exception as error:
            raise self._refusal(name, _reason(error)) from None

    def _convert(self, name: str, stored: Any) -> Any:
        return msgspec.convert(stored, self._hint(name), str_keys=True)

    def _refusal(self, name: str, why: str) -> TypeError:
        return TypeError(f"{self._function.__qualname__}: {name}: {why}")


_PLAIN = (int, float, str, bytes, bool, dict, list, set, tuple)


def _takes_what_the_worker_brings(first: inspect.Parameter) -> bool:
    """Tell a context or a connection from the first argument of a function that forgot it."""
    positional = first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD, first.VAR_POSITIONAL)
    return positional and first.annotation not in (*_PLAIN, *(kind.__name__ for kind in _PLAIN))


def _reason(error: Exception) -> str:
    """Why, in words that name types and never values."""
    if isinstance(error, UnicodeError):
        return "holds a lone surrogate, which is no text"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, TypeError | msgspec.ValidationError) and error.__cause__ is None:
        return str(error)
    # Its own constructor refused it, in words that may quote the value.
    return f"is refused ({type(error.__cause__ or error).__name__})"


def _same(value: Any, back: Any) -> bool:
    """Is *back* what *value* was? Types count, all the way down."""
    if isinstance(value, UUID):
        return isinstance(back, UUID) and bool(value == back)  # drivers have UUID classes of their own
    if type(back) is float and type(value) is int:
        return bool(value == back)
    if type(back) is not type(value):
        return False
    if isinstance(value, datetime | time):
        # Not by ==: in the hour that a zone's clock repeats, no time equals one with another tzinfo.
        naive = value.replace(tzinfo=None, fold=0) == back.replace(tzinfo=None, fold=0)
        return bool(naive and value.utcoffset() == back.utcoffset())
    if isinstance(value, list | tuple):
        return len(value) == len(back) and all(map(_same, value, back))
    if isinstance(value, dict):
        return value.keys() == back.keys() and all(_same(value[key], back[key]) for key in value)
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.compare]
        return all(_same(getattr(value, name), getattr(back, name)) for name in names)
    return bool(value == back)


def _holds_nul(stored: Any) -> bool:
    match stored:
        case str():
            return "\x00" in stored
        case list():
            return any(map(_holds_nul, stored))
        case dict():
            return any(_holds_nul(key) or _holds_nul(item) for key, item in stored.items())
        case _:
            return False
