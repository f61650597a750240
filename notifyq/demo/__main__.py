"""``python -m notifyq.demo [--exit | --stay]`` is ``notifyq demo``."""

from __future__ import annotations

import argparse
import sys

from notifyq.demo import run


def main() -> int:
    """Read the flags and play."""
    parser = argparse.ArgumentParser(prog="python -m notifyq.demo", description="A story about emails, live.")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--exit", action="store_true", default=None, help="leave after the story: 0 if as told")
    end.add_argument("--stay", dest="exit", action="store_false", help="stay until Ctrl-C, as on a terminal")
    return run(exit_after_story=parser.parse_args().exit)


if __name__ == "__main__":
    sys.exit(main())
