"""``iobench size``: first the rate to buy, then how it was computed."""

from __future__ import annotations

from ..analyse.capacity import sizing
from ..analyse.capacity.measured import MeasuredStorage
from ..analyse.capacity.requirement import Requirement
from ..analyse.capacity.sizing import Cache
from ..schema.instances import Instance
from ..units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from .sections import Fact, Facts, FirstScreen, Headline, KeyFigure, Section
from .size_rates import rate_picture, rate_table

SOME = 1.02
"""A read amplification below this is not worth a word."""

SLOWER = 10
"""Another storage's reads may take this many times as long: an example of what follows."""

MUCH = 1.5
"""A margin above this is due to too few reads in flight, or to very short epochs."""


def sections(need: Requirement) -> list[Section]:
    """The requirement as facts. A figure that is not known is replaced by the reason."""
    rows = [
        ("job", _job(need)),
        ("data", _data(need)),
        (
            "demand",
            (
                f"{format_rate(need.demanded_read_bytes_per_s)}, "
                f"{format_count(need.demanded_samples_per_s)} samples/s, if nobody ever waits"
            ),
        ),
        ("reads", _reads(need)),
        ("margin", _margin(need)),
        ("peak", _peak(need)),
        ("concurrency", _concurrency(need)),
        ("each host", _host(need)),
        ("network", _network(need)),
        *([("instance", _instance(need, need.instance))] if need.instance else []),
        ("cache", _cache(need, need.cache)),
        ("checkpoints", _checkpoints(need)),
        ("restore", _restore(need)),
        ("CPU", _cpu(need)),
    ]
    if need.measured is not None:
        rows += [
            ("measured", _measured(need.measured)),
            ("would feed", _would_feed(need, need.measured)),
        ]
        rows += [("but", note) for note in need.measured.notes]
    facts = tuple(Fact(label=name, text=text) for name, text in rows)
    return [
        _first(need),
        Headline(id="rate", title=_title(need), sentences=(headline(need),)),
        Facts(id="requirement", facts=facts),
        rate_table(need),
    ]


def _first(need: Requirement) -> FirstScreen:
    """The first screen of a page: the rate to buy, and all others."""
    gauges = []
    if need.buy_bytes_per_s is not None:
        margin = f"{_more(need.margin.factor or 1.0)} margin included"
        gauges.append(
            KeyFigure(label="to buy", value=format_rate(need.buy_bytes_per_s), note=margin)
        )
    reads = f"of {format_bytes(need.read_bytes)}"
    rate = need.buy_reads_per_s or need.reads_per_s
    gauges.append(KeyFigure(label="reads/s", value=format_count(rate), note=reads))
    job = f"{need.workload}, {counted(need.accelerators, 'accelerator')}"
    return FirstScreen(
        job=job,
        state=_title(need).removeprefix(f"{job}: "),
        sentences=(f"{headline(need)}.",),
        gauges=tuple(gauges),
        picture=rate_picture(need),
        instead="rate",
    )


def _title(need: Requirement) -> str:
    """Which job it is, and the rate to buy."""
    rate = "no rate" if need.buy_bytes_per_s is None else format_rate(need.buy_bytes_per_s)
    job = f"{need.workload}, {counted(need.accelerators, 'accelerator')}"
    return f"{job}: {rate} {'is enough' if need.buy_bytes_per_s is None else 'to buy'}"


def headline(need: Requirement) -> str:
    """What to buy, in a sentence that can be read aloud."""
    job = (
        f"To keep {counted(need.accelerators, 'accelerator')} busy "
        f"{need.required_accelerator_utilization * 100:.4g} % of the time"
    )
    if need.buy_bytes_per_s is None:
        return f"{job}, {need.not_measured['buy_bytes_per_s']}"
    where = f" for {counted(need.hosts, 'host')} together" if need.hosts > 1 else ""
    factor = need.margin.factor or 1.0
    margin = f" (a margin of {_more(factor)} included)" if factor > 1 else ""
    writes = (
        ""
        if need.write_bytes_per_s is None
        else f", and {format_rate(need.write_bytes_per_s)} of durable writes at the same time"
    )
    restore = (
        ""
        if need.restore_bytes_per_s is None or need.restore_bytes_per_s <= need.buy_bytes_per_s
        else f"; a restore in time takes {format_rate(need.restore_bytes_per_s)} of reads"
    )
    return (
        f"{job}, buy storage that sustains {format_rate(need.buy_bytes_per_s)} of uncached reads"
        f"{where}{margin}{writes}{restore}"
    )


def _margin(need: Requirement) -> str:
    """The margin and what it is for, or why there is none."""
    found = need.margin
    over = f"over epochs of {counted(found.steps, 'step')}"
    if found.factor is None or found.filling is None:
        return "none is enough, see the first line"
    parts = [f"{_more(found.filling)} for filling the pipeline {over}"]
    who = f" at the barrier of {counted(found.ranks, 'rank')}" if found.barrier else ""
    if found.spread >= 0.0005:
        parts.append(
            f"{_more(found.unequal or 1.0)} for batches whose times differ by "
            f"{format_percent(found.spread)}{who}, with "
            f"{counted(found.queue, 'batch', 'batches')} prefetched by each rank"
        )
    unknown = (
        "; the spread of the latencies of reads is not in it, since it was not given "
        "(--latency with --latency-p99, or --from)"
        if need.latency_p99_s is None
        else ""
    )
    slow = ""
    if found.queue == 0:
        slow = "; no batch is prefetched (loader.workers=0): with workers less is needed"
    elif found.factor > MUCH:
        slow = (
            "; longer epochs need less"
            if need.latency_s is None
            else "; more reads in flight (reader.concurrency, loader.workers) or longer epochs "
            "need less"
        )
    return (
        f"with {_more(found.factor)} margin on the mean of {format_rate(need.read_bytes_per_s)}: "
        f"{', '.join(parts)}{unknown}{slow}"
    )


def _more(factor: float) -> str:
    return format_percent(factor - 1)


def _peak(need: Requirement) -> str:
    text = (
        f"up to {format_rate(need.peak_read_bytes_per_s)} of reads, if the storage gives them: "
        "while nobody waits, while the pipeline fills"
    )
    if need.restore_bytes_per_s is not None:
        text += ", or during a restore"
    if need.together_bytes_per_s is not None:
        text += (
            f"; {format_rate(need.together_bytes_per_s)} of reads and writes together while a "
            "checkpoint is saved"
        )
    return text


def _job(need: Requirement) -> str:
    where = counted(need.hosts, "host")
    at = f"{need.required_accelerator_utilization * 100:.4g} %"
    return (
        f"{need.workload}: {counted(need.accelerators, 'accelerator')} on {where}, each busy {at} "
        "of the time or more"
    )


def _data(need: Requirement) -> str:
    cut = (
        "one in each file"
        if need.samples_per_shard <= 1
        else f"{format_count(need.samples_per_shard)} in each shard"
    )
    if need.block_samples is not None:
        cut += f" and {format_count(need.block_samples)} in each block"
    return (
        f"{need.dataset}: {format_bytes(need.dataset_bytes)}, samples of "
        f"{format_bytes(need.sample_bytes)} as stored, {cut}, "
        f"{need.access} access"
    )


def _reads(need: Requirement) -> str:
    each = f"{format_count(need.reads_per_s)} reads/s of {format_bytes(need.read_bytes)}"
    text = (
        f"{format_rate(need.read_bytes_per_s)} at that utilization: {each}, "
        f"{format_count(need.opens_per_s)} opens/s"
    )
    if need.read_amplification < SOME:
        return text
    cause = (
        f"each sample costs the whole block that it shares with "
        f"{format_count(need.block_samples - 1)} others"
        if need.block_samples is not None and need.access == "random"
        else "file systems read whole blocks of 4 KiB"
    )
    return f"{text}; {need.read_amplification:.3g} x the bytes of the samples, because {cause}"


def _concurrency(need: Requirement) -> str:
    asked = f"the workload's readers keep up to {format_count(need.reads_in_flight_asked)}"
    if need.latency_s is None or need.reads_in_flight is None:
        return f"not known: {need.not_measured['reads_in_flight']}; {asked}"
    enough = (
        ""
        if need.reads_in_flight <= need.reads_in_flight_asked
        else ", which is too few: raise reader.concurrency or loader.workers"
    )
    slower = sizing.reads_in_flight(
        reads_per_s=need.buy_reads_per_s or need.reads_per_s, latency_s=SLOWER * need.latency_s
    )
    which = "" if need.measured is None else " of the storage that was measured"
    return (
        f"at {format_duration(need.latency_s)} a read{which} ({need.latency_from}), "
        f"{counted(need.reads_in_flight, 'read')} in flight "
        f"{'is' if need.reads_in_flight == 1 else 'are'} enough (Little's law); a storage whose "
        f"reads take {format_duration(SLOWER * need.latency_s)} needs "
        f"{format_count(max(slower, need.reads_in_flight))}; {asked}{enough}"
    )


def _host(need: Requirement) -> str:
    network = f"{need.network_bits_per_s_per_host / 1e9:.3g} Gb/s"
    text = (
        f"{format_rate(need.read_bytes_per_s_per_host)}: {network} of network in, payload alone, "
        "as a baseline that lasts and not as a burst"
    )
    if need.hosts == 1:
        return text
    return f"{text}; the storage serves all {format_count(need.hosts)} hosts at the same time"


def _network(need: Requirement) -> str:
    """The shares of a host's traffic, and the rate that its network must have."""
    found = need.network
    gradients = (
        "gradients not given (--parameters or --gradient-bytes)"
        if found.gradients is None
        else f"{_gigabits(found.gradients)} of gradients in each direction"
    )
    if need.hosts == 1 and found.gradients is not None:
        gradients = "gradients stay within the host"
    elif found.gradient_bytes:
        gradients += f" ({format_bytes(found.gradient_bytes)} in each step, by ring all-reduce)"
    parts = [f"{_gigabits(found.samples_in)} of samples in", gradients]
    if found.saves_out:
        parts.append(f"{_gigabits(found.saves_out)} of checkpoints out")
    if found.restore_in:
        parts.append(f"{_gigabits(found.restore_in)} in during a restore")
    shares = ""
    if found.gradients and found.training_in:
        shares = (
            f"; samples are {format_percent(found.samples_in / found.training_in)} of what comes in"
        )
    return (
        f"{_gigabits(found.needed)} for each host, in the busier direction: {', '.join(parts)}"
        f"{shares}; as a mean over the steps, payload alone"
    )


def _gigabits(bytes_per_s: float) -> str:
    return f"{8 * bytes_per_s / 1e9:.3g} Gb/s"


def _instance(need: Requirement, instance: Instance) -> str:
    """Whether the baseline of the hosts' network is enough."""
    if instance.network_baseline_gbps is None:
        return f"{instance.type}: its network is not known"
    needed, kept = 8 * need.network.needed / 1e9, instance.network_baseline_gbps
    peak = instance.network_peak_gbps
    burst = f" (bursts to {peak:g} Gb/s do not last)" if peak and peak > kept else ""
    if needed <= kept:
        word = (
            f"enough: {needed:.3g} Gb/s are {format_percent(needed / kept)} of the {kept:g} Gb/s "
            f"that it keeps up{burst}"
        )
    else:
        more = f"{-(-needed // kept):g} x as many hosts, or data on local drives"
        word = (
            f"NOT enough: {needed:.3g} Gb/s are needed and it keeps up {kept:g} Gb/s{burst}: {more}"
        )
    # no value in the table: no local drives, or not known
    local = f"; {instance.nvme_gb:g} GB of local drives" if instance.nvme_gb else ""
    few = ""
    if instance.accelerators and need.accelerators > instance.accelerators * need.hosts:
        hosts = -(-need.accelerators // instance.accelerators)
        few = (
            f"; it holds {counted(instance.accelerators, 'accelerator')}, so "
            f"{counted(hosts, 'host')} are needed"
        )
    return f"{instance.type}: network {word}{local}{few}"


def _cache(need: Requirement, cache: Cache | None) -> str:
    order = (
        "LRU, a new order in each epoch"
        if need.shuffle
        else "LRU, and reader.shuffle=false reads in the same order each time, so that it helps "
        "only if it holds all that the host reads"
    )
    direct = "" if need.page_cached else "; O_DIRECT bypasses it, so set reader.direct=false"
    if cache is None:
        return (
            "half of the reads from the second epoch on are saved by "
            f"{format_bytes(need.cache_to_halve_bytes_per_host)} of page cache in "
            f"each host ({order}{direct}), or by "
            f"{format_bytes(need.pinned_to_halve_bytes_per_host)} pinned there; "
            "the first epoch needs the whole rate"
        )
    return (
        f"{format_bytes(cache.bytes_per_host)} in each host hold {format_percent(cache.share)} of "
        "the data. From the second epoch on a "
        f"page cache ({order}{direct}) serves {format_percent(cache.page_cache_hit_rate)} of the "
        "reads and leaves "
        f"{format_rate(cache.page_cache_read_bytes_per_s)}; pinned, with each host reading its own "
        f"part, {format_percent(cache.pinned_hit_rate)} "
        f"and {format_rate(cache.pinned_read_bytes_per_s)}. The first epoch needs the whole rate"
    )


def _checkpoints(need: Requirement) -> str:
    saves = need.saves
    if need.write_bytes_per_s is None or saves.checkpoint_bytes is None or saves.budget_s is None:
        return f"not sized: {need.not_measured['write_bytes_per_s']}"
    each = (
        f", {format_rate(need.write_bytes_per_s / need.hosts)} from each host"
        if need.hosts > 1
        else ""
    )
    within = (
        f"{format_bytes(saves.checkpoint_bytes)} durable within {format_duration(saves.budget_s)}"
    )
    mean = ""
    if saves.mean_write_bytes_per_s is not None and saves.every_s is not None:
        mean = (
            f"; one every {format_duration(saves.every_s)} is a mean of "
            f"{format_rate(saves.mean_write_bytes_per_s)}"
        )
    return (
        f"{within}: {format_rate(need.write_bytes_per_s)} of writes{each}, beside the reads{mean}"
    )


def _restore(need: Requirement) -> str:
    """All ranks read the checkpoint at the same time, after an interruption."""
    saves = need.saves
    if (
        need.restore_bytes_per_s is None
        or saves.checkpoint_bytes is None
        or saves.restore_budget_s is None
    ):
        return f"not sized: {need.not_measured['restore_bytes_per_s']}"
    copies = "" if saves.restore_copies == 1 else f" {format_count(saves.restore_copies)} times"
    each = (
        f", {format_rate(need.restore_bytes_per_s / need.hosts)} to each host"
        if need.hosts > 1
        else ""
    )
    return (
        f"{format_bytes(saves.checkpoint_bytes)} read{copies} by all ranks together within "
        f"{format_duration(saves.restore_budget_s)}: {format_rate(need.restore_bytes_per_s)} of "
        f"reads{each}, while nobody trains"
    )


def _cpu(need: Requirement) -> str:
    if need.cores is None or need.measured is None:
        return f"not known: {need.not_measured['cores']}"
    each = f", {format_count(need.cores / need.hosts)} in each host" if need.hosts > 1 else ""
    return (
        f"about {format_count(need.cores)} cores{each} for reading, preparing and handing over "
        f"({need.measured.cpu_s_per_gb:.2f} CPU s/GB, with what the stages share counted twice)"
    )


def _measured(measured: MeasuredStorage) -> str:
    raw = (
        "" if measured.raw_bytes_per_s is None else f"; raw {format_rate(measured.raw_bytes_per_s)}"
    )
    interval = " (how far that may be off is not known)"
    if measured.low_bytes_per_s is not None and measured.high_bytes_per_s is not None:
        low, high = format_rate(measured.low_bytes_per_s), format_rate(measured.high_bytes_per_s)
        interval = f" [{low}, {high}]"
    return (
        f"{measured.url or 'the storage'} gave one host {format_rate(measured.read_bytes_per_s)}"
        f"{interval} by "
        f"{measured.by}{raw} (run {measured.run_id})"
    )


def _would_feed(need: Requirement, measured: MeasuredStorage) -> str:
    fed = (
        f"{format_count(min(measured.accelerators_fed, need.accelerators))} of "
        f"{counted(need.accelerators, 'accelerator')}, by the storage alone"
    )
    counting = (
        ", counting on a rate whose interval is not known"
        if measured.low_bytes_per_s is None
        else ", counting on the low end of its interval"
    )
    margin = (
        "" if measured.with_margin else " (no margin: a whole job was measured, with its waits)"
    )
    if measured.missing_bytes_per_s == 0:
        text = (
            f"{fed}: {measured.counted_bytes_per_s / measured.needed_bytes_per_s:.2f} x what is "
            f"needed{counting}{margin}"
        )
    else:
        factor = measured.needed_bytes_per_s / measured.counted_bytes_per_s
        text = (
            f"{fed}: {format_rate(measured.missing_bytes_per_s)} are missing, {factor:.3g} x the "
            f"measured rate is needed{counting}{margin}"
        )
    if need.hosts == 1:
        return text
    local = format_count(min(measured.accelerators_fed_local, need.accelerators))
    return (
        f"{text}, if all hosts together get what one got. If each host has such a storage of its "
        f"own: {local}"
    )
