"""`Address`, and the rules for every text that ends in a header.

A header ends at a line break, and a list of recipients is cut at its commas: whoever can put one of
these into a name can add a header or a recipient. So a text for a header holds no control character
at all, an address is a plain ``local@domain``, and a display name is quoted where it needs to be.
What is merely odd (a byte-order mark, a right-to-left override) is text, and passes unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import idna

from notifyq.errors import InvalidEmail

__all__ = ["Address", "header_text", "utf16_length"]

MAX_ADDRESS = 254
MAX_LOCAL = 64
MAX_NAME = 255

# C0, DEL, C1, the two Unicode line breaks, and surrogates that stand alone (a str holds no others).
_NOT_IN_A_HEADER = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LOCAL = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_DOMAIN = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+(?!\d+\Z)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
_NEEDS_QUOTES = re.compile(r'[()<>\[\]:;@\\,."]')
_NAMED = re.compile(r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^"<>,;@]*?))\s*<(?P<email>[^<>]*)>')


@dataclass(frozen=True, slots=True)
class Address:
    """One mailbox: *email* and, if wanted, the *name* shown beside it.

    An international domain is turned into its ASCII form (IDNA 2008), a domain into lower case; the
    name stays as it is, apart from blanks around it. Raises `InvalidEmail` with the field ``email`` or
    ``name``.

    Example: ``Address("ann@bücher.example", "Ann, of Books")``.
    """

    email: str
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "email", _plain_address(self.email))
        if self.name != "":
            object.__setattr__(self, "name", _display_name(self.name))

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``a@example.com`` or ``Ann Example <a@example.com>``: one mailbox, never a list.

        Raises `InvalidEmail`. Example: ``Address.parse('"Doe, John" <j@example.com>').name``
        is ``"Doe, John"``.
        """
        text = text.strip()
        named = _NAMED.fullmatch(text)
        if named is None:
            return cls(text)
        quoted = named["quoted"]
        name = named["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        return cls(named["email"].strip(), name)

    def formatted(self) -> str:
        """Write it for a header or for Postmark: ``"Doe, John" <j@example.com>``, in plain Unicode.

        Example: ``Address("a@example.com").formatted()`` is ``"a@example.com"``.
        """
        if not self.name:
            return self.email
        name = self.name
        if _NEEDS_QUOTES.search(name):
            name = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return f"{name} <{self.email}>"

    def __repr__(self) -> str:
        """Show nothing of a person: reprs end in logs."""
        return "Address(…)"


def header_text(field: str, value: object) -> str:
    """Let a text pass that may stand in a header; raise `InvalidEmail` for any other value.

    Example: ``header_text("subject", "a\\nb")`` raises.
    """
    if not isinstance(value, str):
        raise InvalidEmail(field, "must be a text")
    if (found := _NOT_IN_A_HEADER.search(value)) is not None:
        kind = "a lone surrogate" if found[0] >= "\ud800" else "a control character or a line break"
        raise InvalidEmail(field, f"must not contain {kind}")
    return value


def utf16_length(value: str) -> int:
    """Count as Postmark does: in UTF-16 units, so that most emoji count twice.

    Example: ``utf16_length("ab")`` is 2.
    """
    return len(value) if value.isascii() else len(value.encode("utf-16-le")) // 2


def _display_name(value: object) -> str:
    name = header_text("name", value).strip()
    if utf16_length(name) > MAX_NAME:
        raise InvalidEmail("name", f"must be at most {MAX_NAME} characters")
    return name


def _plain_address(value: object) -> str:
    text = header_text("email", value)
    local, at, domain = text.rpartition("@")
    if not at:
        raise InvalidEmail("email", "must be one address such as ann@example.com")
    if not local.isascii():
        raise InvalidEmail("email", "must be ASCII in its local part (the provider takes no other)")
    if len(local) > MAX_LOCAL or _LOCAL.fullmatch(local) is None:
        rule = "must be one address such as ann@example.com: not a list, no quotes, no name, no blanks"
        raise InvalidEmail("email", rule)
    email = f"{local}@{_ascii_domain(domain)}"
    if len(email) > MAX_ADDRESS:
        raise InvalidEmail("email", f"must be at most {MAX_ADDRESS} characters")
    return email


@lru_cache(maxsize=1024)
def _ascii_domain(domain: str) -> str:
    lowered = domain.lower()
    if len(domain) > MAX_ADDRESS:
        raise InvalidEmail("email", f"must be at most {MAX_ADDRESS} characters")
    if not domain.isascii() or lowered.startswith("xn--") or ".xn--" in lowered:
        try:
            lowered = idna.encode(domain, uts46=True).decode("ascii").lower()
        except UnicodeError:  # idna's own errors are UnicodeErrors, and they quote the domain
            raise InvalidEmail("email", "must have a valid international domain") from None
    if _DOMAIN.fullmatch(lowered) is None:
        raise InvalidEmail("email", "must have a domain such as example.com")
    return lowered
