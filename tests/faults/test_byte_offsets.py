"""A POST that is cut at every byte, of the request and of the answer: no cut is taken for a sure no."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from uuid import UUID, uuid4

import pytest
from canary_email import an_email
from wire_proxy import CutAfter, How, Proxy, Way, proxy

from notifyq import Email, Postmark, WorkerSettings
from notifyq.attempt import decide
from notifyq.lifecycle import Claim, Doubt, Pending, Sent
from notifyq.provider import Accepted, Deferred, Outcome, Unknown
from notifyq.testing import FakePostmark

BUDGET: dict[How, float] = {"reset": 3.0, "fin": 3.0, "blackhole": 0.4}
SLOTS: dict[How, int] = {"reset": 16, "fin": 16, "blackhole": 64}
"""Cases at once. In a blackhole each lasts as long as its budget."""


class Line:
    """One client behind a proxy of its own, so that a cut meets exactly one request."""

    def __init__(self, tap: Proxy, client: Postmark) -> None:
        self.tap = tap
        self.client = client

    async def send(self, uid: UUID, cut: CutAfter | None, budget: float = 3.0) -> Outcome:
        self.tap.tap = cut
        outcome = await self.client.send(EMAIL, uid=uid, claim=1, budget=budget, still_ours=lambda: None)
        self.tap.tap = None
        return outcome


EMAIL: Email = an_email("offsets", html="<p>canary-body</p>" * 18, tag="order", metadata={"order": "7"})


async def _line(stack: AsyncExitStack, fake: FakePostmark) -> Line:
    tap = await stack.enter_async_context(proxy("127.0.0.1", int(fake.url.rpartition(":")[2])))
    env = {**fake.env(), "POSTMARK_API_URL": f"http://127.0.0.1:{tap.port}"}
    client = Postmark(env=env)
    await client.open()
    stack.push_async_callback(client.close)
    return Line(tap, client)


async def _lengths(line: Line) -> dict[Way, int]:
    """How many bytes one whole exchange has, each way."""
    count = CutAfter("up", 10**9, "reset"), CutAfter("down", 10**9, "reset")
    for one in count:
        assert isinstance(await line.send(uuid4(), one), Accepted)
    return {"up": count[0].seen, "down": count[1].seen}


@pytest.mark.parametrize("how", ["reset", "fin", "blackhole"])
async def test_a_cut_at_any_byte_is_never_a_wrong_yes_or_no(fake_postmark: FakePostmark, how: How) -> None:
    """Each case is judged by the provider's ledger: what was accepted is sent or in doubt, never a no."""
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        lines = [await _line(stack, fake_postmark) for _ in range(SLOTS[how])]
        lengths = await _lengths(lines[0])
        cases: Iterator[tuple[Way, int]] = iter(
            [(way, at) for way in ("up", "down") for at in range(lengths[way] + 1)]
        )
        seen: list[tuple[Way, int, UUID, Outcome]] = []

        async def work(line: Line) -> None:
            for way, at in cases:
                uid = uuid4()
                cut = CutAfter(way, at, how) if at else CutAfter(way, 1, how, seen=1)
                seen.append((way, at, uid, await line.send(uid, cut, BUDGET[how])))

        await asyncio.gather(*map(work, lines))
        await fake_postmark.wait_for(lambda: fake_postmark.requests_in_flight == 0)
    wrong = [
        f"{way} {at}: {fault}"
        for way, at, uid, came in seen
        if (fault := _fault(fake_postmark, way, at, uid, came, lengths))
    ]
    print(f"\n{how}: {len(seen)} cases in {time.monotonic() - began:.1f} s")
    assert wrong == []
    assert len(seen) == sum(lengths.values()) + 2 >= 1000


def _fault(
    fake: FakePostmark, way: Way, at: int, uid: UUID, came: Outcome, lengths: dict[Way, int]
) -> str | None:
    accepted = fake.accepted_by_uid()[str(uid)]
    claim = Claim(id=1, uid=uid, key="k", claim_seq=1, attempts=1)
    made = decide(claim, came, Postmark(token="t"), WorkerSettings()).transition
    expected: dict[type[Outcome], type] = {Accepted: Sent, Unknown: Doubt, Deferred: Pending}  # type: ignore[valid-type]
    if expected.get(type(came)) is not type(made):
        return f"{came} became {made}"
    if accepted > 1:
        return f"accepted {accepted} times"
    if isinstance(came, Accepted) and accepted != 1:
        return "a yes without an acceptance"
    if accepted and not isinstance(came, Accepted | Unknown):
        return f"accepted, but {came}"
    if way == "up" and at < lengths["up"] and accepted:
        return "accepted without its last byte"
    if way == "down" and at < lengths["down"] and isinstance(came, Accepted):
        return f"the answer was cut, but {came}"
    return None
