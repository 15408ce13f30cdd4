"""The steps of a run as Chrome trace events, which Perfetto (ui.perfetto.dev) opens.

Source: "Trace Event Format" (Google): complete events (``ph: X``) with ``ts`` and ``dur`` in
microseconds, counters (``C``), instants (``i``) and metadata (``M``), in any order. Those of a
thread either follow one another or lie within one another.

Each rank is a process, and a last process has what concerns all ranks. The events record times from
the start of their epoch alone, so epochs, repetitions and phases are shown one after the other,
without the time between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from ..base.text import MAX_SHOWN, printable
from ..judge.figures.events import Array, Events
from ..record.run import RunRecord

CHUNK_ROWS = 4096
"""Rows that are turned into text at a time: memory does not grow with the run."""

MAX_BINS = 600
"""Points of the bandwidth of one repetition."""

PARTS = {
    "wait": "wait_ns",
    "copy": "copy_ns",
    "busy": "busy_ns",
    "sync": "sync_ns",
    "save": "checkpoint_ns",
    "still": "lost_ns",
}
"""The parts of a step, in the order in which they happen."""

ALL_RANKS = 1 << 17
"""The process for all ranks together. That of rank N is N + 1: 0 is the kernel's in Perfetto."""

PHASES, EPOCHS, STEPS = 1, 2, 1
"""Threads: phases and epochs of ``ALL_RANKS``, steps of a rank."""

MAX_NS = 1 << 54
"""Half a year: damaged events may have any number."""

ALL = slice(None)

NOTE = (
    "Epochs, repetitions and phases are shown one after the other; the time between them is not. "
    "A slice 'steps A to B' holds the sums of several steps that were recorded as one row."
)


TraceEvent = dict[str, object]


def trace(doc: RunRecord, events: Events) -> Iterator[str]:
    """The document in pieces of limited length. ``events`` are those of the whole run."""
    about = {
        "run": printable(doc.run_id, MAX_SHOWN),
        "iobench_version": printable(doc.iobench_version, MAX_SHOWN),
        "status": doc.status,
        "validity": doc.validity,
        "note": NOTE,
    }
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n'
    ranks = [int(rank) for rank in np.unique(events["rank"])]
    yield ",\n".join(map(json.dumps, _names(ranks)))
    begin = 0
    for phase, repetition, rows in _blocks(events):
        block = _Block(events, rows, begin, f"{printable(phase, 200)}, repetition {repetition + 1}")
        for piece in block.pieces():
            yield "".join(f",\n{json.dumps(event, separators=(',', ':'))}" for event in piece)
        begin = block.end
    yield "\n]}\n"


def _names(ranks: Sequence[int]) -> Iterator[TraceEvent]:
    """The names of all processes and threads, and the order of the processes."""
    for rank in ranks:
        yield _meta(rank + 1, 0, "process_name", name=f"rank {rank}")
        yield _meta(rank + 1, 0, "process_sort_index", sort_index=rank + 1)
        yield _meta(rank + 1, STEPS, "thread_name", name="steps")
    yield _meta(ALL_RANKS, 0, "process_name", name="all ranks")
    yield _meta(ALL_RANKS, 0, "process_sort_index", sort_index=0)
    yield _meta(ALL_RANKS, PHASES, "thread_name", name="phases")
    yield _meta(ALL_RANKS, EPOCHS, "thread_name", name="epochs")


def _meta(pid: int, tid: int, what: str, **args: str | int) -> TraceEvent:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args, "ts": 0}


def _slice(
    name: str, kind: str, pid: int, tid: int, start: int, length: int, **more: object
) -> TraceEvent:
    """``start`` and ``length`` in nanoseconds."""
    times = {"ts": start / 1000, "dur": length / 1000}
    return {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": tid, **more, **times}


def _blocks(events: Events) -> Iterator[tuple[str, int, Array]]:
    """Phase, repetition and row numbers of each repetition, in the order of the file."""
    keys = zip(events["phase"].tolist(), events["repetition"].tolist(), strict=True)
    found: dict[tuple[str, int], list[int]] = {}
    for row, key in enumerate(keys):
        found.setdefault(key, []).append(row)
    for (name, number), rows in found.items():
        yield str(name), number, np.array(rows)


class _Block:
    """The rows of one repetition of one phase, which begins at ``begin`` nanoseconds."""

    def __init__(self, events: Events, rows: Array, begin: int, name: str) -> None:
        order = np.lexsort(tuple(events[key][rows] for key in ("start_ns", "epoch", "rank")))
        self._events, self._rows = events, rows[order]
        self._begin, self._name = begin, name
        rank, epoch = self._column("rank"), self._column("epoch")
        start = _bounded(self._column("start_ns"))
        ends = start.copy()
        for part in PARTS.values():
            ends += self._time(part)
        self.end, self._epochs = begin, []
        shift = np.zeros(len(start), dtype=np.int64)
        for number in np.unique(epoch):
            mine = epoch == number
            shift[mine] = self.end
            length = int(ends[mine].max())
            self._epochs.append((int(number), self.end, length))
            self.end += length
        # A late wake-up shortens the next step: a step never lasts beyond the start of the next.
        follows = np.append((rank[1:] == rank[:-1]) & (epoch[1:] == epoch[:-1]), False)
        self._start = start + shift
        self._limit = np.where(follows, np.roll(start, -1), ends) + shift

    def _column(self, name: str, of: slice = ALL) -> Array:
        """The values of a column in the rows ``of`` the block."""
        return self._events[name][self._rows[of]]

    def _time(self, name: str, of: slice = ALL) -> Array:
        """Nanoseconds of a part of the steps."""
        return _bounded(self._column(name, of))

    def _bounds(self, of: slice) -> Array:
        """For each of these rows the start of its first part, and the end of each part."""
        bounds = [self._start[of]]
        for name in PARTS.values():
            bounds.append(np.minimum(bounds[-1] + self._time(name, of), self._limit[of]))
        return np.stack(bounds, axis=1)

    def pieces(self) -> Iterator[list[TraceEvent]]:
        """All events of the block, in pieces."""
        yield self._of_all_ranks()
        for first in range(0, len(self._rows), CHUNK_ROWS):
            yield self._steps(slice(first, first + CHUNK_ROWS))

    def _of_all_ranks(self) -> list[TraceEvent]:
        """The phase, its epochs, and the bandwidth."""
        whole = self.end - self._begin
        found = [_slice(self._name, "phase", ALL_RANKS, PHASES, self._begin, whole)]
        for number, start, length in self._epochs:
            found.append(_slice(f"epoch {number + 1}", "epoch", ALL_RANKS, EPOCHS, start, length))
        return [*found, *self._bandwidth()]

    def _bandwidth(self) -> Iterator[TraceEvent]:
        """What all ranks together received in each bin of time, in bytes/s, and 0 at the end."""
        bins = min(MAX_BINS, len(self._rows))
        edges = np.unique(np.linspace(self._begin, self.end, bins + 1).astype(np.int64))
        if len(edges) < 2:
            return
        arrived = np.minimum(self._start + self._time("wait_ns"), self._limit)
        taken = _bounded(self._column("bytes_read"))
        moved, _ = np.histogram(arrived, bins=edges, weights=taken)
        rates = np.append(np.round(moved / (np.diff(edges) / 1e9)), 0.0).astype(np.int64)
        new = np.flatnonzero(np.diff(rates, prepend=-1))  # a counter keeps its value
        counter = {"ph": "C", "name": "bytes read, B/s", "pid": ALL_RANKS, "tid": 0}
        for at, rate in zip(edges[new].tolist(), rates[new].tolist(), strict=True):
            yield {**counter, "args": {"B/s": rate}, "ts": at / 1000}

    def _steps(self, rows: slice) -> list[TraceEvent]:
        """The slices of some rows: each step with its parts, and a mark where it was retried."""
        names = ("rank", "step", "steps", "samples", "bytes_read", "retries")
        known = (self._column(name, rows).tolist() for name in names)
        found = []
        for times, rank, step, steps, samples, read, retries in zip(
            self._bounds(rows).tolist(), *known, strict=True
        ):
            pid, length = rank + 1, times[-1] - times[0]
            name = f"step {step}" if steps <= 1 else f"steps {step} to {step + steps - 1}"
            args = {"samples": samples, "bytes_read": read}
            args |= {"retries": retries} if retries else {}
            found.append(_slice(name, "step", pid, STEPS, times[0], length, args=args))
            for part, start, end in zip(PARTS, times[:-1], times[1:], strict=True):
                if end > start:
                    found.append(_slice(part, part, pid, STEPS, start, end - start))
            if retries:
                mark = {"ph": "i", "s": "t", "name": "retries", "pid": pid, "tid": STEPS}
                found.append({**mark, "ts": times[0] / 1000})
        return found


def _bounded(values: Array) -> Array:
    found: Array = np.clip(values.astype(np.int64), 0, MAX_NS)
    return found
