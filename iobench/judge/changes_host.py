"""Changes of what this host does, and of what is beside loading.

The host prepares samples, hands batches over, and has so many cores. Beside loading are saves, the
start of epochs, and waiting for ranks.
"""

from __future__ import annotations

import math

from ..base.units import counted, format_count, format_duration, format_percent
from ..record.verdict import Estimate
from ..settings.workload import OWN
from .criteria import computing, waited_for
from .evidence import LONGER, Evidence, cut_epochs
from .promise import WORTH, Effect, advised, bringing, demanded, limit_of, model_gain, moving
from .user_loader import (
    BESIDE_TRAINING,
    IN_TURNS,
    LOOK_AT_START,
    MIN_HELD_BACK,
    MOST_OF_MAKING,
    MOST_OF_WAITS,
    WAITING,
    cheaper_collate,
    could_have_workers,
)
from .watched import KEEP_WORKERS, UNTIL_STARTED, starting_workers, until_started

RING_OVER_TENSOR = 2.6 / 1.4
"""Smallest measured ratio of the ring transport to torch's default collate.

The ring moved at least 2.6 GB/s, the collate at most 1.4 GB/s.
"""

NEXT = "the gain is limited by the next lowest ceiling"

TWICE = 2.0

WAITING_WORKERS = 32
"""No more workers than this are advised for a core: a choice, since each of them takes memory."""


@advised(
    "workers",
    "loader.workers={each}",
    change="use more workers: {total} in total instead of {busy}",
    basis="preparation is CPU work: {rate} for each worker, and cores are idle",
)
def workers_for_idle_cores(evidence: Evidence) -> Effect | None:
    if evidence.prep is None or not evidence.cores:
        return None
    busy, ranks = evidence.streams, evidence.accelerators
    if busy >= math.floor(evidence.cores):
        return None
    # Where the cores can't be divided evenly, some workers share one.
    each = max(math.floor(evidence.cores) // ranks, busy // ranks + 1)
    return moving(
        evidence,
        {"prep": evidence.prep * min(each * ranks, evidence.cores) / busy},
        each=each,
        total=each * ranks,
        busy=evidence.workers,
        rate=evidence.told(evidence.prep / busy),
    )


@advised(
    "workers",
    "loader.workers={workers}",
    change="use more workers: {workers} for each accelerator instead of {today}",
    basis="preparation waits (reader.prep_time={slept}) for {waits} of its time, so more workers "
    f"need no more cores; {NEXT}",
)
def workers_that_sleep(evidence: Evidence) -> Effect | None:
    """As many workers as keep all cores busy while others wait, or as many as are of use."""
    share, streams = computing(evidence), evidence.streams
    if evidence.prep is None or evidence.subject.users or share == 1 or not evidence.cores:
        return None
    most = evidence.cores * min(1 / max(share, 1e-9), WAITING_WORKERS)
    gain = model_gain(evidence, prep=evidence.prep * most / streams)
    if most < streams + 1 or gain is None:
        return None
    each = streams // evidence.accelerators
    return bringing(
        gain,
        workers=max(each + 1, math.ceil(each * gain)),
        today=evidence.workers // evidence.accelerators,
        slept=format_duration(evidence.job.workload.reader.prep_time),
        waits=format_percent(1 - share),
    )


@advised(
    "cores",
    change="provide more cores for data preparation: {more} instead of {cores:g}",
    basis=f"by its CPU time, one core prepares {{rate}}; {NEXT}",
)
def cores_for_preparation(evidence: Evidence) -> Effect | None:
    if evidence.prep is None or not evidence.cores:
        return None
    tested = evidence.gains.get("prep")
    gain = tested.value if tested is not None else model_gain(evidence, prep=None, cpu=None)
    if gain is None:
        return None
    gain = min(gain, demanded(evidence) or gain)
    # What all cores together could do, if nothing else needed them.
    alone = evidence.cpu or evidence.prep
    wanted = evidence.without_saves(gain * (evidence.measured or evidence.prep))
    needed = math.ceil(evidence.cores * wanted / alone)
    return bringing(
        gain,
        more=max(math.floor(evidence.cores) + 1, needed),
        cores=evidence.cores,
        rate=evidence.told(alone / evidence.cores),
    )


@advised(
    "cores",
    change="provide more CPU: {more:g} cores instead of {cores:g}, or a second host",
    basis="{taken}; twice the cores, and the next ceiling is the limit",
)
def twice_the_cores(evidence: Evidence) -> Effect | None:
    """What is limited by the CPU doubles, and the rest stays."""
    if not evidence.cores:
        return None
    reading = evidence.fetch_cores or 0.0
    client = reading >= 0.9 * evidence.cores
    moved = {
        "cpu": evidence.cpu,
        "prep": evidence.prep,
        "loader": evidence.loader,
        "storage": evidence.storage if client else None,
    }
    scaled = {stage: TWICE * rate for stage, rate in moved.items() if rate}
    if evidence.accelerator and evidence.alone:  # steps take as long as alone, at best
        scaled["accelerator"] = max(evidence.accelerator, evidence.alone)
    if client and evidence.raw and "storage" in scaled:
        scaled["storage"] = min(scaled["storage"], max(evidence.raw, evidence.storage or 0.0))
    gain = model_gain(evidence, **scaled)
    if gain is None:
        return None
    return bringing(
        min(gain, TWICE),
        more=TWICE * evidence.cores,
        cores=evidence.cores,
        taken=_reading_alone(evidence) if client else "the stages share the cores",
    )


@advised(
    "direct",
    "reader.direct=true",
    change="reduce the CPU time for each byte that is read: reader.direct=true",
    basis="{taken}; {limit}",
    moves="storage",
)
def direct_reads(evidence: Evidence) -> Effect | None:
    """Where reading takes the CPU; libraries don't have it."""
    busy = evidence.fetch_cores and evidence.cores and evidence.fetch_cores >= 0.5 * evidence.cores
    if (
        evidence.job.loader.direct is not False
        or evidence.subject.reads_itself
        or not busy
        or evidence.cached
    ):
        return None
    return moving(
        evidence,
        {"storage": evidence.raw, "cpu": None},
        taken=_reading_alone(evidence),
        limit=f"raw storage delivers {evidence.told(evidence.raw)}"
        if evidence.raw
        else f"{NEXT}, and raw storage was not measured",
    )


def _reading_alone(evidence: Evidence) -> str:
    return f"reading alone keeps {evidence.fetch_cores:.1f} of {evidence.cores:g} cores busy"


@advised(
    "loader",
    f"loader.kind={OWN.kind}",
    change="use a loader that takes less CPU time than {kind}: iobench's own "
    f"(loader.kind={OWN.kind}) shows the rate that is possible",
    basis="with the same files in memory, {kind} reaches {prep}, and iobench's own loader {own}",
)
def another_loader(evidence: Evidence) -> Effect | None:
    if not evidence.subject.reads_itself or evidence.own_prep is None or evidence.prep is None:
        return None
    return moving(
        evidence,
        {"prep": evidence.own_prep},
        kind=evidence.subject.kind,
        prep=evidence.told(evidence.prep),
        own=evidence.told(evidence.own_prep),
    )


@advised(
    "codec",
    change="use a codec that takes less CPU time to decompress than {codec}: {others}",
    basis="at best, preparation takes no time and the loader ({loader}) is the limit, with "
    "{ratio:.2f} x the bytes to read",
    moves="prep",
)
def cheaper_codec(evidence: Evidence) -> Effect | None:
    known = evidence.prep is not None and evidence.loader is not None
    if not known or not evidence.job.dataset.cheaper_codecs or evidence.storage is None:
        return None
    ratio = evidence.compress_ratio
    return moving(
        evidence,
        {"prep": evidence.loader, "cpu": None, "storage": evidence.storage / ratio},
        codec=evidence.codec,
        others=" or ".join(evidence.job.dataset.cheaper_codecs),
        loader=evidence.told(evidence.loader),
        ratio=ratio,
    )


@advised(
    "decoding",
    change="use samples that need less decoding: smaller images, or images that are decoded once "
    "and stored as arrays",
    basis="at best, decoding takes no time and the loader ({loader}) is the limit; arrays are "
    "larger than images",
    moves="prep",
)
def less_decoding(evidence: Evidence) -> Effect | None:
    if evidence.prep is None or evidence.loader is None or not evidence.decode:
        return None
    return moving(
        evidence, {"prep": evidence.loader, "cpu": None}, loader=evidence.told(evidence.loader)
    )


@advised(
    "order",
    change="set in_order=False in the DataLoader if the order does not matter, or find what makes "
    "one worker slow",
    basis="one worker takes {slow} for a batch and the others {others}, and batches come in their "
    f"order; {NEXT}",
)
def batches_in_any_order(evidence: Evidence) -> Effect | None:
    """Each worker then makes batches at its own pace, so their rates add up."""
    own = evidence.own if evidence.subject.users else None
    if own is None or own.slow_worker is None or (own.held_back or 0.0) < MIN_HELD_BACK:
        return None
    slow, others = own.slow_worker
    return moving(
        evidence,
        {"prep": sum(1 / each for each in own.fetch_s_by_worker) * (evidence.batch_size or 1)},
        slow=format_duration(slow),
        others=format_duration(others),
    )


def mostly_waits(evidence: Evidence) -> bool:
    """Whether a loader of the user's own mostly waits while it makes a batch."""
    share = evidence.own.cpu_share if evidence.own is not None else None
    if not evidence.subject.users:
        return False
    return waited_for(evidence) == "storage" if share is None else share < WAITING


def mostly_sleeps(evidence: Evidence) -> bool:
    """Whether preparation mostly waits (reader.prep_time), and more workers can do so at once."""
    few = computing(evidence) < WAITING and not evidence.subject.users
    return few and workers_that_sleep.check(evidence) is not None


@advised(
    "workers",
    "loader.workers={workers}",
    change="make more batches at a time: {workers} workers or threads instead of {today}",
    basis="your loader waits, and does not compute, for most of the time in which it makes a "
    f"batch, so more workers need no more cores; {NEXT}. But {IN_TURNS}",
)
def workers_that_wait(evidence: Evidence) -> Effect | None:
    """Waiting takes no core, so there may be more workers than cores.

    Not where only the first epoch waits: each worker would have to fill a cache of its own.
    """
    gain = model_gain(evidence, prep=None, storage=None)
    if gain is None or evidence.waits_once:
        return None
    today = evidence.streams
    return bringing(gain, workers=math.ceil(today * max(gain, 1 + 1 / today)), today=today)


@advised(
    "transport",
    "loader.transport=ring",
    change="use loader.transport=ring",
    basis="batches stay in shared memory, and only the number of a slot goes through the pipe; "
    "compared with torch's default collate, the ring moves at least 1.9 x the bytes/s with a tenth "
    "of the CPU time",
)
def ring_transport(evidence: Evidence) -> Effect | None:
    """Prep used the same transport, so its ceiling would rise, too."""
    if evidence.loader is None or evidence.transport != "tensor":
        return None
    ring = evidence.loader * RING_OVER_TENSOR
    return moving(evidence, {"loader": ring, "prep": None, "cpu": None})


@advised(
    "cores",
    change="provide more cores, or run this job on more hosts",
    basis=f"{{workers}} share {{cores:g}} cores; {NEXT}",
)
def cores_for_workers(evidence: Evidence) -> Effect | None:
    gain = _without_loader(evidence)
    if gain is None or not evidence.cores or evidence.workers < evidence.cores:
        return None
    return bringing(gain, workers=counted(evidence.workers, "worker"), cores=evidence.cores)


@advised(
    "larger-batches",
    change="use larger batches, or more workers",
    basis=f"the loader's cost per batch is the limit, and cores are idle; {NEXT}",
)
def larger_batches(evidence: Evidence) -> Effect | None:
    gain = _without_loader(evidence)
    return None if gain is None else bringing(gain)


@advised(
    "sampler",
    change="make the sampler faster: it takes {share} of the waits for batches, in the training "
    "process. More workers and faster storage do not help",
    basis="{most}",
)
def faster_sampler(evidence: Evidence) -> Effect | None:
    """What a loader of the user's own needs whose sampler takes most of the waits."""
    share = evidence.own.sampling if evidence.own is not None else None
    if not share or share <= MOST_OF_WAITS:
        return None
    return bringing(None, share=format_percent(share), most=_by_its_time(evidence))


def _by_its_time(evidence: Evidence) -> str:
    busy = evidence.utilization
    return f"{f'at most {1 / busy:.2f} x: ' if busy else ''}its time was measured in the run"


def collates_most(evidence: Evidence) -> bool:
    """Whether ``collate_fn`` of a user's loader takes most of the time to make a batch."""
    own = evidence.own
    if own is None or (own.slow_worker is not None and (own.held_back or 0.0) >= MIN_HELD_BACK):
        return False
    return (own.collating or 0.0) >= MOST_OF_MAKING


@advised("workers", change=BESIDE_TRAINING, basis="{most}")
def workers_beside_training(evidence: Evidence) -> Effect | None:
    if not collates_most(evidence) or not could_have_workers(evidence.workers, evidence.cores):
        return None
    return bringing(None, most=_by_its_time(evidence))


@advised("collate", change="{change}", basis="{most}")
def less_collating(evidence: Evidence) -> Effect | None:
    own = evidence.own
    if own is None or not collates_most(evidence):
        return None
    change = cheaper_collate(own.collating or 0.0, own.batch_bytes)
    return bringing(None, change=change, most=_by_its_time(evidence))


def _without_loader(evidence: Evidence) -> float | None:
    """The gain if handing batches over took no time, if that is worth anything."""
    gain = None if evidence.loader is None else model_gain(evidence, loader=None)
    return gain if gain is not None and gain >= WORTH else None


@advised(
    "longer-run",
    change=f"{LONGER}: this run made {{made}} of the {{whole}} of an epoch, so the start of its "
    "epochs weighs more than in the job",
    basis="{because}",
)
def whole_epochs(evidence: Evidence) -> Effect | None:
    """The job's epochs are longer than those that the run had time for."""
    whole = cut_epochs(evidence)
    if whole is None:
        return None
    made = counted(round(evidence.rank_steps or 0.0), "step")
    _, facts = _filled(evidence)
    return bringing(None, made=made, whole=format_count(whole), **facts)


@advised("first-batches", change="{do}", basis="{because}")
def first_batches(evidence: Evidence) -> Effect | None:
    """What a loader of the user's own can do: its data is what it is."""
    if not evidence.subject.users:
        return None
    anew = bool(evidence.workers) and not evidence.job.workload.loader.persistent_workers
    if anew and starting_workers(evidence):
        started = until_started(evidence)
        because = f"{UNTIL_STARTED} {format_percent(started)} of the time"
        return bringing(1 / (1 - started), do=KEEP_WORKERS, because=because)
    gain, facts = _filled(evidence)
    keep = "set persistent_workers=True in the DataLoader, and " if anew else ""
    cheaper = "make each batch cheaper, so that the first ones of an epoch are there sooner"
    return bringing(gain, do=f"{keep}{cheaper}", **facts)


@advised("first-batches", change="{do}", basis="{because}")
def faster_start(evidence: Evidence) -> Effect | None:
    """What a loader of the user's own takes before its first read, where no rate has it."""
    if evidence.start is None:
        return None
    seconds, share, of_workers = evidence.start
    because = f"{format_duration(seconds)} before its first read: {format_percent(share)} of it"
    do = KEEP_WORKERS if of_workers else LOOK_AT_START
    return bringing(None, do=do, because=f"each whole epoch takes {because}")


def _filled(evidence: Evidence) -> Effect:
    return _without(evidence, "fill", "no batch is there yet", evidence.shares.fill)


@advised(
    "longer-epochs",
    change="make epochs longer (more samples in each), or keep the workers reading over the end "
    "of an epoch",
    basis="{because}",
)
def longer_epochs(evidence: Evidence) -> Effect | None:
    return _filled(evidence)


@advised(
    "no-barrier",
    change="make the ranks equally fast, or let more batches be prefetched, so that a slow one "
    "does not stop all. Fewer barriers (gradient accumulation) help, too",
    basis="{because}",
)
def no_barrier(evidence: Evidence) -> Effect | None:
    return _without(evidence, "sync", "ranks wait for others", evidence.shares.sync)


@advised(
    "faster-saves",
    change="save faster or less often: faster durable writes,{writer} or a longer interval between "
    "checkpoints",
    basis="{because}",
)
def faster_saves(evidence: Evidence) -> Effect | None:
    gain, facts = _without(
        evidence, "checkpoint", "the training stands still", evidence.shares.saves
    )
    saves = evidence.job.saves
    behind = saves is not None and any(each.waited_s is not None for each in saves.saves)
    return bringing(gain, writer="" if behind else " an asynchronous writer,", **facts)


@advised(
    "faster-log",
    change="commit the log in groups or at the rotation of its files (log.commit), use more "
    "log.writers, or write it to a place that commits sooner",
    basis="{because}",
)
def faster_log(evidence: Evidence) -> Effect | None:
    alone = evidence.job.workload.accelerator.sync == "none"  # no rank waits for another one
    return _without(evidence, "log", "batches wait for it", evidence.shares.sync if alone else None)


def _without(evidence: Evidence, stage: str, what: str, share: float | None) -> Effect:
    """What it brings if a part of the time was not there: as tested, or from its share."""
    tested = evidence.gains.get(stage)
    gain = tested.value if tested is not None else None
    if tested is None and share is not None and share < 1:
        gain = 1 / (1 - share)
    if share is not None:
        because = f"{what} for {format_percent(share)} of the time"
    elif gain is not None:
        because = f"the run without it is {gain:.2f} x as fast"
    else:
        because = "what it costs was not measured: no run without it had the time"
    return bringing(gain, because=because)


@advised(
    "workers",
    "loader.workers=1",
    change="load batches while the accelerator works: 1 worker for each of them instead of 0",
    basis="without workers, a rank loads a batch, then makes its step, and so on in turns",
)
def workers_beside_steps(evidence: Evidence) -> Effect | None:
    """Where neither loading nor the steps are too slow alone, but both in turns are.

    With a worker, the run is as fast as the slower of both: as without steps, or by the ceilings.
    """
    able = could_have_workers(evidence.workers, evidence.cores) and not evidence.subject.users
    limit = limit_of(evidence, {}, in_turns=False)
    if not able or evidence.fed or evidence.utilization is None or not evidence.measured:
        return None
    if limit is None or limit[0] != "accelerator":
        return None
    alone = evidence.gains.get("accelerator")
    if alone is None and evidence.storage is not None and evidence.prep is not None:
        alone = Estimate(value=evidence.with_saves(limit[1]) / evidence.measured)
    return bringing(alone) if alone is not None and alone.value >= WORTH else None


@advised("none", change="{what}: faster storage would not speed up this job", basis="{busy}{first}")
def nothing(evidence: Evidence) -> Effect | None:
    """To leave things as they are, where the accelerators bind."""
    supply = {
        "storage": None if evidence.cached else evidence.storage,
        "prep": evidence.prep,
        "loader": evidence.loader,
    }
    known = {name: rate for name, rate in supply.items() if rate is not None}
    busy, first = "the accelerators are the lowest ceiling", ""
    if evidence.utilization is not None:
        busy = f"the accelerators are busy {format_percent(evidence.utilization)} of the time"
    if known and evidence.accelerator:
        lowest = min(known, key=lambda name: known[name])
        ratio = known[lowest] / evidence.accelerator
        if ratio >= 1:
            first = f"; the next limit is {lowest}, at {ratio:.2f} x their demand"
    starved = evidence.utilization is not None and not evidence.fed
    what = "no change that helps was found" if starved else "no change is needed"
    return bringing(1.0, what=what, busy=busy, first=first)
