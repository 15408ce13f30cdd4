"""A torch DataLoader whose workers read whole batches.

The transport is the way in which a batch reaches the training process:

``ring``    workers read and decode into slots of shared memory and send only a slot number
``tensor``  torch's default collate: every batch is a new shared tensor, as in most trainings today
``thread``  no worker processes: threads of the training process read into its own memory
``null``    workers read, and send only counts
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import cycle
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info

from ..accelerate.base import Samples
from ..base import buffers
from ..base.buffers import Memory, Pool
from ..base.errors import BusError, IobenchError, NoRoomError, UsageError, WorkerError, first_line
from ..base.processes import die_with_parent
from ..base.units import format_bytes
from ..settings.workload import LoaderSpec
from .ending import cause_of_death, closed_at_exit
from .null import AnyReader, NullReader
from .order import BatchPlan, Indices
from .reader import BatchReader, BegunBatch
from .requests import Extents, Stats
from .slots import NO_SLOT, SlotRing
from .torch_compat import (
    HAS_IN_ORDER,
    end_iterator,
    end_workers,
    has_workers,
    kill_iterator,
    worker_error,
)

_SETTLE = -2
"""A request with this slot reads nothing.

The worker gives up what it reads ahead, and releases its memory maps.
"""


class Batch(Samples):
    """A batch in the training process.

    ``data`` is a uint8 tensor that holds all samples (None for transport 'null'). ``offsets`` and
    ``lengths`` are each sample's place in it, in bytes. ``indices`` are the sample numbers in the
    dataset. ``stats`` is what the batch cost the worker. ``batch[i]`` is sample i, without a copy.
    With transport 'ring' the memory is reused when the batch and all tensors that share its memory
    have been freed. ``made`` is what a ``Finish`` made of the samples.
    """

    __slots__ = ("indices", "made", "stats")

    def __init__(
        self,
        data: torch.Tensor | None,
        indices: Indices,
        offsets: Indices,
        lengths: Indices,
        stats: Stats,
        made: object = None,
    ) -> None:
        super().__init__(data, offsets, lengths)
        self.indices = indices
        self.stats = stats
        self.made = made


class Finish(Protocol):
    """What workers do with the samples of a batch after they have read them."""

    replaces: bool
    """Whether what it returns takes the place of the samples, which are not sent then.

    It may keep views of the samples' memory, which is not used again.
    """

    def prepare(self, reader: AnyReader) -> None:
        """Called for each reader before its first batch."""

    def __call__(
        self, reader: AnyReader, indices: Indices, delivered: Extents, memory: memoryview
    ) -> object:
        """Return what becomes ``Batch.made``. ``memory`` holds the samples of the batch.

        Raises IobenchError.
        """


_NOTHING: Indices = np.empty(0, np.int64)


class Later(NamedTuple):
    """A batch that a worker will be asked for, so that it can read it ahead.

    ``number`` is the same in the request for it; no two batches of a loader have the same.
    """

    number: int
    slot: int
    indices: Indices


class Request(NamedTuple):
    """A request of the training process to a worker: read samples ``indices`` into ``slot``.

    ``later`` are batches that were not announced to this worker before.
    """

    slot: int
    indices: Indices
    number: int = -1
    later: tuple[Later, ...] = ()


class _Reply(NamedTuple):
    slot: int
    indices: Indices
    offsets: Indices
    lengths: Indices
    stats: Stats
    tensor: torch.Tensor | None
    made: object


class _Requests(Sampler[Request]):
    """The requests of an epoch, each with a slot for its batch.

    It runs in the training process: the DataLoader takes the next request when a worker may have
    another one. ``room`` returns the largest number of bytes that each of the given samples may
    take. If it is given, a batch that may be too large for a slot is sent without one, as is a
    batch for which no slot is free.

    ``ahead`` batches of each worker are announced to it before they are requested. ``streams`` is
    the number of workers, which get the requests in turn. ``slots_ahead``: a batch that is
    announced gets its slot then, since its bytes are read into it.
    """

    def __init__(
        self,
        ring: SlotRing | None,
        room: Callable[[Indices], Indices] | None = None,
        *,
        ahead: int = 0,
        streams: int = 1,
        slots_ahead: bool = False,
    ) -> None:
        self.ring = ring
        self.room = room
        self.ahead = ahead
        self.streams = streams
        self.slots_ahead = slots_ahead and ring is not None
        self._next_number = 0  # of the next epoch's first batch
        self.plan = BatchPlan(_NOTHING, batch_size=1)
        # If positive, the next iteration requests no batches: it yields this many requests to
        # settle, one for each worker.
        self.workers_to_settle = 0
        # Slots of requests that have no reply yet. An iteration with its own workers has its own
        # set.
        self.outstanding: set[int] = set()

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[Request]:
        plan, outstanding = self.plan, self.outstanding
        if self.workers_to_settle:
            for _ in range(self.workers_to_settle):
                yield Request(_SETTLE, _NOTHING)
            return
        # After an epoch that was abandoned half way, persistent workers may have gone on filling
        # their slots. Only here is it certain that they have stopped.
        self.release(outstanding)
        first, self._next_number = self._next_number, self._next_number + len(plan)
        slots: dict[int, int] = {}  # of batches that were announced
        for number in range(len(plan)):
            indices = plan.batch(number)
            slot = slots.pop(number, NO_SLOT)
            if slot == NO_SLOT:
                slot = self._slot(indices, outstanding)
            later = []
            for other in self._to_announce(number, len(plan)):
                ahead = plan.batch(other)
                if self.slots_ahead:
                    if not self._has_slot(ahead):
                        continue  # it is read in its turn, with or without a slot
                    slots[other] = self._slot(ahead, outstanding)
                later.append(Later(first + other, slots.get(other, NO_SLOT), ahead))
            yield Request(slot, indices, first + number, tuple(later))

    def _to_announce(self, number: int, end: int) -> range:
        """The batches that the request for batch ``number`` announces to its worker."""
        last = number + self.ahead * self.streams
        begin = number + self.streams if number < self.streams else last
        return range(begin, min(last + 1, end), self.streams) if self.ahead else range(0)

    def _slot(self, indices: Indices, outstanding: set[int]) -> int:
        if self.ring is None:
            return NO_SLOT
        if not self._fits(indices):
            self.ring.misses += 1
            return NO_SLOT
        slot = self.ring.acquire()
        if slot != NO_SLOT:
            outstanding.add(slot)
        return slot

    def _fits(self, indices: Indices) -> bool:
        assert self.ring is not None
        return self.room is None or int(self.room(indices).sum()) <= self.ring.slot_bytes

    def _has_slot(self, indices: Indices) -> bool:
        return self.ring is not None and self.ring.free > 0 and self._fits(indices)

    def release(self, outstanding: set[int]) -> None:
        while outstanding and self.ring:
            self.ring.release(outstanding.pop())


class _Worker(Dataset[Any]):
    """The part that runs in a worker: it takes a request and returns a reply."""

    def __init__(
        self,
        reader: AnyReader,
        transport: str,
        ring: SlotRing | None,
        samples: int,
        largest_batch: int,
        ahead: int = 0,
        finish: Finish | None = None,
    ) -> None:
        self.finish = finish
        if finish is not None:
            finish.prepare(reader)
        self.largest_batch = largest_batch
        self.ahead = ahead
        # By number: batches that are read ahead, each with the memory that its samples stay in.
        self._begun: dict[int, _Ahead] = {}
        self._outputs = Pool()
        self.reader = reader
        self.transport = transport
        self.ring = ring
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def reserve(self) -> None:
        """Allocate and touch all scratch memory before the first read.

        The page faults of new memory cost more time than the reads into it.
        """
        self.reader.reserve(
            self.largest_batch, into_output=self.transport != "null", ahead=self.ahead
        )
        self.register()
        if self.transport == "tensor":
            ahead = self.ahead if self.reader.in_place else 0
            self._outputs.reserve(1 + ahead, self.largest_batch)

    def register(self) -> None:
        """Tell the reader of the slots, if it reads straight into them."""
        if self.ring is not None and self.reader.in_place and isinstance(self.reader, BatchReader):
            self.reader.register(self.ring.memory)

    def __getitems__(self, request: Request) -> Any:
        try:
            return self._answer(request)
        except IobenchError as error:
            return error  # returned, not raised: torch would add a traceback of several pages

    def _answer(self, request: Request) -> _Reply | None:
        slot, indices, number, later = request
        if slot == _SETTLE:
            self.settle()
            if self.reader.mapped is not None:
                self.reader.mapped.release_maps()
            return None
        begun = self._begun.pop(number, None)
        if begun is None and self.ahead:
            begun = self._begin(slot, indices)
        for other in later:
            self._begun[other.number] = self._begin(other.slot, other.indices)
        own = begun.output if begun is not None else None
        try:
            if self.transport == "null":
                return _reply(NO_SLOT, indices, self._read(indices, None, begun), None)
            if slot != NO_SLOT and self.ring is not None:
                view = self.ring.view(slot)
                delivered = self._read(indices, view, begun)
                return _reply(slot, indices, delivered, None, self._made(indices, delivered, view))
            if own is None:
                own = self._outputs.take(self._room(indices))
            delivered = self._read(indices, own.data, begun)
            made = self._made(indices, delivered, own.data)
            if self.finish is not None and self.finish.replaces:
                own = None  # it may have kept views of this memory
                return _reply(NO_SLOT, indices, delivered, None, made)
            return self._collated(indices, delivered, own, made)
        finally:
            if own is not None:
                self._outputs.give(own)

    def _made(self, indices: Indices, delivered: Extents, memory: memoryview) -> object:
        if self.finish is None:
            return None
        return self.finish(self.reader, indices, delivered, memory)

    def _begin(self, slot: int, indices: Indices) -> _Ahead:
        """Issue the requests of a batch, into the memory that its samples stay in."""
        assert not isinstance(self.reader, NullReader)
        output, own = None, None
        if self.reader.in_place and self.transport != "null":
            if slot != NO_SLOT and self.ring is not None:
                output = self.ring.view(slot)
            else:
                own = self._outputs.take(self._room(indices))
                output = own.data
        return _Ahead(self.reader.begin(indices, output), own)

    def _read(self, indices: Indices, output: memoryview | None, begun: _Ahead | None) -> Extents:
        if begun is None:
            return self.reader.read(indices, output)
        assert not isinstance(self.reader, NullReader)
        return self.reader.finish(begun.batch, indices, output)

    def settle(self) -> None:
        """Give up the batches that are read ahead: nothing is written for them after the return."""
        self.reader.settle()
        self._begun.clear()

    def _room(self, indices: Indices) -> int:
        return int(self.reader.room(indices).sum())

    def _collated(
        self, indices: Indices, delivered: Extents, memory: Memory, made: object
    ) -> _Reply:
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        parts = [
            whole[o : o + n]
            for o, n in zip(delivered.offsets.tolist(), delivered.lengths.tolist(), strict=True)
        ]
        # default_collate refuses samples of unequal length; trainings then usually write their own
        # collate function, which makes a flat tensor with offsets.
        equal = len(set(delivered.lengths.tolist())) == 1
        tensor = default_collate(parts).reshape(-1) if equal else torch.cat(parts)
        packed = np.cumsum(delivered.lengths) - delivered.lengths
        return _reply(
            NO_SLOT, indices, Extents(packed, delivered.lengths, delivered.stats), tensor, made
        )


class _Ahead(NamedTuple):
    """A batch that is read ahead; ``output``: the worker's own memory for it, if it needs any."""

    batch: BegunBatch
    output: Memory | None


def _reply(
    slot: int,
    indices: Indices,
    delivered: Extents,
    tensor: torch.Tensor | None,
    made: object = None,
) -> _Reply:
    offsets, lengths = delivered.offsets, delivered.lengths
    return _Reply(slot, indices, offsets, lengths, delivered.stats, tensor, made)


def _as_is(reply: Any) -> Any:
    return reply


def _start_worker(number: int) -> None:
    """Prepare a worker process, and have the kernel end it when its parent dies.

    See ``_start_worker_of_thread`` for the rest.
    """
    die_with_parent()
    _start_worker_of_thread(number)


def _but_lost_parents(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show an error as Python does, unless it says that the other end of a pipe is gone."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def _start_worker_of_thread(number: int) -> None:
    """Prepare a worker process that was started from a thread or by a fork server.

    PR_SET_PDEATHSIG is not set here, see prctl(2): it fires when the thread that created the worker
    ends, and with a fork server the parent is the server. torch's own watchdog ends a worker whose
    parent has died within seconds, too.

    The worker ignores SIGINT, which the training process handles, and gives torch's kernels one
    thread. torch's SIGBUS handler is removed: it reports too little shared memory, which is only
    one of several causes (see ``worker_death``). A thread of multiprocessing, which hands tensors
    over, prints a traceback if the training process dies meanwhile; that says nothing new.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGBUS, signal.SIG_DFL)
    sys.excepthook = _but_lost_parents
    single_threaded()
    info = get_worker_info()
    if info is not None and isinstance(info.dataset, _Worker):
        info.dataset.reserve()


def worker_start(start_method: str) -> Callable[[int], None]:
    """Return the function that a worker process runs first, if this thread starts it."""
    bound = threading.current_thread() is threading.main_thread() and start_method != "forkserver"
    return _start_worker if bound else _start_worker_of_thread


def single_threaded() -> None:
    """Limit torch's own kernels to one thread.

    The worker processes are the parallelism; more threads would only compete for the cores.
    """
    torch.set_num_threads(1)


class BatchLoader(DataLoader[Any]):
    """A ``torch.utils.data.DataLoader`` that yields ``Batch``.

    Make one with ``iobench.make_loader``. ``plan_epoch(epoch)`` returns the rank's BatchPlan
    of an epoch. ``largest_batch`` is the number of bytes that a slot must hold. ``ahead`` is the
    number of batches that each worker reads ahead. ``finish`` is what the workers do with samples.
    """

    def __init__(
        self,
        reader: AnyReader,
        spec: LoaderSpec,
        plan_epoch: Any,
        *,
        samples: int,
        largest_batch: int,
        ahead: int = 0,
        finish: Finish | None = None,
    ) -> None:
        self.reader = reader
        self.finish = finish
        self.ahead = ahead
        self.loader_spec = spec
        self.plan_epoch = plan_epoch
        self.transport = spec.transport
        self.thread_workers = spec.workers if spec.transport == "thread" else 0
        processes = 0 if spec.transport == "thread" else spec.workers
        streams = max(1, spec.workers)
        self._requested = max(1, spec.workers * spec.prefetch_factor)  # batches, at most
        self.in_flight = self._requested + ahead * streams
        self.round_batches = streams * max(1, ahead)  # that are read at the same time
        # Where samples stay where they are read to, each batch ahead needs its output already.
        self._outputs_ahead = ahead * streams if reader.in_place else 0
        if spec.transport == "tensor":
            check_memory(largest_batch + self._outputs_ahead * largest_batch)
        if spec.transport == "tensor" and processes:
            check_shared_memory(self._requested * largest_batch)
        self.ring = (
            self._make_ring(largest_batch, shared=processes > 0)
            if spec.transport in ("ring", "thread") and not (finish is not None and finish.replaces)
            else None
        )
        self.requests = _Requests(
            self.ring,
            reader.room if spec.slot_size is None else None,
            ahead=ahead,
            streams=streams,
            slots_ahead=reader.in_place,
        )
        self._unfinished = False  # the last epoch was abandoned half way
        self.lasting = spec.persistent_workers and processes > 0  # workers, over epochs
        self.epoch = 0
        self.cpu_ns: dict[int, int] = {}  # CPU time by process id, since the first read
        self._here = _Worker(
            reader, spec.transport, self.ring, samples, largest_batch, ahead, finish
        )
        workers: dict[str, Any] = {}
        if not spec.workers:
            self._here.register()
        if processes:
            workers = {
                "num_workers": processes,
                "prefetch_factor": spec.prefetch_factor,
                "persistent_workers": spec.persistent_workers,
                "multiprocessing_context": spec.start_method,
                "worker_init_fn": _start_worker,
            }
        if not spec.in_order:
            if not HAS_IN_ORDER:
                raise UsageError(
                    "loader.in_order=false needs torch 2.6 or newer",
                    remedy="install one, or leave that setting out",
                )
            workers["in_order"] = False
        super().__init__(
            self._here,
            batch_sampler=self.requests,  # type: ignore[arg-type]
            collate_fn=_as_is,
            pin_memory=spec.pin_memory and spec.transport == "tensor" and torch.cuda.is_available(),
            **workers,
        )

    def check_worker_number_rationality(self) -> None:
        """Suppress torch's warning about more workers than cores: that is a case to measure."""

    def _make_ring(self, largest_batch: int, *, shared: bool) -> SlotRing:
        slot = self.loader_spec.slot_size or max(largest_batch, 4096)
        # Two more: one batch that the consumer uses, and one that is copied to the device.
        count = self._requested + self._outputs_ahead + 2
        need = count * slot
        have = buffers.available()
        if need > 0.8 * have:
            raise NoRoomError(
                f"the loader's ring needs {format_bytes(need)} "
                f"({count} slots of {format_bytes(slot)}), "
                f"but only {format_bytes(have)} of memory are available",
                remedy="lower loader.workers, loader.prefetch_factor or batch_size, "
                + ("set reader.read_ahead=false, " if self._outputs_ahead else "")
                + "or set reader.crop",
            )
        return SlotRing(count, slot, shared=shared)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads; each epoch has its own order."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.plan_epoch(self.epoch))

    @closed_at_exit
    def __iter__(self) -> Generator[Batch, None, None]:  # type: ignore[override]
        if self._unfinished and self.ahead and self.lasting and has_workers(self):
            self._settle_workers()
        self._unfinished = True
        self.requests.plan = self.plan_epoch(self.epoch)
        if not self.lasting:
            self.requests.outstanding = set()
        outstanding = self.requests.outstanding
        if self.num_workers:
            self.worker_init_fn = worker_start(self.loader_spec.start_method)
        replies = self._threaded() if self.thread_workers else super().__iter__()
        try:
            while True:
                try:
                    reply = next(replies)
                except StopIteration:
                    self._unfinished = False
                    return
                except RuntimeError as error:
                    death = worker_death(error)
                    if death is not None:
                        raise cause_of_death(death, self.reader) or death from error
                    raise
                except (ConnectionError, EOFError) as error:
                    # The shared memory of a tensor is received from the worker that sent it.
                    if not self.num_workers or worker_error(error) is not None:
                        raise
                    death = WorkerError(
                        "a loader worker died before its batch was received",
                        remedy="see the kernel log for out-of-memory kills",
                    )
                    raise cause_of_death(death, self.reader) or death from error
                yield self._receive(reply, outstanding)
        except IobenchError:
            end_iterator(replies)
            self.shutdown()  # after an error no worker must go on reading
            raise
        finally:
            if not self.lasting:
                # Batches that are made now are for nobody, and may take as long as all before.
                # Workers that hand tensors over clean up after themselves.
                if self._unfinished and self.num_workers and self.transport in ("ring", "null"):
                    kill_iterator(replies)
                else:
                    end_iterator(replies)
                self._here.settle()  # without workers, this process reads ahead
                self.requests.release(outstanding)  # no worker fills them any more

    def _receive(self, reply: Any, outstanding: set[int]) -> Batch:
        if isinstance(reply, IobenchError):
            raise reply
        slot, indices, offsets, lengths, stats, tensor, made = reply
        self.cpu_ns[stats.process] = stats.cpu_ns
        if slot != NO_SLOT and self.ring is not None:
            outstanding.discard(slot)
            tensor = torch.from_numpy(self.ring.lease(slot))
        return Batch(tensor, indices, offsets, lengths, stats, made)

    def _threaded(self) -> Iterator[Any]:
        """Answer the requests with threads of this process; yield the replies in order."""
        local = threading.local()
        make = self.reader.clone

        def answer(request: Request) -> Any:
            if not hasattr(local, "worker"):
                local.worker = _Worker(
                    make(), self.transport, self.ring, 0, 0, self.ahead, self.finish
                )
                local.worker.register()
            return local.worker.__getitems__(request)

        def close(all_here: threading.Barrier) -> None:
            """Close this thread's reader: no other thread may use a ring of io_uring."""
            all_here.wait()  # so that each thread gets one of these calls
            if hasattr(local, "worker"):
                local.worker.reader.close()

        pending: deque[Future[Any]] = deque()
        # A batch is announced to one worker, so that with read-ahead each has its own requests.
        count = self.thread_workers if self.ahead else 1
        pools = [
            ThreadPoolExecutor(self.thread_workers // count, thread_name_prefix="iobench-worker")
            for _ in range(count)
        ]
        try:
            for pool, request in zip(cycle(pools), self.requests, strict=False):
                pending.append(pool.submit(answer, request))
                if len(pending) >= self._requested:
                    yield self._next(pending)
            while pending:
                yield self._next(pending)
        finally:
            for future in pending:
                future.cancel()
            for pool in pools:
                threads = self.thread_workers // count
                all_here = threading.Barrier(threads)
                try:
                    closed = [pool.submit(close, all_here) for _ in range(threads)]
                except BaseException:
                    all_here.abort()
                    raise
                pool.shutdown(wait=True)
                for future in closed:
                    future.result()

    def _next(self, pending: deque[Future[Any]]) -> Any:
        """Wait for the first of the replies, or for any where their order does not matter."""
        if self.loader_spec.in_order:
            return pending.popleft().result()
        found = wait(pending, return_when=FIRST_COMPLETED).done.pop()
        pending.remove(found)
        return found.result()

    def release_maps(self) -> None:
        """Release all memory maps of the data, here and in persistent workers.

        Call it between epochs, so that the pages can be dropped from the page cache.
        """
        if self.reader.mapped is None:
            return
        self.reader.mapped.release_maps()  # worker threads share this storage
        if not self.lasting or not has_workers(self):
            return  # the worker processes have ended, and their maps with them
        self._settle_workers()

    def _settle_workers(self) -> None:
        """Have each worker give up what it reads ahead, and release its memory maps."""
        # An iteration gives its requests to the workers in turn, so that each gets one.
        self.requests.workers_to_settle = self.num_workers
        try:
            for reply in super().__iter__():
                if isinstance(reply, IobenchError):
                    raise reply
        finally:
            self.requests.workers_to_settle = 0
        self._unfinished = False

    def shutdown(self) -> None:
        """End the workers now, not only when the loader is garbage-collected."""
        end_workers(self)
        self.reader.close()


def worker_death(error: BaseException) -> WorkerError | None:
    """Return a one-line error for torch's report of a dead worker; None for any other error.

    torch raises its report from a signal handler (SIGCHLD), so that it can appear anywhere in the
    training process, not only in the loader.
    """
    if not isinstance(error, RuntimeError) or "DataLoader worker" not in str(error):
        return None
    if worker_error(error) is not None:
        return None  # a RuntimeError of the worker's own code
    if "Bus error" in str(error):
        return BusError("a loader worker")
    return WorkerError(
        f"a loader worker died: {first_line(error)}",
        remedy="see the kernel log for out-of-memory kills",
    )


def check_shared_memory(needed: int, folder: str = "/dev/shm") -> None:
    """Raise NoRoomError if ``folder`` has less free space than the ``needed`` bytes.

    torch keeps the batches of worker processes in files there. If it is full, SIGBUS kills the
    workers.
    """
    try:
        space = os.statvfs(folder)
    except OSError:
        return  # without such a folder torch itself reports an error
    free = space.f_bavail * space.f_frsize
    if needed > free:
        raise NoRoomError(
            f"transport 'tensor' may hold {format_bytes(needed)} of batches in {folder}, "
            f"but only {format_bytes(free)} are free",
            remedy="use transport 'ring', lower loader.workers or loader.prefetch_factor, "
            f"or make {folder} larger",
        )


def check_memory(largest_batch: int) -> None:
    """Raise NoRoomError if a batch of ``largest_batch`` bytes is larger than the free memory."""
    have = buffers.available()
    if largest_batch > have:
        raise NoRoomError(
            f"a batch may take {format_bytes(largest_batch)}, but only {format_bytes(have)} of "
            "memory are available",
            remedy="lower batch_size, or set reader.crop; iobench verify checks a dataset's sizes",
        )
