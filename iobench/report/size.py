"""``iobench size``: first the rate to buy, then how it was computed."""

from __future__ import annotations

from ..analyse.capacity.measured import Measured
from ..analyse.capacity.requirement import Cache, Requirement
from ..schema.instances import Instance
from ..units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from .sections import Fact, Facts, Section


def sections(need: Requirement, instance: Instance | None = None) -> list[Section]:
    """The requirement as facts. A figure that is not known is replaced by the reason.

    ``instance`` is the type of each host, if it is known.
    """
    rows = [
        ("buy", headline(need)),
        ("job", _job(need)),
        ("data", _data(need)),
        (
            "demand",
            (
                f"{_both(need.demanded_read_bytes_per_s)}, "
                f"{format_count(need.demanded_samples_per_s)} samples/s, if nobody ever waits"
            ),
        ),
        ("reads", _reads(need)),
        ("concurrency", _concurrency(need)),
        ("each host", _host(need)),
        *([("instance", _instance(need, instance))] if instance else []),
        ("cache", _cache(need, need.cache)),
        ("checkpoints", _checkpoints(need)),
        ("CPU", _cpu(need)),
    ]
    if need.measured is not None:
        rows += [
            ("measured", _measured(need.measured)),
            ("would feed", _would_feed(need, need.measured)),
        ]
        rows += [("but", note) for note in need.measured.notes]
    facts = tuple(Fact(label=name, text=text) for name, text in rows)
    return [Facts(id="requirement", facts=facts)]


def headline(need: Requirement) -> str:
    """The rates to buy, as a phrase."""
    writes = (
        ""
        if need.write_bytes_per_s is None
        else f", and {_both(need.write_bytes_per_s)} of durable writes"
    )
    flight = (
        ""
        if need.reads_in_flight is None
        else f" with {format_count(need.reads_in_flight)} in flight"
    )
    return f"{_both(need.read_bytes_per_s)} of sustained, uncached reads{flight}{writes}"


def _both(bytes_per_s: float) -> str:
    """A rate in both units: storage is sold in GB/s, and iobench prints GiB/s elsewhere."""
    for power, unit in ((12, "TB/s"), (9, "GB/s"), (6, "MB/s"), (3, "kB/s")):
        if bytes_per_s >= 10**power:
            return f"{bytes_per_s / 10**power:.3g} {unit} ({format_rate(bytes_per_s)})"
    return format_rate(bytes_per_s)


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
    return (
        f"{need.dataset}: {format_bytes(need.dataset_bytes)}, samples of "
        f"{format_bytes(need.sample_bytes)} as stored, {cut}, "
        f"{need.access} access"
    )


def _reads(need: Requirement) -> str:
    each = f"{format_count(need.reads_per_s)} reads/s of {format_bytes(need.read_bytes)}"
    return (
        f"{_both(need.read_bytes_per_s)} at that utilization: {each}, "
        f"{format_count(need.opens_per_s)} opens/s"
    )


def _concurrency(need: Requirement) -> str:
    asked = f"the workload's readers keep up to {format_count(need.reads_in_flight_asked)}"
    if need.latency_s is None or need.reads_in_flight is None:
        return f"not known: {need.not_measured['reads_in_flight']}; {asked}"
    enough = (
        ""
        if need.reads_in_flight <= need.reads_in_flight_asked
        else ", which is too few: raise reader.concurrency or loader.workers"
    )
    return (
        f"{format_count(need.reads_in_flight)} reads in flight at "
        f"{format_duration(need.latency_s)} each ({need.latency_from}; "
        f"Little's law); {asked}{enough}"
    )


def _host(need: Requirement) -> str:
    network = f"{need.network_bits_per_s_per_host / 1e9:.3g} Gb/s"
    return (
        f"{_both(need.read_bytes_per_s_per_host)}: {network} of network in, payload alone, as a "
        "baseline that lasts and not as a burst"
    )


def _instance(need: Requirement, instance: Instance) -> str:
    """Whether the baseline of the hosts' network is enough."""
    if instance.network_baseline_gbps is None:
        return f"{instance.type}: its network is not known"
    needed, kept = need.network_bits_per_s_per_host / 1e9, instance.network_baseline_gbps
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
    if cache is None:
        return (
            "half of the reads from the second epoch on are saved by "
            f"{format_bytes(need.cache_to_halve_bytes_per_host)} of page cache in "
            f"each host, or by {format_bytes(need.pinned_to_halve_bytes_per_host)} pinned there; "
            "the first epoch needs the whole rate"
        )
    return (
        f"{format_bytes(cache.bytes_per_host)} in each host hold {format_percent(cache.share)} of "
        "the data. From the second epoch on a "
        f"reshuffled page cache serves {format_percent(cache.page_cache_hit_rate)} of the reads "
        "and leaves "
        f"{_both(cache.page_cache_read_bytes_per_s)}; pinned, with each host reading its own part, "
        f"{format_percent(cache.pinned_hit_rate)} "
        f"and {_both(cache.pinned_read_bytes_per_s)}. The first epoch needs the whole rate"
    )


def _checkpoints(need: Requirement) -> str:
    if (
        need.write_bytes_per_s is None
        or need.checkpoint_bytes is None
        or need.checkpoint_budget_s is None
    ):
        return f"not sized: {need.not_measured['write_bytes_per_s']}"
    each = (
        f", {_both(need.write_bytes_per_s / need.hosts)} from each host" if need.hosts > 1 else ""
    )
    within = (
        f"{format_bytes(need.checkpoint_bytes)} durable within "
        f"{format_duration(need.checkpoint_budget_s)}"
    )
    return f"{within}: {_both(need.write_bytes_per_s)} of writes{each}"


def _cpu(need: Requirement) -> str:
    if need.cores is None or need.measured is None:
        return f"not known: {need.not_measured['cores']}"
    each = f", {format_count(need.cores / need.hosts)} in each host" if need.hosts > 1 else ""
    return (
        f"about {format_count(need.cores)} cores{each} for reading, preparing and handing over "
        f"({need.measured.cpu_s_per_gb:.2f} CPU s/GB, with what the stages share counted twice)"
    )


def _measured(measured: Measured) -> str:
    raw = "" if measured.raw_bytes_per_s is None else f"; raw {_both(measured.raw_bytes_per_s)}"
    interval = ""
    if measured.low_bytes_per_s is not None and measured.high_bytes_per_s is not None:
        low, high = format_rate(measured.low_bytes_per_s), format_rate(measured.high_bytes_per_s)
        interval = f" [{low}, {high}]"
    return (
        f"{measured.url or 'the storage'} gave one host {_both(measured.read_bytes_per_s)}"
        f"{interval} by "
        f"{measured.by}{raw} (run {measured.run_id})"
    )


def _would_feed(need: Requirement, measured: Measured) -> str:
    fed = (
        f"{format_count(min(measured.accelerators_fed, need.accelerators))} of "
        f"{counted(need.accelerators, 'accelerator')}"
    )
    if measured.missing_bytes_per_s == 0:
        text = f"{fed}: {measured.read_bytes_per_s / need.read_bytes_per_s:.2f} x what is needed"
    else:
        factor = need.read_bytes_per_s / measured.read_bytes_per_s
        text = (
            f"{fed}: {_both(measured.missing_bytes_per_s)} are missing, {factor:.3g} x the "
            "measured rate is needed"
        )
    if need.hosts == 1:
        return text
    local = format_count(min(measured.accelerators_fed_local, need.accelerators))
    return (
        f"{text}, if all hosts together get what one got. If each host has such a storage of its "
        f"own: {local}"
    )
