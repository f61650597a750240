"""``worker --app MODULE[:ATTR]``: import the user's app, so that its tasks and builders are declared."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from notifyq.builders import registered as builders
from notifyq.cli.runner import Failed
from notifyq.tasks import registered as tasks

__all__ = ["load_app"]


def load_app(name: str) -> str:
    """Import *name*, from the current folder too, and say in words what is declared now.

    Raises `Failed` if there is no such module or attribute, and a UsageError for what is no name. What
    the app itself raises while it is imported is not caught: its traceback says more.

    Example: ``load_app("shop.mail") == "1 task (make-invoice), 0 builders"``
    """
    module_name, colon, attribute = name.partition(":")
    if not module_name or (colon and not attribute):
        raise click.UsageError("--app is MODULE or MODULE:ATTR, such as shop.mail")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the app is there, something that it imports is not
        raise Failed(f"--app: there is no module {module_name!r} here or on the path") from None
    for part in attribute.split(".") if attribute else ():
        if not hasattr(found, part):
            raise Failed(f"--app: {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    return f"{_counted('task', list(tasks))}, {_counted('builder', list(builders))}"


def _counted(noun: str, names: list[str]) -> str:
    shown = f" ({', '.join(sorted(names))})" if names else ""
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}{shown}"
