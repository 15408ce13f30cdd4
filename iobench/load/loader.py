"""samples -> torch: a DataLoader whose workers read whole batches, and the ways in which a batch can reach the training process.

``ring``    workers read and decode into slots of shared memory; a slot number crosses the pipe
``tensor``  torch's default collate: every batch is a fresh shared tensor, as in most trainings today
``thread``  no worker processes: threads of the training process read into its own memory
``null``    workers read, and only counts cross the pipe
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info

from .. import buffers
from ..accelerate.base import Samples
from ..errors import BusError, IobenchError, UsageError, WorkerError
from ..processes import die_with_parent
from ..schema.workload import LoaderSpec
from ..units import format_bytes
from .bus import cause_of_death
from .delivered import Delivered, Stats
from .null import AnyReader
from .order import BatchPlan, Indices
from .slots import NO_SLOT, SlotRing

_LET_GO = -2
"""In the place of a slot: nothing is to be read, what is mapped is to be dropped."""


class Batch(Samples):
    """A batch in the training process.

    ``data``: uint8 tensor that holds all samples (None for transport 'null'); ``offsets`` and ``lengths``: where each sample lies in it, in
    bytes; ``indices``: sample numbers in the dataset; ``stats``: what it cost the worker. ``batch[i]`` is sample i, without a copy.
    With transport 'ring' the memory is reused once the batch and all tensors made from it are gone.
    """

    __slots__ = ("indices", "stats")

    def __init__(
        self,
        data: torch.Tensor | None,
        indices: Indices,
        offsets: Indices,
        lengths: Indices,
        stats: Stats,
    ) -> None:
        super().__init__(data, offsets, lengths)
        self.indices = indices
        self.stats = stats


_NOTHING: Indices = np.empty(0, np.int64)


class Request(NamedTuple):
    """What the training process asks a worker for."""

    slot: int
    indices: Indices


class _Reply(NamedTuple):
    slot: int
    indices: Indices
    offsets: Indices
    lengths: Indices
    stats: Stats
    tensor: torch.Tensor | None


class _Requests(Sampler[Request]):
    """Batches of the epoch, each with a slot to land in. Runs in the training process, whenever the loader has room for another request.

    ``room`` tells the bytes that samples may take. Where it is given, a batch too large for a slot travels without one, as those for which
    no slot is free.
    """

    def __init__(
        self, ring: SlotRing | None, room: Callable[[Indices], Indices] | None = None
    ) -> None:
        self.ring = ring
        self.room = room
        self.plan = BatchPlan(_NOTHING, batch_size=1)
        self.let_go = (
            0  # while positive, this is asked of so many workers, one after the other, and no batch
        )
        self.outstanding: set[int] = (
            set()
        )  # slots on their way; each iteration that has workers of its own gets a set of its own

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[Request]:
        plan, outstanding, let_go = self.plan, self.outstanding, self.let_go
        # Only here is it certain that no lasting worker still fills a slot of an epoch that was given up half way.
        self.release(outstanding)
        for _ in range(let_go):
            yield Request(_LET_GO, _NOTHING)
        for number in range(0 if let_go else len(plan)):
            indices = plan.batch(number)
            slot = self._slot(indices)
            if slot != NO_SLOT:
                outstanding.add(slot)
            yield Request(slot, indices)

    def _slot(self, indices: Indices) -> int:
        if self.ring is None:
            return NO_SLOT
        if self.room is not None and int(self.room(indices).sum()) > self.ring.slot_bytes:
            self.ring.misses += 1
            return NO_SLOT
        return self.ring.acquire()

    def release(self, outstanding: set[int]) -> None:
        while outstanding and self.ring:
            self.ring.release(outstanding.pop())


class _Worker(Dataset[Any]):
    """What runs in a worker: a request in, a reply out."""

    def __init__(
        self,
        reader: AnyReader,
        transport: str,
        ring: SlotRing | None,
        samples: int,
        largest_batch: int,
    ) -> None:
        self.largest_batch = largest_batch
        self.reader = reader
        self.transport = transport
        self.ring = ring
        self.samples = samples
        self._own: Any = None

    def __len__(self) -> int:
        return self.samples

    def reserve(self) -> None:
        """Touch all scratch memory before the first read: fresh memory costs more than what is read into it."""
        self.reader.reserve(self.largest_batch, into_output=self.transport != "null")
        if self.transport == "tensor":
            self._memory(self.largest_batch)

    def __getitems__(self, request: Request) -> Any:
        try:
            return self._answer(request)
        except IobenchError as error:
            return error  # as a value: torch would wrap it into a traceback of several pages

    def _answer(self, request: Request) -> _Reply | None:
        slot, indices = request
        if slot == _LET_GO:
            if self.reader.mapped is not None:
                self.reader.mapped.let_go()
            return None
        if self.transport == "null":
            return _reply(NO_SLOT, indices, self.reader.read(indices, None), None)
        if slot != NO_SLOT and self.ring is not None:
            return _reply(slot, indices, self.reader.read(indices, self.ring.view(slot)), None)
        memory = self._memory(int(self.reader.room(indices).sum()))
        delivered = self.reader.read(indices, memory)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        parts = [
            whole[o : o + n]
            for o, n in zip(delivered.offsets.tolist(), delivered.lengths.tolist(), strict=True)
        ]
        # default_collate refuses samples of unequal length; what people then write is a flat tensor with offsets.
        equal = len(set(delivered.lengths.tolist())) == 1
        tensor = default_collate(parts).reshape(-1) if equal else torch.cat(parts)
        packed = np.cumsum(delivered.lengths) - delivered.lengths
        return _reply(
            NO_SLOT, indices, Delivered(packed, delivered.lengths, delivered.stats), tensor
        )

    def _memory(self, nbytes: int) -> memoryview:
        if self._own is None or len(self._own) < nbytes:
            self._own = buffers.private(max(nbytes + nbytes // 4, 1 << 20)).array
        return self._own.data[:nbytes]  # type: ignore[no-any-return]


def _reply(
    slot: int, indices: Indices, delivered: Delivered, tensor: torch.Tensor | None
) -> _Reply:
    return _Reply(slot, indices, delivered.offsets, delivered.lengths, delivered.stats, tensor)


def _as_is(reply: Any) -> Any:
    return reply


def _start_worker(number: int) -> None:
    """In each worker process: one thread for torch's own kernels, Ctrl-C is the parent's to handle, and nobody outlives the parent."""
    die_with_parent()
    _start_worker_of_thread(number)


def _start_worker_of_thread(number: int) -> None:
    """The same where a thread made the worker, whose end the kernel would take for the parent's, or a fork server, which is the parent.

    torch's own watchdog ends a worker without a parent, too, within seconds. Its handler of SIGBUS
    prints that shared memory is short, which is one cause of several (see ``worker_death``).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGBUS, signal.SIG_DFL)
    single_threaded()
    info = get_worker_info()
    if info is not None and isinstance(info.dataset, _Worker):
        info.dataset.reserve()


def worker_start(start_method: str) -> Callable[[int], None]:
    """What a worker process of this thread's loader does first."""
    bound = threading.current_thread() is threading.main_thread() and start_method != "forkserver"
    return _start_worker if bound else _start_worker_of_thread


def single_threaded() -> None:
    """Keep torch's own kernels to one thread: processes are the parallelism here, and their threads would fight over the cores."""
    torch.set_num_threads(1)


class BatchLoader(DataLoader[Any]):
    """A ``torch.utils.data.DataLoader`` that yields ``Batch``. Make one with ``iobench.load.make_loader``.

    ``plan_epoch(epoch)`` gives the rank's BatchPlan of an epoch; ``largest_batch`` is the room in bytes that a slot must have.
    """

    def __init__(
        self,
        reader: AnyReader,
        spec: LoaderSpec,
        plan_epoch: Any,
        *,
        samples: int,
        largest_batch: int,
    ) -> None:
        self.reader = reader
        self.loader_spec = spec
        self.plan_epoch = plan_epoch
        self.transport = spec.transport
        self.thread_workers = spec.workers if spec.transport == "thread" else 0
        processes = 0 if spec.transport == "thread" else spec.workers
        self.in_flight = max(1, max(processes, self.thread_workers) * spec.prefetch_factor)
        if spec.transport == "tensor":
            check_memory(largest_batch)
        if spec.transport == "tensor" and processes:
            check_shared_memory(self.in_flight * largest_batch)
        self.ring = (
            self._make_ring(largest_batch, shared=processes > 0)
            if spec.transport in ("ring", "thread")
            else None
        )
        self.requests = _Requests(self.ring, reader.room if spec.slot_size is None else None)
        self._lasting = spec.persistent_workers and processes > 0
        self.epoch = 0
        self.cpu_ns: dict[int, int] = {}  # of each worker process, since it started
        workers: dict[str, Any] = {}
        if processes:
            workers = {
                "num_workers": processes,
                "prefetch_factor": spec.prefetch_factor,
                "persistent_workers": spec.persistent_workers,
                "multiprocessing_context": spec.start_method,
                "worker_init_fn": _start_worker,
            }
        super().__init__(
            _Worker(reader, spec.transport, self.ring, samples, largest_batch),
            batch_sampler=self.requests,  # type: ignore[arg-type]
            collate_fn=_as_is,
            pin_memory=spec.pin_memory and spec.transport == "tensor" and torch.cuda.is_available(),
            **workers,
        )

    def check_worker_number_rationality(self) -> None:
        """torch warns of more workers than cores; here that is something to measure."""

    def _make_ring(self, largest_batch: int, *, shared: bool) -> SlotRing:
        slot = self.loader_spec.slot_size or max(largest_batch, 4096)
        count = (
            self.in_flight + 2
        )  # one batch in the consumer's hands, one on its way to the device
        need = count * slot
        have = buffers.available()
        if need > 0.8 * have:
            raise UsageError(
                f"the loader's ring needs {format_bytes(need)} ({count} slots of {format_bytes(slot)}), "
                f"{format_bytes(have)} of memory are available",
                remedy="lower loader.workers, loader.prefetch_factor or batch_size, or set reader.crop",
            )
        return SlotRing(count, slot, shared=shared)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration reads; each has its own order."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.plan_epoch(self.epoch))

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        self.requests.plan = self.plan_epoch(self.epoch)
        if not self._lasting:
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
                    return
                except RuntimeError as error:
                    death = worker_death(error)
                    if death is not None:
                        raise cause_of_death(death, self.reader) or death from error
                    raise
                yield self._receive(reply, outstanding)
        except IobenchError:
            _end(replies)
            self.shutdown()  # what failed once must not go on reading behind the user's back
            raise
        finally:
            if not self._lasting:
                _end(replies)
                self.requests.release(outstanding)  # nobody fills them any more

    def _receive(self, reply: Any, outstanding: set[int]) -> Batch:
        if isinstance(reply, IobenchError):
            raise reply
        slot, indices, offsets, lengths, stats, tensor = reply
        self.cpu_ns[stats.process] = stats.cpu_ns
        if slot != NO_SLOT and self.ring is not None:
            outstanding.discard(slot)
            tensor = torch.from_numpy(self.ring.lease(slot))
        return Batch(tensor, indices, offsets, lengths, stats)

    def _threaded(self) -> Iterator[Any]:
        """The same requests and replies, by threads of this process, in order."""
        local = threading.local()
        make = self.reader.clone
        readers: list[AnyReader] = []

        def answer(request: Request) -> Any:
            if not hasattr(local, "worker"):
                reader = make()
                readers.append(reader)
                local.worker = _Worker(reader, self.transport, self.ring, 0, 0)
            return local.worker.__getitems__(request)

        pending: deque[Future[Any]] = deque()
        requests = iter(self.requests)
        pool = ThreadPoolExecutor(self.thread_workers, thread_name_prefix="iobench-worker")
        try:
            for request in requests:
                pending.append(pool.submit(answer, request))
                if len(pending) >= self.in_flight:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for reader in readers:
                reader.close()

    def let_go(self) -> None:
        """Between epochs: nothing of the data stays mapped, here or in a lasting worker, so that the page cache can be emptied."""
        if self.reader.mapped is None:
            return
        self.reader.mapped.let_go()  # threads share its storage
        if not self._lasting or getattr(self, "_iterator", None) is None:
            return  # workers that have ended took their maps along
        self.requests.let_go = (
            self.num_workers
        )  # an iteration hands its requests to the workers in turn, so each gets one
        try:
            for reply in super().__iter__():
                if isinstance(reply, IobenchError):
                    raise reply
        finally:
            self.requests.let_go = 0

    def shutdown(self) -> None:
        """End the workers now rather than when the loader is collected."""
        iterator = getattr(self, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
            self._iterator = None
        self.reader.close()


def _end(replies: Any) -> None:
    """End the processes or threads behind an iterator, where it has any."""
    end = getattr(replies, "_shutdown_workers", None) or getattr(replies, "close", None)
    if end is not None:
        end()


def worker_death(error: BaseException) -> WorkerError | None:
    """What torch reports when a worker process dies, as one line; None for any other error.

    torch raises it from a signal handler, so it can surface at any point of the training process, not in the loader alone.
    """
    if not isinstance(error, RuntimeError) or "DataLoader worker" not in str(error):
        return None
    if "Bus error" in str(error):
        return BusError("a loader worker")
    return WorkerError(
        f"a loader worker died: {str(error).splitlines()[0]}",
        remedy="see the kernel log for out-of-memory kills",
    )


def check_shared_memory(needed: int, folder: str = "/dev/shm") -> None:
    """torch keeps the batches of worker processes in files there; when it is full, workers die by SIGBUS. Raises UsageError before."""
    try:
        space = os.statvfs(folder)
    except OSError:
        return  # torch will say so itself
    free = space.f_bavail * space.f_frsize
    if needed > free:
        raise UsageError(
            f"transport 'tensor' may hold {format_bytes(needed)} of batches in {folder}, {format_bytes(free)} are free",
            remedy=f"use transport 'ring', lower loader.workers or loader.prefetch_factor, or mount {folder} larger",
        )


def check_memory(largest_batch: int) -> None:
    """Raises UsageError for a batch, of this many bytes at most, that no memory would hold."""
    have = buffers.available()
    if largest_batch > have:
        raise UsageError(
            f"a batch may take {format_bytes(largest_batch)}, {format_bytes(have)} of memory are "
            "available",
            remedy="lower batch_size, or set reader.crop; iobench verify checks a dataset's sizes",
        )
