"""Rules that check that storage was measured, and not the CPU, the tool or the emulation.

Each rule returns None if it finds no violation.
"""

from __future__ import annotations

from ..base.units import (
    counted,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_share,
    percent_beside,
)
from ..record.host import cpu_limit_file
from ..record.run import TrainingRecord
from ..record.training import Ceiling
from .bottleneck import by_inference
from .evidence import DRAINED, LONGER, cut_epochs
from .judged import (
    Judged,
    all_cores,
    effective_cores,
    is_null_accelerator,
    step_time_s,
    trained_rate,
    usable_cores,
)
from .promise import shown
from .rules_data import RuleOutcome, complete, unknown
from .rules_ranks import host_name, stood_still
from .statistics import NOISE

MAX_THROTTLED = 0.01  # share of the time of a repetition, summed over the cores
MAX_PREFETCHED = 0.10  # share of the samples of an epoch
MAX_LOADER_CPU = 0.4  # share of the cores; SPDL: a loader that uses more slows the training
MAX_AMPLIFIED = 1.5  # bytes read for each byte of a sample
MAX_LATE = 0.1  # lateness of an emulated step in steps, if no batches are prefetched
MAX_LATE_LEFT = 0.01  # share of the time of a repetition
MAX_GAP = 0.2  # relative difference between two rates
CLIENT_BOUND = 0.85  # share of the usable cores; the rest is for the kernel and the server


def au_threshold(judged: Judged) -> RuleOutcome | None:
    doc, evidence = judged.record, judged.evidence
    if evidence.utilization is None:
        why = (
            "the accelerator is of kind null"
            if is_null_accelerator(doc.job)
            else DRAINED
            if evidence.drained
            else "it is in no complete repetition"
        )
        return unknown(f"accelerator utilization was not measured: {why}")
    official = doc.metrics.get("accelerator_utilization")  # MLPerf's, without the first step
    lowest = evidence.utilization
    if official and not doc.job.subject.watched:  # whose verdict has one figure
        lowest = min(lowest, official.median)
    if lowest < evidence.required:
        shown = percent_beside(lowest, evidence.required)
        sustained = (
            " from the first read on" if official and official.median >= evidence.required else ""
        )
        if evidence.lasting is not None and lowest == evidence.utilization:
            sustained = " after the rate fell"
        if doc.job.subject.watched:
            return RuleOutcome(
                f"your training did not wait for batches for {shown} of the time: "
                f"below {format_percent(evidence.required)} it starves",
                "see the verdict and its advice",
            )
        return RuleOutcome(
            f"accelerator utilization{sustained} is {shown}, but the workload "
            f"requires {format_percent(evidence.required)}",
            "see the verdict and its advice; --find-max measures how many accelerators can be fed",
        )
    return None


def cpu_throttled(judged: Judged) -> RuleOutcome | None:
    doc = judged.record
    times = [
        (r.throttled_s / r.wall_s, r.throttled_s, r.wall_s)
        for r in doc.job.repetitions
        if r.throttled_s is not None and r.wall_s
    ]
    if not times:
        return unknown("CPU throttling was not recorded")
    share, throttled_s, wall_s = max(times)
    if share > MAX_THROTTLED:
        who = " and ".join(_throttled_hosts(doc)) or "this run"
        return RuleOutcome(  # the kernel counts each core that stands still
            f"the CPU quota throttled {who} for {format_duration(throttled_s)}, summed over the "
            f"cores, in a repetition of {format_duration(wall_s)}",
            f"raise the cgroup's {_cpu_limit(doc)}: a lack of CPU time can look like slow storage",
            refuses=not judged.evidence.fed,
        )
    return None


def _throttled_hosts(doc: TrainingRecord) -> list[str]:
    """Those of several hosts that their quota throttled too much in some repetition."""
    found = {
        each.host
        for one in doc.job.repetitions
        for each in one.hosts
        if one.wall_s and each.resources and each.resources.throttled_s is not None
        if each.resources.throttled_s > MAX_THROTTLED * one.wall_s
    }
    return [host_name(doc.job.hosts, host) for host in sorted(found)]


def _cpu_limit(doc: TrainingRecord) -> str:
    return " or ".join(sorted({cpu_limit_file(host.cgroup_version) for host in doc.hosts}))


def cpu_affinity(judged: Judged) -> RuleOutcome | None:
    doc = judged.record
    total, usable = round(all_cores(doc)), effective_cores(doc)
    if not total or usable is None or not all(host.affinity_cores for host in doc.hosts):
        return unknown("the host's cores or this process's affinity are not recorded")
    if usable < float(total):
        less = [
            f"{mine:g} of the {counted(each.cores or 0, 'core')} of {host_name(doc.job.hosts, at)}"
            for at, each in enumerate(doc.hosts)
            if (mine := usable_cores(each) or 0.0) < (each.cores or 0)
        ]
        alone = f"{usable:g} of the host's {counted(total, 'core')}"
        return RuleOutcome(
            f"this run may use {', and '.join(less) if len(doc.hosts) > 1 else alone}",
            f"allow more cores (taskset, or the cgroup's {_cpu_limit(doc)}): a lack of CPU time "
            "can look like slow storage",
            refuses=not judged.evidence.fed,
        )
    return None


def loader_bound(judged: Judged) -> RuleOutcome | None:
    """Check that the loader without storage is faster than what limits the run.

    If the accelerators are fed, their rate is the result, however little more the loader could do.
    """
    evidence = judged.evidence
    if evidence.subject.reads_itself:
        return None  # a library is the subject of the measurement, not the measuring tool
    if evidence.fed:
        return None
    if evidence.loader is None or evidence.between_saves is None:
        return unknown(
            "the loader ceiling or the measured rate is missing, so the tool itself may be the "
            "bottleneck"
        )
    others = [
        rate for rate in (evidence.storage, evidence.prep, evidence.accelerator) if rate is not None
    ]
    share = evidence.between_saves / evidence.loader
    if share >= 0.9 or (others and evidence.loader <= min(others) * (1 + NOISE)):
        remedy = (
            "use loader.transport=ring, more workers or larger batches; until then the rate is "
            "that of the loader, not of the storage"
        )
        lowest = "" if share >= 0.9 else ", the lowest of all ceilings"
        return RuleOutcome(
            f"without any storage, the loader reaches {format_count(evidence.loader)} "
            f"samples/s{lowest}; the run reached {format_share(share)} of it",
            remedy,
        )
    return None


def client_bound(judged: Judged) -> RuleOutcome | None:
    """Compare the reader's CPU time at the demanded rate with the cores that it may use.

    If it needs nearly all of them, the client limits the run, not the storage. A reader that is
    faster than the accelerators demand may take all cores in the measurement of its ceiling: on
    fast storage it must. Without a demand (accelerator of kind null) that ceiling is the rate.
    """
    doc, evidence = judged.record, judged.evidence
    if evidence.fed:
        return None
    fetch, cores = doc.job.ceilings.get("fetch", Ceiling()), effective_cores(doc)
    if fetch.bytes_per_s is None or fetch.cpu_s_per_gb is None or not cores:
        return unknown("the fetch ceiling, its CPU time or the usable cores are not recorded")
    demand = evidence.bytes_per_s(evidence.accelerator)
    rate = fetch.bytes_per_s if demand is None else min(fetch.bytes_per_s, demand)
    taken = fetch.cpu_s_per_gb * rate / 1e9
    if taken < CLIENT_BOUND * cores:
        return None
    return RuleOutcome(
        f"fetching at {format_rate(rate)} takes {taken:.1f} of {cores:g} cores "
        f"({fetch.cpu_s_per_gb:.2f} CPU s/GB): the client, not the storage, was the limit",
        "use a client that takes less CPU time (storage.client=obstore, reader.direct=true), "
        "larger reads, or a host with more cores",
    )


def emulation_error(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that late wake-ups of the emulation do not change the result.

    The next step makes up for a late wake-up, so an epoch lasts longer only by the lateness of its
    last step. In between, a late wake-up only matters if it lasts longer than the batches in
    flight: then their workers have nothing to do, which a real accelerator would not cause.
    ``tests/unit/test_emulation.py`` simulates a queue of n batches: a p99 of the lateness of up to
    n - 1 steps, or of MAX_LATE steps for n = 1, changes the rate by at most 1.5 %. A rank that
    stood still has a rule of its own.
    """
    kind, step = doc.job.workload.accelerator.kind, step_time_s(doc)
    if kind not in ("emulated", "recorded"):
        return None
    done = complete(doc)
    late = [one.late_p99_s for one in done if one.late_p99_s is not None]
    left = [
        one.late_left_s / one.wall_s for one in done if one.late_left_s is not None and one.wall_s
    ]
    if step is None or not late or not left:
        return unknown("how late the emulated steps end was not recorded")
    remedy = "the host is overloaded: use fewer workers or accelerators on it, or more cores"
    if max(left) > MAX_LATE_LEFT:
        return RuleOutcome(
            f"late wake-ups of the emulation at the end of epochs are {format_percent(max(left))} "
            "of the time",
            f"{remedy}, or make epochs longer",
        )
    job = doc.job
    in_flight = job.loader.in_flight_batches or max(
        1, job.workers * job.workload.loader.prefetch_factor
    )
    if stood_still(doc) is None and max(late) > max(MAX_LATE, in_flight - 1) * step:
        return RuleOutcome(
            f"1 % of the emulated steps end more than {format_duration(max(late))} late, with "
            f"{counted(in_flight, 'batch', 'batches')} in flight and steps of "
            f"{format_duration(step)}",
            remedy,
        )
    return None


def prefetch_share(judged: Judged) -> RuleOutcome | None:
    """Check that few samples can be prefetched during the first step of an epoch.

    Utilization leaves the first step out, so batches that were loaded during it raise the figure.
    The MLPerf Storage reference benchmark has this defect.
    """
    doc = judged.record
    settings = doc.job.workload.loader
    prefetched = doc.job.loader.prefetched_samples  # of one rank
    if prefetched is None:
        batch = doc.job.workload.batch_size
        parts = (doc.job.loader, settings)
        if batch is None or not any("workers" in part.model_fields_set for part in parts):
            return unknown("how many samples are prefetched is not recorded")
        prefetched = doc.job.workers * settings.prefetch_factor * batch
    samples = [
        repetition.samples / max(len(repetition.epochs), 1)
        for repetition in complete(doc)
        if repetition.samples
    ]
    if not samples:
        return unknown("no sample was recorded")
    share = prefetched * doc.job.accelerators / min(samples)
    if share > MAX_PREFETCHED:
        evidence = (
            f"up to {format_share(min(share, 1))} of an epoch's samples may be prefetched during "
            "the first step, which utilization leaves out"
        )
        longer = "use longer epochs (a larger dataset)"
        if cut_epochs(judged.evidence) is not None:
            longer = LONGER
        return RuleOutcome(
            evidence,
            f"{longer}, or less prefetching; "
            "accelerator_utilization_strict and samples/s are not affected",
            refuses=not judged.evidence.fed,
        )
    return None


def verdict_gap(judged: Judged) -> RuleOutcome | None:
    doc, evidence = judged.record, judged.evidence
    predicted, measured = evidence.predicted, evidence.measured
    if predicted is None or measured is None:
        return unknown("the predicted or the measured rate is missing")
    ratio = measured / predicted
    found = (
        f"the run reached {format_count(measured)} samples/s, {ratio:.2f} x the "
        f"{format_count(predicted)} that its lowest ceiling predicts"
    )
    if ratio > 1 + MAX_GAP:
        return RuleOutcome(
            found,
            "a ceiling was measured under worse conditions than the run, or the run read from a "
            "cache: repeat both",
        )
    if ratio >= (1 - MAX_GAP) * (1 - _saving_share(doc)):
        return None
    if evidence.serial is not None and measured >= 0.9 * evidence.serial:
        return RuleOutcome(
            f"{found}. {format_count(evidence.serial)} are predicted if each worker fetches "
            "samples and prepares them one after the other",
            "make fetch and prep overlap: use more workers, or a higher reader.concurrency",
        )
    return RuleOutcome(
        found,
        "stages compete (for CPU, memory or the device), or a short run consists mostly of "
        "start-up: compare the CPU times, and make the run longer",
    )


def _saving_share(doc: TrainingRecord) -> float:
    """Share of the run, 0 to 1, in which training was stopped for checkpoints.

    The ceilings do not include this time.
    """
    saving, wall = doc.metrics.get("checkpoint_s"), doc.metrics.get("wall_s")
    return saving.median / wall.median if saving and wall and wall.median else 0.0


def raw_not_measured(doc: TrainingRecord) -> RuleOutcome | None:
    raw = doc.job.ceilings.get("storage_raw", Ceiling())
    if raw.samples_per_s or raw.bytes_per_s:
        return None
    if not raw.not_measured:
        return unknown("the run does not say whether raw storage was measured")
    return RuleOutcome(
        f"raw storage was not measured: {raw.not_measured}",
        "without it, a slow device cannot be distinguished from a slow reader",
    )


def raw_low(judged: Judged) -> RuleOutcome | None:
    """Check that raw storage is not slower than the fetch ceiling, since a reader cannot be faster.

    If it is, the storage changed between the two measurements, or one of them was too short.
    """
    evidence = judged.evidence
    if evidence.fetch is None:
        return unknown(
            "the fetch ceiling was not measured, so the rate of raw storage cannot be checked"
        )
    if evidence.raw is None or evidence.raw >= evidence.fetch * (1 - MAX_GAP):
        return None
    return RuleOutcome(
        f"the rate of raw storage, measured by {evidence.raw_source}, is only "
        f"{format_percent(evidence.raw / evidence.fetch)} of that of the reader",
        "the storage changed in between (other users, a cache of its own), or becomes slower with "
        "more requests: run again with a longer --calibration",
    )


def read_amplification(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that storage delivers few bytes that no sample needs.

    Such bytes are neighbouring rows of a row group, and what direct IO reads for alignment.
    """
    done = complete(doc)
    if done and all(repetition.bytes_read is None for repetition in done):
        return None  # reads of a loader library are not counted; the report says so
    ratios = [
        one.bytes_read / one.sample_bytes
        for one in done
        if one.sample_bytes and one.bytes_read is not None
    ]
    if not ratios:
        return unknown("the bytes of samples and of reads were not recorded")
    worst = max(ratios)
    if worst <= MAX_AMPLIFIED:
        return None
    if doc.job.dataset.blocks:
        remedy = "read row groups in order (reader.access=sequential)"
        found = doc.job.verdict
        if found is None or found.storage_bound != "operations":  # smaller ones are as many reads
            remedy += ", or generate smaller row groups (block_size)"
    elif doc.job.loader.direct:
        remedy = "direct IO reads whole blocks: use reader.direct=false, or larger samples"
    else:
        remedy = "use larger samples, or read them in order (reader.access=sequential)"
    return RuleOutcome(f"storage delivered {worst:.1f} bytes for each byte of a sample", remedy)


def loader_tax(judged: Judged) -> RuleOutcome | None:
    """Check the CPU time that the loader needs to move ready bytes at the demanded rate."""
    doc, evidence = judged.record, judged.evidence
    loader = doc.job.ceilings.get("loader", Ceiling())
    if evidence.subject.reads_itself:
        return None  # the report compares the cost of a library with that of a plain read
    demand = evidence.bytes_per_s(
        evidence.accelerator if evidence.accelerator is not None else evidence.measured
    )
    if loader.cpu_s_per_gb is None or demand is None or not evidence.cores:
        return unknown("the loader's CPU time, the demand or the usable cores are not recorded")
    taken = loader.cpu_s_per_gb * demand / 1e9
    if taken > MAX_LOADER_CPU * evidence.cores:
        found = (
            f"moving ready bytes at the demanded rate takes {taken:.1f} of {evidence.cores:g} "
            f"cores ({loader.cpu_s_per_gb:.2f} CPU s/GB)"
        )
        return RuleOutcome(
            found,
            "the training needs these cores, too: use loader.transport=ring, which takes a tenth "
            "of the CPU time of torch's collate",
        )
    return None


MAX_CONTENTION = 1.05
"""A step that takes longer beside the loader than alone by more than this is told."""


def shares_cores(doc: TrainingRecord) -> RuleOutcome | None:
    """Whether the loader takes from the model what it needs: cores, memory bandwidth, the bus."""
    if doc.job.trained is None:
        return None
    found = contention(doc)
    if found is None:
        return unknown("the model's step was not measured alone")
    if found <= MAX_CONTENTION:
        return None
    return RuleOutcome(
        f"a step takes {found:.2f} x as long beside the loader as alone",
        "the loader and the model compete for this host: try fewer loader.workers, "
        "accelerator.threads and accelerator.bind, or data that is cheaper to prepare",
    )


def disagreement(judged: Judged) -> RuleOutcome | None:
    """Check that the ceilings predict the stage that is the bottleneck by test.

    Where they differ by more than noise, the test decides. The what-if and the sizes of this run
    then rest on ceilings that do not describe it.
    """
    evidence, decision = judged.evidence, judged.decision
    if decision.basis != "tested":
        return None
    ceilings = {
        "storage": None if evidence.cached else evidence.storage,
        "prep": evidence.prep,
        "loader": evidence.loader,
        "accelerator": evidence.accelerator,
    }
    guess = by_inference(evidence).bottleneck
    predicted, tested = ceilings.get(guess), ceilings.get(decision.bottleneck)
    if guess in (decision.bottleneck, *decision.also) or predicted is None or tested is None:
        return None
    if predicted * (1 + NOISE) >= tested:
        return None
    gain = evidence.gains.get(guess)
    without = f", but leaving it out brought {shown(gain)}" if gain is not None else ""
    return RuleOutcome(
        f"by its ceiling {guess} is the bottleneck ({evidence.told(predicted)}){without}. By "
        f"test {decision.bottleneck} is, and its ceiling is {evidence.told(tested)}",
        "trust the test, and measure for longer with --calibration. A ceiling was measured under "
        "other conditions than the run: a cache, another load, other reads in flight",
    )


def contention(doc: TrainingRecord) -> float | None:
    """How much longer a model's step takes beside the loader than alone; None if not a model's.

    Alone: from the ceiling of the accelerator. Beside: the mean busy time of a step, over all
    complete repetitions.
    """
    alone = doc.job.ceilings.get("accelerator", Ceiling()).samples_per_s
    beside = trained_rate(doc)
    return alone / beside if alone and beside else None
