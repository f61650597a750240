"""What a beginner gets wrong when declaring and calling, and what is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import notifyq
from notifyq import builders, tasks


@pytest.fixture(autouse=True)
def own_registries() -> Iterator[None]:
    """What a test declares is forgotten after it."""
    both = (tasks.registered, builders.registered)
    kept = [dict(registry) for registry in both]
    for registry in both:
        registry.clear()
    yield
    for registry, before in zip(both, kept, strict=True):
        registry.clear()
        registry.update(before)


def a_task() -> Any:
    @notifyq.task("make-invoice")
    async def make_invoice(ctx: notifyq.TaskContext, *, order_id: int, size: str = "") -> None: ...

    return make_invoice


def a_builder(**options: Any) -> Any:
    @notifyq.email("order-shipped", **options)
    def order_shipped(*, order_id: int, size: str = "") -> Any: ...

    return order_shipped


async def plain(ctx: Any) -> None: ...


def no_context(*, order_id: int) -> None: ...


def argument_first(order_id: int) -> None: ...


DECLARATIONS: list[tuple[Callable[[], Any], str]] = [
    (lambda: notifyq.periodic("0 3 * * *")(plain), "put @periodic above @task"),  # type: ignore[arg-type]
    (lambda: notifyq.email("e")(a_task()), "'make-invoice' is a task already"),
    (lambda: notifyq.email("e")(a_builder()), "'order-shipped' is a builder already"),
    (lambda: notifyq.task("t")(a_task()), "'make-invoice' is a task already"),
    (lambda: notifyq.task("t")(a_builder()), "'order-shipped' is a builder already"),
    (lambda: notifyq.task(plain), '@notifyq.task("a-name")'),  # type: ignore[arg-type]
    (lambda: notifyq.email(plain), '@notifyq.email("a-name")'),  # type: ignore[call-overload]
    (lambda: notifyq.task("t")(no_context), "no first parameter"),  # type: ignore[arg-type]
    (lambda: notifyq.task("t")(argument_first), "no first parameter"),  # type: ignore[arg-type]
    (lambda: notifyq.email("e", connection=True)(no_context), "no first parameter"),
    (lambda: a_builder(sample={"order": 7}), "sample: "),
    (lambda: a_builder(sample={"size": "s"}), "missing 'order_id'"),
]
CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: a_task().call(order=7), "unexpected 'order'; it takes order_id, size"),
    (lambda: a_task().call(size="s"), "missing 'order_id'; it takes order_id, size"),
    (lambda: a_task().call(7), "give arguments by name; it takes order_id, size"),
    (lambda: a_builder().deferred(order=7), "unexpected 'order'; it takes order_id, size"),
    (lambda: a_builder().deferred(7), "give arguments by name"),
    (lambda: a_task()(order_id=7), "make_invoice.call(...)"),
]


@pytest.mark.parametrize(
    ("mistake", "words"), [*DECLARATIONS, *CALLS], ids=range(len(DECLARATIONS) + len(CALLS))
)
def test_a_beginner_s_mistake_is_a_type_error_that_says_what_to_write(
    mistake: Callable[[], Any], words: str
) -> None:
    """At the declaration or the call, not in the worker."""
    with pytest.raises(TypeError) as caught:
        mistake()

    assert words in str(caught.value)


def test_a_task_may_name_and_annotate_its_context_as_it_likes() -> None:
    """Only what cannot be a context is refused."""

    @notifyq.task("t")
    def work(context, *, n: int) -> None: ...  # type: ignore[no-untyped-def]

    assert work.call(n=1).args == {"n": 1}


def test_a_sample_that_fits_is_kept() -> None:
    """Also one that leaves out what has a default."""
    assert a_builder(sample={"order_id": 7}).sample == {"order_id": 7}
