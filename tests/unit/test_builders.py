"""Declaring a builder, and deferring a call of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import notifyq
from notifyq import Email
from notifyq.builders import DeferredEmail, registered


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    """What a test declares is forgotten after it."""
    kept = dict(registered)
    yield
    registered.clear()
    registered.update(kept)


def an_email(order_id: int) -> Email:
    """What the builders here make."""
    return Email(key=f"order:{order_id}", to="ann@example.com", subject="s", text="t")


def test_a_builder_is_still_the_function_that_it_was() -> None:
    """It is tested with nothing around it."""

    @notifyq.email("order")
    def order(*, order_id: int) -> Email:
        return an_email(order_id)

    assert order(order_id=7).key == "order:7"


def test_a_deferred_call_stores_the_name_and_the_arguments_only() -> None:
    """Nothing of the message is made yet, so nothing secret can lie in the table."""

    @notifyq.email("order", priority=-5, on_doubt="hold", stream="receipts")
    def order(*, order_id: int) -> Email:
        raise AssertionError

    deferred = order.deferred(order_id=7)

    assert deferred.message() == {"builder": "order", "args": {"order_id": 7}, "stream": "receipts"}
    assert (deferred.priority, deferred.on_doubt) == (-5, "hold")


def test_without_a_stream_none_is_stored() -> None:
    """The provider's default is the provider's."""
    deferred = DeferredEmail(builder="b", args={}, stream=None, priority=0, on_doubt="ask")

    assert deferred.message() == {"builder": "b", "args": {}}


def test_the_connection_is_no_argument_of_the_call() -> None:
    """The worker brings it."""

    @notifyq.email("order", connection=True)
    async def order(conn: Any, *, order_id: int) -> Email:
        return an_email(order_id)

    assert order.deferred(order_id=7).args == {"order_id": 7}
    with pytest.raises(TypeError, match="conn"):
        order.deferred(conn=None, order_id=7)  # type: ignore[call-arg]


@pytest.mark.parametrize("arguments", [{}, {"order_id": "7"}, {"id": 7}])
def test_a_deferred_call_that_does_not_fit_is_a_type_error_at_once(arguments: dict[str, Any]) -> None:
    """Not a dead email in the night."""

    @notifyq.email("order")
    def order(*, order_id: int) -> Email:
        return an_email(order_id)

    with pytest.raises(TypeError, match="order"):
        order.deferred(**arguments)


def test_arguments_are_not_shown() -> None:
    """They may be secrets, and a repr ends in logs."""
    deferred = DeferredEmail(builder="b", args={"token": "s3cret"}, stream=None, priority=0, on_doubt="ask")

    assert "s3cret" not in repr(deferred)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b"])
def test_a_name_that_no_row_can_have_is_refused(name: str) -> None:
    """It would be refused at every enqueue."""
    with pytest.raises(ValueError, match="name"):
        notifyq.email(name)


def test_one_name_stands_for_one_builder() -> None:
    """Two builders of one name would make each other's emails."""

    @notifyq.email("order")
    def order(*, order_id: int) -> Email:
        return an_email(order_id)

    with pytest.raises(ValueError, match="declared twice"):

        @notifyq.email("order")
        def another(*, order_id: int) -> Email:
            return an_email(order_id)
