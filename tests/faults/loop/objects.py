"""The same on S3: rclone's server behind a proxy that resets the Nth request."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.loop.scenarios import (
    CHECKPOINTS,
    DATED,
    MARKER,
    Call,
    Scenario,
    cleaned,
    is_foreign,
    not_whole,
    saved,
    tree,
    write_specs,
)
from tests.faults.loop.shim import REFUSED, Shim
from tests.servers.faultproxy import Fault, FaultProxy
from tests.servers.s3 import BUCKET, ENVIRONMENT, rclone_server

_OPTIONS = "retries=2&timeout=5s&deadline=15s"


@dataclass(frozen=True)
class Place:
    """``url`` without its options ends in the bucket; ``folder`` has its objects as files."""

    url: str
    folder: Path
    environment: Mapping[str, str]


class _Resets(FaultProxy):
    """Asks the state that the loop shares what befalls each request."""

    shim: Shim

    def fault(self, line: str = "") -> Fault:
        with self._lock:
            self.requests += 1
            hit = self.shim.request(line)
        if not hit:
            return Fault()
        return Fault(refuse=True) if hit == REFUSED else Fault(reset_after=0)


@contextmanager
def proxied(scratch: Path) -> Iterator[Place]:
    """A server and its proxy, which acts on the state in ``scratch``."""
    # Files that the loop puts there are seen at once.
    options = ("--dir-cache-time", "1ms")
    with rclone_server(scratch / "s3", *options) as server, _Resets(upstream=server.port) as proxy:
        proxy.shim = Shim(scratch / "state")
        url = f"s3://{BUCKET}/loop?endpoint=http://127.0.0.1:{proxy.port}&{_OPTIONS}"
        yield Place(url, scratch / "s3/data" / BUCKET, ENVIRONMENT)


class OnS3(Scenario):
    """A verb on the prefix ``loop``, which is ``self.place`` on the server's disk."""

    marker = MARKER

    def __init__(self, call: Call, url: str, folder: Path) -> None:
        super().__init__(call)
        self.url, self.folder, self.place = url, folder, folder / "loop"
        self.watched = (folder,)

    def fresh(self) -> None:
        for one in self.folder.iterdir():
            shutil.rmtree(one)

    def plant(self, home: Path) -> None:
        self.folder.joinpath("foreign").mkdir(exist_ok=True)
        self.folder.joinpath("foreign/precious").write_text("precious")
        if (self.place / self.marker).exists():
            (self.place / "mine.txt").write_text("mine")

    def ours(self) -> dict[str, bytes]:
        found = tree(self.place, without=DATED)
        return {name: data for name, data in found.items() if not is_foreign(name)}

    def clear_up(self, home: Path) -> Iterator[str]:
        yield from cleaned(
            self.call,
            self.url,
            lambda: sorted(name for name in tree(self.place) if not is_foreign(name)),
        )


class GenerateOnS3(OnS3):
    verb = "s3-generate"

    def prepare(self, home: Path) -> None:
        self.argv = ("generate", "./small.yaml", "--to", self.url, "--workers", "1", "--quiet")
        write_specs(home)
        self.must(self.argv)
        self.reference = self.ours()

    def holds(self, home: Path, *, after_retry: bool) -> Iterator[str]:
        kept = (name for name in self.ours() if after_retry or not name.startswith(".iobench-"))
        if sorted(kept) != sorted(self.reference) or any(
            data != self.reference[name]
            for name, data in self.ours().items()
            if name in self.reference
        ):
            yield f"it says ok, and {sorted(self.ours())} are there"
        yield from self.after_failure(home)

    def after_failure(self, home: Path) -> Iterator[str]:
        if (self.place / "manifest.json").exists() and self.call(("verify", self.url)) != 0:
            yield "there is a manifest of a dataset that is not whole"


class CleanOnS3(OnS3):
    verb = "s3-clean"

    def prepare(self, home: Path) -> None:
        self.argv = ("clean", self.url)
        write_specs(home)
        made = ("generate", "./small.yaml", "--to", self.url, "--workers", "1", "--quiet")
        self.must(made)
        self.kept = self.folder.parent.parent / "kept"
        shutil.copytree(self.place, self.kept)
        self.must(self.argv)

    def fresh(self) -> None:
        super().fresh()
        shutil.copytree(self.kept, self.place)

    def is_done(self, home: Path) -> bool:
        return not self.ours() and not (self.place / MARKER).exists()

    def holds(self, home: Path, *, after_retry: bool) -> Iterator[str]:
        left = [name for name in self.ours() if after_retry or not name.startswith(".iobench-")]
        if left or (self.place / MARKER).exists():
            yield f"it says ok, and {left} are left"

    def after_failure(self, home: Path) -> Iterator[str]:
        left = sorted(self.ours().keys() - {".iobench-lock"})
        if not (self.place / MARKER).exists() and left:
            yield f"the marker is gone, and {left} can't be cleaned any more"

    def clear_up(self, home: Path) -> Iterator[str]:
        yield from ()


class CheckpointOnS3(OnS3):
    verb = "s3-checkpoint"
    marker = CHECKPOINTS

    def prepare(self, home: Path) -> None:
        self.argv = (
            *("checkpoint", "llama3-8b", "--to", self.url, "--scale", "1/500000", "--repeat", "2"),
            *("--results", "results", "--keep-data", "--quiet"),
        )
        self.must(self.argv)
        shutil.rmtree(home / "results")

    def holds(self, home: Path, *, after_retry: bool) -> Iterator[str]:
        yield from saved(self.place, home / "results")

    def after_failure(self, home: Path) -> Iterator[str]:
        yield from not_whole(self.place)


ALL: tuple[type[OnS3], ...] = (GenerateOnS3, CleanOnS3, CheckpointOnS3)


def scenario(verb: str, call: Call, url: str, folder: Path) -> Scenario:
    return next(one for one in ALL if one.verb == verb)(call, url, folder)
