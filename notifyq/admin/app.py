"""The application: routes, start, end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from notifyq.admin import acts, emails, guard, overview, previews, tasks
from notifyq.admin.safety import is_loopback
from notifyq.admin.state import STATE, Authorise, State
from notifyq.admin.static_files import static_file
from notifyq.db import Pool
from notifyq.errors import InvalidSettings
from notifyq.provider import Provider
from notifyq.worker import Worker

__all__ = ["app", "serve"]

MAX_FORM: Final = 256 * 1024
_ID: Final = "{id:[0-9]{1,18}}"

_GET: Final = (
    ("overview", "/", overview.overview),
    ("emails", "/emails", emails.emails),
    ("email", f"/emails/{_ID}", emails.email),
    ("email_body", f"/emails/{_ID}/body", emails.body),
    ("email_payload", f"/emails/{_ID}/payload.json", emails.payload),
    ("email_attachment", f"/emails/{_ID}/attachments/{{number:[0-9]{{1,4}}}}", emails.attachment),
    ("tasks", "/tasks", tasks.tasks),
    ("task", f"/tasks/{_ID}", tasks.task),
    ("previews", "/previews", previews.previews),
    ("preview_body", "/previews/body", previews.preview_body),
    ("badge", "/badge", overview.badge),
    ("badge_json", "/badge.json", overview.badge_json),
    ("live", "/live", overview.live),
    ("healthz", "/healthz", overview.healthz),
    ("static", "/static/{name}", static_file),
)
_POST: Final = (
    ("log_in", "/login", guard.log_in),
    ("log_out", "/logout", guard.log_out),
    ("email_bulk", "/emails/bulk", acts.bulk),
    ("email_retry", f"/emails/{_ID}/retry", acts.retry),
    ("email_cancel", f"/emails/{_ID}/cancel", acts.cancel),
    ("email_resolve", f"/emails/{_ID}/resolve", acts.resolve),
    ("email_copy", f"/emails/{_ID}/copy", acts.copy),
    ("email_again", f"/emails/{_ID}/again", acts.again),
    ("task_bulk", "/tasks/bulk", acts.bulk),
    ("task_retry", f"/tasks/{_ID}/retry", acts.retry),
    ("task_cancel", f"/tasks/{_ID}/cancel", acts.cancel),
)


def app(
    pool: Pool,
    *,
    password: str | None = None,
    authorise: Authorise | None = None,
    provider: Provider | None = None,
    worker: Worker | None = None,
    env: Mapping[str, str] | None = None,
    reload: bool = False,
) -> web.Application:
    """The operator's page as an aiohttp application, to be mounted in yours.

    Somebody must say who may see it: *authorise* gets each request and answers False, True, the
    operator's name or an `Operator` (it may be async), or *password* is asked for. *provider* names the
    account whose gate counts for ``/healthz``, *worker* the one in this process, *env* the environment of
    the payloads shown (``os.environ`` as it then is). With *reload*, for development, previews follow their
    files.

    Raises `InvalidSettings` if nobody does.

    Example::

        async def operators(request):
            user = await current_user(request)
            return user.email if user.is_staff else False

        site.add_subapp("/mail/", notifyq.admin.app(pool, authorise=operators))
    """
    if password is None and authorise is None:
        raise InvalidSettings(
            "authorise",
            "who may see the page? Mounted, it needs authorise=… (a callable that gets the request) "
            "or password=…",
        )
    return _made(
        State(
            pool=pool,
            password=_usable(password),
            authorise=authorise,
            provider=provider,
            worker=worker,
            env=env,
            local=False,
            reload=reload,
        )
    )


@asynccontextmanager
async def serve(
    pool: Pool,
    *,
    host: str = "127.0.0.1",
    port: int = 8025,
    password: str | None = None,
    worker: Worker | None = None,
    reload: bool = False,
) -> AsyncIterator[str]:
    """Serve the page by itself for as long as the block lasts; gives its URL. Port 0: any free one.

    Without *password* on loopback only. *reload* as in `app`. Raises `InvalidSettings` for another *host*.

    Example::

        async with notifyq.admin.serve(pool, port=0) as url:
            print(url)
    """
    if password is None and not is_loopback(host):
        raise InvalidSettings(
            "NOTIFYQ_ADMIN_PASSWORD",
            f"the page shows emails, so on {host} it needs a password: set NOTIFYQ_ADMIN_PASSWORD, "
            "or serve it on 127.0.0.1",
        )
    made = _made(
        State(
            pool=pool,
            password=_usable(password),
            authorise=None,
            provider=None,
            worker=worker,
            env=None,
            local=password is None,
            reload=reload,
        )
    )
    runner = web.AppRunner(made, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield _url(host, runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _made(state: State) -> web.Application:
    made = web.Application(middlewares=[guard.guard], client_max_size=MAX_FORM)
    made[STATE] = state
    for name, path, view in _GET:
        made.router.add_get(path, view, name=name)
    for name, path, act in _POST:
        made.router.add_post(path, act, name=name)
    made.on_response_prepare.append(guard.secure)
    made.on_shutdown.append(_stop)
    return made


async def _stop(made: web.Application) -> None:
    """End the open streams first: they would hold the server up."""
    state = made[STATE]
    await state.hub.close()
    if state.refreshing is not None:
        state.refreshing.cancel()
        await asyncio.gather(state.refreshing, return_exceptions=True)


def _usable(password: str | None) -> str | None:
    if password is not None and not password.strip():
        raise InvalidSettings("NOTIFYQ_ADMIN_PASSWORD", "is empty: set a password, or unset it")
    return password


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
