"""A process that forks workers and applications on demand, in a few milliseconds each.

Every child is a process of its own, running the real code, and can be killed for real. Commands come as
JSON lines on stdin, news go as JSON lines to stdout: ``{"forked": pid}``, ``{"pid": pid, "exit": code}``.
The zygote has no threads and no event loop, so that a fork of it is clean.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import select
import signal
import sys
import traceback
from typing import Any

from children import KINDS


def main() -> None:
    """Fork until stdin ends; then kill what is left."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    children: set[int] = set()
    buffer = b""
    while True:
        ready = select.select([0, reader], [], [])[0]
        if reader in ready:
            os.read(reader, 4096)
            _reap(children)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                children.add(_fork(json.loads(line)))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _be_a_child(order)
    _tell(forked=pid)
    return pid


def _reap(children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        _tell(pid=pid, exit=os.waitstatus_to_exitcode(status))


def _tell(**news: Any) -> None:
    os.write(1, json.dumps(news).encode() + b"\n")


def _be_a_child(order: dict[str, Any]) -> None:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        os.close(0)
        os.dup2(log, 1)
        random.seed()
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, force=True)
        logging.getLogger("asyncio").setLevel(logging.INFO)
        asyncio.run(KINDS[order["kind"]](order))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
