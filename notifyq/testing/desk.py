"""What Postmark would answer: every request judged, nothing sent or received. No I/O here."""

from __future__ import annotations

import json
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from notifyq.testing.eastern import stamp
from notifyq.testing.faults import Fault, IgnoreFilter, ShowTwice, inactive_text
from notifyq.testing.ledger import Ledger, Message
from notifyq.testing.rules import Account, Payload, Refusal, check_message, inactive_recipients, mailboxes
from notifyq.testing.search import describe, detail, find_messages, page_of

__all__ = ["MAX_REQUEST", "Desk", "Reply", "read_json"]

TEST_TOKEN = "POSTMARK_API_TEST"  # noqa: S105 - documented by Postmark: validates, delivers nothing
MAX_REQUEST = 50 * 1024 * 1024
MAX_MESSAGE = 10_485_760
MAX_BATCH = 500


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer before it becomes bytes. *message_ids* are the messages that it accepted."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    message_ids: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """``"200"``, or with the ErrorCode ``"422/300"``."""
        code = self.body.get("ErrorCode") if isinstance(self.body, dict) else None
        return f"{self.status}/{code}" if code else str(self.status)


def refuse(refusal: Refusal) -> Reply:
    """A whole-request "no", with the code echoed in a header."""
    body = {"ErrorCode": refusal.code, "Message": refusal.message}
    return Reply(refusal.status, body, {"X-PM-ApiErrorCode": str(refusal.code)})


def read_json(body: bytes) -> Any:
    """Read a request's JSON. Raises ValueError, also for NaN and for nesting without end."""
    try:
        return json.loads(body.decode(), parse_constant=_not_json)
    except RecursionError:
        raise ValueError("too deep") from None


def _not_json(_name: str) -> NoReturn:
    raise ValueError("not JSON")


@dataclass(slots=True, kw_only=True)
class Desk:
    """The state of the fake account, and the verbs that answer requests.

    *search_lag* is in seconds; None: an accepted message is never shown. *zulu* chooses how SubmittedAt
    is written. *partial* says what happens when some of several recipients are suppressed: ``serve``
    answers 200 with a text, ``refuse_but_serve`` answers 422/406 although the others are served.
    """

    token: str
    ledger: Ledger
    account: Account
    clock: Callable[[], float]
    search_lag: float | None = 0.0
    retention_days: float = 45.0
    zulu: bool = True
    partial: Literal["serve", "refuse_but_serve"] = "serve"
    rate: float | None = None
    server_id: int = 1
    _recent: deque[float] = field(default_factory=deque)

    def check_token(self, headers: Mapping[str, str]) -> Refusal | None:
        """401 unless the server token is ours or the test token."""
        if headers.get("X-Postmark-Server-Token") in (self.token, TEST_TOKEN):
            return None
        return Refusal(10, "The request does not contain a valid Server token.", 401)

    def check_head(self, headers: Mapping[str, str]) -> Refusal | None:
        """What can be refused before the body is read: token, headers, size."""
        json_in = headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json"
        if refusal := self.check_token(headers):
            return refusal
        if not json_in or "application/json" not in headers.get("Accept", "").lower():
            return Refusal(409, "Content-Type and Accept must be 'application/json'.", 415)
        if int(headers.get("Content-Length", 0)) > MAX_REQUEST:
            return Refusal(300, "The request is too large.", 413)
        return None

    def over_rate(self) -> Reply | None:
        """429 when more than *rate* requests came within the last second."""
        now = time.monotonic()
        while self._recent and self._recent[0] <= now - 1:
            self._recent.popleft()
        if self.rate is not None and len(self._recent) >= self.rate:
            return Reply(429, {"ErrorCode": 429, "Message": "Too many requests."}, {"Retry-After": "1"})
        self._recent.append(now)
        return None

    def send(self, body: bytes, *, test: bool = False) -> Reply:
        """``POST /email``: judge and, when good, accept. A *test* token's message is not stored."""
        if len(body) > MAX_MESSAGE:
            return refuse(Refusal(300, f"The message is larger than {MAX_MESSAGE} bytes."))
        try:
            payload = read_json(body)
        except ValueError:
            return refuse(Refusal(402, "The request is not valid JSON."))
        answer = self._judge(payload, test)
        return refuse(answer) if isinstance(answer, Refusal) else answer

    def send_batch(self, body: bytes, *, test: bool = False) -> Reply:
        """``POST /email/batch``: one answer for each item, in order, inside one HTTP 200."""
        try:
            items = read_json(body)
        except ValueError:
            items = None
        if not isinstance(items, list):
            return refuse(Refusal(402, "The request is not a valid JSON array."))
        if len(items) > MAX_BATCH:
            return refuse(Refusal(410, f"More than {MAX_BATCH} messages."))
        answers = [self._judge(item, test) for item in items]
        results = [
            {"ErrorCode": answer.code, "Message": answer.message}
            if isinstance(answer, Refusal)
            else answer.body
            for answer in answers
        ]
        ids = (made for answer in answers if isinstance(answer, Reply) for made in answer.message_ids)
        return Reply(200, results, message_ids=tuple(ids))

    def _judge(self, payload: Any, test: bool) -> Reply | Refusal:
        if not isinstance(payload, dict):
            return Refusal(402, "The request is not a valid JSON object.")
        if refusal := check_message(payload, self.account):
            return refusal
        inactive = () if test else inactive_recipients(payload, self.account)
        message_id = str(uuid.uuid4())
        body = self._success(payload, message_id, "Test job accepted" if test else "OK")
        if not inactive:
            return self._accept(payload, body, test)
        refusal = Refusal(
            406,
            f"Found inactive addresses: {', '.join(inactive)}. Inactive recipients bounced or complained.",
        )
        if _all_inactive(payload, inactive):
            return refusal
        reply = self._accept(payload, {**body, "Message": inactive_text(inactive)}, test)
        return reply if self.partial == "serve" else refusal

    def _accept(self, payload: Payload, body: dict[str, Any], test: bool) -> Reply:
        if not test:
            self.ledger.accept(body["MessageID"], payload)
        return Reply(200, body, message_ids=() if test else (body["MessageID"],))

    def _success(self, payload: Payload, message_id: str, text: str) -> dict[str, Any]:
        return {
            "To": payload.get("To") or "",
            "SubmittedAt": stamp(self.clock(), zulu=self.zulu),
            "MessageID": message_id,
            "ErrorCode": 0,
            "Message": text,
        }

    def server(self) -> Reply:
        """``GET /server``: who we are, without sending anything."""
        return Reply(
            200,
            {
                "ID": self.server_id,
                "Name": "fake",
                "ApiTokens": [self.token],
                "Color": "grey",
                "DeliveryType": "Live",
                "SmtpApiActivated": True,
                "TrackOpens": False,
                "TrackLinks": "None",
            },
        )

    def search(self, query: Mapping[str, str], fault: Fault | None = None) -> Reply:
        """``GET /messages/outbound``; *query* has its names in lower case."""
        page = page_of(query)
        if isinstance(page, Refusal):
            return refuse(page)
        found = find_messages(self._shown(), query, ignore_filters=isinstance(fault, IgnoreFilter))
        shown = [(one, one.message_id) for one in found]
        if isinstance(fault, ShowTwice):
            shown = [pair for one in found for pair in ((one, str(uuid.uuid4())), (one, one.message_id))]
        count, offset = page
        items = [{**describe(one), "MessageID": name} for one, name in shown[offset : offset + count]]
        return Reply(200, {"TotalCount": len(shown), "Messages": items})

    def details(self, message_id: str) -> Reply:
        """``GET /messages/outbound/{id}/details``."""
        for message in self._shown():
            if message.message_id == message_id:
                return Reply(200, detail(message))
        return refuse(Refusal(701, "This message was not found."))

    def _shown(self) -> list[Message]:
        """The messages that a search can see now."""
        if self.search_lag is None:
            return []
        newest, oldest = self.clock() - self.search_lag, self.clock() - self.retention_days * 86_400
        return [one for one in self.ledger.accepted if oldest <= one.accepted_epoch <= newest]


def _all_inactive(payload: Payload, inactive: tuple[str, ...]) -> bool:
    return {box.address.lower() for box in mailboxes(payload)} <= set(inactive)
