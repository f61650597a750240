"""What all tests of faults need: a rule that no log line ever holds what it must not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from checker import canaries_in


@pytest.fixture(autouse=True)
def no_canary_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No address, body or token in any log line, whatever broke."""
    caplog.set_level("DEBUG", logger="notifyq")
    yield
    assert canaries_in([caplog.text]) == []
