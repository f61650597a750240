"""``worker --app MODULE[:ATTR]``: import the user's app, so that its tasks and builders are declared."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from pathlib import Path
from typing import Final

import click

from notifyq.builders import registered as builders
from notifyq.cli.runner import Failed
from notifyq.tasks import registered as tasks

__all__ = ["load_app"]

log = logging.getLogger("notifyq")

OURS: Final = str(Path(__file__).resolve().parents[1])


def load_app(name: str) -> str:
    """Import *name*, from the current folder too, and say in words what is declared now.

    Raises `Failed` if there is no such module or attribute, or if the app raises while it is imported
    (its traceback is logged at DEBUG: ``--verbose``), and a UsageError for what is no name.

    Example: ``load_app("shop.mail") == "1 task (make-invoice), 0 builders"``
    """
    module_name, colon, attribute = name.partition(":")
    if not module_name or (colon and not attribute) or "/" in module_name or module_name.endswith(".py"):
        raise click.UsageError("--app is MODULE or MODULE:ATTR, such as shop.mail (a name, not a file)")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found: object = _imported(module_name)
    for part in attribute.split(".") if attribute else ():
        if not hasattr(found, part):
            raise Failed(f"--app: {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    return f"{_counted('task', list(tasks))}, {_counted('builder', list(builders))}"


def _imported(module_name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a script that ends itself (SystemExit) is no app either
        log.debug("%s cannot be imported", module_name, exc_info=error)
        if _is_missing(module_name, error):
            raise Failed(f"--app: there is no module {module_name!r} here or on the path") from None
        raise Failed(
            f"--app: {module_name} cannot be imported: {_what(error)}{_where(error)}. "
            "Mend it and start again; --verbose shows the traceback"
        ) from None


def _is_missing(module_name: str, error: BaseException) -> bool:
    """Tell a name that is not there from an app that imports something that is not there."""
    return (
        isinstance(error, ModuleNotFoundError)
        and error.name is not None
        and f"{module_name}.".startswith(f"{error.name}.")
    )


def _what(error: BaseException) -> str:
    """The error in one line: its class and the first line of its text (more may quote what was set)."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    first = text.strip().splitlines()[:1]
    return ": ".join([type(error).__name__, *first])


def _where(error: BaseException) -> str:
    """The place that raised: the last one in the current folder, else the last that is not ours."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    places = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((OURS, "<frozen")) and frame.filename != importlib.__file__
    ]
    here = [place for place in places if _is_here(place[0])]
    for filename, line in (here or places)[-1:]:
        return f" ({filename}, line {line})"
    return ""


def _is_here(filename: str) -> bool:
    """Tell the app's own files from those of packages, which may lie in a ``.venv`` of the same folder."""
    return filename.startswith(str(Path.cwd())) and not filename.startswith(sys.prefix)


def _counted(noun: str, names: list[str]) -> str:
    shown = f" ({', '.join(sorted(names))})" if names else ""
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}{shown}"
