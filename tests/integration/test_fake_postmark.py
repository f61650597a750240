"""The fake on a real socket: transport rules, faults and their twins, the ledger, the process."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from notifyq.testing import FakePostmark, faults
from notifyq.testing.sink import Sink

MESSAGE: dict[str, Any] = {
    "From": "a@example.com",
    "To": "b@example.com",
    "Subject": "s",
    "TextBody": "t",
    "Metadata": {"notifyq": "u1"},
}


@pytest.fixture
async def fake() -> AsyncIterator[FakePostmark]:
    async with FakePostmark() as fake:
        yield fake


@pytest.fixture
async def client(fake: FakePostmark) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"X-Postmark-Server-Token": fake.token, "Accept": "application/json"}
    async with aiohttp.ClientSession(fake.url, headers=headers, timeout=aiohttp.ClientTimeout(10)) as client:
        yield client


async def post(
    client: aiohttp.ClientSession, path: str = "/email", message: Any = None, **options: Any
) -> tuple[int, str, Any]:
    """POST a message: the status, the body and the headers."""
    given = {"json": MESSAGE if message is None else message, "allow_redirects": False, **options}
    async with client.post(path, **given) as response:
        return response.status, await response.text(), response.headers


async def symptom(client: aiohttp.ClientSession, patience: float = 10) -> str:
    """What a sender sees of one POST."""
    try:
        async with asyncio.timeout(patience):
            status, body, _ = await post(client)
    except (aiohttp.ClientError, TimeoutError) as error:
        return type(error).__name__
    return f"{status} {body[:6]}"


async def search(client: aiohttp.ClientSession, **query: str) -> tuple[int, Any]:
    async with client.get("/messages/outbound", params={"count": "10", "offset": "0", **query}) as response:
        return response.status, await response.json()


# The transport


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"X-Postmark-Server-Token": "wrong"}, 401, 10),
        ({"X-Postmark-Server-Token": ""}, 401, 10),
        ({"Accept": "*/*"}, 415, 409),
        ({"Content-Type": "text/plain"}, 415, 409),
        ({"x-postmark-server-token": "test-token"}, 200, 0),
        ({"Content-Type": "application/json; charset=utf-8"}, 200, 0),
    ],
)
async def test_the_head_is_judged_before_the_message(
    fake: FakePostmark, client: aiohttp.ClientSession, headers: dict[str, str], status: int, code: int
) -> None:
    """Header names know no case, and errors echo their code in a header."""
    headers = {"Content-Type": "application/json", **headers}

    seen, body, answered = await post(client, data=json.dumps(MESSAGE), json=None, headers=headers)

    assert (seen, json.loads(body)["ErrorCode"]) == (status, code)
    assert answered.get("X-PM-ApiErrorCode") == (str(code) if code else None)
    assert fake.posts[0].answer == (f"{status}/{code}" if code else "200")


async def test_over_size_is_422_up_to_50_megabytes_and_413_above(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """Over-size has been seen in both shapes; the second comes before the body is read."""
    plain = {"Content-Type": "application/json"}
    large = io.BytesIO(json.dumps({**MESSAGE, "TextBody": "x" * 11_000_000}).encode())
    eleven = await post(client, data=large, json=None, headers=plain)

    async def never_sent() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    head = {**plain, "Content-Length": str(51 * 1024 * 1024)}
    more = await post(client, data=never_sent(), json=None, headers=head)

    assert (eleven[0], json.loads(eleven[1])["ErrorCode"], more[0]) == (422, 300, 413)
    assert fake.accepted == []


async def test_an_unknown_path_is_404_in_json(client: aiohttp.ClientSession) -> None:
    """A wrong POSTMARK_API_URL often looks like this."""
    status, body, _ = await post(client, "/v1/email")

    assert (status, json.loads(body)["ErrorCode"]) == (404, 12)


async def test_one_connection_carries_many_requests(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """Keep-alive is real, so a client's connection handling can be tested against it."""
    for _ in range(5):
        assert (await post(client))[0] == 200

    assert fake.connections_made == 1


async def test_server_says_who_it_is(fake: FakePostmark, client: aiohttp.ClientSession) -> None:
    """The probe asks this; a token that is mended is good at once."""
    fake.token = "rotated"
    async with client.get("/server") as response:
        refused = response.status
    fake.token = "test-token"
    async with client.get("/server/") as response:
        body = await response.json()

    assert (refused, body["ID"], body["ApiTokens"]) == (401, 1, ["test-token"])


# Faults


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (lambda record: faults.Close(record=record), "ServerDisconnectedError"),
        (lambda record: faults.Reset(record=record), "ClientOSError"),
        (lambda record: faults.Truncated(record=record), "ClientPayloadError"),
        (lambda record: faults.server_error(record=record), "500 Intern"),
        (lambda record: faults.bad_gateway(record=record), "502 <html>"),
        (lambda record: faults.unexpected(record=record), '500 {"Erro'),
        (lambda record: faults.not_json(record=record), "200 <html>"),
        (lambda record: faults.empty(record=record), "200 "),
    ],
)
async def test_a_lost_answer_looks_the_same_whether_or_not_the_message_was_accepted(
    fake: FakePostmark,
    client: aiohttp.ClientSession,
    make: Callable[[bool], faults.Fault],
    seen: str,
    record: bool,
) -> None:
    """The symptom says nothing of the truth; only the search tells, and so does the ledger."""
    fake.fault(make(record))

    assert await symptom(client) == seen
    assert fake.accepted_by_uid()["u1"] == (1 if record else 0)
    assert (await search(client, metadata_notifyq="u1"))[1]["TotalCount"] == (1 if record else 0)
    assert await symptom(client) == '200 {"To":'
    assert fake.posts_by_uid() == {"u1": 2}


@pytest.mark.parametrize("record", [True, False])
async def test_a_hanging_post_ends_when_its_client_leaves(
    fake: FakePostmark, client: aiohttp.ClientSession, record: bool
) -> None:
    """A sender that gives up leaves nothing behind, and the ledger says what was accepted."""
    fake.fault(faults.Hang(record=record))

    assert await symptom(client, patience=0.1) == "TimeoutError"
    await fake.wait_for(lambda: fake.requests_in_flight == 0)
    assert len(fake.accepted) == (1 if record else 0)
    assert fake.posts[0].answer == "the client left"


@pytest.mark.parametrize(("record", "seen"), [(True, '200 {"To":'), (False, "ServerDisconnectedError")])
async def test_a_hanging_post_is_released(
    fake: FakePostmark, client: aiohttp.ClientSession, record: bool, seen: str
) -> None:
    """A test holds a POST exactly as long as it needs: answered if recorded, else closed."""
    fake.fault(faults.Hang(record=record))
    sending = asyncio.create_task(symptom(client))
    await fake.wait_for(lambda: fake.posts_by_uid()["u1"] == 1)
    assert fake.requests_in_flight == 1

    fake.release()

    assert await sending == seen


async def test_a_message_may_be_accepted_after_its_client_has_left(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """The worst case of an early "no": the search misses, and then the message is there."""
    fake.fault(faults.LateAccept(after=None))

    assert await symptom(client, patience=0.1) == "TimeoutError"
    await fake.wait_for(lambda: fake.requests_in_flight == 0)
    assert (await search(client))[1]["TotalCount"] == 0
    fake.release()
    await fake.wait_accepted(1)

    assert (await search(client))[1]["TotalCount"] == 1


async def test_a_connection_may_be_closed_before_anything_is_read(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """At the connection, or at the head: in both cases nothing is known of the message."""
    fake.fault(faults.CloseOnAccept())
    fake.fault(faults.CloseUnread())

    seen = [await symptom(client), await symptom(client), await symptom(client)]

    assert set(seen[:2]) <= {"ServerDisconnectedError", "ClientOSError"}
    assert seen[2] == '200 {"To":'
    assert [post.answer for post in fake.posts] == ["close unread", "200"]


@pytest.mark.parametrize("fault", [faults.CloseOnAccept(), faults.CloseUnread()])
async def test_what_comes_before_reading_cannot_choose_by_content(
    fake: FakePostmark, fault: faults.Fault
) -> None:
    """A fault that silently never happened would make a test prove nothing."""
    with pytest.raises(ValueError):
        fake.fault(fault, uid="u1")


@pytest.mark.parametrize(
    ("fault", "status", "header", "text"),
    [
        (
            faults.refused(300, "Invalid 'To' address: 'x'."),
            422,
            ("X-PM-ApiErrorCode", "300"),
            "Invalid 'To'",
        ),
        (faults.maintenance(), 503, ("X-PM-ApiErrorCode", "100"), '"ErrorCode": 100'),
        (faults.unauthorized(), 401, ("X-PM-ApiErrorCode", "10"), '"ErrorCode": 10'),
        (faults.too_many_requests("2"), 429, ("Retry-After", "2"), "Too many"),
        (faults.too_many_requests("-1"), 429, ("Retry-After", "-1"), "Too many"),
        (faults.too_many_requests(), 429, ("Retry-After", None), "Too many"),
        (faults.too_many_requests("abc", as_html=True), 429, ("Retry-After", "abc"), "<html>"),
        (faults.html(404), 404, ("Content-Type", "text/html"), "<html>"),
        (faults.redirect("http://127.0.0.1:9/"), 307, ("Location", "http://127.0.0.1:9/"), ""),
        (faults.nul_message(), 422, ("X-PM-ApiErrorCode", "300"), r"bad\u0000text"),
    ],
)
async def test_a_refusal_comes_with_its_headers_and_accepts_nothing(
    fake: FakePostmark,
    client: aiohttp.ClientSession,
    fault: faults.Fault,
    status: int,
    header: tuple[str, str | None],
    text: str,
) -> None:
    """Each of these is judged by its own rule at the sender."""
    fake.fault(fault)

    seen, body, headers = await post(client)

    assert (seen, headers.get(header[0])) == (status, header[1])
    assert text in body
    assert fake.accepted == []


async def test_an_acceptance_may_come_without_its_error_code_or_with_a_warning(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """Both were seen on the real wire and both mean accepted."""
    fake.fault(faults.no_error_code())
    fake.fault(faults.partly_inactive("x@example.com"))

    first, second = json.loads((await post(client))[1]), json.loads((await post(client))[1])

    assert ("ErrorCode" in first, second["ErrorCode"]) == (False, 0)
    assert "these inactive addresses: x@example.com. " in second["Message"]
    assert [first["MessageID"], second["MessageID"]] == [message.message_id for message in fake.accepted]


@pytest.mark.parametrize("part", ["all", "head", "body"])
async def test_an_answer_may_drip(fake: FakePostmark, client: aiohttp.ClientSession, part: Any) -> None:
    """A slow answer is whole in the end, and is late for one who has no patience."""
    fake.fault(faults.Drip(gap=0.0001, part=part))
    fake.fault(faults.Drip(gap=30, part=part))

    assert [await symptom(client), await symptom(client, patience=0.1)] == ['200 {"To":', "TimeoutError"]
    assert len(fake.accepted) == 2


async def test_a_fault_chooses_by_uid_by_content_and_by_count(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """Faults that meet the wrong row make a test of isolation worthless."""
    fake.fault(faults.html(500), uid="u2")
    fake.fault(faults.html(501), when=lambda message: message["To"] == "c@example.com", times=2)
    fake.fault(faults.html(502), uid="u3", times=None)
    marked = [{**MESSAGE, "Metadata": {"notifyq": uid}} for uid in ("u1", "u2", "u2", "u3", "u3", "u3")]
    aimed = [{**MESSAGE, "To": "c@example.com"}] * 3

    statuses = [(await post(client, message=message))[0] for message in marked + aimed]
    fake.clear_faults()
    statuses.append((await post(client, message=marked[-1]))[0])

    assert statuses == [200, 500, 200, 502, 502, 502, 501, 501, 200, 200]


async def test_an_account_fault_lasts_until_it_is_lifted(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """An account under review refuses every message alike, and then none."""
    fake.account_fault(413, "Not approved.")
    during = json.loads((await post(client))[1])
    fake.account_fault(None)

    assert during == {"ErrorCode": 413, "Message": "Not approved."}
    assert (await post(client))[0] == 200


async def test_a_rate_limit_answers_429_above_it(fake: FakePostmark, client: aiohttp.ClientSession) -> None:
    """What comes above the rate is refused with a Retry-After and is not accepted."""
    fake.rate_limit(3)

    answers = await asyncio.gather(*(post(client) for _ in range(5)))

    assert sorted(status for status, _, _ in answers) == [200, 200, 200, 429, 429]
    assert {headers.get("Retry-After") for status, _, headers in answers if status == 429} == {"1"}
    assert len(fake.accepted) == 3


async def test_an_answer_delay_holds_the_answer_and_not_the_acceptance(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """A sender that gives up during the delay has sent all the same."""
    fake.answer_delay = 60

    assert await symptom(client, patience=0.1) == "TimeoutError"
    assert len(fake.accepted) == 1


@pytest.mark.parametrize("hard", [True, False])
async def test_a_fake_that_is_down_refuses_connections_and_comes_back_on_its_port(
    fake: FakePostmark, client: aiohttp.ClientSession, hard: bool
) -> None:
    """An outage of the provider, under the address that the worker knows."""
    fake.fault(faults.Hang(record=True), uid="u2")
    url = fake.url
    await post(client)
    held = asyncio.create_task(post(client, message={**MESSAGE, "Metadata": {"notifyq": "u2"}}))
    await fake.wait_for(lambda: fake.posts_by_uid()["u2"] == 1)

    await fake.down(hard=hard)
    seen = await symptom(client)
    fake.release()
    ended = (await asyncio.gather(held, return_exceptions=True))[0]
    await fake.up()

    assert seen == "ClientConnectorError"
    assert isinstance(ended, aiohttp.ClientError) if hard else ended[0] == 200
    assert (await symptom(client), fake.url) == ('200 {"To":', url)


# Searches


async def test_a_search_may_fail_lie_or_lag(fake: FakePostmark, client: aiohttp.ClientSession) -> None:
    """None of these is a "no"."""
    for uid in ("u1", "u2"):
        await post(client, message={**MESSAGE, "Metadata": {"notifyq": uid}})
    fake.fault(faults.server_error(), on="search")
    fake.fault(faults.too_many_requests("1"), on="search")
    fake.fault(faults.IgnoreFilter())
    fake.fault(faults.ShowTwice())

    async def status() -> int:
        async with client.get("/messages/outbound?count=1&offset=0") as response:
            return response.status

    assert [await status(), await status()] == [500, 429]
    ignored, twice = (
        (await search(client, metadata_notifyq="u1"))[1],
        (await search(client, metadata_notifyq="u1"))[1],
    )
    fake.search_lag = None
    hidden = (await search(client, metadata_notifyq="u1"))[1]

    assert [found["TotalCount"] for found in (ignored, twice, hidden)] == [2, 2, 0]
    assert len({item["MessageID"] for item in twice["Messages"]}) == 2
    assert [item["Metadata"]["notifyq"] for item in ignored["Messages"]] == ["u2", "u1"]
    assert [seen.answer for seen in fake.searches] == ["500", "429", "200", "200", "200"]


async def test_search_names_know_no_case(fake: FakePostmark, client: aiohttp.ClientSession) -> None:
    """Documentation and official clients spell them differently."""
    await post(client, message={**MESSAGE, "MessageStream": "broadcast"})

    assert (await search(client, messageStream="broadcast", fromDate="2020-01-01"))[1]["TotalCount"] == 1


async def test_a_search_may_hang_until_it_is_released(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """A stuck search must not hold up the sending, which a test can only show while it hangs."""
    fake.fault(faults.Hang(record=True), on="search")
    asking = asyncio.create_task(search(client))
    await fake.wait_for(lambda: fake.requests_in_flight == 1)

    assert (await post(client))[0] == 200
    fake.release()
    assert (await asking)[0] == 200


# The ledger and the end


async def test_waiting_ends_with_the_thing_or_with_what_was_seen(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """A test that waits in vain should say what came instead."""
    waiting = asyncio.create_task(fake.wait_accepted(2))
    await post(client)
    assert not waiting.done()
    await post(client)
    await waiting
    await fake.wait_posts(2)

    with pytest.raises(TimeoutError, match="2 accepted, 2 POSTs, 0 searches"):
        await fake.wait_accepted(3, timeout=0.01)


async def test_an_accepted_message_can_be_read_as_its_reader_would(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """A test of an app asks what the email says, not how Postmark spells its fields."""
    full = {
        "From": '"Shop, Ltd" <shop@example.com>',
        "To": "Ann <ann@example.com>, bob@example.com",
        "Cc": "c@example.com",
        "Bcc": "d@example.com",
        "ReplyTo": "Help <help@example.com>",
        "Subject": "Your order",
        "TextBody": "Thank you.",
        "HtmlBody": "<p>Thank you.</p>",
        "Headers": [{"Name": "X-Order", "Value": "7"}],
        "Attachments": [{"Name": "a.txt", "ContentType": "text/plain", "Content": "aGVsbG8="}],
    }
    await post(client, message=full)
    await post(client, message={"From": "a@example.com", "Bcc": "b@example.com", "HtmlBody": "<p>x</p>"})
    message, bare = fake.accepted

    assert (message.subject, message.text, message.html) == (
        "Your order",
        "Thank you.",
        "<p>Thank you.</p>",
    )
    assert (message.from_, message.to) == ("shop@example.com", ("ann@example.com", "bob@example.com"))
    assert (message.cc, message.bcc) == (("c@example.com",), ("d@example.com",))
    assert (message.reply_to, message.headers) == (("help@example.com",), {"X-Order": "7"})
    assert [(file.name, file.content_type, file.content) for file in message.attachments] == [
        ("a.txt", "text/plain", b"hello")
    ]
    assert (bare.subject, bare.text, bare.to, bare.bcc) == ("", None, (), ("b@example.com",))
    assert (bare.headers, bare.attachments) == ({}, ())


async def test_reset_forgets_everything_that_was_seen(
    fake: FakePostmark, client: aiohttp.ClientSession
) -> None:
    """One fake can serve many scenes."""
    fake.fault(faults.html(500), times=None)
    await post(client)
    fake.reset()

    assert (fake.posts, (await post(client))[0], len(fake.accepted)) == ([], 200, 1)


async def test_a_fake_closes_with_requests_hanging_and_leaves_nothing() -> None:
    """The end of a test must not wait for what the test has hung, nor leave tasks behind."""
    async with FakePostmark() as fake, aiohttp.ClientSession(fake.url) as session:
        session.headers.update({"X-Postmark-Server-Token": fake.token, "Accept": "application/json"})
        fake.fault(faults.Hang())
        fake.fault(faults.LateAccept(after=3600))
        fake.answer_delay = 3600
        sending = [asyncio.create_task(symptom(session, 60)) for _ in range(3)]
        await fake.wait_for(lambda: fake.posts_by_uid()["u1"] == 3)

        await fake.__aexit__(None, None, None)
        seen = await asyncio.gather(*sending)

        assert (set(seen), fake.requests_in_flight) == ({"ServerDisconnectedError"}, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_env_points_notifyq_at_the_fake() -> None:
    """A worker in another process is told by its environment alone."""

    async def env() -> tuple[dict[str, str], str]:
        async with FakePostmark(token="secret") as fake:
            return fake.env(), fake.url

    found, url = asyncio.run(env())

    assert found == {"POSTMARK_API_URL": url, "POSTMARK_SERVER_TOKEN": "secret"}


# Another process


async def started(*arguments: str) -> tuple[asyncio.subprocess.Process, dict[str, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "notifyq.testing", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    return process, json.loads(await process.stdout.readline())


async def ended(process: asyncio.subprocess.Process) -> int:
    process.send_signal(signal.SIGTERM)
    _, status = await asyncio.gather(process.communicate(), process.wait())
    return status


async def test_a_fake_in_another_process_is_driven_over_http() -> None:
    """A killed worker must not take the ledger with it, so tests and benches keep the fake apart."""
    process, said = await started("--token", "far")
    headers = {"X-Postmark-Server-Token": "far", "Accept": "application/json"}
    async with aiohttp.ClientSession(said["url"], headers=headers) as client:

        async def tell(path: str, order: Any = None) -> int:
            async with client.post(f"/_fake/{path}", json=order) as response:
                return response.status

        order = {"fault": "Close", "with": {"record": True}, "match": {"Subject": "s"}, "times": 1}
        assert [await tell("faults", order), await tell("faults", {"fault": "Nonsense"})] == [200, 400]
        assert [await tell("set", {"suppress": "gone@example.com"}), await tell("set", {"x": 1})] == [
            200,
            400,
        ]
        assert await symptom(client) == "ServerDisconnectedError"
        assert (await post(client, message={**MESSAGE, "To": "gone@example.com"}))[0] == 422
        async with client.get("/_fake/wait?accepted=1&posts=2") as response:
            counts = await response.json()
        async with client.get("/_fake/wait?accepted=2&timeout=0.01") as response:
            in_vain = response.status
        async with client.get("/_fake/ledger") as response:
            ledger = await response.json()
        assert await tell("down", {"seconds": 0.2}) == 200
        refused = False
        while (seen := await symptom(client)) != '200 {"To":':
            refused = refused or seen == "ClientConnectorError"
        assert await tell("reset") == 200
        async with client.get("/_fake/counts") as response:
            after = await response.json()

    assert (counts["accepted"], counts["accepted_by_uid"], counts["posts_by_uid"]) == (
        1,
        {"u1": 1},
        {"u1": 2},
    )
    assert in_vain == 408
    assert ledger["accepted"][0]["payload"]["Subject"] == "s"
    assert [post["answer"] for post in ledger["posts"]] == ["close", "422/406"]
    assert refused
    assert (after["accepted"], after["posts"]) == (0, 0)
    assert (await ended(process), said["token"]) == (0, "far")


async def test_the_sink_answers_as_postmark_does_and_keeps_the_time_of_each_arrival() -> None:
    """A bench measures the sender, so its server must be fast and still be believed."""
    process, said = await started("--fast")
    async with aiohttp.ClientSession(said["url"]) as client:
        answers = [json.loads((await post(client))[1]) for _ in range(3)]
        async with client.get("/_fake/ledger") as response:
            ledger = await response.json()

    assert len({answer["MessageID"] for answer in answers}) == 3
    assert {answer["ErrorCode"] for answer in answers} == {0}
    assert (ledger["count"], [uid for _, uid in ledger["arrivals"]]) == (3, ["u1"] * 3)
    assert await ended(process) == 0


async def test_the_sink_reads_requests_however_they_are_cut() -> None:
    """Segments end anywhere: in a head, in a body, or between two requests."""
    body = json.dumps(MESSAGE).encode()
    request = b"POST /email HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with Sink() as sink, aiohttp.ClientSession(sink.url) as other:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(sink.url.rpartition(":")[2]))
        for piece in (request[:20], request[20:-5], request[-5:] + request):
            writer.write(piece)
            async with other.get("/server"):  # by its answer, the sink has read the piece
                pass
        heads = [await reader.readuntil(b"}") for _ in range(2)]
        writer.close()
        await writer.wait_closed()

        assert all(head.startswith(b"HTTP/1.1 200 OK\r\n") for head in heads)
        assert [uid for _, uid in sink.arrivals] == ["u1", "u1"]
