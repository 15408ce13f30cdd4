"""The explanation of a verdict for an engineer: rates, reads in flight, what was left out."""

from __future__ import annotations

from collections.abc import Iterator

from ...schema.verdict import Verdict
from ...units import counted, format_count, format_duration
from ..compare.statistics import NOISE
from .decision import Decision
from .evidence import NOISE_OF_FILL, Evidence
from .limits import enough_in_flight
from .stragglers import stragglers, told

SPENT = {
    "operations": "its operations/s are spent, its bandwidth is not",
    "bandwidth": "its bandwidth is spent",
    "operations or bandwidth": "it delivers no more",
    "latency": "the limit is the latency of its reads, and how many are in flight",
    "stragglers": "the limit is the few reads that take much longer than the others",
    "client": "the limit is the CPU of this host, and not the storage",
    "unknown": "more reads in flight were not measured",
}

NAMES = {
    "accelerator": "the accelerator",
    "sync": "the barrier",
    "fill": "the start of epochs",
}


def explained(evidence: Evidence, decision: Decision, found: Verdict) -> Iterator[str]:
    """The sentences of the explanation."""
    yield _rates(evidence, found)
    if decision.reason and decision.binds != "undecided":
        yield f"{decision.reason[:1].upper()}{decision.reason[1:]}."
    if evidence.cached:
        yield f"A cache served reads ({evidence.cached}), so their rate is not that of the storage."
    elif "storage" in (decision.binds, *decision.also) or found.storage_bound == "client":
        yield from _storage(evidence, found)
        yield from _less_than_alone(evidence, decision, found)
    elif refuted := _refuted(evidence, decision):
        yield refuted
    if found.slowest_rank is not None:
        yield f"The others wait for rank {found.slowest_rank}."


def _rates(evidence: Evidence, found: Verdict) -> str:
    """Demand, what the run sustained, and what the stages deliver alone."""
    parts = []
    if evidence.accelerator is not None:
        who = "the accelerator demands" if evidence.accelerators == 1 else "the accelerators demand"
        who = "without waits your training would take" if evidence.watched else who
        parts.append(f"{who} {evidence.told(evidence.accelerator)}")
    if evidence.measured is not None and not evidence.modelled:
        run = "it" if evidence.watched else "the run"
        parts.append(f"{run} sustained {evidence.told(evidence.measured)}{_fell(evidence, found)}")
    if evidence.storage is not None and not evidence.cached:
        name = "storage alone" if evidence.fetch is not None else "raw storage"
        cold = " cold" if evidence.cold and evidence.fetch is not None else ""
        times = "" if found.headroom is None else f", {found.headroom:.2f} x the demand"
        if _is_lasting(found):
            kind = ", which was measured before its rate fell"
            parts.append(f"{name} delivered {evidence.told(evidence.storage)}{cold}{kind}")
        else:
            parts.append(f"{name} delivers {evidence.told(evidence.storage)}{cold}{times}")
    rate = {"prep": evidence.prep, "harness": evidence.harness, "cpu": evidence.cpu}.get(
        found.binds
    )
    if rate is not None:
        what = {"prep": "preparation", "harness": "the loader", "cpu": "this host's CPU"}
        parts.append(f"{what[found.binds]} alone yields {evidence.told(rate)}")
    text = "; ".join(parts) or "nothing was measured"
    return f"{text[:1].upper()}{text[1:]}."


def _is_lasting(found: Verdict) -> bool:
    """Whether what the storage feeds is what the run received after its rate fell."""
    return found.fed is not None and found.fed.basis == "run"


def _fell(evidence: Evidence, found: Verdict) -> str:
    """Which rate that is: that after a fall which stayed, or after the fill of what was cut."""
    lasts = evidence.lasting
    if lasts is None:
        return " after the fill" if evidence.cut_fill > NOISE_OF_FILL else ""
    times = f", {found.headroom:.2f} x the demand" if found.headroom and _is_lasting(found) else ""
    return (
        f" after its rate fell from {format_count(lasts.before)} samples/s within "
        f"{format_duration(lasts.at_s)}{times}"
    )


def _storage(evidence: Evidence, found: Verdict) -> Iterator[str]:
    """What limits the storage at the run's reads in flight."""
    if found.storage_bound is None or evidence.modelled:
        return  # only a measurement tells what limits a storage
    if _is_lasting(found):
        yield (
            "The storage's ceilings and its curve were measured before that fall, and are those of "
            "a burst: what lasts is what the run got."
        )
        return
    if found.storage_bound == "stragglers" and (slow := stragglers(evidence, "latency")):
        yield (
            f"Stragglers are the limit: {told(slow)}. A batch waits for its slowest read, which "
            "more batches in flight hide and more bandwidth does not."
        )
        return
    spent = SPENT[found.storage_bound]
    enough = enough_in_flight(evidence)
    if evidence.curve is not None and enough is not None:
        plateau = evidence.curve.curve.plateau_reads_per_s
        most = "" if plateau is None else f" ({format_count(plateau.value)} reads/s)"
        flat = "its plateau" if plateau is not None else "the most that was tried"
        here = counted(evidence.in_flight, "read")
        yield (
            f"This job keeps {here} in flight, and the storage reaches {flat}{most} with "
            f"{format_count(enough)}: {spent}."
        )
    elif evidence.raw is not None and evidence.fetch is not None:
        share = evidence.fetch / evidence.raw
        yield (
            f"The reader gets {share:.0%} of the {evidence.told(evidence.raw)} of "
            f"{evidence.raw_source}: {spent}."
        )


def _less_than_alone(evidence: Evidence, decision: Decision, found: Verdict) -> Iterator[str]:
    """Why a storage that alone delivers enough feeds fewer accelerators than that."""
    fed, enough = found.fed, found.headroom is not None and found.headroom >= evidence.required
    if not enough or not found.starved or "storage" not in (decision.binds, *decision.also):
        return
    if fed is None or fed.basis == "find-max" or evidence.modelled:
        return
    yield (
        "Alone it delivers enough, and the run got less of it: how many accelerators it feeds "
        "rests on what the run got."
    )


def _refuted(evidence: Evidence, decision: Decision) -> str:
    """A ceiling that the run exceeded was measured too low, and says so."""
    rate = {"prep": evidence.prep, "harness": evidence.harness}.get(decision.binds)
    if rate is None or evidence.measured is None or evidence.measured <= rate * (1 + NOISE):
        return ""
    return "The run was faster than that ceiling, which was measured on a busier host."
