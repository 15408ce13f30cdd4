"""``iobench size``: first the rate to buy, then how it was computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ..ask.capacity.measured import MeasuredStorage
from ..ask.capacity.requirement import JointDemand, Requirement
from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from ..settings.instances import Instance
from .figures import TableOf, facts, picture, sentence, told
from .record import numbered
from .sections import Bars, Cell, FirstScreen, KeyFigure, Section, Table

SOME = 1.02
"""A read amplification below this is not worth a word."""

MUCH = 1.5
"""A margin above this is due to too few reads in flight, or to very short epochs."""

Told = Mapping[str, Sequence[object]]
"""The facts of each label, as ``told`` takes them."""


def sections(need: Requirement) -> list[Section]:
    """The requirement as facts. A figure that is not known is replaced by the reason."""
    rows = {**_job(need), **_margin(need), **_concurrency(need), **_hosts(need)}
    rows |= _instance(need, need.instance) if need.instance else {}
    rows |= {**_cache(need), **_checkpoints(need), **_cores(need)}
    rows |= _measured(need, need.measured) if need.measured else {}
    texts = [(label, words) for label, each in rows.items() for words in told(*each)]
    return [_first(need), facts("requirement", "How it was computed", texts)]


def _first(need: Requirement) -> FirstScreen:
    """The rate to buy, and all others."""
    found, many = need.measured, counted(need.accelerators, "accelerator")
    rate, reads = need.buy_reads_per_s or need.reads_per_s, f"of {format_bytes(need.read_bytes)}"
    gauges = [KeyFigure("reads/s", format_count(rate), reads)]
    if found is not None:
        fed = format_count(min(found.accelerators_fed, need.accelerators))
        least = "at least " if found.at_least and found.missing_bytes_per_s else ""
        gauges.append(KeyFigure("would feed", f"{least}{fed}", f"of {many}, {_how_fed(need)}"))
    if need.instance is not None:
        network = told(*_instance(need, need.instance)["instance"])
        gauges += [KeyFigure("instance", text) for text in network[:1]]
    known = need.buy_bytes_per_s is not None
    return FirstScreen(
        job=f"{need.workload}, {many}",
        state=f"{_rate(need.buy_bytes_per_s)} to buy" if known else "no rate is enough",
        sentences=tuple(map(sentence, headline(need))),
        gauges=tuple(gauges),
        picture=_rates(need),
    )


def _how_fed(need: Requirement) -> str:
    """What is meant by the accelerators that the measured storage would feed.

    Where no rate is enough, something else than the storage keeps them from being fed.
    """
    if need.buy_bytes_per_s is not None:
        return "by the measured storage alone"
    return "if only the rate of the measured storage were the limit"


def _rates(need: Requirement) -> Table | None:
    """The rates that the job demands and the storage delivers, and what it must sustain."""
    found = need.measured
    rates = {
        "reads, mean": need.read_bytes_per_s,
        "reads, to buy": need.buy_bytes_per_s,
        "reads, at the most": need.peak_read_bytes_per_s,
        "writes of a save": need.write_bytes_per_s,
        "reads of a restore": need.restore_bytes_per_s,
    }
    bars = [(name, rate, "") for name, rate in rates.items()]
    title, needed = "What the job demands", need.buy_bytes_per_s
    if found is not None:
        bars.append(("measured", found.read_bytes_per_s, "delivered"))
        title, needed = f"{title}, and what the storage delivers", found.needed_bytes_per_s
    return picture(title, bars, format_rate, line=needed)


def headline(need: Requirement) -> Iterator[str]:
    """What to buy, in sentences that can be read aloud."""
    buy, restore = need.buy_bytes_per_s, need.restore_bytes_per_s
    job = f"To keep {counted(need.accelerators, 'accelerator')} busy {_busy(need)} of the time"
    if buy is None:
        yield f"{job}, {need.not_measured['buy_bytes_per_s']}"
        return
    hosts = f" for {counted(need.hosts, 'host')} together" if need.hosts > 1 else ""
    yield f"{job}, buy storage that sustains {format_rate(buy)} of uncached reads{hosts}"
    if (need.margin.factor or 1.0) > 1:
        yield f"a margin of {_more(need.margin.factor)} is included"
    if need.write_bytes_per_s is not None:
        yield f"it must take {_rate(need.write_bytes_per_s)} of durable writes at the same time"
    if restore is not None and restore > buy:
        yield f"a restore in time takes {format_rate(restore)} of reads"


def _busy(need: Requirement) -> str:
    return f"{need.required_accelerator_utilization * 100:.4g} %"


def _rate(bytes_per_s: float | None) -> str:
    return format_rate(bytes_per_s or 0.0)


def _more(factor: float | None) -> str:
    return format_percent((factor or 1.0) - 1)


def _gigabits(bytes_per_s: float | None) -> str:
    return f"{8 * (bytes_per_s or 0.0) / 1e9:.3g} Gb/s"


def _job(need: Requirement) -> Told:
    """The job, its data, and what its accelerators take."""
    shard = f"{format_count(need.samples_per_shard)} in each shard"
    shard = "one in each file" if need.samples_per_shard <= 1 else shard
    together, amplified = need.block_samples or 0.0, need.read_amplification
    block = f" and {format_count(together)} in each block" if together else ""
    why = "file systems read whole blocks of 4 KiB"
    if together and need.access == "random":
        why = f"it costs the whole block that it shares with {format_count(together - 1)} others"
    many = counted(need.accelerators, "accelerator")
    reads = f"{format_count(need.reads_per_s)} reads/s of {format_bytes(need.read_bytes)}"
    samples = f"{format_count(need.demanded_samples_per_s)} samples/s"
    opens = f"{format_count(need.opens_per_s)} opens/s"
    return {
        "job": [f"{many} on {counted(need.hosts, 'host')}, each busy {_busy(need)} of the time"],
        "data": [
            f"{need.dataset}: {format_bytes(need.dataset_bytes)}, {need.access} access",
            f"samples of {format_bytes(need.sample_bytes)} as stored, {shard}{block}",
            need.dataset_steps < need.margin.steps
            and f"an epoch of it has {counted(need.dataset_steps, 'step')}, and "
            f"{need.margin.steps:,} are counted: --dataset-size says how large yours is",
        ],
        "demand": [
            f"{_rate(need.demanded_read_bytes_per_s)}, {samples}, if no accelerator ever waits"
        ],
        "reads": [
            f"{_rate(need.read_bytes_per_s)} at that utilization: {reads}, {opens}",
            amplified >= SOME and f"{amplified:.3g} x the bytes of a sample are read, since {why}",
        ],
    }


def _margin(need: Requirement) -> Told:
    """The margin and what it is for, or why there is none; and the most that is read."""
    found, together = need.margin, need.together_bytes_per_s
    who = f" at the barrier of {counted(found.ranks, 'rank')}" if found.barrier else ""
    ahead = counted(found.queue, "batch", "batches")
    texts: list[object] = ["none is enough, see the first line"]
    if found.factor is not None and found.filling is not None:
        much = found.queue > 0 and found.factor > MUCH
        steps = counted(found.steps, "step")
        texts = [
            f"{_more(found.factor)} on the mean of {_rate(need.read_bytes_per_s)}",
            f"{_more(found.filling)} of it for filling the pipeline over epochs of {steps}"
            + (", and for latencies of reads" if need.latency_s is not None else ""),
            found.spread >= 0.0005
            and f"{_more(found.unequal)} of it for batches whose times differ by "
            f"{format_percent(found.spread)}{who}, with {ahead} prefetched by each rank",
            need.latency_p99_s is None
            and "how much latencies of reads differ is not in it: give --latency with "
            "--latency-p99, or --from",
            found.queue == 0 and "no batch is prefetched (loader.workers=0)",
            much and "longer epochs need less",
            much and need.latency_s is not None and "more reads in flight need less",
        ]
    restore = ", or during a restore" if need.restore_bytes_per_s is not None else ""
    peak = [
        f"up to {_rate(need.peak_read_bytes_per_s)} of reads, if the storage gives them",
        f"while no accelerator waits, and while the pipeline fills{restore}",
        together is not None
        and f"{_rate(together)} of reads and writes while a checkpoint is saved",
    ]
    return {"margin": texts, "peak": peak}


def _concurrency(need: Requirement) -> Told:
    asked, latency, enough = need.reads_in_flight_asked, need.latency_s, need.reads_in_flight
    readers = f"the workload's readers keep up to {format_count(asked)}"
    if latency is None or enough is None:
        return {"concurrency": [f"not known: {need.not_measured['reads_in_flight']}", readers]}
    which = "" if need.measured is None else " of the storage that was measured"
    few = ", which is too few: raise reader.concurrency or loader.workers"
    are = f"{counted(enough, 'read')} in flight {'is' if enough == 1 else 'are'} enough"
    return {
        "concurrency": [
            f"{are} at {format_duration(latency)} a read{which}, by Little's law: "
            f"{need.latency_from}",
            readers + few * (enough > asked),
        ]
    }


def _hosts(need: Requirement) -> Told:
    """What each host takes, and the rate that its network must have."""
    found, many = need.network, need.hosts > 1
    incoming = f"{need.network_bits_per_s_per_host / 1e9:.3g} Gb/s"
    gradients = "gradients stay within the host"
    if found.gradients is None:
        gradients = "gradients not given (--parameters or --gradient-bytes)"
    elif many:
        size = found.gradient_bytes
        each = f" ({format_bytes(size)} in each step, by ring all-reduce)" if size else ""
        gradients = f"{_gigabits(found.gradients)} of gradients in each direction{each}"
    return {
        "each host": [
            f"{_rate(need.read_bytes_per_s_per_host)}: {incoming} of network in, as a baseline "
            "that lasts and not as a burst",
            many and f"the storage serves all {format_count(need.hosts)} hosts at the same time",
        ],
        "network": [
            f"{_gigabits(found.needed)} for each host, in the busier direction, as a mean",
            f"{_gigabits(found.samples_in)} of samples in",
            gradients,
            found.saves_out and f"{_gigabits(found.saves_out)} of checkpoints out",
            found.restore_in and f"{_gigabits(found.restore_in)} in during a restore",
        ],
    }


def _instance(need: Requirement, instance: Instance) -> Told:
    """Whether the baseline of the hosts' network is enough."""
    needed, kept = 8 * need.network.needed / 1e9, instance.network_baseline_gbps
    peak, slots = instance.network_peak_gbps or 0.0, instance.accelerators or need.accelerators
    told: list[object] = [f"{instance.type}: its network is not known"]
    if kept is not None:
        share = f"{needed:.3g} of the {kept:,g} Gb/s that it sustains are needed"
        enough = needed <= kept
        told = [
            f"{instance.type}: its network is {'enough' if enough else 'NOT enough'}: {share}",
            not enough and _more_network(need, kept),
        ]
    holds = f"it holds {counted(slots, 'accelerator')}, so "
    holds += f"{counted(math.ceil(need.accelerators / slots), 'host')} are needed"
    return {
        "instance": [
            *told,
            peak > (kept or math.inf) and f"its bursts to {peak:g} Gb/s do not last",
            instance.nvme_gb and f"{instance.nvme_gb:g} GB of local drives",
            need.accelerators > slots * need.hosts and holds,
        ]
    }


def _more_network(need: Requirement, kept: float) -> str:
    """What brings a network of ``kept`` Gb/s for each host; more hosts share all but gradients."""
    own = 8 * (need.network.gradients or 0.0) / 1e9
    own *= need.hosts / max(1, need.hosts - 1)  # of many hosts, in a ring
    if own >= kept:
        return "more hosts don't help: the gradients alone need it, on each of them"
    shared = 8 * max(need.network.samples_in, need.network.saves_out) / 1e9
    times = max(shared / (kept - own), 8 * need.network.restore_in / 1e9 / kept)
    return f"{math.ceil(times)} x as many hosts, or data on local drives"


def _cache(need: Requirement) -> Told:
    """What memory in each host saves from the second epoch on."""
    cache = need.cache
    if cache is None:
        pages = format_bytes(need.cache_to_halve_bytes_per_host)
        pinned = format_bytes(need.pinned_to_halve_bytes_per_host)
        texts = [
            f"half of the reads from the second epoch on are saved by {pages} of page cache in "
            f"each host, or by {pinned} pinned there"
        ]
    else:
        held = format_percent(cache.share)
        texts = [
            f"{format_bytes(cache.bytes_per_host)} in each host hold {held} of the data",
            "from the second epoch on a page cache serves "
            f"{format_percent(cache.page_cache_hit_rate)} of the reads and leaves "
            f"{_rate(cache.page_cache_read_bytes_per_s)}",
            f"pinned, with each host reading its own part: {format_percent(cache.pinned_hit_rate)} "
            f"and {_rate(cache.pinned_read_bytes_per_s)}",
        ]
    order = "the page cache is LRU, with a new order in each epoch"
    same = "reader.shuffle=false: LRU helps only if it holds all that the host reads"
    texts += ["the first epoch needs the whole rate", order if need.shuffle else same]
    direct = "O_DIRECT bypasses the page cache: set reader.direct=false"
    return {"cache": [*texts, not need.page_cached and direct]}


def _checkpoints(need: Requirement) -> Told:
    """Saves, and restores: all ranks read the checkpoint at once, after an interruption."""
    saves, hosts = need.saves, need.hosts
    write, restore = need.write_bytes_per_s, need.restore_bytes_per_s
    size, mean = format_bytes(saves.checkpoint_bytes or 0), saves.mean_write_bytes_per_s
    copies = "" if saves.restore_copies == 1 else f" {format_count(saves.restore_copies)} times"
    saved = f"not sized: {need.not_measured.get('write_bytes_per_s')}"
    if write:
        each = f", {_rate(write / hosts)} from each host" if hosts > 1 else ""
        within = format_duration(saves.budget_s or 0.0)
        saved = f"{size} durable within {within}: {_rate(write)} of writes{each}, beside the reads"
    every = f"one every {format_duration(saves.every_s or 0.0)} is a mean of {_rate(mean)}"
    restored = f"not sized: {need.not_measured.get('restore_bytes_per_s')}"
    if restore:
        each = f", {_rate(restore / hosts)} to each host" if hosts > 1 else ""
        within = format_duration(saves.restore_budget_s or 0.0)
        restored = (
            f"{size} read{copies} by all ranks together within {within}: {_rate(restore)} of "
        )
        restored += f"reads{each}, while nobody trains"
    return {"checkpoints": [saved, mean and every], "restore": [restored]}


def _cores(need: Requirement) -> Told:
    if need.cores is None or need.measured is None:
        return {"CPU": [f"not known: {need.not_measured['cores']}"]}
    each = f", {format_count(need.cores / need.hosts)} in each host" if need.hosts > 1 else ""
    cost = f"{need.measured.cpu_s_per_gb:.2f} CPU s/GB"
    return {
        "CPU": [
            f"about {format_count(need.cores)} cores{each} for reading, preparing and handing over",
            f"{cost}, with what the stages share counted twice",
        ]
    }


def _measured(need: Requirement, found: MeasuredStorage) -> Told:
    """What a run says of its storage, and how many accelerators that feeds."""
    low, high, missing = found.low_bytes_per_s, found.high_bytes_per_s, found.missing_bytes_per_s
    needed, interval = found.needed_bytes_per_s, "(how far that may be off is not known)"
    if low is not None:
        interval = f"({_rate(low)} at least)" if high is None else f"[{_rate(low)}, {_rate(high)}]"
    fed, local = (
        format_count(min(each, need.accelerators))
        for each in (found.accelerators_fed, found.accelerators_fed_local)
    )
    many, rate = counted(need.accelerators, "accelerator"), found.counted_bytes_per_s
    raw, several = found.raw_bytes_per_s is not None, found.hosts > 1
    who = f"{format_count(found.hosts)} hosts together" if several else "one host"
    got = who if several else "one"
    return {
        "measured": [
            f"{found.url or 'the storage'} gave {who} {_rate(found.read_bytes_per_s)} "
            f"{interval} by {found.by} (run {found.run_id})",
            raw and f"raw {_rate(found.raw_bytes_per_s)}",
        ],
        "would feed": [
            f"{fed} of {many}, {_how_fed(need)}",
            missing == 0 and f"{rate / needed:.2f} x what is needed",
            missing
            and f"{_rate(missing)} are missing: {needed / rate:.3g} x the measured rate is needed",
            "this counts on the low end of its interval"
            if low is not None
            else "this counts on a rate whose interval is not known",
            not found.with_margin and "no margin: a whole job was measured, with its waits",
            need.hosts > 1 and f"this holds if all hosts together get what {got} got",
            need.hosts > 1 and f"if each host has such a storage of its own: {local}",
        ],
        "but": found.notes,
    }


def together_sections(
    whole: JointDemand, jobs: Sequence[tuple[Requirement, Sequence[Section]]]
) -> list[Section]:
    """The sum, a row for each job, and the sections of each with its number."""
    needs = [job for job, _ in jobs]
    shown = [
        numbered(section, number, "job")
        for number, (_, sections) in enumerate(jobs, start=1)
        for section in sections
    ]
    return [_sum(whole, needs), _jobs(whole, needs), *shown]


def _sum(whole: JointDemand, jobs: Sequence[Requirement]) -> FirstScreen:
    many = counted(len(jobs), "job")
    named = " and ".join(
        f"{job.workload} on {counted(job.accelerators, 'accelerator')}" for job in jobs
    )
    if whole.buy_bytes_per_s is None or whole.buy_reads_per_s is None:
        why = "; ".join(whole.not_measured.values())
        return FirstScreen(id="together", job=many, state="no rate is enough", sentences=(why,))
    rate = format_rate(whole.buy_bytes_per_s)
    reads = format_count(whole.buy_reads_per_s)
    told = (
        f"To run {named} at the same time, buy {rate} of uncached reads, in {reads} reads/s.",
        "This is the sum of what each needs alone, margins included, as if all needed theirs at "
        "the same moment.",
        "How much their reads slow one another down on a storage is not in it.",
    )
    job = f"{many} on one storage"
    return FirstScreen(id="together", job=job, state=f"{rate} to buy", sentences=told)


def _jobs(whole: JointDemand, jobs: Sequence[Requirement]) -> Table:
    """A row for each job, and one for all of them."""
    rows = TableOf[Requirement | JointDemand]([*jobs, whole])
    number = {id(job): at for at, job in enumerate(jobs, start=1)}
    rows.add("number", "job", of=lambda job: number.get(id(job)), missing="")
    rows.add("workload", "workload", of=lambda job: getattr(job, "workload", "together"))
    rows.add("accelerators", "accelerators")
    rows.add("hosts", "hosts", of=lambda job: getattr(job, "hosts", None), missing="")
    rows.add_each({"dataset_bytes": "dataset", "read_bytes_per_s": "mean"})
    unknown = Cell(value=None, why="no rate is enough")
    rows.add("buy_bytes_per_s", "to buy", of=lambda job: job.buy_bytes_per_s or unknown)
    rows.add("buy_reads_per_s", "reads/s", of=lambda job: job.buy_reads_per_s or unknown)
    rows.add("peak_read_bytes_per_s", "peak")
    full = max([whole.buy_bytes_per_s or 0.0, *(job.buy_bytes_per_s or 0.0 for job in jobs)])
    several = len({job.dataset for job in jobs}) < len(jobs)
    return rows.made(
        "jobs",
        "What each job needs, and all of them together",
        bars=Bars(column="buy_bytes_per_s", full=full) if full > 0 else None,
        notes=["A dataset that several jobs read counts once."] if several else [],
    )
