"""Address lists as Postmark reads them: comma-separated, a name with a comma only inside quotes.

This is the other side of the wire: it knows nothing of how this package writes addresses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["BadAddress", "Mailbox", "parse_addresses", "parse_mailbox"]

_LOCAL = re.compile(
    r"""[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*|"[^"\x00-\x1f]+\""""
)
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")


class BadAddress(ValueError):
    """A part of a list that is no address; *part* is that part, as it was cut out of the list."""

    def __init__(self, part: str) -> None:
        super().__init__("not an address")
        self.part = part


@dataclass(frozen=True, slots=True)
class Mailbox:
    """One recipient: an address, and a display name or ``""``."""

    address: str
    name: str = ""


def parse_addresses(text: str) -> tuple[Mailbox, ...]:
    """Read a comma-separated list; an empty text is an empty list. Raises `BadAddress`.

    Example: ``parse_addresses('"Doe, Jane" <jane@example.com>, bob@example.com')`` gives two;
    without the quotes ``Doe`` becomes a part of its own, which is no address.
    """
    return tuple(parse_mailbox(part) for part in _split(text)) if text.strip() else ()


def parse_mailbox(part: str) -> Mailbox:
    """Read ``Name <address>`` or a bare address. Raises `BadAddress`.

    A non-ASCII part before the ``@`` is refused, as Postmark refuses it; so is a domain that is not
    in its ASCII form (what Postmark does with one is not documented: the fake is strict).
    """
    text = part.strip()
    name, bracket, rest = text.rpartition("<")
    if bracket:
        if not rest.endswith(">"):
            raise BadAddress(text)
        address, name = rest[:-1].strip(), _unquote(name.strip(), text)
    else:
        address, name = text, ""
    local, _, domain = address.rpartition("@")
    labels = domain.split(".")
    if not _LOCAL.fullmatch(local) or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadAddress(text)
    return Mailbox(address, name)


def _split(text: str) -> list[str]:
    """Cut at the commas that stand outside quotes."""
    parts, start, quoted, escaped = [], 0, False, False
    for at, char in enumerate(text):
        if escaped:
            escaped = False
        elif char == "\\" and quoted:
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char == "," and not quoted:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _unquote(name: str, whole: str) -> str:
    if any(ord(char) < 32 for char in name):
        raise BadAddress(whole)
    if not name.startswith('"'):
        if set(name) & set('<>"@'):
            raise BadAddress(whole)
        return name
    if len(name) < 2 or not re.fullmatch(r'"(?:[^"\\]|\\.)*"', name):
        raise BadAddress(whole)
    return re.sub(r"\\(.)", r"\1", name[1:-1])
