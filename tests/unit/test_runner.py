"""How a command is run."""

from __future__ import annotations

import gc

import pytest

from notifyq.cli.runner import RARELY, run


@pytest.mark.parametrize("fast", [True, False])
def test_only_a_worker_has_the_collector_come_rarely(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    """It is the process that nobody else lives in; every other command is over in a moment."""
    set_to: list[tuple[int, ...]] = []
    monkeypatch.setattr(gc, "set_threshold", lambda *values: set_to.append(values))

    async def work() -> int:
        return 3

    with pytest.raises(SystemExit) as ended:
        run(work, fast=fast)

    assert (ended.value.code, set_to) == (3, [RARELY] if fast else [])
