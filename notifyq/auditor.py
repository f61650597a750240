"""The auditor: once a day, does the provider show any email of ours more than once?

It also settles what a person would otherwise have to: a held email that the provider shows after all
was sent, and so was one that died at its second POST (policy ``resend``) although its first had arrived.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from notifyq.db import Link, seconds
from notifyq.provider import Found, Listed, Provider

__all__ = ["Audit", "audit"]

log = logging.getLogger("notifyq")

LOOK_BACK: Final = 36 * 3600.0
"""More than the day between two audits, so that nothing falls between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What one audit saw: how many messages, the ids of emails sent twice, and of held or dead ones found."""

    seen: int
    twice: tuple[int, ...]
    found: tuple[int, ...]
    complete: bool


async def audit(link: Link, provider: Provider, *, budget: float, look_back: float = LOOK_BACK) -> Audit:
    """List the recent messages of every stream in use; alarm on doubles, settle held emails.

    Raises one of `notifyq.db.DATABASE_FAULTS`.
    """
    streams = {row["stream"] for row in await link.fetch("recent_streams", seconds(look_back))}
    shown: dict[UUID, tuple[str, ...]] = {}
    complete = True
    for stream in sorted(streams | {"outbound"}):
        listed = await provider.listing(stream=stream, since=time.time() - look_back, budget=budget)
        if isinstance(listed, Listed):
            shown.update(listed.messages)
            complete = complete and listed.since is None
        else:
            complete = False
    shown.update(await _find_sent_again(link, provider, shown, look_back, budget))
    twice = await _alarm(link, {uid: ids for uid, ids in shown.items() if len(ids) > 1})
    found = await _settle(link, shown, look_back)
    return Audit(seen=len(shown), twice=twice, found=found, complete=complete)


async def _find_sent_again(
    link: Link, provider: Provider, shown: dict[UUID, tuple[str, ...]], look_back: float, budget: float
) -> dict[UUID, tuple[str, ...]]:
    """Whatever a listing of a busy stream leaves out: what was sent again is looked up one by one."""
    found: dict[UUID, tuple[str, ...]] = {}
    for row in await link.fetch("sent_again_uids", seconds(look_back), provider.account):
        if len(shown.get(row["uid"], ())) > 1:
            continue
        answer = await provider.find(row["uid"], stream=row["stream"], budget=budget)
        if isinstance(answer, Found):
            found[row["uid"]] = answer.message_ids
    return found


async def _alarm(link: Link, doubles: dict[UUID, tuple[str, ...]]) -> tuple[int, ...]:
    if not doubles:
        return ()
    rows = await link.fetch("emails_by_uid", list(doubles))
    for row in rows:
        ids = doubles[row["uid"]]
        await link.fetch("email_copies", row["id"], list(ids))
        log.critical("email %d was SENT TWICE: %s", row["id"], ", ".join(ids))
    return tuple(row["id"] for row in rows)


async def _settle(link: Link, shown: dict[UUID, tuple[str, ...]], look_back: float) -> tuple[int, ...]:
    unsettled = await link.fetch("unsettled_uids", seconds(look_back))
    found = [row for row in unsettled if row["uid"] in shown]
    if found:
        await link.fetch(
            "email_sent",
            [row["id"] for row in found],
            [row["claim_seq"] for row in found],
            [shown[row["uid"]][-1] for row in found],
            ["found" for _ in found],
        )
    return tuple(row["id"] for row in found)
