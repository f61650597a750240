"""Every exception that notifyq raises.

::

    NotifyqError
    ├── InvalidEmail        a value that cannot be sent; says which field (also a ValueError)
    ├── InvalidSettings     a setting that cannot work; says which (also a ValueError)
    ├── MissingSender       neither the email nor EMAIL_FROM names a sender
    ├── SchemaMismatch      the database and this package are at versions that do not go together
    ├── UnsafeDatabase      the server could forget what it acknowledged (``fsync`` off)
    └── EmbeddedUnavailable no Postgres binaries were found, or they would not start

What may happen on any day (a refused connection, a 503, an answer that never came, a key that is
already there) is not an exception but a value: see `notifyq.provider` and `notifyq.Enqueued`.
No message of these errors contains a token, a body or an address.
"""

from __future__ import annotations

__all__ = [
    "EmbeddedUnavailable",
    "InvalidEmail",
    "InvalidSettings",
    "MissingSender",
    "NotifyqError",
    "SchemaMismatch",
    "UnsafeDatabase",
]


class NotifyqError(Exception):
    """The base of all errors of this package.

    Example: ``except notifyq.NotifyqError as error: ...``
    """


class InvalidEmail(NotifyqError, ValueError):
    """A value that could never be sent, refused where it was made.

    *field* is the path of the culprit (``"subject"``, ``"to[1].name"``, ``"metadata['k']"``).
    The message holds the field and the rule, never the value: it may be a secret.

    Example: ``Email(key="k", to="a@example.com", subject="a\\nb", text="t")`` raises it with
    ``field == "subject"``.
    """

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


class InvalidSettings(NotifyqError, ValueError):
    """A setting that cannot work; *setting* is its name.

    Example: a lease shorter than twice the POST budget.
    """

    def __init__(self, setting: str, rule: str) -> None:
        super().__init__(f"{setting}: {rule}")
        self.setting = setting
        self.rule = rule


class MissingSender(NotifyqError):
    """Neither the email nor ``EMAIL_FROM`` says who sends it.

    Example: ``build_postmark_payload(email, env={})`` for an email without ``from_``.
    """


class SchemaMismatch(NotifyqError):
    """The schema in the database does not go with this package.

    Example: a worker started before ``notifyq migrate``.
    """


class UnsafeDatabase(NotifyqError):
    """The server may forget commits that it acknowledged, so a claim could be forgotten too.

    Example: ``fsync = off``; ``notifyq worker --unsafe-durability`` runs all the same.
    """


class EmbeddedUnavailable(NotifyqError):
    """No Postgres to embed: nothing is installed, or it would not start.

    Example: ``notifyq demo`` without the extra ``embedded``.
    """
