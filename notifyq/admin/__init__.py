"""The operator's page: see what is wrong, see the email as its reader would, mend it with one click.

By itself, on loopback or with a password::

    async with notifyq.admin.serve(pool, port=8025) as url: ...

Mounted in an aiohttp application, behind its own login::

    site.add_subapp("/mail/", notifyq.admin.app(pool, authorise=operators))

The callable answers False, True, the operator's name, or an `Operator`. That value is where roles would go
(who may look but not act, who may not read bodies); today whoever is let in may see and do everything.

Beside a FastAPI or Starlette application (which serve another protocol than aiohttp), `serve` it from the
lifespan on a loopback port with a password, and let the proxy in front pass ``/mail/`` on to it: every link
is relative, so the page does not mind. The proxy keeps the ``Host`` header.

The page needs the extra ``admin`` (``pip install 'notifyq[admin]'``). Everything that acts is a POST with a
token; the state of a row changes only through the SQL functions, and ``notifyq.history`` has who did it.
"""

from notifyq.admin.app import app, serve
from notifyq.admin.state import Authorise, Operator

__all__ = ["Authorise", "Operator", "app", "serve"]
