"""The process that holds an embedded server: it starts it, and stops it when its last user is gone.

It is a script of the standard library alone, run by its path, and detaches itself. The protocol with the
processes that use the server is three locks (``flock``) in the server's folder, which the kernel drops
for a process however that process dies:

* ``users.lock``: every user holds it *shared*. The supervisor waits for it *exclusively*: when it gets it
  nobody is left, so it stops the server, removes the folder of a throwaway server, and ends.
* ``server.lock``: the supervisor holds it while the server lives. Who finds it free may start another.
* ``start.lock``: users hold it while they start, attach or leave (never the supervisor).

If the supervisor itself is killed, the kernel sends the server SIGINT (Linux), which is a clean shutdown;
elsewhere the next start does. A server that dies by itself is not started again: its users are told by
their connections, and `notifyq.embedded.Server.restart` starts a new supervisor.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

# How to end the server, and the seconds to wait for it: politely (a checkpoint), abruptly, by force.
CLEAN_END = ((signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
QUICK_END = CLEAN_END[1:]
PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None] | None:
    """Return what a child runs before exec so that it gets SIGINT when this process dies (Linux)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask_for_signal() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return ask_for_signal


class Supervisor:
    """One server, from ``initdb`` to the end of its last user."""

    def __init__(self, order: dict[str, Any], server_lock: int) -> None:
        self.folder = Path(order["folder"])
        self.initdb: list[str] = order["initdb"]
        self.postgres: list[str] = order["postgres"]
        self.env: dict[str, str] = order["env"]
        self.account: dict[str, Any] = order["account"]
        self.throwaway: bool = order["throwaway"]
        self.server_lock = server_lock
        self.child: subprocess.Popen[bytes] | None = None
        self.ending = threading.Event()
        self.ended = threading.Event()
        self.before_exec = die_with_parent()

    def run(self) -> None:
        """Run the server until it ends, then tidy up."""
        # The child asks to die with the *thread* that made it: this, the main one, lives as long as we do.
        users = threading.Thread(target=self._end_after_last_user, daemon=True)
        users.start()
        signal.signal(signal.SIGTERM, lambda *_: self._send(signal.SIGINT))
        try:
            if (self.folder / "data").is_dir() or self._make_data():
                self._run(self.postgres)
        finally:
            self.ended.set()
            if self.throwaway:
                self._remove_after_last_user(users)

    def _make_data(self) -> bool:
        """Run initdb in a draft folder and rename it: `data` is whole or not there."""
        for left in self.folder.glob("init-*"):  # by a supervisor that was killed
            shutil.rmtree(left, ignore_errors=True)
        draft = self.folder / f"init-{os.getpid()}"
        draft.mkdir(mode=0o700)
        if self.account:
            os.chown(draft, self.account["user"], self.account["group"])
        made = self._run([*self.initdb, "-D", str(draft)]) == 0
        if made:
            draft.rename(self.folder / "data")
        else:
            shutil.rmtree(draft, ignore_errors=True)
        return made

    def _run(self, command: list[str]) -> int:
        if self.ending.is_set():
            return 1
        self.child = subprocess.Popen(  # noqa: S603 - the command comes from notifyq.embedded
            command,
            cwd="/",
            env=self.env,
            stdin=subprocess.DEVNULL,
            preexec_fn=self.before_exec,
            **self.account,
        )
        if self.ending.is_set():  # since the line above
            self._send(signal.SIGINT)
        return self.child.wait()

    def _send(self, end_signal: signal.Signals) -> None:
        self.ending.set()
        if self.child is not None:
            self.child.send_signal(end_signal)

    def _end_after_last_user(self) -> None:
        lock = os.open(self.folder / "users.lock", os.O_RDWR | os.O_NOFOLLOW)
        fcntl.flock(lock, fcntl.LOCK_EX)  # kept until this process ends: a new user waits for that
        for end_signal, patience in QUICK_END if self.throwaway else CLEAN_END:
            self._send(end_signal)
            if self.ended.wait(patience):
                return

    def _remove_after_last_user(self, users: threading.Thread) -> None:
        """Wait for the last user of a server that is gone; leave the folder to a successor, if any."""
        fcntl.flock(self.server_lock, fcntl.LOCK_UN)
        users.join()
        try:
            fcntl.flock(self.server_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(self.folder, ignore_errors=True)


def main() -> None:
    """Take the server's lock, detach, and supervise. Ends with 3 when another supervisor holds it."""
    order = json.loads(sys.argv[1])
    lock = os.open(Path(order["folder"], "server.lock"), os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(3)
    if os.fork():
        os._exit(0)  # who started us goes on, and has no child to wait for; the lock is ours all the same
    Supervisor(order, lock).run()


if __name__ == "__main__":
    main()
