"""Testing your own app's email, and what this package tests itself with.

`FakePostmark` is a real HTTP server that behaves as Postmark does, keeps a ledger of what it accepted
and fails on demand, in the ways of `notifyq.testing.faults`::

    from notifyq.testing import FakePostmark, faults

    async with FakePostmark() as fake:
        fake.fault(faults.Hang(record=True), uid=str(uid))
        ...
        await fake.wait_accepted(1)
        assert fake.accepted[0].subject == "Your order"    # and .text .html .from_ .to .attachments ...

`drain` lets a real worker finish what a test has enqueued; fixtures for pytest (``fake_postmark``,
``notifyq_pool``) come with the package: see `notifyq.testing.plugin`.

As a process of its own: ``python -m notifyq.testing --port 0`` (`notifyq.testing.control` says how to
drive it). For benches there is a much faster one that only counts: `notifyq.testing.sink`.
"""

from __future__ import annotations

from notifyq.testing import faults
from notifyq.testing.drain import drain
from notifyq.testing.fake import FakePostmark
from notifyq.testing.faults import Fault
from notifyq.testing.ledger import File, Message, Post, Search

__all__ = ["FakePostmark", "Fault", "File", "Message", "Post", "Search", "drain", "faults"]
