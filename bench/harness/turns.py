"""Who runs when: notifyq between every two others, so that each of them has it as its neighbour. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["turns"]

T = TypeVar("T")


def turns(ours: T, others: Sequence[T]) -> list[list[T]]:
    """Groups of ``[other, ours, other]``; the last may have only one other.

    The two of a pair ran one right after the other. That is what makes their ratio worth something on a
    machine that does other things, too.

    Example: ``turns("n", ["a", "b", "c"]) == [["a", "n", "b"], ["n", "c"]]``
    """
    groups: list[list[T]] = []
    for place in range(0, len(others), 2):
        some = list(others[place : place + 2])
        some.insert(len(some) - 1, ours)
        groups.append(some)
    return groups
