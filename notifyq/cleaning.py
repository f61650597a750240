"""Make a text fit to be kept and shown: one line, no control characters, addresses or links, not too long."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["clean", "without_quotes"]

_BLANKS: Final = re.compile("[\\s\x00-\x20\x7f-\x9f\u2028\u2029]+")
_LINK: Final = re.compile(r"""\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s<>"']*""")
_WORD: Final = re.compile(r"[\w-]{4,}")
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


def without_quotes(text: str, sources: Iterable[str]) -> str:
    """*text* without what it quotes of *sources* and may be a token or a code.

    That is each word of four or more characters with a digit in it, or of sixteen or more.

    Example: ``without_quotes("bad link tok-9f8e", ["…?t=tok-9f8e"]) == "bad link (quoted)"``
    """
    everything = "\0".join(sources).casefold()

    def replaced(word: re.Match[str]) -> str:
        quoted = word[0].casefold()
        return "(quoted)" if quoted in everything and _secret(quoted) else word[0]

    return _WORD.sub(replaced, text)


def _secret(word: str) -> bool:
    return len(word) >= 16 or any(map(str.isdigit, word))
