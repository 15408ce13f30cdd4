"""S3 servers that answer what no server should: they point elsewhere, send other bytes than were
asked for, numbers without an end, or a byte now and then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from iobench.base.errors import MissingObjectError, StorageError, TargetLostError
from iobench.load.engines.base import Extent
from iobench.load.engines.event_loop import EventLoopEngine
from iobench.load.engines.threads import ThreadEngine
from iobench.storage import open_storage
from iobench.storage.base import delete
from iobench.testing.storage import content
from tests.servers.s3 import s3_environment
from tests.servers.scripted import Answer, Asked, ScriptedServer, answer

__all__ = ["s3_environment"]

pytestmark = pytest.mark.usefixtures("s3_environment")

TOKEN = "TOKENCANARY"
DATA = content(200_000)
CLIENTS = ["obstore", "s3fs", "boto3"]
READERS = ["event loop", "own connection", *CLIENTS]


@pytest.fixture(params=READERS)
def read(request: pytest.FixtureRequest) -> Iterator[Callable[..., bytes]]:
    """``read(url, key, offset, length, option=value, ...)``: by the event loop, over a connection
    of a thread's own, or by a client.
    """
    opened: list[Any] = []

    def reading(url: str, key: str, offset: int, length: int, **options: object) -> bytes:
        client = request.param if request.param in CLIENTS else "obstore"
        given = {"endpoint": url, "client": client, **options}
        storage: Any = open_storage(
            "s3://bucket/prefix", options={name: str(value) for name, value in given.items()}
        )
        opened.append(storage)
        memory = bytearray(length)
        if request.param == "own connection":
            opened.insert(0, reader := storage.own_reader())
            return bytes(memory[: reader.read_into(key, offset, memoryview(memory))])
        kind = EventLoopEngine if request.param == "event loop" else ThreadEngine
        opened.insert(0, engine := kind(storage, concurrency=2, block_size=1 << 20))
        count = engine.read([Extent(key, offset, length, 0, 0)], memoryview(memory))
        return bytes(memory[:count])

    reading.kind = request.param  # type: ignore[attr-defined]
    yield reading
    for each in opened:
        each.close()


def refused(call: Callable[[], object], kind: type[StorageError] = StorageError) -> str:
    """The one line in which it is refused."""
    with pytest.raises(kind) as caught:
        call()
    said = str(caught.value)
    assert len(said) < 500
    return said


def extent(asked: Asked) -> tuple[int, int]:
    """Of a range request: the first byte, and the one behind the last."""
    first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers["range"]).groups()  # type: ignore[union-attr]
    return int(first), int(last) + 1


# Elsewhere


def elsewhere(client: str) -> str:
    """The address of the other server. obstore follows a redirection to another port of the same
    host: that is a limit of it, which SECURITY.md names."""
    return "127.0.0.2" if client == "obstore" else "127.0.0.1"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirection_is_followed_and_the_token_stays(
    read: Callable[..., bytes], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    evil = b"EVIL" * 1000
    with (
        ScriptedServer(lambda asked: answer(200, evil), address=elsewhere(read.kind)) as other,
        ScriptedServer(lambda asked: answer(status, b"", f"Location: {other.url}/evil")) as server,
    ):
        said = refused(lambda: read(server.url, "x", 0, len(evil)))
        assert "region" in said
        assert TOKEN not in said
        assert other.asked == []
        assert len(server.asked) <= 3


@pytest.mark.parametrize("client", CLIENTS)
def test_no_request_of_any_kind_is_sent_elsewhere(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    with (
        ScriptedServer(lambda asked: answer(200), address=elsewhere(client)) as other,
        ScriptedServer(lambda asked: answer(307, b"", f"Location: {other.url}/evil")) as server,
    ):
        storage: Any = open_storage(
            f"s3://bucket/prefix?endpoint={server.url}&client={client}&retries=0"
        )

        def create() -> None:
            with storage.create("x", size_hint=4) as sink:
                sink.write(b"data")

        for call in (
            lambda: storage.size("x"),
            lambda: list(storage.list()),
            create,
            lambda: storage.replace("x", b"data"),
            lambda: storage.delete("x"),
            lambda: delete(storage, "x", lambda: None),
            lambda: storage.discard_unfinished(lambda key: True),
        ):
            refused(call)
        assert other.asked == []
        storage.close()


# Other bytes


@pytest.mark.parametrize("how", ["one byte further", "from the start", "the whole object's start"])
def test_another_range_than_was_asked_for_is_never_believed(
    read: Callable[..., bytes], how: str
) -> None:
    def lie(asked: Asked) -> Answer:
        if "range" not in asked.headers:
            return answer(200, DATA)
        first, end = extent(asked)
        if how == "the whole object's start":
            return answer(200, DATA[: end - first])
        first, end = (first + 1, end + 1) if how == "one byte further" else (0, end - first)
        said = f"Content-Range: bytes {first}-{end - 1}/{len(DATA)}"
        return answer(206, DATA[first:end], said)

    with ScriptedServer(lie) as server:
        try:
            got = read(server.url, "x", 1000, 50_000, retries=1, timeout="500ms", deadline="1s")
        except StorageError:
            return
        assert got == DATA[1000:51_000]  # from the whole object, which it asked for then


@pytest.mark.parametrize("offset", [0, 5000])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_whole_object_is_not_received_for_a_part_of_it(client: str, offset: int) -> None:
    """A server without ranges would have each client hold the object in its memory."""
    pieces = 0

    def whole(asked: Asked) -> Iterator[bytes]:
        nonlocal pieces
        yield answer(200, b"", length=str(100 << 20))
        for _ in range(100):
            pieces += 1
            yield bytes(1 << 20)

    with ScriptedServer(whole) as server:
        storage: Any = open_storage(
            f"s3://bucket/prefix?endpoint={server.url}&client={client}&retries=0"
        )
        said = refused(lambda: storage.read_into("x", offset, memoryview(bytearray(1000))))
        assert "ignores ranges" in said
        assert pieces < 50
        storage.close()


# Numbers


@pytest.mark.parametrize("where", ["length", "range", "size"])
@pytest.mark.parametrize("digits", [20, 5000])
def test_a_number_without_an_end_is_one_line(
    read: Callable[..., bytes], where: str, digits: int
) -> None:
    long = "9" * digits

    def lie(asked: Asked) -> Answer:
        first, end = extent(asked)
        last, size = (long, long) if where == "range" else (f"{end - 1}", f"{len(DATA)}")
        size = long if where == "size" else size
        return answer(
            206,
            DATA[first:end],
            f"Content-Range: bytes {first}-{last}/{size}",
            length=long if where == "length" else None,
        )

    with ScriptedServer(lie) as server:
        options = {"retries": 0, "timeout": "500ms", "deadline": "1s"}
        if where == "size":  # nothing depends on it where all was sent that was asked for
            with suppress(StorageError):
                assert read(server.url, "x", 0, 50_000, **options) == DATA[:50_000]
        else:
            refused(lambda: read(server.url, "x", 0, 50_000, **options))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("number", ["9" * 5000, "-1", "many", ""])
def test_a_size_that_is_no_number_is_one_line(client: str, number: str) -> None:
    """In the answer to HEAD, and in a listing."""
    listing = (
        "<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>"
        f"prefix/x</Key><Size>{number}</Size><ETag>&quot;e&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>"
    ).encode()

    def lie(asked: Asked) -> Answer:
        return answer(
            200,
            b"" if asked.method == "HEAD" else listing,
            length=(number if asked.method == "HEAD" else None),
        )

    with ScriptedServer(lie) as server:
        storage: Any = open_storage(
            f"s3://bucket/prefix?endpoint={server.url}&client={client}&retries=0"
            "&timeout=500ms&deadline=1s"
        )
        refused(lambda: storage.size("x"))
        refused(lambda: list(storage.list()))
        storage.close()


# A byte now and then


@pytest.mark.parametrize("where", [pytest.param("head", marks=pytest.mark.nightly), "body"])
def test_a_server_that_drips_is_not_waited_for(read: Callable[..., bytes], where: str) -> None:
    """The bytes that it sends are no progress: it is left before it has sent many."""
    whole = answer(206, DATA[:50_000], f"Content-Range: bytes 0-49999/{len(DATA)}")
    at_once = 10 if where == "head" else whole.index(b"\r\n\r\n") + 4
    to_the_end = False

    with ScriptedServer(lambda asked: drip()) as server:

        def drip() -> Iterator[bytes]:
            nonlocal to_the_end
            yield whole[:at_once]
            for number in range(at_once, at_once + 200):  # half a minute
                if server.ended.wait(0.15):
                    return
                yield whole[number : number + 1]
            to_the_end = True

        refused(
            lambda: read(
                server.url, "x", 0, 50_000, timeout="500ms", deadline="1500ms", retries=999
            )
        )
        assert not to_the_end


def test_slow_is_not_stuck(read: Callable[..., bytes]) -> None:
    """A body that takes longer than the time-out, but comes at a fair rate, is read."""
    whole = answer(206, DATA[:50_000], f"Content-Range: bytes 0-49999/{len(DATA)}")

    def slow(asked: Asked) -> Iterator[bytes]:
        for start in range(0, len(whole), 5000):
            time.sleep(0.08)
            yield whole[start : start + 5000]

    with ScriptedServer(slow) as server:
        assert read(server.url, "x", 0, 50_000, timeout="500ms", deadline="30s") == DATA[:50_000]


# Deletions


@pytest.mark.parametrize("client", CLIENTS)
def test_only_the_object_that_was_looked_at_is_deleted(client: str) -> None:
    """A server that compares refuses to delete another one; others are asked without."""
    etag = "before"
    knows = True

    def script(asked: Asked) -> Answer:
        if asked.method == "HEAD":
            return answer(200, b"", f'ETag: "{etag}"')
        given = asked.headers.get("if-match")
        if given is not None and not knows:
            return answer(501, b"<Error><Code>NotImplemented</Code></Error>")
        if given is not None and given != f'"{etag}"':
            return answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        return b"HTTP/1.1 204 No Content\r\n\r\n"

    def replaced() -> None:
        nonlocal etag
        etag = "after"

    with ScriptedServer(script) as server:
        storage: Any = open_storage(
            f"s3://bucket/prefix?endpoint={server.url}&client={client}&retries=1"
        )
        delete(storage, "x", lambda: None)
        refused(lambda: delete(storage, "x", replaced), TargetLostError)
        knows = False
        delete(storage, "x", lambda: None)
        asked = [one for one in server.asked if one.method == "DELETE"]
        assert [one.headers.get("if-match") for one in asked] == [
            '"before"', '"before"', '"after"', None,
        ]  # fmt: skip
        storage.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_look_that_failed_once_is_made_again_before_a_deletion(client: str) -> None:
    looks = iter([503, 200, 503, 404])

    def script(asked: Asked) -> Answer:
        if asked.method == "HEAD":
            return answer(next(looks), b"", 'ETag: "seen"')
        return answer(404 if asked.method == "GET" else 204)

    with ScriptedServer(script) as server:
        storage: Any = open_storage(f"s3://bucket/prefix?endpoint={server.url}&client={client}")
        delete(storage, "x", lambda: None)
        assert [each.headers.get("if-match") for each in server.asked] == [None, None, '"seen"']
        refused(lambda: storage.delete("x"), MissingObjectError)
        storage.close()


@pytest.mark.parametrize("client", ["obstore", "boto3"])
def test_an_upload_that_the_server_could_not_finish_is_its_failure(client: str) -> None:
    """A full server fails the last request of an upload, and forgets the upload."""
    completed: list[Asked] = []

    def script(asked: Asked) -> bytes:
        if asked.method == "POST" and "uploads" in asked.path:
            return answer(
                200,
                b"<InitiateMultipartUploadResult><Bucket>bucket</Bucket><Key>prefix/x</Key>"
                b"<UploadId>1</UploadId></InitiateMultipartUploadResult>",
            )
        if asked.method == "POST":
            completed.append(asked)
            status, code = (
                (500, b"InternalError") if len(completed) == 1 else (404, b"NoSuchUpload")
            )
            return answer(status, b"<Error><Code>%s</Code></Error>" % code)
        if asked.method == "PUT":
            return answer(200, b"", 'ETag: "1"')
        return answer(404, b"") if asked.method == "HEAD" else answer(204, b"")

    with ScriptedServer(script) as server:
        storage: Any = open_storage(
            f"s3://bucket/prefix?endpoint={server.url}&client={client}&part_size=5MiB"
        )

        def create() -> None:
            with storage.create("x", size_hint=6 << 20) as sink:
                sink.write(bytes(6 << 20))

        said = refused(create)
    assert len(completed) == 2
    assert "500 InternalError" in said
    assert "another program" not in said.lower()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_web_server_is_no_empty_bucket(client: str) -> None:
    with ScriptedServer(lambda _: answer(404)) as server:
        storage = open_storage(f"s3://bucket/prefix?endpoint={server.url}&client={client}")
        with pytest.raises(StorageError, match="endpoint") as caught:
            list(storage.list())
        assert not isinstance(caught.value, MissingObjectError)
        storage.close()
