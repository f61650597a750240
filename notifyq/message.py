"""`Email` and `Attachment`: finished messages, valid once made.

Whatever the provider could never send is refused here, where it was written, with the name of the
field (`InvalidEmail`), and not at night in the worker. The limits are Postmark's.

The worker reads rows that any program may have put there with plain SQL: `Email.from_message` makes
the same checks, so a row is either as good as one from `Email` or says what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypeGuard

from notifyq import message_rules as rules
from notifyq.address import Address, utf16_length
from notifyq.attachment import Attachment, attachment_json, attachments_from
from notifyq.errors import InvalidEmail

__all__ = ["Address", "Email", "OnDoubt", "Recipients"]

OnDoubt: TypeAlias = Literal["ask", "resend", "hold"]
"""For an email whose fate is unknown: ask and then send again, send again at once, or wait for a person."""

Recipients: TypeAlias = Address | str | Iterable[Address | str]
"""One mailbox or several. A text is one bare address, never a list joined by commas."""

_NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})
_MESSAGE_FIELDS: Final = frozenset(
    {"from", "to", "cc", "bcc", "reply_to", "subject", "html", "text", "headers", "tag", "metadata", "stream"}
    | {"attachments"}
)
_ADDRESS_FIELDS: Final = frozenset(("email", "name"))


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Email:
    """One finished email with the key that makes it go out once.

    *key* is the business rule: all emails ever made with the same key are one email. *to*, *cc*, *bcc* and
    *reply_to* take one address or several; without *from_* the worker's ``EMAIL_FROM`` sends it. *run_after*
    and *send_before* are aware datetimes: not earlier, and not later. A lower *priority* goes first, below 0
    is urgent. *on_doubt* says what happens when nobody knows whether it went out: ``"ask"`` the provider and
    then send again, ``"resend"`` without waiting for proof, ``"hold"`` for a person.

    Raises `InvalidEmail`, which names the field. The repr shows no address and no text.

    Example::

        Email(
            key=f"order-confirmed:{order.id}",
            to=Address(order.email, order.name),
            subject="Your order",
            text=f"Thank you. Your order {order.id} is on its way.",
        )
    """

    key: str
    to: tuple[Address, ...]
    subject: str
    text: str | None
    html: str | None
    from_: Address | None
    cc: tuple[Address, ...]
    bcc: tuple[Address, ...]
    reply_to: tuple[Address, ...]
    headers: Mapping[str, str] = field(hash=False)
    tag: str | None
    metadata: Mapping[str, str] = field(hash=False)
    stream: str | None
    attachments: tuple[Attachment, ...]
    run_after: datetime | None
    send_before: datetime | None
    priority: int
    on_doubt: OnDoubt

    def __init__(
        self,
        *,
        key: str = "",
        to: Recipients,
        subject: str,
        text: str | None = None,
        html: str | None = None,
        from_: Address | str | None = None,
        cc: Recipients = (),
        bcc: Recipients = (),
        reply_to: Recipients = (),
        headers: Mapping[str, str] = _NO_FIELDS,
        tag: str | None = None,
        metadata: Mapping[str, str] = _NO_FIELDS,
        stream: str | None = None,
        attachments: Iterable[Attachment] = (),
        run_after: datetime | None = None,
        send_before: datetime | None = None,
        priority: int = 0,
        on_doubt: OnDoubt = "ask",
    ) -> None:
        put = object.__setattr__
        put(self, "key", rules.key(key))
        put(self, "to", _addresses("to", to))
        put(self, "subject", rules.subject(subject))
        put(self, "text", rules.body("text", text))
        put(self, "html", rules.body("html", html))
        put(self, "from_", None if from_ is None else _sender(from_))
        put(self, "cc", _addresses("cc", cc))
        put(self, "bcc", _addresses("bcc", bcc))
        put(self, "reply_to", _addresses("reply_to", reply_to))
        put(self, "headers", _frozen(rules.headers, headers))
        put(self, "tag", rules.tag(tag))
        put(self, "metadata", _frozen(rules.metadata, metadata))
        put(self, "stream", rules.stream(stream))
        put(self, "attachments", _attachments(attachments))
        put(self, "run_after", rules.aware("run_after", run_after))
        put(self, "send_before", rules.aware("send_before", send_before))
        put(self, "priority", rules.priority(priority))
        put(self, "on_doubt", rules.on_doubt(on_doubt))
        self._check_whole()

    def message(self) -> dict[str, Any]:
        """Give the message as it is stored in ``emails.message``; `from_message` is the way back.

        Example: ``Email(key="k", to="a@example.com", subject="s", text="t").message()`` is
        ``{"to": [{"email": "a@example.com"}], "subject": "s", "text": "t"}``.
        """
        message = self._message_without_attachments()
        if self.attachments:
            message["attachments"] = [attachment_json(one) for one in self.attachments]
        return message

    @classmethod
    def from_message(
        cls,
        key: str,
        message: Mapping[str, Any],
        *,
        run_after: datetime | None = None,
        send_before: datetime | None = None,
        priority: int = 0,
        on_doubt: OnDoubt = "ask",
    ) -> Email:
        """Read a stored message, whoever stored it, with all the checks of `Email`.

        Raises `InvalidEmail`. Example: ``Email.from_message(email.key, email.message()) == email``.
        """
        given = rules.known_fields("message", message, _MESSAGE_FIELDS)
        sender = given.get("from")
        return cls(
            key=key,
            to=_addresses_from("to", given.get("to")),
            subject=given.get("subject"),  # type: ignore[arg-type]  # whatever it is, it is checked
            text=given.get("text"),
            html=given.get("html"),
            from_=None if sender is None else _sender_from(sender),
            cc=_addresses_from("cc", given.get("cc")),
            bcc=_addresses_from("bcc", given.get("bcc")),
            reply_to=_addresses_from("reply_to", given.get("reply_to")),
            headers=_mapping_from(given.get("headers")),
            tag=given.get("tag"),
            metadata=_mapping_from(given.get("metadata")),
            stream=given.get("stream"),
            attachments=attachments_from(given.get("attachments")),
            run_after=run_after,
            send_before=send_before,
            priority=priority,
            on_doubt=on_doubt,
        )

    def __repr__(self) -> str:
        """Show sizes only: the key may hold an address, and bodies hold reset links."""
        count = len(self.to) + len(self.cc) + len(self.bcc)
        return f"Email({count} recipients, {len(self.attachments)} attachments, on_doubt={self.on_doubt!r})"

    def _check_whole(self) -> None:
        count = len(self.to) + len(self.cc) + len(self.bcc)
        if not count:
            raise InvalidEmail("to", "must name at least one recipient")
        if count > rules.MAX_RECIPIENTS:
            raise InvalidEmail(
                "to", f"at most {rules.MAX_RECIPIENTS} recipients over to, cc and bcc together"
            )
        if len(self.reply_to) > rules.MAX_RECIPIENTS:
            raise InvalidEmail("reply_to", f"at most {rules.MAX_RECIPIENTS} addresses")
        if self.text is None and self.html is None:
            raise InvalidEmail("text", "an email needs a text or an html that is not empty")
        if self.run_after is not None and self.send_before is not None and self.send_before <= self.run_after:
            raise InvalidEmail("send_before", "must be later than run_after")
        self._check_size()

    def _check_size(self) -> None:
        files = sum(rules.base64_length(len(one.content)) for one in self.attachments)
        texts = len(self.text or "") + len(self.html or "")
        texts += sum(len(name) + len(value) for name, value in self.headers.items())
        # One character is at most six bytes of JSON; small messages, nearly all of them, end here.
        if files + 6 * texts + rules.most_of_the_rest(len(self.attachments)) < rules.MAX_MESSAGE:
            return
        rest = self._message_without_attachments()
        rest["attachments"] = [attachment_json(one, content="") for one in self.attachments]
        written = json.dumps(rest, ensure_ascii=False, separators=(",", ":")).encode()
        if files + len(written) > rules.MAX_MESSAGE:
            raise InvalidEmail("attachments" if files else "html", rules.TOO_LARGE)

    def _message_without_attachments(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "from": None if self.from_ is None else _address_json(self.from_),
            "to": [_address_json(one) for one in self.to],
            "cc": [_address_json(one) for one in self.cc],
            "bcc": [_address_json(one) for one in self.bcc],
            "reply_to": [_address_json(one) for one in self.reply_to],
            "html": self.html,
            "text": self.text,
            "headers": dict(self.headers),
            "tag": self.tag,
            "metadata": dict(self.metadata),
            "stream": self.stream,
        }
        # Absent means absent; "to" and "subject" are always there for whoever reads the table.
        return {
            "to": fields["to"],
            "subject": self.subject,
            **{name: value for name, value in fields.items() if value},
        }


def _frozen(check: Callable[[object], dict[str, str]], given: Mapping[str, str]) -> Mapping[str, str]:
    return _NO_FIELDS if given is _NO_FIELDS else MappingProxyType(check(given))


def _addresses(where: str, given: Recipients) -> tuple[Address, ...]:
    if given == ():
        return ()
    if type(given) is tuple and _all_addresses(given):
        return given
    if isinstance(given, Address):
        return (given,)
    if isinstance(given, str):
        return (_address(where, given),)
    if not isinstance(given, Iterable) or isinstance(given, Mapping | bytes):
        raise InvalidEmail(where, "must be an address or several")
    return tuple(_address(f"{where}[{index}]", one) for index, one in enumerate(given))


def _all_addresses(given: tuple[Address | str, ...]) -> TypeGuard[tuple[Address, ...]]:
    for one in given:  # noqa: SIM110 (a stored message is read whenever it is sent: no generator)
        if not isinstance(one, Address):
            return False
    return True


def _address(where: str, given: object, name: object = "") -> Address:
    if isinstance(given, Address):
        return given
    try:
        return Address(given, name)  # type: ignore[arg-type]  # whatever they are, they are checked
    except InvalidEmail as error:
        raise InvalidEmail(f"{where}.{error.field}", error.rule) from None


def _sender(given: Address | str) -> Address:
    sender = _address("from", given)
    if utf16_length(sender.formatted()) > rules.MAX_FROM:
        raise InvalidEmail("from", f"must be at most {rules.MAX_FROM} characters with its name")
    return sender


def _attachments(given: Iterable[Attachment]) -> tuple[Attachment, ...]:
    if given == ():
        return ()
    attachments = tuple(given)
    for index, one in enumerate(attachments):
        if not isinstance(one, Attachment):
            raise InvalidEmail(f"attachments[{index}]", "must be an Attachment")
    return attachments


def _address_json(address: Address) -> dict[str, str]:
    return {"email": address.email, "name": address.name} if address.name else {"email": address.email}


def _mapping_from(given: Any) -> Mapping[str, str]:
    return _NO_FIELDS if given is None else given  # what is in it is checked like any other


def _addresses_from(where: str, given: object) -> tuple[Address, ...]:
    if given is None:
        return ()
    listed = rules.listed(where, given)
    try:
        return tuple([_address_from("", one) for one in listed])
    except InvalidEmail:
        # Once more, with the place's name, which nearly nobody needs.
        return tuple(_address_from(f"{where}[{index}]", one) for index, one in enumerate(listed))


def _sender_from(given: object) -> Address:
    fields = rules.known_fields("from", given, _ADDRESS_FIELDS)
    email, name = fields.get("email"), fields.get("name")
    if type(email) is str and (name is None or type(name) is str):
        return _known_sender(email, name or "")
    return _address_from("from", given)


@lru_cache(maxsize=64)
def _known_sender(email: str, name: str) -> Address:
    # Nearly every email of an app has one of a few senders.
    return _address("from", email, name)


def _address_from(where: str, given: object) -> Address:
    fields = rules.known_fields(where, given, _ADDRESS_FIELDS)
    name = fields.get("name")
    return _address(where, fields.get("email"), "" if name is None else name)
