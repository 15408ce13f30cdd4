"""S3 that misbehaves: a proxy in front of a real server breaks answers; every failure is one line
that says what to do, and no secret.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import IobenchError, MissingObjectError, StorageError
from iobench.cli.main import main
from iobench.storage import open_storage
from iobench.storage.base import Retries, Storage
from iobench.testing.storage import content, read
from tests.processes import PATIENCE_S, python
from tests.servers.faultproxy import SLOW_DOWN, Fault, FaultProxy
from tests.servers.listener import Accepting
from tests.servers.process import free_port, missing
from tests.servers.s3 import (
    BUCKET,
    KEY,
    SECRET,
    S3Server,
    rclone_s3,
    rclone_server,
    s3_environment,
    swift_s3,
)

__all__ = ["rclone_s3", "s3_environment", "swift_s3"]

pytestmark = pytest.mark.usefixtures("s3_environment")

CLIENTS = ["obstore", "s3fs", "boto3"]
PART = 5 << 20
DATA = content(300_000)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxy(rclone_s3: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(rclone_s3.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def written(rclone_s3: S3Server) -> str:
    """The URL, without options, of a prefix with one object: x."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in rclone_s3.environment.items():
            patch.setenv(name, value)
        url = rclone_s3.url(client="boto3")
        storage = open_storage(url)
        put(storage, "x", DATA)
        storage.close()
    return url.partition("?")[0]


@pytest.fixture
def opened(written: str, proxy: FaultProxy) -> Iterator[Callable[..., Any]]:
    """``opened(option=value, ...)``: the prefix of ``written``, through the proxy."""
    all_of_them: list[Any] = []

    def open_it(**options: object) -> Any:
        given = {"endpoint": f"http://127.0.0.1:{proxy.port}", **options}
        all_of_them.append(
            open_storage(written, options={name: str(value) for name, value in given.items()})
        )
        return all_of_them[-1]

    yield open_it
    for storage in all_of_them:
        storage.close()


def put(storage: Storage, key: str, data: bytes = b"data") -> None:
    with storage.create(key, size_hint=len(data)) as sink:
        sink.write(data)


def one_line(
    call: Callable[[], object], match: str, kind: type[IobenchError] = StorageError
) -> str:
    with pytest.raises(kind, match=match) as caught:
        call()
    text = str(caught.value)
    assert len(text) < 500
    assert caught.value.remedy
    return text


# What passes


def test_a_connection_that_breaks_in_the_middle_is_tried_again(
    opened: Callable[..., Any], proxy: FaultProxy, client: str
) -> None:
    storage = opened(client=client)
    assert read(storage, "x", 0, 300_000) == DATA
    proxy.plan.extend(
        [Fault(reset_after=100_000), Fault(reset_after=1000), Fault(reset_after=250_000)]
    )
    assert read(storage, "x", 0, 300_000) == DATA
    assert storage.retried() == Retries(3, 0)


def test_slow_down_is_counted_as_throttled(
    opened: Callable[..., Any], proxy: FaultProxy, client: str
) -> None:
    storage = opened(client=client, retries=50)
    proxy.plan.extend(
        [SLOW_DOWN, Fault(answer=(429, "TooManyRequests")), Fault(answer=(500, "InternalError"))]
    )
    assert read(storage, "x", 0, 300_000) == DATA
    assert storage.retried() == Retries(3, 2)
    proxy.slow_down = 0.3
    for _ in range(5):
        assert read(storage, "x", 0, 300_000) == DATA
        assert storage.size("x") == len(DATA)
        assert "x" in [entry.key for entry in storage.list()]
    counted = storage.retried()
    assert counted.retries - 1 == counted.throttled > 2
    storage.close()  # what is opened again goes on counting
    assert storage.retried() == counted
    proxy.slow_down = 0
    assert read(storage, "x", 0, 300_000) == DATA
    assert storage.retried() == counted


def test_what_is_missing_is_said_to_be_missing_by_a_busy_server(
    opened: Callable[..., Any], proxy: FaultProxy, client: str
) -> None:
    """An answer to HEAD has no error code, so a GET asks for it, which may be refused once."""
    storage = opened(client=client)
    assert storage.size("x") == len(DATA)
    proxy.plan.extend([Fault(), SLOW_DOWN])
    with pytest.raises(MissingObjectError):
        storage.size("none")
    assert not proxy.plan


def test_an_answer_that_stalls_is_asked_for_again(
    opened: Callable[..., Any], proxy: FaultProxy, client: str
) -> None:
    storage = opened(client=client, timeout="3s")
    assert read(storage, "x", 0, 300_000) == DATA
    before = storage.retried().retries
    proxy.plan.append(Fault(stall_after=100_000, stall_s=600))
    assert read(storage, "x", 0, 300_000) == DATA
    assert not proxy.plan
    assert storage.retried().retries > before
    assert storage.retried().throttled == 0


def test_a_server_that_stops_for_a_while_is_survived(
    opened: Callable[..., Any], proxy: FaultProxy, client: str
) -> None:
    storage = opened(client=client)
    assert read(storage, "x", 0, 300_000) == DATA
    proxy.stop()
    back = threading.Timer(5 if client == "obstore" else 1, proxy.again)
    back.start()
    assert read(storage, "x", 0, 300_000) == DATA
    back.join()
    assert storage.retried().retries >= 1
    assert storage.retried().throttled == 0


def test_writes_are_sent_again(opened: Callable[..., Any], proxy: FaultProxy, client: str) -> None:
    storage = opened(client=client, part_size="5MiB")
    put(storage, f"{client}/probe")
    proxy.slow_down = 0.2
    put(storage, f"{client}/small", b"small")
    put(storage, f"{client}/large", content(3 * PART))
    proxy.slow_down = 0
    assert read(storage, f"{client}/small", 0, 99) == b"small"
    assert read(storage, f"{client}/large", 0, 4 * PART) == content(3 * PART)
    assert storage.retried().throttled > 0


def test_an_abort_is_sent_again_and_leaves_no_thread(
    opened: Callable[..., Any], proxy: FaultProxy, client: str
) -> None:
    storage = opened(client=client, part_size="5MiB")
    with (  # noqa: PT012
        pytest.raises(ZeroDivisionError),
        storage.create_parallel(f"{client}/abort", size=2 * PART, block_size=PART) as sink,
    ):
        sink.write_at(0, memoryview(content(PART)))
        assert storage.discard_unfinished(lambda key: True, dry_run=True) == (f"{client}/abort",)
        proxy.plan.append(SLOW_DOWN)
        raise ZeroDivisionError
    assert not proxy.plan, "the abort met the fault"
    assert storage.discard_unfinished(lambda key: True, dry_run=True) == ()
    for thread in threading.enumerate():
        if thread.name == "iobench-abort":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("size", [10, PART + 10])
@pytest.mark.parametrize("client", ["obstore", "boto3"])
def test_a_write_whose_answer_was_lost_does_not_meet_itself(
    swift_s3: S3Server, size: int, client: str
) -> None:
    """Swift refuses the second conditional write of a key, also where the first one was ours."""
    with FaultProxy(swift_s3.port) as proxy:
        url = swift_s3.url(client=client, part_size=PART).replace(
            str(swift_s3.port), str(proxy.port)
        )
        storage: Any = open_storage(url)
        put(storage, "probe")
        assert storage.facts()["conditional_create"] == "enforced"
        # PUT; or: HEAD, start, two parts, HEAD, finish
        proxy.plan.extend([Fault()] * (0 if size < PART else 5) + [Fault(reset_after=0)])
        put(storage, "x", content(size))
        assert not proxy.plan
        assert storage.retried() == Retries(1, 0)
        assert read(storage, "x", 0, 2 * size) == content(size)
        storage.close()


# What does not pass


@pytest.mark.parametrize("how", ["refuses", "says nothing"])
def test_a_server_that_is_gone_fails_within_the_deadline(
    opened: Callable[..., Any], proxy: FaultProxy, client: str, how: str
) -> None:
    assert read(opened(client=client), "x", 0, 300_000) == DATA
    # The deadline ends it, not the number of retries.
    storage = opened(client=client, timeout="1s", deadline="5s", retries=999)
    if how == "refuses":
        proxy.stop()
    else:
        proxy.silent = True
    # Left alone, clients try 999 times, which takes longer than the time limit of a test.
    one_line(
        lambda: read(storage, "x", 0, 300_000), "can't be reached|no answer|connection was lost"
    )
    assert storage.retried().retries >= 1


def test_retries_are_used_up(opened: Callable[..., Any], proxy: FaultProxy, client: str) -> None:
    storage = opened(client=client, retries=2)
    proxy.slow_down = 1
    text = one_line(lambda: read(storage, "x", 0, 10), r"slow down \(503 SlowDown\); tried 3 times")
    assert "retries" in text
    assert storage.retried() == Retries(2, 2)


def test_a_name_that_nobody_knows(opened: Callable[..., Any], client: str) -> None:
    storage = opened(
        client=client, endpoint="http://no-such-host.invalid", timeout="5s", deadline="15s"
    )
    one_line(lambda: storage.size("x"), "name is unknown")


OPERATIONS: dict[str, Callable[[Any], object]] = {
    "read": lambda storage: read(storage, "x", 0, 10),
    "stat": lambda storage: storage.size("x"),
    "list": lambda storage: list(storage.list()),
    "create": lambda storage: put(storage, "new"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_wrong_secret_and_none(
    opened: Callable[..., Any], client: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    text = one_line(
        lambda: OPERATIONS[operation](opened(client=client)),
        r"refuses these credentials \(403 SignatureDoesNotMatch\)",
    )
    assert "AWS_SECRET_ACCESS_KEY" in text
    assert "wrong-and-secret" not in text
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    text = one_line(lambda: OPERATIONS[operation](opened(client=client)), "no credentials")
    assert "signing=none" in text


def test_anonymous_requests_need_no_credentials(
    rclone_s3: S3Server, tmp_path: Path, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    one_line(
        lambda: open_storage(rclone_s3.url(client=client, signing="none")).size("x"), "4\\d\\d"
    )
    with rclone_server(tmp_path / "public", public=True) as server:
        (tmp_path / "public" / "data" / BUCKET / "x").write_bytes(b"free")
        storage = open_storage(
            f"s3://{BUCKET}?endpoint={server.endpoint}&client={client}&signing=none"
        )
        assert read(storage, "x", 0, 9) == b"free"
        storage.close()


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ((403, "InvalidAccessKeyId"), "refuses these credentials"),
        ((400, "ExpiredToken"), "credentials have expired"),
        ((403, "RequestTimeTooSkewed"), "clock"),
        ((400, "AuthorizationHeaderMalformed"), "another region"),
        ((404, "NoSuchBucket"), "no such bucket"),
        ((400, "SomethingElse"), r"the request failed \(400 SomethingElse\): by the proxy"),
    ],
)
def test_answers_that_are_final(
    opened: Callable[..., Any], proxy: FaultProxy, client: str, answer: tuple[int, str], match: str
) -> None:
    storage = opened(client=client)
    for call in (OPERATIONS["read"], OPERATIONS["list"]):
        proxy.plan.append(Fault(answer=answer))
        one_line(lambda call=call: call(storage), match)  # type: ignore[misc]
    assert storage.retried() == Retries(0, 0)


@pytest.mark.parametrize(
    ("operation", "right"), [("read", "GetObject"), ("list", "ListBucket"), ("create", "PutObject")]
)
def test_denied_says_which_right_is_missing(
    opened: Callable[..., Any], proxy: FaultProxy, client: str, operation: str, right: str
) -> None:
    storage = opened(client=client)
    proxy.plan.extend([Fault(answer=(403, "AccessDenied"))] * 2)
    one_line(lambda: OPERATIONS[operation](storage), f"access denied.*{right}")


def certificate_of_its_own(folder: Path) -> tuple[Path, Path]:
    """The certificate of a server, which nobody else vouches for, and its key."""
    if shutil.which("openssl") is None:
        missing("openssl (apt-get install openssl)")
    certificate, key = folder / "server.pem", folder / "server.key"
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=server -config /dev/null"
    words += " -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE"
    made = ["openssl", *words.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    return certificate, key


def test_an_untrusted_certificate(tmp_path: Path, client: str) -> None:
    certificate, key = certificate_of_its_own(tmp_path)
    with rclone_server(
        tmp_path / "server", "--cert", str(certificate), "--key", str(key)
    ) as server:
        url = server.url("tls", client=client).replace("http:", "https:")
        untrusting: Any = open_storage(url)
        assert "tls_verify" in one_line(lambda: list(untrusting.list()), "TLS failed")
        assert untrusting.retried() == Retries(0, 0)
        for number, verify in enumerate((certificate, "false")):
            storage: Any = open_storage(url, options={"tls_verify": str(verify)})
            put(storage, f"x{number}")
            assert read(storage, f"x{number}", 0, 9) == b"data"
            storage.close()
        untrusting.close()


def test_a_connection_that_is_cut_within_tls_is_no_failure_of_tls(
    tmp_path: Path, client: str
) -> None:
    certificate, key = certificate_of_its_own(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    class Cutting(Accepting):
        def serve(self, client: socket.socket) -> None:
            secured = context.wrap_socket(client, server_side=True)
            secured.recv(1 << 16)
            os.close(secured.detach())  # without TLS's own goodbye

    with Cutting() as server:
        url = f"s3://{BUCKET}/x?endpoint=https{server.url.removeprefix('http')}&client={client}"
        storage: Any = open_storage(f"{url}&tls_verify={certificate}&retries=1")
        said = one_line(lambda: read(storage, "x", 0, 9), "the connection was lost")
        assert "tried 2 times" in said
        storage.close()


def read_in_silence(storage: Any, proxy: FaultProxy) -> None:
    proxy.silent = True
    read(storage, "x", 0, 300_000)


def write_into_silence(storage: Any, proxy: FaultProxy) -> None:
    with storage.create("large") as sink:
        sink.write(bytes(PART + 1))
        proxy.silent = True
        for _ in range(9):
            sink.write(bytes(PART))


@pytest.mark.timeout(method="thread")  # the alarm is the test's own
@pytest.mark.parametrize("call", [read_in_silence, write_into_silence])
def test_ctrl_c_gets_through(
    opened: Callable[..., Any],
    proxy: FaultProxy,
    client: str,
    call: Callable[[Any, FaultProxy], None],
) -> None:
    storage = opened(client=client, part_size=PART, timeout="3000s", deadline="3000s")
    assert read(storage, "x", 0, 300_000) == DATA
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.4)
    try:
        with pytest.raises(KeyboardInterrupt):  # without waiting for the time-out
            call(storage, proxy)
    finally:
        signal.signal(signal.SIGALRM, before)


# What a killed writer leaves

WRITER = """
import sys, time
from iobench.storage import open_storage
with open_storage(sys.argv[1]).create("data/half") as sink:
    sink.write(bytes(11 << 20))
    print("half", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("server", ["rclone", "swift"])
def test_what_a_killed_writer_leaves_is_found(request: pytest.FixtureRequest, server: str) -> None:
    url = request.getfixturevalue(f"{server}_s3").url(part_size=PART)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"half\n"
    writer.kill()
    writer.wait()
    writer.stdout.close()
    storage: Any = open_storage(url)
    assert list(storage.list()) == []
    assert storage.discard_unfinished(lambda key: False) == ()
    assert storage.discard_unfinished(lambda key: key.startswith("data/")) == ("data/half",)
    assert storage.discard_unfinished(lambda key: True) == ()
    put(storage, "data/half", b"whole")
    assert read(storage, "data/half", 0, 99) == b"whole"
    storage.close()


# Secrets

CANARIES = {
    "AWS_ACCESS_KEY_ID": "CANARYKEYID0123456789",
    "AWS_SECRET_ACCESS_KEY": "canary/secret+0123456789",
    "AWS_SESSION_TOKEN": "canary-token-0123456789",
}


def told(error: BaseException) -> str:
    """All that a traceback, a log or a pickle could show of an error and of those behind it."""
    text, link, seen = [], error, set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        text += [
            repr(link),
            str(link),
            repr(link.args),
            repr(vars(link)),
            *traceback.format_exception(link),
        ]
        link = link.__cause__ or link.__context__  # type: ignore[assignment]
    return "\n".join(text) + repr(pickle.dumps(error))


def test_no_secret_is_ever_told(
    opened: Callable[..., Any],
    proxy: FaultProxy,
    client: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    caplog.set_level("WARNING")
    echo = " ".join(
        CANARIES.values()
    )  # a server that sends the request back, as AWS does for a wrong signature
    wrong = opened(client=client, retries=1)
    unreachable = opened(client=client, retries=1, endpoint=f"http://127.0.0.1:{free_port()}")
    secure = opened(client=client, retries=1, endpoint=f"https://127.0.0.1:{proxy.port}")
    faults = [
        Fault(answer=(400, "Odd"), message=echo),
        Fault(answer=(301, "PermanentRedirect"), message=echo),
        Fault(reset_after=5),
    ]
    texts = []
    for storage in (wrong, unreachable, secure):
        for fault in (None, *faults):
            for call in OPERATIONS.values():
                proxy.plan.clear()
                proxy.plan.extend([fault] * 4 if fault else [])
                with pytest.raises(StorageError) as caught:
                    call(storage)
                texts.append(told(caught.value))
        texts += [
            repr(storage),
            repr(vars(storage)["options"]),
            repr(storage.facts()),
            repr(pickle.dumps(storage)),
        ]
    texts += [record.getMessage() for record in caplog.records]
    assert any("***" in text for text in texts), "the server's echo was met"
    for value in CANARIES.values():
        assert [text for text in texts if value in text] == []


def test_a_missing_package_names_the_extra(tmp_path: Path) -> None:
    """In a process that can't see the packages."""
    script = """
import importlib.util, sys
find = importlib.util.find_spec
absent = ("obstore", "s3fs", "boto3")
importlib.util.find_spec = lambda name, *rest: None if name in absent else find(name, *rest)
from iobench.base.errors import UsageError
from iobench.storage import open_storage
for client in ("obstore", "s3fs", "boto3"):
    try:
        open_storage(f"s3://bucket/x?client={client}")
    except UsageError as error:
        print(error)
"""
    for extra, line in zip(("s3", "s3", "boto3"), python(script).splitlines(), strict=True):
        assert f"[{extra}]" in line


# Secrets, by the command line


QUICK = (
    *("--no-ablations", "--repeat", "1", "--calibration", "0.1s"),
    *("--set", "epochs=1", "--set", "loader.workers=1", "--json"),
)


def flags(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


CANARY = "canary-9d2c41e7a6f05b38"


def test_a_secret_is_found_nowhere(
    rclone_s3: S3Server,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs that succeed, and runs that fail because of the credentials, with a traceback asked for:
    neither shows them.
    """
    where = rclone_s3.url(f"{tmp_path.name}/secret")
    size = flags("sample_size.mean=20kB", "sample_size.stdev=1kB")
    assert main(["generate", "cosmoflow", "--to", where, "--samples", "8", *size]) == 0
    results = ["--results", str(tmp_path / "results")]
    run = ["run", "cosmoflow-h100", "--data", where, *results, *QUICK, *flags("batch_size=2")]
    checkpoint = ["checkpoint", "resnet50", "--to", rclone_s3.url(f"{tmp_path.name}/ckpt")]
    checkpoint += ["--scale", "1/2048", "--repeat", "1", *results]
    assert main(run) in (0, 3)
    assert main(checkpoint) == 0
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARY)
    _tried([*run, "--debug"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    for client in ("obstore", "s3fs", "boto3"):
        _tried([*run, *flags(f"storage.client={client}"), "--debug"])
    _tried([*checkpoint, "--debug"])
    for found in (tmp_path / "results").glob("*/run.json"):
        for form in ("text", "json", "csv", "markdown"):
            main(["report", str(found), "--format", form])
    shown = capfd.readouterr()
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert files
    haystack = (shown.out + shown.err).encode() + b"".join(path.read_bytes() for path in files)
    needles = (CANARY, SECRET, hashlib.sha256(CANARY.encode()).hexdigest())
    assert sum(haystack.count(needle.encode()) for needle in needles) == 0
    assert KEY.encode() not in b"".join(path.read_bytes() for path in files)


def _tried(words: list[str]) -> None:
    """Whatever comes of it; ``--debug`` raises what it would have said in one line."""
    import traceback

    try:
        main(words)
    except Exception:
        traceback.print_exc()
