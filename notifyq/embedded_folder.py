"""The folder of an embedded server: what lies in it, who may enter it, and its locks.

===================  ==============================================================================
``data/``            the cluster; belongs to whoever runs the server
``password``         of the user ``postgres``, mode 0600
``port``             where the server listened last, so that it comes back at the same address
``server.log``       what the server said since its last start (``server.log.old``: the one before)
``*.lock``           see `notifyq.embedded_supervisor` for the protocol
===================  ==============================================================================
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from notifyq.embedded_binaries import Account
from notifyq.errors import EmbeddedUnavailable

if sys.platform != "win32":
    import fcntl

__all__ = ["Folder", "default_folder", "throwaway_folder"]

LOCK_POLL_SECONDS = 0.005
# More than any kernel's highest process id: Postgres sees at once that this process is not there.
NO_SUCH_PID = 99_999_999


def default_folder(env: Mapping[str, str], *, platform: str = sys.platform, is_root: bool = False) -> Path:
    """Return where a user's embedded server keeps its data.

    Root gets a system folder: the account that runs its server could not enter root's home.

    Example: ``default_folder({"XDG_DATA_HOME": "/data"}) == Path("/data/notifyq/postgres")``
    """
    home = Path(env["HOME"]) if env.get("HOME") else None
    match platform:
        case "win32" if env.get("LOCALAPPDATA"):
            base = Path(env["LOCALAPPDATA"])
        case _ if os.path.isabs(env.get("XDG_DATA_HOME", "")):
            base = Path(env["XDG_DATA_HOME"])
        case _ if is_root:
            base = Path("/var/lib")
        case "darwin":
            base = (home or _home()) / "Library" / "Application Support"
        case _:
            base = (home or _home()) / ".local" / "share"
    return base / "notifyq" / "postgres"


def throwaway_folder(account: Account | None) -> Path:
    """Make a new temporary folder that *account* can enter."""
    base = Path(tempfile.gettempdir()).resolve()
    if account is not None and not account.can_enter(base):
        base = Path("/tmp")  # noqa: S108 - mkdtemp makes a folder that is ours
    folder = Path(tempfile.mkdtemp(prefix="notifyq-postgres-", dir=base))
    if account is not None:
        folder.chmod(0o711)
    return folder


class Folder:
    """The paths and locks of one server. *account* runs the server, or None: who runs this process.

    Example: ``Folder(Path("/srv/demo"), None).data``
    """

    def __init__(self, path: Path, account: Account | None) -> None:
        self.path = path
        self.account = account
        self.data = path / "data"
        self.log = path / "server.log"
        if account is not None and self.data.exists() and (owner := self.data.stat()).st_uid != 0:
            self.account = Account(uid=owner.st_uid, gid=owner.st_gid)

    def prepare(self) -> None:
        """Make the folder and its files. Raises `EmbeddedUnavailable` if it cannot be used."""
        try:
            self._make_path()
            if self.account is not None and not self.account.can_enter(self.path):
                raise EmbeddedUnavailable(
                    f"{self.path} is closed to user id {self.account.uid}, who runs Postgres for root:"
                    " choose a data folder below /var/lib, or run as a normal user"
                )
            for name in ("start.lock", "users.lock", "last.lock", "server.lock"):
                os.close(self._open(name, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise EmbeddedUnavailable(f"cannot use {self.path}: {error.strerror}") from error

    def _make_path(self) -> None:
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            if self.account is not None:
                path.chmod(0o755)  # only what we made ourselves
        if missing and self.account is None:
            self.path.chmod(0o700)

    def _open(self, name: str, flags: int) -> int:
        """Open a file of the folder, made private and given to the server's account."""
        file = os.open(self.path / name, flags | os.O_NOFOLLOW, 0o600)
        if self.account is not None and flags & os.O_CREAT:
            os.fchown(file, self.account.uid, self.account.gid)
        return file

    # -- locks -------------------------------------------------------------------------------------

    @contextmanager
    def starting(self, seconds: float) -> Iterator[None]:
        """Be the only process that starts, attaches or leaves; wait at most *seconds* for it."""
        lock = self.take("start.lock", shared=False, seconds=seconds)
        try:
            yield
        finally:
            os.close(lock)

    def take(self, name: str, *, shared: bool, seconds: float) -> int:
        """Lock a file and return its descriptor; closing it, or dying, gives it back.

        Raises `EmbeddedUnavailable` when it is not free within *seconds*.
        """
        file = self._open(name, os.O_RDWR)
        deadline = time.monotonic() + seconds
        while not try_lock(file, shared=shared):
            if time.monotonic() > deadline:
                os.close(file)
                raise EmbeddedUnavailable(f"{self.path / name} is still held after {seconds:.0f} s")
            time.sleep(LOCK_POLL_SECONDS)
        return file

    def is_supervised(self) -> bool:
        """Tell whether a supervisor holds a server here (which may still be starting or stopping)."""
        try:
            file = self._open("server.lock", os.O_RDWR)
        except FileNotFoundError:  # a throwaway folder that is gone
            return False
        try:
            return not try_lock(file, shared=True)
        finally:
            os.close(file)

    def wait_until_unsupervised(self, seconds: float) -> bool:
        """Wait for the supervisor's end; False when it is still there after *seconds*."""
        deadline = time.monotonic() + seconds
        while self.is_supervised():
            if time.monotonic() > deadline:
                return False
            time.sleep(LOCK_POLL_SECONDS)
        return True

    # -- the small files ---------------------------------------------------------------------------

    def password(self) -> str:
        """Return the password of this server, made up when the folder is new."""
        with suppress(FileNotFoundError):
            if known := (self.path / "password").read_text():
                return known
        password = secrets.token_urlsafe(24)
        with os.fdopen(self._open("password", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
            file.write(password)
        return password

    def last_port(self) -> int | None:
        """Return the port of the last run, if there was one."""
        with suppress(FileNotFoundError, ValueError):
            return int((self.path / "port").read_text())
        return None

    def remember_port(self, port: int) -> None:
        """Keep *port* for the next start."""
        with os.fdopen(self._open("port", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
            file.write(f"{port}\n")

    def open_log(self) -> int:
        """Begin a new log, keep the one before, and return the descriptor to write to."""
        with suppress(FileNotFoundError):
            self.log.rename(self.log.with_name("server.log.old"))
        return self._open("server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def log_tail(self, lines: int = 5) -> str:
        """Return the last *lines* of the log."""
        with suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def major(self) -> int | None:
        """Return the major version that made the data; None without data."""
        with suppress(OSError, ValueError):
            return int((self.data / "PG_VERSION").read_text())
        return None

    # -- postmaster.pid ----------------------------------------------------------------------------

    def running(self) -> tuple[int, int] | None:
        """Return process id and port of the server that runs here, or None.

        A process counts when its command line names this data folder. So neither a zombie (it has no
        command line) nor a stranger that got the same number after a reboot is taken for the server.
        """
        lines = self._pid_file().splitlines()
        if len(lines) < 4 or not lines[0].strip().isdecimal() or not lines[3].strip().isdecimal():
            return None
        pid, port = int(lines[0]), int(lines[3])
        return (pid, port) if f" -D {self.data} " in command_line(pid) else None

    def disown_dead_server(self) -> None:
        """Let Postgres start although the number in ``postmaster.pid`` looks alive to it.

        It refuses while that number belongs to any process, a zombie too. The file is not removed, only
        its number replaced: Postgres reads in it too which shared memory the dead server used, and
        waits, as it must, for that server's last children.
        """
        first, newline, rest = self._pid_file().partition("\n")
        if first.strip().isdecimal() and int(first) != NO_SUCH_PID:
            with os.fdopen(self._open("data/postmaster.pid", os.O_WRONLY | os.O_TRUNC), "w") as file:
                file.write(f"{NO_SUCH_PID}{newline}{rest}")

    def _pid_file(self) -> str:
        with suppress(FileNotFoundError, NotADirectoryError):
            return (self.data / "postmaster.pid").read_text(errors="surrogateescape")
        return ""


def try_lock(file: int, *, shared: bool) -> bool:
    """Take or change the lock of *file* if that needs no waiting."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(file: int) -> None:
    """Give a lock back and close its file; a forked process that has the file too loses the lock with us."""
    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


def command_line(pid: int) -> str:
    """Return the command line of a process; empty for a zombie and for nobody."""
    if sys.platform == "linux":
        try:
            return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            return ""
    else:
        command = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise EmbeddedUnavailable("no HOME to keep the data in: set HOME or DATABASE_URL") from error
