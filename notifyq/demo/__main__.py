"""``python -m notifyq.demo [--exit]`` is ``notifyq demo``."""

from __future__ import annotations

import argparse
import sys

from notifyq.demo import run


def main() -> int:
    """Read the flag and play."""
    parser = argparse.ArgumentParser(prog="python -m notifyq.demo", description="A story about emails, live.")
    parser.add_argument("--exit", action="store_true", help="leave after the story: 0 if it went as told")
    return run(exit_after_story=parser.parse_args().exit)


if __name__ == "__main__":
    sys.exit(main())
