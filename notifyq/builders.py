"""Builders: typed functions that make an `Email`, now or in the worker.

A builder is pure: it renders, addresses and chooses the key. Called, it is the function it is. Deferred,
its name and arguments are stored instead of the message, and the worker calls it when it must send:
nothing secret lies in a table, and the record is fresh.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from notifyq.arguments import Parameters
from notifyq.message import Email, OnDoubt
from notifyq.tasks import Registry, check_declaration, check_is_bare

__all__ = ["Builder", "DeferredEmail", "Unrenderable", "email", "registered"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", bound="Email | Awaitable[Email]")


class Unrenderable(Exception):
    """Raised by a builder that can never make this email: its record is gone. Final.

    Example: ``raise notifyq.Unrenderable("the order was deleted")``
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredEmail:
    """A builder's call, to be enqueued with a key: made by `Builder.deferred`."""

    builder: str
    args: dict[str, Any] = field(repr=False)
    stream: str | None
    priority: int
    on_doubt: OnDoubt

    def message(self) -> dict[str, Any]:
        """What is stored instead of a message."""
        stored: dict[str, Any] = {"builder": self.builder, "args": self.args}
        return stored if self.stream is None else stored | {"stream": self.stream}


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder(Generic[P]):
    """A named function that makes an email. Made by `email`.

    Example: ``await notifyq.enqueue(conn, order_shipped.deferred(order_id=7), key="order-shipped:7")``
    """

    name: str
    function: Callable[..., Any]
    connection: bool
    stream: str | None
    priority: int
    on_doubt: OnDoubt
    sample: Mapping[str, Any] | None
    parameters: Parameters = field(repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the email here and now."""
        return self.function(*args, **kwargs)

    def deferred(self, *args: P.args, **kwargs: P.kwargs) -> DeferredEmail:
        """A call for later. Raises TypeError for arguments that do not fit or JSON cannot keep."""
        return DeferredEmail(
            builder=self.name,
            args=self.parameters.pack(args, kwargs),
            stream=self.stream,
            priority=self.priority,
            on_doubt=self.on_doubt,
        )


class TypedBuilder(Builder[P], Generic[P, Q, R]):
    """A builder for type checkers: *P* is what `deferred` takes, *Q* and *R* are the function's own."""

    __slots__ = ()

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R:
        """Make the email here and now. (With ``connection=True`` the first argument is a connection.)"""
        made: R = self.function(*args, **kwargs)
        return made


registered: Registry = Registry()
"""All builders declared in this process."""


@overload
def email(
    name: str,
    *,
    connection: Literal[False] = False,
    stream: str | None = None,
    priority: int = 0,
    on_doubt: OnDoubt = "ask",
    sample: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, R]], TypedBuilder[P, P, R]]: ...


@overload
def email(
    name: str,
    *,
    connection: Literal[True],
    stream: str | None = None,
    priority: int = 0,
    on_doubt: OnDoubt = "ask",
    sample: Mapping[str, Any] | None = None,
) -> Callable[[Callable[Concatenate[Any, P], R]], TypedBuilder[P, Concatenate[Any, P], R]]: ...


def email(
    name: str,
    *,
    connection: bool = False,
    stream: str | None = None,
    priority: int = 0,
    on_doubt: OnDoubt = "ask",
    sample: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], TypedBuilder[Any, Any, Any]]:
    """Declare a builder. With ``connection=True`` its first parameter is an asyncpg connection.

    *stream*, *priority* and *on_doubt* belong to the kind of mail, so they are declared here: they are
    needed before the email is made. *sample* holds arguments for the operator's preview.

    Raises ValueError for a name that another function has, TypeError for parameters that cannot be stored
    and for a *sample* that does not fit them.

    Example::

        @notifyq.email("order-shipped", connection=True, sample={"order_id": 1})
        async def order_shipped(conn, *, order_id: int) -> notifyq.Email:
            order = await conn.fetchrow("select email from orders where id = $1", order_id)
            if order is None:
                raise notifyq.Unrenderable("the order was deleted")
            return notifyq.Email(key=f"order-shipped:{order_id}", to=order["email"], ...)
    """
    check_declaration("email", name)

    def declare(function: Callable[..., Any]) -> TypedBuilder[Any, Any, Any]:
        check_is_bare("email", function)
        parameters = Parameters(function, skip=int(connection))
        if sample is not None:
            _check_sample(parameters, sample)
        declared: TypedBuilder[Any, Any, Any] = TypedBuilder(
            name=name,
            function=function,
            connection=connection,
            stream=stream,
            priority=priority,
            on_doubt=on_doubt,
            sample=sample,
            parameters=parameters,
        )
        registered.add(name, declared, function)
        return declared

    return declare


def _check_sample(parameters: Parameters, sample: Mapping[str, Any]) -> None:
    try:
        parameters.check_names(sample)
    except TypeError as error:
        raise TypeError(f"sample: {error}") from None
