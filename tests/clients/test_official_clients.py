"""Postmark's own clients work against the fake unchanged: it is shaped as they expect.

They are installed into a folder of the test, so this needs their registries and is part of the long run.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from notifyq.testing import FakePostmark

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
HERE = Path(__file__).parent


async def run(*command: str, **environment: str) -> str:
    """Run a program to its end; what it said on stderr is the error."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


async def talk(fake: FakePostmark, *command: str, **environment: str) -> dict[str, Any]:
    fake.suppress("gone@example.com")
    said: dict[str, Any] = json.loads(await run(*command, **fake.env(), **environment))
    return said


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs node and npm")
async def test_the_node_client_sends_batches_searches_and_understands_refusals(tmp_path: Path) -> None:
    """npm ``postmark``: its error classes are made from our codes and texts."""
    await run("npm", "install", "--prefix", str(tmp_path), "--no-audit", "--no-fund", "postmark")

    async with FakePostmark() as fake:
        said = await talk(fake, "node", str(HERE / "postmark_client.mjs"), CLIENT_FOLDER=str(tmp_path))

        assert said["one"]["MessageID"] == fake.accepted[0].message_id
        assert fake.accepted[0].to == ("b@example.com",)
    assert [item["ErrorCode"] for item in said["batch"]] == [0, 300]
    assert (said["found"]["TotalCount"], said["found"]["Messages"][0]["Metadata"]) == (1, {"notifyq": "js"})
    assert (said["details"]["TextBody"], said["server"]["ID"]) == ("t", 1)
    expected = {"name": "InactiveRecipientsError", "code": 406, "recipients": ["gone@example.com"]}
    assert said["refused"] == expected


async def test_the_python_client_sends_batches_searches_and_understands_refusals(tmp_path: Path) -> None:
    """PyPI ``postmarker``: the other widely used client, with another HTTP library below it."""
    await run(sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path), "postmarker")

    async with FakePostmark() as fake:
        said = await talk(fake, sys.executable, str(HERE / "postmarker_client.py"), PYTHONPATH=str(tmp_path))

        assert said["one"]["MessageID"] == fake.accepted[0].message_id
    assert [item["ErrorCode"] for item in said["batch"]] == [0, 300]
    assert said["found"] == [said["one"]["MessageID"]]
    assert (said["server"], said["refused"]) == ("Server: fake (1)", 406)
