"""Findings about a loader of the user's own, by name, from what was seen of it.

They explain a verdict and change none, so none of them makes a run invalid.

A loader may deliver samples more than once in an epoch: torch gives each worker a copy of an
iterable dataset, which must ask which share is that worker's. One that does not ask delivers
everything as often as there are workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from ..base.units import counted, format_bytes, format_count, format_duration, format_percent
from ..record.job import UserFacts
from ..record.run import Finding, TrainingRecord
from ..record.training import Repetition
from .evidence import StartLeftOut
from .promise import shown

MIN_WAIT = 0.05
"""Share of the time that ranks wait for batches, from which on the loader costs something."""

CPU_BOUND, WAITING = 0.8, 0.5
"""CPU time of a fetch over its wall time: above the one it computes, below the other it waits."""

MOST_OF_WAITS = 0.5
"""A sampler that takes more than this share of the waits for batches is what to mend first."""

MOST_OF_MAKING = 0.5
"""A collate_fn that takes this share of the time to make a batch is what to look at first."""

MIN_COLLATE = 0.3
"""Share of the time to make a batch that ``collate_fn`` may take."""

MIN_HELD_BACK = 0.25
"""Share of the waits for batches in which a later batch may be ready."""

MIN_SPAWN = 0.05
"""Share of an epoch that the start of its workers may take."""

MOST_OF_START = 0.5
"""Share of what an epoch takes before its first read, above which the start of workers is it."""

MIN_EPOCHS, SLOWER = 4, 1.5
"""Epochs after the first, in each of which steps wait longer, and by this factor in the last: both
are a choice."""

MIN_COPIED = 64 << 20
"""Bytes of its own by which each worker may grow."""

BATCHES_IN_WORKER = 4
"""Batches for which a worker may need memory at a time: samples, the batch, and copies of both."""


def user_findings(doc: TrainingRecord) -> list[Finding]:
    """All findings about the user's loader; none if the loader is another one."""
    facts = doc.job.loader.user
    if not doc.job.subject.users or facts is None:
        return []
    return [
        *_time(doc, facts),
        *_spawn(doc, facts),
        *_start(doc, facts),
        *_memory(facts),
        *_data(doc, facts),
    ]


def _time(doc: TrainingRecord, facts: UserFacts) -> Iterator[Finding]:
    waits = [
        each.wait_s / each.wall_s
        for each in doc.job.repetitions
        if each.wait_s is not None and each.wall_s
    ]
    if not waits or median(waits) < MIN_WAIT:
        return
    if (facts.sampling or 0.0) > MOST_OF_WAITS:
        yield Finding(
            rule="user.sampler_share",
            level="info",
            evidence=f"the sampler takes {format_percent(facts.sampling or 0.0)} of the waits for "
            "batches, in the training process",
            remedy="choose the samples of an epoch at once, such as by torch.randperm, or before "
            "the training",
        )
        return  # what the workers do meanwhile hardly matters
    if (slower := slower_epochs(doc.job.repetitions[-1])) is not None:
        yield Finding(
            rule="user.slower_epochs",
            level="warning",
            evidence=waits_grow(slower),
            remedy=LOOK_AT_GROWTH,
        )
    if facts.busiest is not None:
        yield Finding(
            rule="user.uneven_workers",
            level="info",
            evidence=f"{uneven(facts)}, and the others have nothing to do meanwhile",
            remedy=EVEN_SHARES,
        )
    yield from _order(facts)
    yield from _collate(facts)
    share = facts.cpu_share
    if share is None:
        return
    if share >= CPU_BOUND and facts.workers:
        yield Finding(
            rule="user.workers_are_cpu_bound",
            level="info",
            evidence=f"while a worker makes a batch, it computes for {format_percent(share)} of "
            "the time: faster storage does not help",
            remedy="use more workers if cores are free, or prepare the data before the training",
        )
    elif share < WAITING:
        yield Finding(
            rule="user.workers_wait",
            level="info",
            evidence=f"while a batch is made, the process waits for {format_percent(1 - share)} "
            f"of the time: for storage, a network or a lock{_tested(doc)}",
            remedy="find out for what. Of a storage or a network, keep more reads in flight, by "
            f"more workers, threads or a longer prefetch; {IN_TURNS}",
        )


def _order(facts: UserFacts) -> Iterator[Finding]:
    held_back = facts.held_back
    if held_back is None or held_back < MIN_HELD_BACK:
        return
    slow = facts.slow_worker
    named = f"; {slow_worker(slow)}" if slow is not None else ""
    yield Finding(
        rule="user.out_of_order_wait",
        level="info",
        evidence=f"in {format_percent(held_back)} of the waits for a batch, a "
        f"later one was ready and held back, because batches come in their order{named}",
        remedy="set in_order=False in the DataLoader if the order does not matter, or find what "
        "makes some batches slow",
    )


LOOK_AT_GROWTH = (
    "find what grows with each epoch, such as a list of the dataset's, a cache without a bound, "
    "files that stay open, or memory that is swapped"
)


def slower_epochs(done: Repetition) -> tuple[float, float] | None:
    """Seconds for which a step of the second and of the last epoch waits, if each waits longer."""
    waits = [each.wait_s / each.steps for each in done.epochs if each.wait_s and each.steps]
    later = waits[1:]
    if len(later) < MIN_EPOCHS or len(waits) < len(done.epochs):
        return None
    grows = all(one < other for one, other in pairwise(later)) and later[-1] > SLOWER * later[0]
    return (later[0], later[-1]) if grows else None


def waits_grow(slower: tuple[float, float]) -> str:
    """``steps wait longer in each epoch: 10.0 ms in the second, 42.0 ms in the last``."""
    second, last = map(format_duration, slower)
    return f"steps wait longer in each epoch: {second} in the second, {last} in the last"


EVEN_SHARES = (
    "give each worker as much of the dataset as the others: shards of about the same size, and as "
    "many of them as there are workers, or a multiple of that"
)


def uneven(facts: UserFacts) -> str:
    """``one of 2 workers makes 90 % of the batches``."""
    most = facts.busiest or 0.0
    return (
        f"one of {len(facts.batches_by_worker)} workers makes {format_percent(most)} of the batches"
    )


def slow_worker(slow: tuple[float, float]) -> str:
    """``one worker takes 153 ms for a batch, the others 40.1 ms``."""
    slowest, others = map(format_duration, slow)
    return f"one worker takes {slowest} for a batch, the others {others}"


def _collate(facts: UserFacts) -> Iterator[Finding]:
    share = facts.collating
    if share is None or share < MIN_COLLATE:
        return
    yield Finding(
        rule="user.collate_share",
        level="info",
        evidence=f"collate_fn takes {format_percent(share)} of the time in which a batch is made",
        remedy="let it copy less: smaller types such as uint8, samples that are cropped before, or "
        "arrays that are stacked once",
    )


def cheaper_collate(share: float, batch_bytes: float | None) -> str:
    """What to do about a ``collate_fn`` that takes most of the time to make a batch."""
    return (
        f"make collate_fn cheaper, which takes {format_percent(share)} of the time in which a "
        "batch is made. Smaller types (uint8 instead of float32) and smaller samples help (now "
        f"{format_bytes(round(batch_bytes or 0))} in a batch). So does all that can be done before "
        "the training. A profiler (py-spy, cProfile) tells which of its lines are slow"
    )


IN_TURNS = "more workers bring nothing where they wait for each other, such as for a lock"
"""What a run with one number of workers does not tell of a loader that waits."""

BESIDE_TRAINING = (
    "let worker processes make the batches while the training computes: num_workers of a "
    "DataLoader, with persistent_workers=True (now the training process makes them itself)"
)
"""What to do about a loader without workers."""


def could_have_workers(workers: int, cores: float | None) -> bool:
    """Whether the training process makes its batches itself, and another core could."""
    return not workers and (cores is None or cores > 1)


def _tested(doc: TrainingRecord) -> str:
    """What the page cache in place of the storage brought, if that was measured."""
    for each in doc.job.ablations:
        if each.stage == "storage" and each.gain is not None:
            return f" (with the dataset in the page cache, the run is {shown(each.gain)} as fast)"
    return ""


def cheaper_start(method: str | None) -> str:
    """What makes the start of workers cheaper: fork, which is also torch's default, sends nothing.

    ``method``: None: the default.
    """
    if method in (None, "fork"):
        return "do less as a worker starts (worker_init_fn, what the dataset opens first)"
    return "make the dataset object cheaper to send"


def _spawn(doc: TrainingRecord, facts: UserFacts) -> Iterator[Finding]:
    walls = [each.wall_s for each in doc.job.repetitions if each.wall_s]
    ready, lasting = facts.usual_start_s, doc.job.workload.loader.persistent_workers
    if not walls or ready is None or (lasting and not doc.job.subject.watched):
        return  # workers that stay start once in a training, which is in no rate
    starts = max(1, doc.job.workload.epochs)
    if facts.worker_starts is not None:
        lasting = lasting or facts.worker_starts == 1 < starts  # they live on from epoch to epoch
        starts = min(starts, facts.worker_starts)
    share = ready * starts / median(walls)
    if share > MIN_SPAWN:
        method, less = facts.start_method or "fork", cheaper_start(facts.start_method)
        after = ", and the end of those before," if doc.job.subject.watched and starts > 1 else ""
        yield Finding(
            rule="user.spawn_cost",
            level="info",
            evidence=f"the start of {counted(facts.workers, 'worker')} by {method}{after} "
            f"takes {format_duration(ready)}, {format_percent(min(1.0, share))} of the time in all",
            remedy=less if lasting else f"set persistent_workers=True, or {less}",
        )


def start_left_out(doc: TrainingRecord, *, cut: bool) -> StartLeftOut | None:
    """The start of each epoch, where no rate has it and it is a considerable part; else None.

    A run of one epoch leaves out what its loader takes to begin, unless its workers start anew in
    each. ``cut``: a budget cut the epochs, and the verdict leaves out all before the first batch.
    """
    facts, subject = doc.job.loader.user, doc.job.subject
    done = [each for each in doc.job.repetitions if each.complete and each.epochs and each.wall_s]
    several = bool(done) and len(done[0].epochs) > 1
    if facts is None or subject.watched or not (cut or not (several or subject.anew)):
        return None
    starts = [epoch.startup_s for each in done for epoch in each.epochs[several:]]
    known = [each for each in starts if each is not None]
    if not known:
        return None
    before = median(known)
    seconds = before if several or subject.anew else before - (facts.usual_start_s or 0.0)
    made = median(each.samples / len(each.epochs) for each in done)
    times = max(1.0, (doc.job.dataset.in_epoch or 0) / made) if made else 1.0
    rest = max(0.0, median((each.wall_s or 0.0) / len(each.epochs) for each in done) - before)
    share = seconds / (seconds + rest * times) if seconds > 0 else 0.0
    workers_s = (facts.usual_start_s or 0.0) if subject.anew else 0.0
    mostly = workers_s >= MOST_OF_START * seconds
    return StartLeftOut(seconds, share, of_workers=mostly) if share > MIN_SPAWN else None


LOOK_AT_START = (
    "look at what the sampler and the loader do when an iteration begins, such as sorting"
)


def _start(doc: TrainingRecord, facts: UserFacts) -> Iterator[Finding]:
    """What each epoch takes before its first read, which the time of a run leaves out."""
    for each in doc.job.repetitions[-1:]:
        starts = [epoch.startup_s for epoch in each.epochs if epoch.startup_s is not None]
        if not starts or not each.wall_s:
            return
        unseen = ""
        if len(each.epochs) < 2 and not doc.job.subject.anew:
            unseen = (
                ": no rate of a run of one epoch has that time, and a training waits for it in each"
            )
        before = median(starts) - (facts.worker_ready_s or 0.0)
        if before > MIN_SPAWN * (before + each.wall_s / len(each.epochs)):
            yield Finding(
                rule="user.epoch_start",
                level="warning",
                evidence=f"an epoch takes {format_duration(before)} before its first read, beside "
                f"the start of workers{unseen}",
                remedy=f"{LOOK_AT_START}; iobench.watch counts that time as a wait",
            )


def _memory(facts: UserFacts) -> Iterator[Finding]:
    grown = facts.private_growth_bytes
    if grown is None or not facts.workers:
        return
    if grown / facts.workers < MIN_COPIED + BATCHES_IN_WORKER * (facts.batch_bytes or 0.0):
        return
    yield Finding(
        rule="user.dataset_copied",
        level="info",
        evidence=f"{counted(facts.workers, 'worker')} of a rank wrote {format_bytes(grown)} of "
        "memory that they had shared or not used: a list of Python objects is copied by reading it",
        remedy="keep lists of the dataset in numpy arrays or tensors",
    )


def _data(doc: TrainingRecord, facts: UserFacts) -> Iterator[Finding]:
    shared, compared = facts.shared_samples, facts.compared_samples
    if shared and compared and shared / compared > MIN_SHARED:
        yield Finding(
            rule="user.ranks_overlap",
            level="warning",
            evidence=f"of {format_count(compared)} samples in the first batches, "
            f"{format_count(shared)} were delivered by more than one rank",
            remedy="give each rank its share: torch's DistributedSampler, or RANK and WORLD_SIZE",
        )
    elif (found := repeated(doc)) is not None:
        yield found
    if facts.files_outside:
        names = f", such as {facts.outside[0]}" if facts.outside else ""
        yield Finding(
            rule="user.reads_outside_dataset",
            level="warning" if not facts.files_inside else "info",
            evidence=f"the loader opened {counted(facts.files_outside, 'file')} outside of the "
            f"dataset{names}: these were neither made cold nor measured",
            remedy="scan the directory that the loader really reads: iobench scan",
        )


MIN_SHARED = 0.01
"""Share of samples that several ranks or workers may deliver: some are equal by chance.

An epoch may also have as many more than its dataset: samplers fill the last batches up.
"""

OPENED_AGAIN = 1.5
"""As many times the files of a dataset are opened by several workers, and not by chance.

Each process counts a file once.
"""

ONE_FILE_EACH = 0.25
"""If as many files were opened as samples came, but for this share, each sample is a file."""

_SHARE = "in an IterableDataset, ask get_worker_info() which samples are this worker's share"


def repeated(doc: TrainingRecord) -> Finding | None:
    """That samples came several times in an epoch, from several workers; None if they did not."""
    facts = doc.job.loader.user
    if facts is None:
        return None
    shared, compared = facts.worker_shared_samples, facts.worker_compared_samples
    if shared and compared and shared / compared > MIN_SHARED:
        return Finding(
            rule="user.workers_overlap",
            level="warning",
            evidence=f"of {format_count(compared)} samples in the first batches, "
            f"{format_count(shared)} were delivered by more than one worker of a rank: an epoch "
            "has them several times",
            remedy=_SHARE,
        )
    more = _more_samples(doc, facts) or _more_opens(doc, facts)
    if not more:
        return None
    workers = f" (the loader has {counted(facts.workers, 'worker')})" if facts.workers else ""
    return Finding(
        rule="user.samples_repeat",
        level="warning",
        evidence=f"{more}{workers}",
        remedy=f"{_SHARE}; where the loader repeats the dataset on purpose, its epochs are as long "
        "as it makes them",
    )


def _more_samples(doc: TrainingRecord, facts: UserFacts) -> str:
    """That an epoch has more samples than the dataset; empty if none has."""
    most, what = doc.job.dataset.samples, "the dataset has"
    delivered = sum(each.samples for each in doc.job.repetitions)
    opened = facts.files_inside or 0
    if most is None and abs(opened - delivered) <= ONE_FILE_EACH * delivered:
        most, what = doc.job.dataset.files, "each opens a file, and the directory has"
    for each in doc.job.repetitions:
        samples = each.samples / max(1, len(each.epochs))
        if most and samples > (1 + MIN_SHARED) * most + each.accelerators:
            return (
                f"an epoch has {format_count(round(samples))} samples; {what} {format_count(most)}"
            )
    return ""


def _more_opens(doc: TrainingRecord, facts: UserFacts) -> str:
    """That an epoch opened files of single samples more than once; empty if none did."""
    files, last = doc.job.dataset.samples, doc.job.repetitions[-1:]
    if not files or files != doc.job.dataset.shards or not last:
        return ""
    opened = (facts.files_inside or 0) / max(1, len(last[0].epochs))
    if opened <= OPENED_AGAIN * files:
        return ""
    return (
        f"an epoch opened {format_count(round(opened))} files of the dataset, which has "
        f"{format_count(files)}, of one sample each"
    )
