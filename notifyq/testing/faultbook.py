"""The faults that wait to happen, and the choice of the one that meets a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from notifyq.testing.faults import (
    Altered,
    CloseOnAccept,
    CloseUnread,
    Fault,
    IgnoreFilter,
    LateAccept,
    ShowTwice,
    Target,
)

__all__ = ["FaultBook"]


@dataclass(slots=True, kw_only=True)
class _Entry:
    fault: Fault
    on: Target
    times: int | None
    when: Callable[[dict[str, Any]], bool] | None
    uid: str | None

    def meets(self, bodies: Sequence[dict[str, Any]], uids: Sequence[str]) -> bool:
        if self.uid is not None and self.uid not in uids:
            return False
        return self.when is None or any(map(self.when, bodies))


class FaultBook:
    """The faults that wait to happen, the oldest first."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def add(
        self,
        fault: Fault,
        *,
        times: int | None,
        when: Callable[[dict[str, Any]], bool] | None,
        uid: str | None,
        on: Target | None,
    ) -> None:
        """Add one; *on* None is the target that suits it. Raises ValueError where a choice is impossible."""
        search_only = isinstance(fault, IgnoreFilter | ShowTwice)
        if isinstance(fault, CloseOnAccept | CloseUnread) and (when or uid or on):
            raise ValueError(
                f"{type(fault).__name__} comes before anything is read: count it, do not choose it"
            )
        if search_only and on not in (None, "search"):
            raise ValueError(f"{type(fault).__name__} is about searches")
        if isinstance(fault, Altered | LateAccept) and on not in (None, "send"):
            raise ValueError(f"{type(fault).__name__} is about POSTs of email")
        target: Target = on or ("search" if search_only else "send")
        self._entries.append(_Entry(fault=fault, on=target, times=times, when=when, uid=uid))

    def clear(self) -> None:
        """Forget all of them."""
        self._entries.clear()

    def take_early(self, kind: type[CloseOnAccept] | type[CloseUnread]) -> bool:
        """Use up one fault of those that come before a request is read."""
        return self._take(lambda entry: isinstance(entry.fault, kind)) is not None

    def take(self, on: Target, bodies: Sequence[dict[str, Any]], uids: Sequence[str]) -> Fault | None:
        """Use up the first fault that meets this request, or None."""
        early = CloseOnAccept | CloseUnread
        return self._take(
            lambda entry: entry.on == on and not isinstance(entry.fault, early) and entry.meets(bodies, uids)
        )

    def _take(self, fits: Callable[[_Entry], bool]) -> Fault | None:
        for entry in self._entries:
            if fits(entry):
                if entry.times is not None:
                    entry.times -= 1
                    if entry.times <= 0:
                        self._entries.remove(entry)
                return entry.fault
        return None
