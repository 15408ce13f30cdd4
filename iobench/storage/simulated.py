"""Storage of known behaviour: the oracles for the verdict, and the means to measure every other stage without storage."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from ..errors import MissingObjectError, StorageError, UsageError
from ..units import parse_duration, parse_size
from .base import Buffer, Cached, Entry, Guarded, Residency, Retries, Retrying, Sink, Storage, Unfinished


class _ReadOnly:
    """What can be read and not written."""

    alignment = 1
    scheme = ""
    url = ""

    def describe(self) -> dict[str, Any]:
        return {"scheme": self.scheme, "url": self.url}

    def create(self, key: str, *, size_hint: int = 0, durable: bool = True) -> AbstractContextManager[Sink]:
        raise StorageError(f"cannot create {key}: {self.scheme} storage is read-only")

    def flush(self) -> None:
        return

    def delete(self, key: str) -> None:
        raise StorageError(f"cannot delete {key}: {self.scheme} storage is read-only")

    def close(self) -> None:
        return


class MemoryStorage(_ReadOnly):
    """Objects in this process's memory; forked workers share them."""

    scheme = "memory"
    OPTIONS: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, url: str = "memory://", *, direct: bool = False, objects: Mapping[str, Buffer] | None = None) -> None:
        self.url = url
        self._objects = dict(objects or {})

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return (Entry(key, len(data)) for key, data in self._objects.items() if key.startswith(prefix))

    def size(self, key: str) -> int:
        return len(self._object(key))

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        source = self._object(key)[offset : offset + len(buffer)]
        # numpy lets go of the GIL while it copies; a memoryview assignment does not.
        np.copyto(np.frombuffer(buffer, dtype=np.uint8)[: len(source)], np.frombuffer(source, dtype=np.uint8))
        return len(source)

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "_objects": {key: bytes(data) for key, data in self._objects.items()}}

    def _object(self, key: str) -> Buffer:
        try:
            return self._objects[key]
        except KeyError:
            raise MissingObjectError(f"cannot read {key}: it is not in memory") from None


class _Wrapper:
    """Forwards everything to ``inner``; subclasses change what reading does."""

    scheme = ""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.url = f"{self.scheme}+{inner.url}"
        self.alignment = inner.alignment

    def __getstate__(self) -> dict[str, Any]:
        raise UsageError(
            f"{self.scheme} storage counts over forked processes and can't be sent to others", remedy="use --set loader.start_method=fork"
        )

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "scheme": self.scheme, "url": self.url}

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return self.inner.list(prefix)

    def size(self, key: str) -> int:
        return self.inner.size(key)

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        return self.inner.read_into(key, offset, buffer, once=once)

    def create(self, key: str, *, size_hint: int = 0, durable: bool = True) -> AbstractContextManager[Sink]:
        return self.inner.create(key, size_hint=size_hint, durable=durable)

    def flush(self) -> None:
        self.inner.flush()

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def close(self) -> None:
        self.inner.close()

    def check_target(self) -> None:
        if isinstance(self.inner, Guarded):
            self.inner.check_target()

    def retried(self) -> Retries:
        return self.inner.retried() if isinstance(self.inner, Retrying) else Retries(0, 0)

    def discard_unfinished(self, owned: Callable[[str], bool], *, dry_run: bool = False) -> tuple[str, ...]:
        return self.inner.discard_unfinished(owned, dry_run=dry_run) if isinstance(self.inner, Unfinished) else ()

    def evict(self, keys: Iterable[str]) -> None:
        if isinstance(self.inner, Cached):
            self.inner.evict(keys)

    def residency(self, keys: Iterable[str]) -> Residency:
        if not isinstance(self.inner, Cached):
            raise StorageError(f"{self.inner.url} has no page cache to measure")
        return self.inner.residency(keys)


class ThrottledStorage(_Wrapper):
    """A cap on bandwidth and on operations per second, shared by all processes, and a latency added to every read.

    Reads queue at the cap in order of arrival; the latency runs while they queue behind one another (a link, then a distance).
    """

    scheme = "throttled"
    OPTIONS: ClassVar[frozenset[str]] = frozenset({"bandwidth", "latency", "iops"})

    def __init__(self, inner: Storage, *, bandwidth: float | None = None, latency_s: float = 0.0, iops: float | None = None) -> None:
        super().__init__(inner)
        self.bandwidth = bandwidth
        self.latency_s = latency_s
        self.iops = iops
        self._free_at = multiprocessing.get_context("fork").Value("d", 0.0)  # when the link is free, on the system-wide monotonic clock

    @classmethod
    def wrap(cls, inner: Storage, options: Mapping[str, str]) -> ThrottledStorage:
        bandwidth = parse_size(options["bandwidth"].removesuffix("/s")) if "bandwidth" in options else None
        iops = float(options["iops"]) if "iops" in options and options["iops"].replace(".", "", 1).isdigit() else None
        if bandwidth == 0 or ("iops" in options and not iops):
            raise UsageError("throttled storage needs a bandwidth and iops above zero", remedy="e.g. throttled+/data?bandwidth=100MB")
        return cls(inner, bandwidth=bandwidth, latency_s=parse_duration(options.get("latency", 0)), iops=iops)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "bandwidth_bytes_per_s": self.bandwidth, "latency_s": self.latency_s, "iops": self.iops}

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        arrived = time.monotonic()
        count = self.inner.read_into(key, offset, buffer, once=once)
        service = max(count / self.bandwidth if self.bandwidth else 0.0, 1 / self.iops if self.iops else 0.0)
        with self._free_at.get_lock():
            done = max(arrived, self._free_at.value) + service
            self._free_at.value = done
        delay = done + self.latency_s - time.monotonic()
        if delay > 0:
            time.sleep(delay)
        return count


class FaultyStorage(_Wrapper):
    """Fails every Nth read (over all processes), or returns short reads, so that what depends on storage can be tested."""

    scheme = "faulty"
    OPTIONS: ClassVar[frozenset[str]] = frozenset({"fail_every", "fail_at", "short_every"})

    def __init__(self, inner: Storage, *, fail_every: int = 0, fail_at: int = 0, short_every: int = 0) -> None:
        super().__init__(inner)
        self.fail_every = fail_every
        self.fail_at = fail_at
        self.short_every = short_every
        self._reads = multiprocessing.get_context("fork").Value("q", 0)

    @classmethod
    def wrap(cls, inner: Storage, options: Mapping[str, str]) -> FaultyStorage:
        for key, value in options.items():
            if not value.isdigit():
                raise UsageError(f"faulty storage: {key} is '{value}'", remedy=f"give a whole number, e.g. {key}=100")
        return cls(inner, **{key: int(value) for key, value in options.items()})

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        with self._reads.get_lock():
            self._reads.value += 1
            number = self._reads.value
        if (self.fail_every and number % self.fail_every == 0) or number == self.fail_at:
            raise StorageError(f"cannot read {key}: simulated input/output error (read {number})")
        if self.short_every and number % self.short_every == 0:
            return self.inner.read_into(key, offset, buffer, once=once) // 2
        return self.inner.read_into(key, offset, buffer, once=once)
