"""Did the story end as told? Pure: scenes state facts, this reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ending", "Fact", "verdict"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that a scene promised, and whether it came true.

    Example: ``Fact("the provider has one message", len(messages) == 1)``
    """

    told: str
    true: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the scene *title* ended: *line* sums it up, *facts* prove it."""

    title: str
    line: str
    facts: tuple[Fact, ...]

    @property
    def untrue(self) -> tuple[str, ...]:
        """What was told and did not happen. A scene that proved nothing did not happen either."""
        if not self.facts:
            return ("anything at all",)
        return tuple(fact.told for fact in self.facts if not fact.true)

    @property
    def as_told(self) -> bool:
        """True if every fact came true."""
        return not self.untrue


def verdict(endings: Sequence[Ending], planned: int) -> int:
    """The exit code: 0 if all *planned* scenes were played and each ended as told, else 1.

    Example: ``verdict([], planned=8) == 1``: a story that was cut short proves nothing
    """
    return int(len(endings) != planned or not all(ending.as_told for ending in endings))
