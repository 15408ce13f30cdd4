"""Where the data of an oracle lies: a local disk, S3 (rclone), or NFS (nfs-ganesha, version 4).

The rows of causes are the same at each of them; ``make oracles`` alone runs those of the servers.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from iobench.data.generator.engine import generate
from iobench.settings.base import build
from iobench.settings.dataset import DatasetSpec
from iobench.storage.local.storage import LocalStorage
from tests.servers.nfs import ganesha_v4, rclone_nfs
from tests.servers.s3 import BUCKET, ENVIRONMENT, rclone_server


@dataclass
class Place:
    """A storage with a folder of this host behind it, in which datasets are made.

    ``target``: the URL of a folder that can be written to.
    """

    root: Path
    address: Callable[[str, int], str]  # the URL of a folder below ``root``, by the server's port
    target: Callable[[str], str]
    port: int = 0
    direct: dict[str, Any] = field(default_factory=dict)  # reader settings against page caches
    notices_s: float = 0.0  # until the server sees new files
    made: dict[str, str] = field(default_factory=dict)  # names of datasets, by their specification

    def dataset(self, **spec: Any) -> str:
        """The URL of a dataset of this specification, which is generated once."""
        key = repr(sorted(spec.items()))
        if key not in self.made:
            name = f"data{len(self.made)}"
            asked = build(DatasetSpec, {"name": "demo", **spec}, where="oracle")
            generate(asked, LocalStorage(self.root / name), workers=0)
            time.sleep(self.notices_s)
            self.made[key] = name
        return self.address(self.made[key], self.port)


def wrapped(scheme: str, url: str, **options: object) -> str:
    """``throttled+URL?latency=20ms``, whether the URL has options or not."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{scheme}+{url}{'&' if '?' in url else '?'}{query}"


@contextmanager
def local(folder: Path) -> Iterator[Place]:
    """What is written goes to memory: other work on the disk would slow a durable write."""
    memory = Path("/dev/shm")
    written = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else folder))
    try:
        yield Place(
            folder,
            lambda name, port: str(folder / name),
            lambda name: str(written / name),
            direct={"direct": True},
        )
    finally:
        shutil.rmtree(written, ignore_errors=True)


@contextmanager
def s3(folder: Path) -> Iterator[Place]:
    seen = ("--dir-cache-time", "1s")  # datasets are made behind the server's back
    with rclone_server(folder / "server", *seen) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield Place(
            folder / "server" / "data" / BUCKET,
            lambda name, port: server.url(name, endpoint=f"http://127.0.0.1:{port}"),
            server.url,
            server.port,
            notices_s=1.5,
        )


@contextmanager
def nfs(folder: Path) -> Iterator[Place]:
    """libnfs writes with version 3 alone, which another server has."""
    with ganesha_v4(folder / "server") as server, rclone_nfs(folder / "third") as third:
        yield Place(
            server.root,
            lambda name, port: server.url(
                f"export/{name}", version=4, nfsport=port, mountport=port
            ),
            third.url,
            server.port,
        )


PLACES = {"local": local, "s3": s3, "nfs": nfs}


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Each of the places in turn."""
    with PLACES[request.param](tmp_path_factory.mktemp(request.param)) as found:
        yield found
