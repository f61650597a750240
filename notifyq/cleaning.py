"""Make a text fit to be kept and shown: no control characters, addresses or links, one line, not too long."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["clean"]

_BLANKS: Final = re.compile("[\\s\x00-\x20\x7f-\x9f\u2028\u2029]+")
_LINK: Final = re.compile(r"""\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s<>"']*""")
_ADDRESS: Final = re.compile(r"""[^\s,;:<>()\[\]"']*@[^\s,;:<>()\[\]"']*""")


def clean(text: str) -> str:
    """One line of *text*, at most 2,000 characters. Addresses and links are replaced: both may be secrets.

    Example: ``clean("no such user:\\nann@example.com") == "no such user: (address)"``
    """
    text = _BLANKS.sub(" ", text[:4_000].encode("utf-8", "replace").decode()).strip()
    if len(text) > 2_000:
        # Half an address at the cut would not be seen as one.
        text = text[:2_000].rpartition(" ")[0]
    return _ADDRESS.sub("(address)", _LINK.sub("(link)", text))
