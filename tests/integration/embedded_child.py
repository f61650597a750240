"""A process that uses an embedded server, for tests that end it in every way.

It prints one line of JSON once the server answers, and leaves when its standard input ends.
Arguments: the data folder, or ``throwaway``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from notifyq import embedded
from notifyq.errors import EmbeddedUnavailable


def main(where: str) -> None:
    """Use the server until the standard input ends."""
    folder = None if where == "throwaway" else Path(where)
    with embedded.running(folder, throwaway=folder is None) as server:
        pid = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
        ready = {"dsn": server.dsn, "folder": str(server.folder), "pid": pid, "version": server.version}
        print(json.dumps(ready), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except EmbeddedUnavailable as error:
        print(json.dumps({"error": str(error)}), flush=True)
