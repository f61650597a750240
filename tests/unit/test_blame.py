"""Which place a failure is put down to."""

from __future__ import annotations

import json
import logging
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from notifyq import Email, InvalidEmail
from notifyq.blame import log_traceback, place_of

HERE = "unit/test_blame.py"


def raised_by(function: Callable[[], Any]) -> Exception:
    """What it raises."""
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError


def in_the_library() -> None:
    json.loads("{")


def in_notifyq() -> None:
    Email(key="", to="ann@example.com", subject="s", text="t")


def in_a_helper() -> None:
    in_the_library()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (in_the_library, "in_the_library"),
        (in_notifyq, "in_notifyq"),
        (in_a_helper, "in_the_library"),
    ],
)
def test_a_failure_is_put_down_to_the_last_frame_of_the_user_s_code(
    function: Callable[[], Any], name: str
) -> None:
    """The innermost frame is seldom the one to mend."""
    error = raised_by(function)

    assert isinstance(error, ValueError | InvalidEmail)
    assert place_of(error, function).startswith(f"{name} ({HERE}:")


def test_an_error_that_passed_no_code_of_the_user_is_put_down_to_the_function() -> None:
    """Such as a timeout, which the worker raises itself."""
    line = in_the_library.__code__.co_firstlineno

    assert place_of(TimeoutError(), in_the_library) == f"in_the_library ({HERE}:{line})"


@pytest.mark.parametrize(
    ("app", "packages"), [("site-packages", "site-packages"), (".", ".venv/lib/site-packages")]
)
def test_packages_are_told_from_an_app_that_is_one_or_has_them_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: str, packages: str
) -> None:
    """In production the app lies between the packages, in development its environment lies in its folder."""
    for folder, name, source in (
        (app, "shop_for_blame", "import lib_for_blame\ndef work():\n    lib_for_blame.fail()\n"),
        (packages, "lib_for_blame", "def fail():\n    raise ValueError\n"),
    ):
        place = tmp_path / folder / (name if app == "site-packages" else "")
        place.mkdir(parents=True, exist_ok=True)
        file = place / ("__init__.py" if app == "site-packages" else f"{name}.py")
        file.write_text(source)
        monkeypatch.syspath_prepend(tmp_path / folder)
    shop: types.ModuleType = __import__("shop_for_blame")
    monkeypatch.delitem(sys.modules, "shop_for_blame")
    monkeypatch.delitem(sys.modules, "lib_for_blame")

    place_named = place_of(raised_by(shop.work), shop.work)

    assert (place_named[:6], place_named[-3:]) == ("work (", ":3)")


def test_a_traceback_is_logged_for_debugging_without_the_text_of_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The stack is enough to find the place; the text may quote a token."""
    token = "tok-" + "9" * 4

    def fails() -> None:
        raise RuntimeError(token)

    with caplog.at_level(logging.DEBUG, "notifyq.traceback"):
        log_traceback("email 7", raised_by(fails), "RuntimeError")

    assert "raise RuntimeError(token)" in caplog.text and "email 7 failed" in caplog.text
    assert caplog.records[0].levelno == logging.DEBUG
    assert "tok-9999" not in caplog.text
