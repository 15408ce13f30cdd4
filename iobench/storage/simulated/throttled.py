"""Storage of known speed.

``throttled+URL?bandwidth=2GB&latency=5ms&latency_p99=40ms&iops=1e4&write_bandwidth=500MB&sync=2ms``
``&opens=2000&open_latency=1ms``

It checks the verdict, and answers "what if my storage did 2 GB/s with 5 ms?". The time of a read
has two parts:

- The link serves one read at a time, in order of arrival, for all threads and forked processes. A
  read of n bytes takes max(n / ``bandwidth``, 1 / ``iops``). ``write_bandwidth`` is a second link,
  for data that sinks accept.
- ``latency`` is added to every read; the latencies of reads in flight overlap. With
  ``latency_p99`` each read's latency is drawn from a lognormal distribution with the median
  ``latency`` and that 99th percentile: a long tail, as object stores have, and defined by the two
  figures that monitoring shows. Its mean is above its median; ``describe`` reports the mean.

``opens`` and ``open_latency`` are the rate and the latency of opens, stats and listings, as a
server of metadata has them. A read pays for an open if its file is not open: each read of a file of
one sample, and the first one of any other file, of which a process keeps ``MAX_HANDLES``.

``sync`` is what each commit takes: of an object that becomes durable, or of a part of one.

The wrapped storage is never made faster: the time that it takes counts as part of the total.
"""

from __future__ import annotations

import ctypes
import math
import random
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from ...base.errors import UsageError, in_option
from ...base.units import parse_duration, parse_size
from ..base import Buffer, Entry, Sink, Storage, Syncing
from ..handles import MAX_HANDLES
from ..shared import SharedNumber
from ..wrapper import Wrapper

_Z99 = 2.3263478740408408  # the 99th percentile of the standard normal distribution

_RANDOM = random.SystemRandom()
"""It has no state that processes share: torch gives the workers of all ranks the same seed, with
which the reads of all ranks would be slow at the same steps.
"""


class SharedLink:
    """Serves one request at a time, in order of arrival.

    It is shared by all processes forked from the one that made it.
    """

    def __init__(self) -> None:
        # On the monotonic clock, which all processes share.
        self._free_at = SharedNumber(ctypes.c_double)

    def served_at(self, arrived_s: float, service_s: float) -> float:
        """When a request that takes ``service_s`` is done; the link is busy until then."""
        with self._free_at.alone():
            done = max(arrived_s, self._free_at.value) + service_s
            self._free_at.value = done
            return done


class ThrottledStorage(Wrapper):
    """See the module. Bandwidths in bytes/s, latencies in seconds; None or 0: no limit."""

    scheme = "throttled"
    OPTIONS: ClassVar[frozenset[str]] = frozenset(
        {
            "bandwidth",
            "latency",
            "latency_p99",
            "iops",
            "write_bandwidth",
            "sync",
            "opens",
            "open_latency",
        }
    )

    def __init__(
        self,
        inner: Storage,
        *,
        bandwidth: float | None = None,
        latency_s: float = 0.0,
        latency_p99_s: float | None = None,
        iops: float | None = None,
        write_bandwidth: float | None = None,
        sync_s: float = 0.0,
        opens: float | None = None,
        open_latency_s: float = 0.0,
    ) -> None:
        super().__init__(inner)
        if latency_p99_s is not None and not 0 < latency_s <= latency_p99_s:
            raise UsageError(
                "throttled storage: latency_p99 needs a latency (the median) above zero, which is "
                "at most latency_p99"
            )
        self.bandwidth = bandwidth
        self.latency_s = latency_s
        self.latency_p99_s = latency_p99_s
        self.iops = iops
        self.write_bandwidth = write_bandwidth
        self.sync_s = sync_s
        self.opens = opens
        self.open_latency_s = open_latency_s
        self._sigma = math.log(latency_p99_s / latency_s) / _Z99 if latency_p99_s else 0.0
        self._reads = SharedLink()
        self._writes = SharedLink()
        self._asked = SharedLink()
        self._open: OrderedDict[str, None] = OrderedDict()  # what this process has open

    @classmethod
    def wrap(cls, inner: Storage, options: Mapping[str, str]) -> ThrottledStorage:
        """Raises UsageError for an invalid rate or duration, and for a rate of zero."""
        rates = {
            name: in_option(name, parse_size, options[name].removesuffix("/s"))
            for name in ("bandwidth", "write_bandwidth")
            if name in options
        }
        counts = {
            name: _parse_count(name, options[name]) for name in ("iops", "opens") if name in options
        }
        if 0 in rates.values():
            raise UsageError(
                "throttled storage needs a bandwidth above zero",
                remedy="for example throttled+/data?bandwidth=100MB",
            )
        latencies = {
            f"{name}_s": in_option(name, parse_duration, options[name])
            for name in ("latency", "latency_p99", "sync", "open_latency")
            if name in options
        }
        return cls(inner, **counts, **rates, **latencies)

    def facts(self) -> dict[str, Any]:
        return {
            **super().facts(),
            "bandwidth_bytes_per_s": self.bandwidth,
            "latency_s": self.latency_s,
            "latency_p99_s": self.latency_p99_s,
            "latency_mean_s": self.latency_s * math.exp(self._sigma**2 / 2),
            "iops": self.iops,
            "write_bandwidth_bytes_per_s": self.write_bandwidth,
            "sync_s": self.sync_s,
            "opens_per_s": self.opens,
            "open_latency_s": self.open_latency_s,
        }

    def latency(self) -> float:
        """The latency of the next read in seconds."""
        return (
            self.latency_s * math.exp(_RANDOM.normalvariate(0.0, self._sigma))
            if self._sigma
            else self.latency_s
        )

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        if (self.opens or self.open_latency_s) and (once or not self._is_open(key)):
            self._answered(time.monotonic())
        arrived = time.monotonic()
        count = self.inner.read_into(key, offset, buffer, once=once)
        service = max(
            count / self.bandwidth if self.bandwidth else 0.0, 1 / self.iops if self.iops else 0.0
        )
        _wait_until(self._reads.served_at(arrived, service) + self.latency())
        return count

    def _answered(self, arrived: float) -> None:
        """Wait until an open, a stat or a listing that began at ``arrived`` is answered."""
        if self.opens or self.open_latency_s:
            done = self._asked.served_at(arrived, 1 / self.opens if self.opens else 0.0)
            _wait_until(done + self.open_latency_s)

    def _is_open(self, key: str) -> bool:
        """Whether this process has the file open; from now on it has."""
        known = key in self._open
        self._open[key] = None
        if len(self._open) > MAX_HANDLES:
            self._open.popitem(last=False)
        return known

    def open_and_close(self, key: str) -> None:
        arrived = time.monotonic()
        super().open_and_close(key)
        self._answered(arrived)

    def size(self, key: str) -> int:
        arrived = time.monotonic()
        found = self.inner.size(key)
        self._answered(arrived)
        return found

    def list(self, prefix: str = "") -> Iterator[Entry]:
        self._answered(time.monotonic())
        return self.inner.list(prefix)

    @contextmanager
    def create(self, key: str, *, size_hint: int = 0, durable: bool = True) -> Iterator[Sink]:
        with self.inner.create(key, size_hint=size_hint, durable=durable) as sink:
            yield (
                ThrottledSink(sink, self._writes, self.write_bandwidth, self.sync_s)
                if self.write_bandwidth or self.sync_s
                else sink
            )
            began = time.monotonic()
        if durable:
            _wait_until(began + self.sync_s)


class ThrottledSink:
    """Accepts data at the bandwidth of the link, and makes them durable in ``sync_s``."""

    def __init__(
        self, inner: Sink, link: SharedLink, bandwidth: float | None, sync_s: float
    ) -> None:
        self._inner = inner
        self._link = link
        self._bandwidth = bandwidth
        self._sync_s = sync_s

    def write(self, data: bytes | Buffer) -> None:
        arrived = time.monotonic()
        self._inner.write(data)
        if self._bandwidth:
            _wait_until(self._link.served_at(arrived, memoryview(data).nbytes / self._bandwidth))

    def sync(self) -> None:
        began = time.monotonic()
        assert isinstance(self._inner, Syncing)
        self._inner.sync()
        _wait_until(began + self._sync_s)


def _wait_until(moment_s: float) -> None:
    delay = moment_s - time.monotonic()
    if delay > 0:
        time.sleep(delay)


def _parse_count(name: str, text: str) -> float:
    try:
        count = float(text)
    except ValueError:
        count = 0.0
    if not 0 < count < math.inf:  # NaN fails too
        raise UsageError(
            f"throttled storage: {name} is '{text}'",
            remedy=f"use a number above zero, for example {name}=1000 or {name}=1e3",
        )
    return count
