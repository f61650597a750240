"""A real backup: what ``pg_dump`` writes of a database, in its plain and in its custom format."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

import asyncpg
import pytest

from notifyq.embedded_binaries import bin_folders


async def backup(dsn: str) -> bytes:
    """Both dumps of the database, one after the other. Skips the test where no pg_dump can make them."""
    program = await _pg_dump(dsn)
    # Not compressed, so that what lies in it can be searched for.
    dumps = [await _run(program, form, "--compress=0", dsn) for form in ("--format=plain", "--format=custom")]
    assert dumps[1].startswith(b"PGDMP")
    return b"\n".join(dumps)


async def _pg_dump(dsn: str) -> str:
    """The first pg_dump that is not older than the server."""
    conn = await asyncpg.connect(dsn)
    try:
        server = conn.get_server_version().major
    finally:
        await conn.close()
    for folder in (*bin_folders(os.environ), *map(Path, os.get_exec_path())):
        program = shutil.which("pg_dump", path=folder)
        if program is not None and _major(program) >= server:
            return program
    pytest.skip(f"there is no pg_dump that reads a Postgres {server}")


def _major(program: str) -> int:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)", said)
    assert found is not None, said
    return int(found[1])


async def _run(program: str, *arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, complaints = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, complaints.decode()
    return out
