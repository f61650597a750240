"""Planted bugs: one-line faults in the protocol's code, each of which the tests must catch.

``python tests/faults/planted.py [NAME…]`` copies the last commit, plants one fault after the other
(`planted_bugs`), and runs the tests that should see it. All of them must be green on the sound copy first:
a test that is always red catches nothing. Prints "n of n". ``--working-tree`` copies what is there instead.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from planted_bugs import BUGS, Bug

ROOT = Path(__file__).parents[2]
COPIED = ("notifyq", "sql", "tests", "pyproject.toml")


def main(names: Sequence[str], *, working_tree: bool = False) -> int:
    """Plant the bugs that *names* name (all without), and say which were caught. 0: all."""
    chosen = [bug for bug in BUGS if not names or bug.name in names]
    with tempfile.TemporaryDirectory(prefix="notifyq-planted-") as folder:
        tree = Path(folder)
        if working_tree or not _copy_commit(tree):
            _copy_files(tree)
        if gone := [bug for bug in chosen if not _is_there(tree, bug)]:
            for bug in gone:
                print(
                    f"{bug.name}: {bug.file} does not hold its line {bug.count} times: mend planted_bugs.py"
                )
            return 2
        sys.path.insert(0, str(tree))  # its own package, and its own SQL
        from notifyq import embedded

        with embedded.running(throwaway=True) as server:
            return _plant_all(tree, chosen, server.dsn)


def _plant_all(tree: Path, chosen: Sequence[Bug], dsn: str) -> int:
    began = time.monotonic()
    if output := _red(tree, sorted({bug.seen_by for bug in chosen}), dsn, beside=2):
        print(f"not green on the sound copy:\n{output[-3000:]}")
        return 2
    print(f"sound copy: green ({time.monotonic() - began:.0f} s)", flush=True)
    caught = [bug for bug in chosen if _is_caught(tree, bug, dsn)]
    print(f"planted bugs: {len(caught)} of {len(chosen)} caught, {time.monotonic() - began:.0f} s")
    return 0 if len(caught) == len(chosen) else 1


def _copy_commit(tree: Path) -> bool:
    """Copy the last commit into *tree*. False: this is no checkout."""
    archive = subprocess.run(["git", "archive", "HEAD", *COPIED], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode == 0:
        subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    return archive.returncode == 0


def _copy_files(tree: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)


def _is_there(tree: Path, bug: Bug) -> bool:
    return (tree / bug.file).read_text().count(bug.sound) == bug.count


def _is_caught(tree: Path, bug: Bug, dsn: str) -> bool:
    path = tree / bug.file
    sound = path.read_text()
    path.write_text(sound.replace(bug.sound, bug.broken))
    began = time.monotonic()
    try:
        caught = bool(_red(tree, [bug.seen_by], dsn))
    finally:
        path.write_text(sound)
    how = f"caught by {bug.seen_by}" if caught else f"NOT CAUGHT by {bug.seen_by}"
    print(f"{bug.name}: {how} ({time.monotonic() - began:.0f} s)", flush=True)
    return caught


def _red(tree: Path, tests: Sequence[str], dsn: str, *, beside: int = 0) -> str:
    """Run *tests* in *tree*, *beside* each other, up to the first that fails.

    Answers what was printed, or nothing if all held.
    """
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree), "NOTIFYQ_TEST_DSN": dsn}
    options = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "-n", str(beside))
    command = [sys.executable, "-m", "pytest", *options, *tests]
    run = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
    # A name that is gone, or a copy that does not even start: that is no test that failed.
    if run.returncode not in (0, 1) or (run.returncode and "\nFAILED " not in run.stdout):
        raise SystemExit(f"{tests}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return run.stdout if run.returncode else ""


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Plant bugs, and see that the tests catch them.")
    options.add_argument("names", nargs="*", metavar="NAME")
    options.add_argument("--working-tree", action="store_true", help="copy the files as they are now")
    given = options.parse_args()
    raise SystemExit(main(given.names, working_tree=given.working_tree))
