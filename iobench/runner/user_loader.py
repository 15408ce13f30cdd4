"""A loader of the user's own: try it before the run, and adopt its settings as the workload's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from ..base.errors import UsageError
from ..base.units import format_duration
from ..record.job import UserFacts
from ..record.manifest import Manifest
from ..settings.workload import Workload
from ..storage.base import Storage, innermost
from ..subject.batches import hashes
from ..subject.loader import open_user_loader
from .conductor import last_messages
from .crew import ForkedCrew
from .messages import Link, Tried

MAX_BATCHES = 10
"""Batches that are looked at, whose samples are compared between the ranks."""

_MAX_S = 20.0
"""Seconds after which a slow loader is asked for no more batches."""

MAX_TRY_S = 900.0
"""Time for the user's factory and the first batches; it may index a large dataset."""


def try_loader(
    workload: Workload, manifest: Manifest, storage: Storage, *, world: int, ranks: range
) -> list[Tried]:
    """Let each of the ``ranks`` make the user's loader, and look at its first batches.

    That is off the clock. ``world``: the number of ranks of all hosts.
    Raises UsageError for what the user's factory does wrong, and WorkerError if its loader fails.
    """
    if innermost(storage) is not storage:
        raise UsageError(
            f"your loader opens the files itself, so what {storage.url} adds to them has no effect",
            remedy="name the directory itself",
        )
    began = time.monotonic()

    def not_for_ever() -> None:
        if time.monotonic() - began > MAX_TRY_S:
            crew.hurry(ranks)  # nobody waits for what such a rank could still report
            raise UsageError(
                f"your loader has not delivered its first batches within "
                f"{format_duration(MAX_TRY_S)}, and may never do",
                remedy="see where it waits (py-spy), or give it less data to index",
            )

    task = TryUserLoader(workload, manifest, storage)
    crew = ForkedCrew(len(ranks), task, first=ranks.start, world=world)
    return last_messages(crew, Tried, not_for_ever)


class TryUserLoader:
    """Call the factory, and look at the first batches of its loader."""

    others_code = True  # see ``Load``

    def __init__(self, workload: Workload, manifest: Manifest, storage: Storage) -> None:
        self.workload, self.manifest, self.storage = workload, manifest, storage

    def run(self, link: Link) -> None:
        workload = self.workload
        loader = open_user_loader(
            self.manifest,
            self.storage,
            workload.loader.model_copy(update={"replay": "none"}),
            link.place(link.world, workload.batch_size),
            bounded=False,
            silent=link.rank > 0,
            compares=True,
        )
        sizes: Counter[int] = Counter()
        seen: list[int] = []
        began = time.monotonic()
        loader.set_epoch(0)
        batches = iter(loader)
        for batch in batches:
            sizes[batch.stats.samples] += 1
            seen += hashes(batch.value)
            if sizes.total() >= MAX_BATCHES or time.monotonic() - began > _MAX_S:
                break
            if link.stopped.value:
                break
        facts = loader.facts()
        close = getattr(batches, "close", None)
        if close is not None:
            close()
        loader.shutdown()
        link.send(
            Tried(
                facts=facts,
                batch_size=sizes.most_common(1)[0][0] if sizes else workload.batch_size,
                prefetch_factor=loader.meter.prefetch_factor or workload.loader.prefetch_factor,
                persistent=bool(getattr(loader.meter.inner, "persistent_workers", False)),
                hashes=seen,
                not_replaced=loader.not_replaced,
            )
        )


def adopt(workload: Workload, tried: Sequence[Tried]) -> Workload:
    """The workload with what the user's loader does: its workers, and the size of its batches.

    An emulated accelerator keeps its samples/s: its step takes longer or shorter as the batch is
    larger or smaller than the workload's.
    """
    first = tried[0]
    size = Counter(each.batch_size for each in tried).most_common(1)[0][0]
    accelerator = workload.accelerator
    if accelerator.step_time is not None:
        step_time = accelerator.step_time * size / workload.batch_size
        accelerator = accelerator.model_copy(update={"step_time": step_time})
    loader = workload.loader.model_copy(
        update={
            "workers": first.facts.workers,
            "prefetch_factor": first.prefetch_factor,
            "persistent_workers": first.persistent,
            "start_method": first.facts.start_method or workload.loader.start_method,
        }
    )
    return workload.model_copy(
        update={"batch_size": size, "accelerator": accelerator, "loader": loader}
    )


def shared_samples(tried: Sequence[Tried]) -> tuple[int, int] | None:
    """(samples that more than one rank delivered, samples compared); None with one rank."""
    if len(tried) < 2:
        return None
    ranks = [set(each.hashes) for each in tried]
    count = Counter(one for rank in ranks for one in rank)
    return sum(1 for number in count.values() if number > 1), len(count)


def facts_of(tried: Sequence[Tried]) -> UserFacts:
    """What all ranks together found out, with the samples that several of them delivered."""
    facts = UserFacts.together([each.facts for each in tried])
    shared = shared_samples(tried)
    if shared is None:
        why = facts.not_measured | {"shared_samples": "there is one rank"}
        return facts.model_copy(update={"not_measured": why})
    return facts.model_copy(update={"shared_samples": shared[0], "compared_samples": shared[1]})


def reads_elsewhere(tried: Sequence[Tried]) -> str:
    """Why the dataset's files are not those that the loader reads; empty if they may be."""
    facts = facts_of(tried)
    if facts.files_outside and not facts.files_inside:
        return (
            f"your loader opened no file of the dataset, but others, such as {facts.outside[0]}"
            if facts.outside
            else "your loader opened no file of the dataset"
        )
    return ""
