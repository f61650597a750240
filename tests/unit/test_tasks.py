"""Declaring a task, and making a call of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import notifyq
from notifyq import TaskContext
from notifyq.tasks import Call, Registry, Task, registered


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test declares is forgotten after it."""
    kept = dict(registered)
    yield
    registered.clear()
    registered.update(kept)


def declared(**options: Any) -> Task[Any]:
    """A task with these *options*."""

    @notifyq.task("resize", **options)
    async def resize(ctx: TaskContext, *, photo_id: int, size: str = "small") -> None: ...

    return resize


def test_a_call_carries_what_the_row_needs() -> None:
    """The worker that runs it may have another declaration by then; the call goes by its own."""
    call = declared(priority=-1, max_attempts=3).call(photo_id=7)

    assert call == Call(name="resize", args={"photo_id": 7}, priority=-1, max_attempts=3)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"photo_id": "7"}, {"photo": 7}, {"photo_id": 7, "size": 1}, {"photo_id": 7, "ctx": None}],
)
def test_a_call_that_does_not_fit_is_a_type_error_at_once(arguments: dict[str, Any]) -> None:
    """The name of the task is in it, the values are not."""
    with pytest.raises(TypeError, match="resize"):
        declared().call(**arguments)


def test_arguments_are_not_shown() -> None:
    """They may be secrets, and a repr ends in logs."""

    @notifyq.task("reset")
    async def reset(ctx: TaskContext, *, token: str) -> None: ...

    assert "s3cret" not in repr(reset.call(token="s3cret"))


def test_a_task_called_directly_is_the_function_that_it_is() -> None:
    """So that it is tested without a worker."""
    seen: list[int] = []

    @notifyq.task("direct")
    def direct(ctx: TaskContext, *, n: int) -> None:
        seen.append(n)

    direct(None, n=3)  # type: ignore[arg-type]

    assert seen == [3]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"limit": 0}, "limit"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"backoff": float("inf")}, "backoff"),
        ({"backoff_cap": -1.0}, "backoff_cap"),
    ],
)
def test_settings_that_cannot_be_are_refused_when_declared(options: dict[str, Any], word: str) -> None:
    """Not by the database, when a run has failed and its end must be written."""
    with pytest.raises(ValueError, match=word):
        declared(**options)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b"])
def test_a_name_that_no_row_can_have_is_refused(name: str) -> None:
    """The table has the same rule."""
    with pytest.raises(ValueError, match="name"):
        notifyq.task(name)


def test_one_name_stands_for_one_function() -> None:
    """Two functions of one name would take each other's calls."""
    registry = Registry()
    first = declared()
    registry.add("resize", first, first.function)
    registry.add("resize", first, first.function)  # the module was imported again

    with pytest.raises(ValueError, match=r"'resize' is declared twice: in .*declared.* and in .*other"):
        registry.add("resize", first, other)


def other() -> None: ...


def test_a_task_is_found_by_the_worker_once_it_is_declared() -> None:
    """A worker that is given no tasks runs all that were declared."""
    task = declared()

    assert registered["resize"] is task


def test_a_moved_function_keeps_its_rows() -> None:
    """The name is given, not made from the module: rows find their function wherever it lies."""
    task = declared()

    assert "resize" not in task.function.__module__
    assert task.call(photo_id=1).name == "resize"


def test_a_periodic_task_must_need_no_arguments() -> None:
    """Nobody would give them."""
    with pytest.raises(TypeError, match="photo_id"):
        notifyq.periodic("0 3 * * *")(declared())


def test_periodic_plans_a_task_and_keeps_it_callable() -> None:
    """It can be run by hand too."""

    @notifyq.periodic("0 3 * * *", timezone="Europe/Paris", missed="one")
    @notifyq.task("nightly")
    async def nightly(ctx: TaskContext) -> None: ...

    assert registered["nightly"] is nightly
    assert nightly.schedule is not None and nightly.schedule.missed == "one"
    assert nightly.call().args == {}
