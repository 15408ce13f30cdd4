"""Express the verdict in one or two sentences: which stage limits the accelerators, and figures."""

from __future__ import annotations

from ...schema.workload import OWN_LOADER
from ...units import counted, format_count, format_percent, format_rate
from ..compare.statistics import NOISE
from .evidence import AT_LIMIT, Evidence

SUBJECTS = {
    "storage": "Storage",
    "prep": "Data preparation on this host",
    "harness": "The loader itself (worker processes and batch transport)",
}
LIMITS = {
    "storage": "storage",
    "prep": "data preparation on this host",
    "harness": "the loader itself",
    "accelerator": "the accelerator",
}

MILD, SEVERE = 0.05, 0.20
"""Limits for the share of waiting time, from the TensorFlow profiler's input-pipeline analyzer.

Below 5 % the accelerators are fed, up to 20 % mildly starved, above that starved.
"""


def degree(utilization: float) -> str:
    """``fed``, ``mildly starved`` or ``starved``, by the share of time that accelerators wait."""
    wait = 1 - utilization
    return "fed" if wait < MILD else "mildly starved" if wait < SEVERE else "starved"


def sentence(
    evidence: Evidence, binds: str, reason: str, headroom: float | None, fed: int | None
) -> str:
    """The verdict in words.

    ``binds`` and ``reason`` come from ``bind.bind``; ``headroom`` and ``fed`` are about storage.
    """
    if evidence.accelerator is None:
        return _without_accelerator(evidence, binds, reason)
    accelerators = counted(evidence.accelerators, "accelerator")
    they_demand = "it demands" if evidence.accelerators == 1 else "they demand"
    demand = f"{they_demand} {_rate(evidence, evidence.accelerator)}"
    storage = _storage(evidence, headroom)
    feeds = _feeds(evidence, fed)
    if binds == "accelerator":
        return f"{_keeps_busy(evidence, accelerators)}: {demand}, and {storage}{feeds}."
    if binds == "undecided":
        return (
            f"What limits {accelerators} is undecided: {reason}. {_capital(demand)}, "
            f"and {storage}{_measured(evidence)}."
        )
    opening = (
        f"{_subject(evidence, binds, reason)} {_starves(evidence)} {accelerators}"
        f"{_busy(evidence)}: {demand}"
    )
    if binds == "storage":
        return f"{opening}, and {storage}{feeds}.{_why_storage(evidence, reason)}"
    if reason:
        yields = _rate(evidence, evidence.serial if binds == "prep" else evidence.fetch)
        return f"{opening}, but {reason}, which yields {yields}."
    rate = evidence.prep if binds == "prep" else evidence.harness
    although = f", although {storage}" if (headroom or 0) >= 1 else f", and {storage}"
    if (
        rate is not None
        and evidence.measured is not None
        and evidence.measured > rate * (1 + NOISE)
    ):  # the run was faster than the ceiling, so the ceiling was measured too low
        own = (
            f"alone yielded {_rate(evidence, rate)}, less than the "
            f"{_rate(evidence, evidence.measured)} of the whole run"
        )
        return f"{opening}, but {_what(evidence, binds)} {own}{although}."
    return (
        f"{opening}, but {_what(evidence, binds)} yields at most {_rate(evidence, rate)}{although}."
    )


def _without_accelerator(evidence: Evidence, binds: str, reason: str) -> str:
    sustained = (
        "an unknown rate" if evidence.measured is None else _rate(evidence, evidence.measured)
    )
    temperature = " cold" if evidence.cold and evidence.measured is not None else ""
    limit = (
        f"what limits it is undecided: {reason}"
        if binds == "undecided"
        else f"the limit is {LIMITS[binds]}"
    )
    if binds == "harness" and reason:
        limit = f"the limit is this host's CPU: {reason}"
    why = _why_storage(evidence, "") if binds == "storage" else ""
    rate = f"the loader sustains {sustained}{temperature}"
    return f"The accelerators set no demand: {rate}; {limit}.{why}"


def _keeps_busy(evidence: Evidence, accelerators: str) -> str:
    if evidence.utilization is None:
        return f"The data pipeline is expected to keep up with {accelerators}"
    grade = degree(evidence.utilization)
    waiting = (
        ""
        if grade == "fed"
        else f", waiting {format_percent(1 - evidence.utilization)} of the time"
    )
    between = " between saves" if evidence.saves else ""
    busy = (
        f"{format_percent(evidence.utilization)} busy{between} ({_percent(evidence.required)} "
        f"required{waiting})"
    )
    return f"The data pipeline keeps {accelerators} {busy}"


def _subject(evidence: Evidence, binds: str, reason: str) -> str:
    if binds == "prep" and evidence.kind != OWN_LOADER:
        return f"The loader '{evidence.kind}' (decoding, collating and delivering batches)"
    return "This host's CPU" if binds == "harness" and reason else SUBJECTS[binds]


def _what(evidence: Evidence, binds: str) -> str:
    return "preparation" if binds == "prep" and evidence.kind == OWN_LOADER else "the loader"


def _starves(evidence: Evidence) -> str:
    if evidence.utilization is None:
        return "limits"
    return {"fed": "slows", "mildly starved": "mildly starves", "starved": "starves"}[
        degree(evidence.utilization)
    ]


def _busy(evidence: Evidence) -> str:
    if evidence.utilization is None:
        return ""
    between = " between saves" if evidence.saves else ""
    return (
        f" ({format_percent(evidence.utilization)} busy{between}, {_percent(evidence.required)} "
        "required)"
    )


def _storage(evidence: Evidence, headroom: float | None) -> str:
    if evidence.storage is None or headroom is None:
        return "what storage can deliver was not measured"
    storage, cold = "storage", " cold" if evidence.cold else ""
    if evidence.fetch is None:
        storage, cold = "raw storage", ""
    rate = _rate(evidence, evidence.storage)
    return f"{storage} delivers {rate}{cold}, {headroom:.2f} x the demand"


def _feeds(evidence: Evidence, fed: int | None) -> str:
    if fed is None:
        return ""
    at = f"at {_percent(evidence.required)} utilization"
    if fed >= evidence.accelerators:
        return f"; it can feed {counted(fed, 'accelerator')} {at}"
    if evidence.accelerators == 1:
        return f"; it cannot feed even one {at}"
    if fed == 0:
        return f"; it cannot feed any of them {at}"
    return f"; it can feed {format_count(fed)} of them {at}"


def _why_storage(evidence: Evidence, reason: str) -> str:
    """A sentence on whether the device is at its limit, or the reader requests too little."""
    if reason:
        return f" {_capital(reason)}, which yields {_rate(evidence, evidence.serial)}."
    if evidence.raw is None or evidence.fetch is None:
        return ""
    share = evidence.fetch / evidence.raw
    raw = _rate(evidence, evidence.raw)
    fio = evidence.raw_by == "fio"
    if share < AT_LIMIT:
        whose = (
            "that fio reads from the same files"
            if fio
            else "that it gets with more reads in flight"
        )
        return (
            f" The reader gets {share:.0%} of the {raw} {whose}: the limit is its latency or "
            "concurrency, not the device."
        )
    how = (
        f"fio reads {raw} from the same files"
        if fio
        else f"with more reads in flight it delivers {raw}"
    )
    return f" The storage itself is at its limit: {how}."


def _measured(evidence: Evidence) -> str:
    return (
        ""
        if evidence.measured is None
        else f"; the run sustained {_rate(evidence, evidence.measured)}"
    )


def _rate(evidence: Evidence, samples_per_s: float | None) -> str:
    if samples_per_s is None:
        return "an unknown rate"
    moved = evidence.bytes_per_s(samples_per_s)
    samples = f"{format_count(samples_per_s)} samples/s"
    return samples if moved is None else f"{format_rate(moved)} ({samples})"


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.4g} %"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
