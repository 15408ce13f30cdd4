"""Advice on what this host does, and on what is beside loading.

The host prepares samples, hands batches over, and has so many cores. Beside loading are saves, the
start of epochs, and waiting for ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...schema.curve import Bound
from ...schema.subject import OWN
from ...schema.verdict import Advice
from ...units import counted, format_count, format_duration, format_percent
from .by_ceilings import waited_for
from .evidence import Evidence
from .promise import WORTH, demanded, model_gain
from .short import LONGER, cut_epochs
from .user_loader import MIN_HELD_BACK, WAITING

RING_OVER_TENSOR = 2.6 / 1.4
"""Smallest measured ratio of the ring transport to torch's default collate.

The ring moved at least 2.6 GB/s, the collate at most 1.4 GB/s.
"""

NEXT = "the gain is limited by the next lowest ceiling"

TWICE = 2.0


def prep_advice(evidence: Evidence, _: Bound | None) -> Sequence[Advice | None]:
    """Advice on preparation: the CPU time of samples, and where it is spent."""
    if evidence.subject.users and (uneven := _one_slow_worker(evidence)) is not None:
        return [uneven]
    if evidence.subject.users and _waits(evidence):
        return [_more_waiting(evidence)]
    return [_more_workers(evidence), _another_loader(evidence), _cheaper_samples(evidence)]


def cpu_advice(evidence: Evidence, bound: Bound | None) -> Sequence[Advice | None]:
    """Advice on cores that several stages share, and on what takes their time."""
    return [more_cores(evidence), direct_advice(evidence), _cheaper_samples(evidence)]


def loader_advice(evidence: Evidence, _: Bound | None) -> Sequence[Advice | None]:
    """Advice on worker processes and the transport of batches."""
    return [_transport(evidence)]


def more_cores(evidence: Evidence) -> Advice | None:
    """Twice the cores: what is limited by the CPU doubles, and the rest stays."""
    if not evidence.cores:
        return None
    client = (evidence.fetch_cores or 0.0) >= 0.9 * evidence.cores
    moved = {
        "cpu": evidence.cpu,
        "prep": evidence.prep,
        "loader": evidence.loader,
        "storage": evidence.storage if client else None,
    }
    scaled = {stage: TWICE * rate for stage, rate in moved.items() if rate}
    if client and evidence.raw and "storage" in scaled:
        scaled["storage"] = min(scaled["storage"], max(evidence.raw, evidence.storage or 0.0))
    gain = model_gain(evidence, **scaled)
    if gain is None:
        return None
    reading = evidence.fetch_cores
    taken = (
        f"reading alone keeps {reading:.1f} of {evidence.cores:g} cores busy"
        if client and reading
        else "the stages share the cores"
    )
    return Advice(
        id="cores",
        change=f"provide more CPU: {TWICE * evidence.cores:g} cores instead of "
        f"{evidence.cores:g}, or a second host",
        predicted_gain=min(gain, TWICE),
        basis=f"{taken}; twice the cores, and the next ceiling is the limit",
    )


def direct_advice(evidence: Evidence) -> Advice | None:
    """Direct IO where reading takes the CPU; libraries don't have it."""
    busy = evidence.fetch_cores and evidence.cores and evidence.fetch_cores >= 0.5 * evidence.cores
    if evidence.direct is not False or evidence.subject.reads_itself or not busy or evidence.cached:
        return None
    bound = (
        f"raw storage delivers {evidence.told(evidence.raw)}"
        if evidence.raw
        else f"{NEXT}, and raw storage was not measured"
    )
    return Advice(
        id="direct",
        change="reduce the CPU time for each byte that is read: reader.direct=true",
        settings=["reader.direct=true"],
        predicted_gain=model_gain(evidence, storage=evidence.raw, cpu=None),
        basis=f"reading alone keeps {evidence.fetch_cores:.1f} of {evidence.cores:g} cores busy; "
        + bound,
    )


def _more_workers(evidence: Evidence) -> Advice | None:
    """Workers for idle cores; otherwise more cores."""
    if evidence.prep is None or not evidence.cores:
        return None
    busy, gain = evidence.streams, model_gain(evidence, prep=None, cpu=None)
    whole = math.floor(evidence.cores)
    if busy < whole and whole >= evidence.accelerators:
        spread = evidence.prep * evidence.cores / busy
        each = whole // evidence.accelerators
        return Advice(
            id="workers",
            settings=[f"loader.workers={each}"],
            change=f"use more workers: {each * evidence.accelerators} in total instead of {busy}",
            predicted_gain=model_gain(evidence, prep=spread),
            basis=f"preparation is CPU work: {evidence.told(evidence.prep / busy)} for each "
            "worker, and cores are idle",
        )
    tested = evidence.gains.get("prep")
    gain = tested.value if tested is not None else gain
    if gain is None:
        return None
    gain = min(gain, demanded(evidence) or gain)
    # What all cores together could do, if nothing else needed them.
    alone = evidence.cpu or evidence.prep
    wanted = gain * (evidence.measured or evidence.prep)
    return Advice(
        id="cores",
        change="provide more cores for data preparation: "
        f"{_cores(evidence.cores * wanted / alone, evidence.cores)} instead of "
        f"{evidence.cores:g}",
        predicted_gain=gain,
        basis=f"by its CPU time, one core prepares {evidence.told(alone / evidence.cores)}; {NEXT}",
    )


def _waits(evidence: Evidence) -> bool:
    """Whether a loader of the user's own mostly waits while it makes a batch."""
    share = evidence.own.cpu_share if evidence.own is not None else None
    if share is None:
        return waited_for(evidence) == "storage"
    return share < WAITING


def _one_slow_worker(evidence: Evidence) -> Advice | None:
    """Batches in any order, where the others wait for one worker of the user's loader.

    Each worker then makes batches at its own pace, so their rates add up.
    """
    own = evidence.own
    slow = own.slow_worker if own is not None else None
    if own is None or slow is None or (own.held_back or 0.0) < MIN_HELD_BACK:
        return None
    rate = sum(1 / each for each in own.fetch_s_by_worker) * (evidence.batch_size or 1)
    return Advice(
        id="order",
        change="set in_order=False in the DataLoader if the order does not matter, or find what "
        "makes one worker slow",
        predicted_gain=model_gain(evidence, prep=rate),
        basis=f"one worker takes {format_duration(slow[0])} for a batch and the others "
        f"{format_duration(slow[1])}, and batches come in their order; {NEXT}",
    )


def _more_waiting(evidence: Evidence) -> Advice | None:
    """Workers for a loader of the user's own that waits while it makes a batch.

    Waiting takes no core, so there may be more workers than cores.
    """
    gain = model_gain(evidence, prep=None, storage=None)
    if gain is None:
        return None
    workers = math.ceil(evidence.streams * max(gain, 1 + 1 / evidence.streams))
    return Advice(
        id="workers",
        settings=[f"loader.workers={workers}"],
        change=f"make more batches at a time: {workers} workers or threads instead of "
        f"{evidence.streams}",
        predicted_gain=gain,
        basis="your loader waits, and does not compute, for most of the time in which it makes a "
        f"batch, so more workers need no more cores; {NEXT}",
    )


def _cores(needed: float, today: float) -> int:
    """Whole cores: at least one more than today."""
    return max(math.floor(today) + 1, math.ceil(needed))


def _another_loader(evidence: Evidence) -> Advice | None:
    if not evidence.subject.reads_itself or evidence.own_prep is None or evidence.prep is None:
        return None
    return Advice(
        id="loader",
        settings=[f"loader.kind={OWN.kind}"],
        change=f"use a loader that takes less CPU time than {evidence.subject.kind}: iobench's own "
        f"(loader.kind={OWN.kind}) shows the rate that is possible",
        predicted_gain=model_gain(evidence, prep=evidence.own_prep),
        basis=f"with the same files in memory, {evidence.subject.kind} reaches "
        f"{evidence.told(evidence.prep)}, "
        f"and iobench's own loader {evidence.told(evidence.own_prep)}",
    )


def _cheaper_samples(evidence: Evidence) -> Advice | None:
    """Another codec, or samples that need less decoding."""
    if evidence.prep is None or evidence.loader is None:
        return None
    at_best = f"the loader ({evidence.told(evidence.loader)}) is the limit"
    if evidence.cheaper_codecs and evidence.storage is not None:
        return Advice(
            id="codec",
            change=f"use a codec that takes less CPU time to decompress than {evidence.codec}: "
            f"{' or '.join(evidence.cheaper_codecs)}",
            predicted_gain=model_gain(
                evidence,
                prep=evidence.loader,
                cpu=None,
                storage=evidence.storage / evidence.compress_ratio,
            ),
            basis=f"at best, preparation takes no time and {at_best}, "
            f"with {evidence.compress_ratio:.2f} x the bytes to read",
        )
    if not evidence.decode:
        return None
    return Advice(
        id="decoding",
        change="use samples that need less decoding: smaller images, or images that are decoded "
        "once and stored as arrays",
        predicted_gain=model_gain(evidence, prep=evidence.loader, cpu=None),
        basis=f"at best, decoding takes no time and {at_best}; arrays are larger than images",
    )


def _transport(evidence: Evidence) -> Advice | None:
    if evidence.loader is None:
        return None
    if evidence.transport == "tensor":
        # Prep used the same transport, so its ceiling would rise too; those of storage and of the
        # accelerators would not.
        return Advice(
            id="transport",
            settings=["loader.transport=ring"],
            change="use loader.transport=ring",
            predicted_gain=model_gain(
                evidence, loader=evidence.loader * RING_OVER_TENSOR, prep=None, cpu=None
            ),
            basis="batches stay in shared memory, and only the number of a slot goes through the "
            "pipe; compared with torch's default collate, the ring moves at least 1.9 x the "
            "bytes/s with a tenth of the CPU time",
        )
    gain = model_gain(evidence, loader=None)
    if gain is None or gain < WORTH:
        return None
    if evidence.cores and evidence.workers >= evidence.cores:
        return Advice(
            id="cores",
            change="provide more cores, or run this job on more hosts",
            predicted_gain=gain,
            basis=f"{counted(evidence.workers, 'worker')} share {evidence.cores:g} cores; {NEXT}",
        )
    return Advice(
        id="larger-batches",
        change="use larger batches, or more workers",
        predicted_gain=gain,
        basis=f"the loader's cost per batch is the limit, and cores are idle; {NEXT}",
    )


def fill_advice(evidence: Evidence, _: Bound | None) -> Sequence[Advice | None]:
    """Advice on the time until the first batch of each epoch."""
    if (whole := cut_epochs(evidence)) is not None:
        return [_whole_epochs(evidence, whole)]
    if evidence.subject.users:
        return [_first_batches(evidence)]
    return [
        Advice(
            id="longer-epochs",
            change="make epochs longer (more samples in each), or keep the workers reading over "
            "the end of an epoch",
            predicted_gain=_without(evidence, "fill", evidence.shares.fill),
            basis=_because(evidence, "fill", "no batch is there yet", evidence.shares.fill),
        )
    ]


def _first_batches(evidence: Evidence) -> Advice:
    """What a loader of the user's own can do: its data is what it is."""
    anew = bool(evidence.workers) and not evidence.persistent
    keep = "set persistent_workers=True in the DataLoader, and " if anew else ""
    return Advice(
        id="first-batches",
        change=f"{keep}make each batch cheaper, so that the first ones of an epoch are there "
        "sooner",
        predicted_gain=_without(evidence, "fill", evidence.shares.fill),
        basis=_because(evidence, "fill", "no batch is there yet", evidence.shares.fill),
    )


def _whole_epochs(evidence: Evidence, whole: int) -> Advice:
    """The job's epochs are longer than those that the run had time for."""
    made = evidence.rank_steps or 0.0
    return Advice(
        id="longer-run",
        change=f"{LONGER}: this run made "
        f"{counted(round(made), 'step')} of the {format_count(whole)} of an epoch, so the start of "
        "its epochs weighs more than in the job",
        basis=_because(evidence, "fill", "no batch is there yet", evidence.shares.fill),
    )


def sync_advice(evidence: Evidence, _: Bound | None) -> Sequence[Advice | None]:
    """Advice on ranks that wait for each other at step barriers."""
    return [
        Advice(
            id="no-barrier",
            change="make the ranks equally fast, or let more batches be prefetched, so that a slow "
            "one does not stop all; fewer barriers (gradient accumulation) help, too",
            predicted_gain=_without(evidence, "sync", evidence.shares.sync),
            basis=_because(evidence, "sync", "ranks wait for others", evidence.shares.sync),
        )
    ]


def saves_advice(evidence: Evidence, _: Bound | None) -> Sequence[Advice | None]:
    """Advice on checkpoints that stop the training."""
    return [
        Advice(
            id="faster-saves",
            change="save faster or less often: faster durable writes, an asynchronous writer, or "
            "a longer interval between checkpoints",
            predicted_gain=_without(evidence, "checkpoint", evidence.shares.saves),
            basis=_because(
                evidence, "checkpoint", "the training stands still", evidence.shares.saves
            ),
        )
    ]


def _without(evidence: Evidence, stage: str, share: float | None) -> float | None:
    """The gain if a part of the time was not there: as tested, or from its share."""
    tested = evidence.gains.get(stage)
    if tested is not None:
        return tested.value
    return 1 / (1 - share) if share is not None and share < 1 else None


def _because(evidence: Evidence, stage: str, what: str, share: float | None) -> str:
    if share is not None:
        return f"{what} for {format_percent(share)} of the time"
    return f"the run without it is {evidence.gains[stage].value:.2f} x as fast"


def nothing(evidence: Evidence) -> Advice:
    """The advice to leave things as they are, where the accelerators bind."""
    supply = {
        "storage": None if evidence.cached else evidence.storage,
        "prep": evidence.prep,
        "loader": evidence.loader,
    }
    known = {name: rate for name, rate in supply.items() if rate is not None}
    if evidence.utilization is not None:
        basis = f"the accelerators are busy {format_percent(evidence.utilization)} of the time"
    else:
        basis = "the accelerators are the lowest ceiling"
    if known and evidence.accelerator:
        first = min(known, key=lambda name: known[name])
        ratio = known[first] / evidence.accelerator
        if ratio >= 1:
            basis += f"; the next limit is {first}, at {ratio:.2f} x their demand"
    return Advice(
        id="none",
        change="no change is needed: faster storage would not speed up this job",
        predicted_gain=1.0,
        low=None,
        high=None,
        basis=basis,
    )
