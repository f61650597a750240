"""Tell systemd how the process stands (``Type=notify``), where it asked to be told."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress

__all__ = ["tell_systemd"]


def tell_systemd(state: str, env: Mapping[str, str]) -> None:
    """Send *state* (``READY=1``, ``STOPPING=1``) to ``NOTIFY_SOCKET``; without one nothing happens.

    Example: ``tell_systemd("READY=1", os.environ)``
    """
    path = env.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(state.encode(), address)
