"""The pytest plugin: name a fixture, and a real database or a real fake Postmark is there.

==================  =============================================================================
``fake_postmark``   a `notifyq.testing.FakePostmark` on a real socket, new for each test
``notifyq_pool``    an asyncpg pool on a migrated database of the test's own
``notifyq_dsn``     the URL of that database, for tests that connect by themselves
``notifyq_server``  the server behind them, one for the run: `notifyq.testing.database.Databases`
==================  =============================================================================

::

    async def test_an_order_is_confirmed(notifyq_pool, fake_postmark):
        await confirm_order(notifyq_pool, order_id=7)
        await notifyq.testing.drain(notifyq_pool, fake_postmark)
        assert fake_postmark.accepted[0].to == ("ann@example.com",)

The server is an embedded, throw-away one (extra ``embedded``). ``--notifyq-dsn URL`` or
``NOTIFYQ_TEST_DSN`` names another; its role must be allowed to create databases.

The first two are async: they work with pytest-asyncio (both modes), pytest-aiohttp and anyio on
asyncio, in the event loop of the test that names them. The others work in any test.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

import asyncpg
import pytest

from notifyq import embedded
from notifyq.errors import EmbeddedUnavailable
from notifyq.testing.database import Databases
from notifyq.testing.fake import FakePostmark

__all__ = ["fake_postmark", "notifyq_dsn", "notifyq_pool", "notifyq_server"]

DSN_ENV: Final = "NOTIFYQ_TEST_DSN"
CLOSE_LIMIT: Final = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--notifyq-dsn``."""
    parser.getgroup("notifyq").addoption(
        "--notifyq-dsn",
        metavar="URL",
        default=None,
        help=f"a Postgres server for the fixtures of notifyq (or {DSN_ENV}); default: an embedded one",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Offer the async fixtures to pytest-asyncio too, where it is in use."""
    if config.pluginmanager.has_plugin("asyncio"):
        config.pluginmanager.register(_for_pytest_asyncio(), "notifyq-asyncio")


def named_server(config: pytest.Config) -> str | None:
    """The URL that ``--notifyq-dsn`` or ``NOTIFYQ_TEST_DSN`` gives, or None."""
    given: str | None = config.getoption("--notifyq-dsn")
    return given or os.environ.get(DSN_ENV) or None


@pytest.fixture(scope="session")
def notifyq_server(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """The server: an embedded throw-away one, or the one that was named."""
    if dsn := named_server(request.config):
        databases = Databases(dsn)
        yield databases
        databases.close()
        return
    try:
        with embedded.running(throwaway=True) as server:
            yield Databases(server.dsn)
    except EmbeddedUnavailable as error:
        pytest.fail(f"{error}; for tests, --notifyq-dsn or {DSN_ENV} names a server", pytrace=False)


@pytest.fixture
def notifyq_dsn(notifyq_server: Databases) -> Iterator[str]:
    """The URL of a migrated database that this test has for itself."""
    with notifyq_server.fresh() as dsn:
        yield dsn


@pytest.fixture
def notifyq_pool(notifyq_dsn: str, request: pytest.FixtureRequest) -> Any:
    """An asyncpg pool on the test's own database, closed afterwards."""
    return _in_the_tests_loop("pool", request)


@pytest.fixture
def fake_postmark(request: pytest.FixtureRequest) -> Any:
    """A `FakePostmark` that listens, new for each test."""
    return _in_the_tests_loop("fake", request)


async def _pool(notifyq_dsn: str) -> AsyncIterator[Any]:
    pool = await asyncpg.create_pool(notifyq_dsn, min_size=0, max_size=10)
    yield pool
    try:
        async with asyncio.timeout(CLOSE_LIMIT):
            await pool.close()
    except TimeoutError:
        pytest.fail(
            f"a connection of notifyq_pool was not given back within {CLOSE_LIMIT:g} s", pytrace=False
        )


async def _fake() -> AsyncIterator[FakePostmark]:
    async with FakePostmark() as fake:
        yield fake


# One body, several fixtures: each framework runs only fixtures of its own kind, and pytest-asyncio has
# a loop for each scope.
_BODIES: Final[dict[str, Callable[..., AsyncIterator[Any]]]] = {"pool": _pool, "fake": _fake}
_LOOP_SCOPES: Final = ("function", "class", "module", "package", "session")

_pool_on_anyio = pytest.fixture(_pool, name="_notifyq_pool_anyio")
_fake_on_anyio = pytest.fixture(_fake, name="_notifyq_fake_anyio")


def _for_pytest_asyncio() -> ModuleType:
    """The async fixtures in pytest-asyncio's own kind, as a plugin for pytest to register."""
    import pytest_asyncio

    plugin = ModuleType("notifyq.testing.plugin.asyncio")
    for name, body in _BODIES.items():
        for scope in _LOOP_SCOPES:
            fixture_name = f"_notifyq_{name}_{scope}"
            copy = FunctionType(body.__code__, body.__globals__, body.__name__)  # it is marked in place
            made = pytest_asyncio.fixture(copy, loop_scope=scope, name=fixture_name)
            setattr(plugin, fixture_name, made)
    return plugin


def _in_the_tests_loop(name: str, request: pytest.FixtureRequest) -> Any:
    """The fixture *name* in the kind that shares the event loop of the test."""
    marker = request.node.get_closest_marker("asyncio")
    if marker is not None:
        scope = marker.kwargs.get("loop_scope") or request.config.getini("asyncio_default_test_loop_scope")
        return request.getfixturevalue(f"_notifyq_{name}_{scope}")
    if "anyio_backend" not in request.fixturenames:
        pytest.fail(
            f"{request.fixturename} needs an async test: mark it for pytest-asyncio or anyio "
            "(notifyq_dsn works in any test)",
            pytrace=False,
        )
    if request.getfixturevalue("anyio_backend_name") != "asyncio":
        pytest.skip("asyncpg and the fake Postmark run on asyncio only")
    return request.getfixturevalue(f"_notifyq_{name}_anyio")
