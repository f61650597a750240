"""Arguments of a task or a builder, as JSON and back, by the annotations of its function.

The rule: an argument is stored if it comes back equal. Numbers, texts, booleans, None, lists, tuples,
dicts, dataclasses, enums, `datetime`, `date`, `time`, `timedelta`, `UUID`, `Decimal` and bytes do, as
does any union of them that JSON can tell apart; the annotation says what a stored text becomes again.
Whatever does not is a TypeError at the call, not a surprise in the worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec

__all__ = ["Parameters"]


class Parameters:
    """The parameters of *function*, without its first *skip* ones (a context, a connection).

    Annotations are looked up when they are first needed: they may name what is defined later.
    """

    def __init__(self, function: Callable[..., Any], *, skip: int) -> None:
        self._function = function
        self._skip = skip
        self._hints: dict[str, Any] | None = None
        for parameter in list(inspect.signature(function).parameters.values())[skip:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise TypeError(
                    f"{function.__qualname__}: *{parameter.name} cannot be stored by name; "
                    "use named parameters"
                )

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of one call as JSON. Raises TypeError, which names the parameter.

        Example: ``pack((), {"order_id": 7}) == {"order_id": 7}``
        """
        try:
            bound = self._signature().bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._function.__qualname__}: {error}") from None
        return {name: self._store(name, value) for name, value in bound.arguments.items()}

    def unpack(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a stored call, as its function wants them. Raises TypeError."""
        try:
            self._signature().bind(**stored)
        except TypeError as error:
            raise TypeError(f"{self._function.__qualname__}: {error}") from None
        return {name: self._restore(name, value) for name, value in stored.items()}

    def _signature(self) -> inspect.Signature:
        signature = inspect.signature(self._function)
        return signature.replace(parameters=list(signature.parameters.values())[self._skip :])

    def _hint(self, name: str) -> Any:
        if self._hints is None:
            self._hints = get_type_hints(self._function)
        return self._hints.get(name, Any)

    def _store(self, name: str, value: Any) -> Any:
        try:
            text = msgspec.json.encode(value)
            stored = msgspec.json.decode(text)
            back = self._restore(name, stored)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise TypeError(f"{self._function.__qualname__}: {name}: {_reason(error)}") from None
        if back != value or type(back) is not type(value):
            raise TypeError(
                f"{self._function.__qualname__}: {name} does not come back from JSON as it was; "
                f"it is a {type(value).__name__}, its annotation says {self._hint(name)!r}"
            )
        if b"\\u0000" in text:
            raise TypeError(f"{self._function.__qualname__}: {name} holds NUL, which Postgres cannot store")
        return stored

    def _restore(self, name: str, stored: Any) -> Any:
        try:
            return msgspec.convert(stored, self._hint(name), str_keys=True)
        except msgspec.ValidationError as error:
            raise TypeError(f"{name}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Why, in the library's words, which name types and never values."""
    if isinstance(error, UnicodeError):
        return "holds a lone surrogate, which is no text"
    return str(error)
