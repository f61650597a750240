"""Where a failure lies: the place in the user's own code, not in what it called or was called by."""

from __future__ import annotations

import inspect
import logging
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

__all__ = ["log_traceback", "place_of"]

# A logger of its own: `notifyq dev` shows tracebacks, and nothing else of what is for debugging.
log = logging.getLogger("notifyq.traceback")

OURS: Final = str(Path(__file__).resolve().parent)
LIBRARY: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
GENERATED: Final = ("<frozen", "<string>")
PACKAGES: Final = ("site-packages", "dist-packages")


class Failure(Exception):
    """Stands for an error in a traceback, with a text that is fit to be logged."""


def place_of(error: BaseException, function: Callable[..., Any]) -> str:
    """The innermost frame of the user's code, or the head of *function*, which raised *error*, without one.

    User's code is what is not notifyq's, a package's or Python's own, and whatever lies in the folder
    of *function*: an app may be installed as a package.

    Example: ``"make_invoice (shop/mail.py:12)"``
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    home = str(Path(code.co_filename).parent) if code is not None else OURS
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_theirs(frame.filename, home):
            return _shown(frame.name, frame.filename, frame.lineno)
    if code is None:
        return type(function).__qualname__
    return _shown(code.co_name, code.co_filename, code.co_firstlineno)


def log_traceback(what: object, error: BaseException, text: str) -> None:
    """Log at DEBUG where *error* passed, with *text* for its own, which may be private.

    Example: ``log_traceback("email 7", error, "RuntimeError, its text is withheld")``
    """
    log.debug("%s failed", what, exc_info=(Failure, Failure(text), error.__traceback__))


def _is_theirs(file: str, home: str) -> bool:
    if file.startswith((*GENERATED, OURS)):
        return False
    if file.startswith(LIBRARY) and not home.startswith(LIBRARY):
        return False
    path = Path(file)
    # A virtual environment may lie in the app's folder, and the app in a virtual environment.
    inner = path.relative_to(home) if path.is_relative_to(home) else path
    return not set(inner.parts).intersection(PACKAGES)


def _shown(name: str, file: str, line: int | None) -> str:
    return f"{name} ({'/'.join(Path(file).parts[-2:])}:{line})"
