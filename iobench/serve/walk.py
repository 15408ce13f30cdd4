"""Searches in an index on disk, as DiskANN makes them: each is a walk of dependent reads.

A query keeps a list of candidates. In each round it reads the nodes of the closest ones that were
not read yet, ``beam_width`` at a time, and their neighbours are the candidates of the next round.
So the nodes of a round are known only when those of the round before are in memory, and a search
takes ``reads / beam_width`` latencies of the storage, however fast the storage is otherwise.

Here the bytes of the nodes are random, and which nodes come next follows from them and from the
query: nothing can be read ahead, and every query takes a way of its own. The checksum of each node
is compared with the manifest. What can't be emulated is the answer: no vector is near another one.

One thread carries out all searches. A thread for each would spend its time in handing over the
interpreter, since a round of reads is soon over.

Source: DiskANN, ``src/pq_flash_index.cpp`` (``cached_beam_search``); Subramanya et al.,
"DiskANN: Fast Accurate Billion-point Nearest Neighbor Search on a Single Node" (2019).
"""

from __future__ import annotations

import gc
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ..base.errors import CorruptSampleError, IobenchError, UsageError
from ..base.payload import mix64
from ..record.manifest import Manifest
from ..settings.scenario import SearchSpec
from ..storage.base import Storage
from .arrivals import Instants
from .client import HEAD_START_NS, Issued, Sequel, steady
from .nodes import EndedReads, Numbers, Slots, node_source

UNKNOWN_RECALL = "the vectors of the emulated index are random, so no answer is right or wrong"

_WORD = 8  # bytes of a node that name a neighbour


def check_index(manifest: Manifest) -> None:
    """Check that the samples of a dataset can be nodes of an index. Raises UsageError."""
    spec = manifest.spec
    if spec.format != "tokens" or (spec.sample_size.mean or 0) < _WORD:
        raise UsageError(
            f"dataset '{spec.name}' is no index: its nodes must be a flat array of raw bytes "
            f"(format 'tokens'), each of {_WORD} bytes or more",
            remedy="generate one: iobench generate diskann --to DIR",
        )


class Searches:
    """Searches in one index, of which up to ``in_flight`` go on at a time.

    ``nodes``: the samples that are nodes; None: all. ``reads``: how many nodes were read.
    """

    def __init__(
        self,
        manifest: Manifest,
        storage: Storage,
        spec: SearchSpec,
        in_flight: int,
        nodes: Numbers | None = None,
    ) -> None:
        self._spec, self._nodes, self._checksums = spec, nodes, manifest.samples["xxh3"]
        self._count = manifest.sample_count if nodes is None else len(nodes)
        self._beam, self.in_flight = spec.beam_width, in_flight
        self._slots = Slots(manifest, storage.alignment, in_flight * self._beam)
        self._source = node_source(storage, self._slots)
        self._request = np.full(in_flight, -1)
        self._state = np.zeros(in_flight, np.uint64)
        self._left, self._waits = (np.zeros(in_flight, np.int64) for _ in range(2))
        self._failure: dict[int, IobenchError] = {}
        self.reads = 0

    def close(self) -> None:
        self._source.close()

    def issue(
        self,
        instants: Instants,
        queries: Numbers,
        *,
        drain_s: float,
        prepare: Callable[[], None] = lambda: None,
        sequel: Sequel | None = None,
    ) -> Issued:
        """Begin the search of ``queries[i]`` at ``instants[i]``; as ``client.issue``."""
        with steady():
            if len(queries):
                self._run(instants[:1] * 0, queries[:1], time.monotonic_ns(), 0)
            prepare()
            gc.collect()
            began_s, cpu_s, read = time.monotonic(), time.process_time(), self.reads
            begin_ns = time.monotonic_ns() + HEAD_START_NS
            if sequel is not None:
                sequel.begin(begin_ns)
            issued = self._run(instants, queries, begin_ns, int(drain_s * 1e9), sequel)
            cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - began_s
        self.reads -= read
        return Issued(**issued, bytes=self.reads * self._slots.size, cpu_s=cpu_s, wall_s=wall_s)

    def _run(
        self,
        instants: Instants,
        queries: Numbers,
        begin_ns: int,
        drain_ns: int,
        sequel: Sequel | None = None,
    ) -> dict[str, Any]:
        """Carry out all searches of a window."""
        number, next_one = len(instants), 0
        taken, issued, ready = (np.full(number, -1, np.int64) for _ in range(3))
        failed = np.zeros(number, np.uint8)
        failure: IobenchError | None = None
        lengths = self._lengths(queries)
        idle = deque((walk, 0) for walk in range(self.in_flight))  # and since when
        last_ns = (int(instants[-1]) if number else 0) + drain_ns
        while True:
            now = time.monotonic_ns() - begin_ns
            if now > last_ns and idle and drain_ns:
                number = next_one  # the others are left out: the searches can't keep up
            due = min(
                int(np.searchsorted(instants[:number], now, side="right")), next_one + len(idle)
            )
            if due > next_one:
                begun = np.arange(next_one, due)
                free = np.array([idle.popleft() for _ in begun])
                walks, since = free[:, 0], free[:, 1]
                taken[begun], issued[begun] = np.minimum(since, now), now
                self._request[walks], self._left[walks] = begun, lengths[begun]
                self._state[walks] = queries[begun].astype(np.uint64)
                self._first_round(walks)
                next_one = due
            if len(idle) == self.in_flight and next_one == number:
                break
            alarm = begin_ns + int(instants[next_one]) if idle and next_one < number else None
            walks = self._arrived(self._source.wait(alarm))
            if not len(walks):
                continue
            over = self._left[walks] == 0
            self._next_round(walks[~over])
            now = time.monotonic_ns() - begin_ns
            for walk in walks[over].tolist():
                request = int(self._request[walk])
                ready[request] = now
                idle.append((walk, now))
                if (why := self._failure.pop(walk, None)) is not None:
                    failed[request], failure = 1, failure or why
                elif sequel is not None:
                    sequel.ready(request, now)
        return {
            "intended_ns": instants,
            "taken_ns": taken,
            "issued_ns": issued,
            "ready_ns": ready,
            "failed": failed,
            "failure": failure,
        }

    def _lengths(self, queries: Numbers) -> Numbers:
        """How many nodes each search reads: lognormal, and fixed by the query."""
        spread = self._spec.spread
        sigma = math.sqrt(math.log1p(spread * spread))
        first = mix64(queries.astype(np.uint64))
        radius, angle = ((each >> np.uint64(11)) / 2.0**53 for each in (first, mix64(first)))
        normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
        lengths = self._spec.reads * np.exp(sigma * normal - sigma * sigma / 2)
        return np.asarray(np.maximum(1, np.rint(lengths)), np.int64)

    def _first_round(self, walks: Numbers) -> None:
        column = np.arange(self._beam, dtype=np.uint64)
        self._read(walks, mix64(self._state[walks][:, None] + column))

    def _next_round(self, walks: Numbers) -> None:
        """Read what the nodes of the last round name as neighbours."""
        if not len(walks):
            return
        state = self._state[walks] = mix64(self._state[walks])
        slots = walks[:, None] * self._beam + np.arange(self._beam)
        at = (state % np.uint64(self._slots.size - _WORD + 1)).astype(np.int64)[:, None]
        at = at + slots * self._slots.room + self._slots.head[slots]
        words = self._slots.memory[at[:, :, None] + np.arange(_WORD)].view(np.uint64)[:, :, 0]
        self._read(walks, mix64(state[:, None] ^ words))

    def _read(self, walks: Numbers, names: npt.NDArray[np.uint64]) -> None:
        """Begin a round: as many of the named nodes as are left to read."""
        width = np.minimum(self._left[walks], self._beam)
        self._left[walks] -= width
        self._waits[walks] = width
        wanted = np.arange(self._beam) < width[:, None]
        slots = (walks[:, None] * self._beam + np.arange(self._beam))[wanted]
        nodes = (names % np.uint64(self._count)).astype(np.int64)[wanted]
        self._source.begin(slots, nodes if self._nodes is None else self._nodes[nodes])

    def _arrived(self, ended: EndedReads) -> Numbers:
        """Note which reads have ended; the walks whose round is over."""
        slots, memory = self._slots, self._slots.memory.data
        size, digest = slots.size, xxhash.xxh3_64_intdigest
        starts = (ended.slots * slots.room + slots.head[ended.slots]).tolist()
        found = [digest(memory[start : start + size]) for start in starts]
        wrong = self._checksums[slots.node[ended.slots]] != np.array(found, np.uint64)
        corrupt = {
            slot: CorruptSampleError(
                f"node {slots.node[slot]} of {slots.key_of(slot)} has other bytes than the "
                "manifest's checksum (XXH3)"
            )
            for slot in (ended.slots[wrong].tolist() if wrong.any() else ())
        }
        for slot, why in (corrupt | ended.failures).items():
            self._failure[slot // self._beam] = why
            self._left[slot // self._beam] = 0
        self.reads += len(starts)
        walks, counts = np.unique(ended.slots // self._beam, return_counts=True)
        self._waits[walks] -= counts
        return np.asarray(walks[self._waits[walks] == 0])
