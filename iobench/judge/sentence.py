"""The verdict in words: short sentences for everyone, and an explanation for an engineer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from ..base.text import capital
from ..base.units import (
    counted,
    format_count,
    format_duration,
    format_percent,
    format_share,
    percent_beside,
)
from ..record.verdict import Advice, Fed, Verdict
from .changes_storage import enough_in_flight, stragglers, told
from .evidence import DRAINED, Decision, Evidence
from .promise import in_headline
from .rules_ranks import rank_name
from .statistics import NOISE

SUBJECTS = {
    "storage": "storage",
    "prep": "data preparation on this host",
    "loader": "the loader itself (sampler, worker processes and batch transport)",
    "accelerator": "the accelerator",
    "cpu": "this host's CPU",
    "sync": "waiting for the slowest rank at each step",
    "checkpoint": "saving checkpoints",
    "log": "writing the log",
    "fill": "the start of each epoch, until the first batch is there,",
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
    evidence: Evidence,
    decision: Decision,
    found: Verdict,
    slow: Sequence[str] = (),
    *,
    advised: bool = True,
) -> str:
    """The verdict: starved or not, by what, how many can be fed, and what to do.

    ``slow``: the hosts, of several, that are slower than the others. ``advised``: with the first
    advice, where there is one.
    """
    parts = [*_state(evidence, decision, found), *_starts(evidence), *_later_epochs(evidence)]
    parts += awaited(evidence, found, slow)
    parts += _feeds(evidence, decision, found.fed)
    saves = evidence.job.saves
    if saves is not None and not saves.saves:
        parts.append("no checkpoint was measured, since none was due in the time")
    parts += _piling(evidence)
    if advised or not changes(found):
        parts += _todo(found)
    if decision.basis == "inferred" and decision.bottleneck != "undecided":
        parts.append("this is inferred, not tested")
    return " ".join(f"{capital(part)}." for part in parts)


def _piling(evidence: Evidence) -> list[str]:
    """What repetitions with one asynchronous save each can't show: that the next one would wait."""
    saves, rate = evidence.job.saves, evidence.measured
    batch = evidence.job.workload.batch_size
    if saves is None or not saves.every or not rate or not batch:
        return []
    ends = [
        each.durable_s
        for each in saves.saves
        if each.waited_s is not None and each.durable_s and each.waited_s < 0.05 * each.durable_s
    ]
    every_s = saves.every * batch * evidence.accelerators / rate
    if not ends or len(ends) < len(saves.saves) or median(ends) <= every_s:
        return []
    return [
        f"a save takes {format_duration(median(ends))} until it is durable, and one is due every "
        f"{format_duration(every_s)}: in a longer training each waits for the one before, which no "
        "repetition shows"
    ]


def awaited(evidence: Evidence, found: Verdict, slow: Sequence[str]) -> list[str]:
    """For which of several hosts the others wait, where accelerators starve.

    Hosts of a run that is as fast as its lowest ceiling share a slow stage, and none is the reason.
    """
    hosts = evidence.job.hosts
    lowest = evidence.predicted or math.inf
    if evidence.fed or (evidence.measured or 0.0) * (1 + NOISE) >= lowest:
        return []
    if slow:
        is_are = "is" if len(slow) == 1 else "are"
        return [f"{' and '.join(slow)} {is_are} slower than the others"]
    if found.slowest_rank is not None and len(hosts) > 1:
        return [f"the others wait for {rank_name(hosts, found.slowest_rank)}"]
    return []


def explanation(evidence: Evidence, decision: Decision, found: Verdict) -> str:
    """What an engineer wants to know: the rates, the reads in flight, what was left out."""
    return " ".join(explained(evidence, decision, found))


def _state(evidence: Evidence, decision: Decision, found: Verdict) -> list[str]:
    """Whether the accelerators starve, and the bottleneck."""
    accelerators = _who(evidence)
    undecided = decision.bottleneck == "undecided"
    if evidence.utilization is None:
        return _without_utilization(evidence, decision, found, accelerators)
    busy = _busy(evidence)
    if evidence.fed:
        is_are = "is" if evidence.accelerators == 1 else "are"
        fed = f"{accelerators} {is_are} fed {busy}"
        if decision.bottleneck == "accelerator" and evidence.watched:
            return [f"{fed}: the time goes into your step and the rest of its loop"]
        if decision.bottleneck == "accelerator":
            return [fed]
        if undecided:
            return [fed, f"what takes the rest of the time is undecided: {decision.reason}"]
        return [f"{fed}, but {_subject(evidence, decision, found)} {_is_bottleneck(decision)}"]
    starve = "starves" if evidence.accelerators == 1 else "starve"
    if undecided:
        return [
            f"{accelerators} {starve} {busy}",
            f"the bottleneck is undecided: {decision.reason}",
        ]
    if decision.bottleneck == "checkpoint":  # no utilization has the time of saves
        bottleneck = f"{_subject(evidence, decision, found)} {_is_bottleneck(decision)}"
        return [f"{accelerators} {starve} {busy}, and {bottleneck}"]
    if decision.bottleneck == "accelerator":
        is_are = "is" if evidence.accelerators == 1 else "are"
        why = "leaving out any other stage gains nothing"
        return [f"{accelerators} {busy} {is_are} the bottleneck all the same: {why}"]
    what = _subject(evidence, decision, found)
    return [f"{what} {_starves(evidence, decision)} {accelerators} {busy}"]


def _starts(evidence: Evidence) -> list[str]:
    """What an epoch of a user's loader takes before its first read, if no rate has that."""
    if evidence.start is None:
        return []
    seconds, share, _ = evidence.start
    return [
        f"each epoch also takes {format_duration(seconds)} before its first read, "
        f"{format_percent(share)} of a whole epoch, which these figures leave out"
    ]


def _later_epochs(evidence: Evidence) -> list[str]:
    """That a user's loader was waited for in its first epoch, and not as much in the others.

    Something filled in the first one, such as a cache. A job of many epochs has that once.
    """
    later = evidence.later
    if later is None or evidence.fed:
        return []
    busy = percent_beside(1 - later.waiting, evidence.required)
    who = f"{_who(evidence)} {'is' if evidence.accelerators == 1 else 'are'}"
    if evidence.watched is not None:
        who = "the training is"
    return [
        f"the first of {later.epochs} epochs has {format_percent(later.first)} of the waits: "
        f"without it, {who} {busy} busy"
    ]


def _who(evidence: Evidence) -> str:
    """Who is fed or starves."""
    if evidence.watched is None:
        return counted(evidence.accelerators, "accelerator")
    number = evidence.accelerators
    return "your training" if number == 1 else f"the {number} ranks of your training"


def _without_utilization(
    evidence: Evidence, decision: Decision, found: Verdict, accelerators: str
) -> list[str]:
    if evidence.accelerator is None:
        cold = (
            " cold"
            if evidence.job.workload.cache == "cold" and evidence.measured is not None
            else ""
        )
        rate = (
            f"the accelerators set no demand: the loader sustains "
            f"{evidence.told(evidence.measured)}{cold}"
        )
    elif decision.bottleneck == "accelerator":
        return [f"the data pipeline is expected to keep up with {accelerators}"]
    else:
        were = "was" if evidence.accelerators == 1 else "were"
        told = f"would be is not known ({DRAINED})" if evidence.drained else f"{were} is not known"
        rate = f"how busy {accelerators} {told}"
    if decision.bottleneck == "undecided":
        return [rate, f"the bottleneck is undecided: {decision.reason}"]
    return [rate, f"{_subject(evidence, decision, found)} {_is_bottleneck(decision)}"]


def _busy(evidence: Evidence) -> str:
    saves = evidence.job.saves
    between = " between saves" if saves is not None and saves.saves else ""
    between += " after the first batch" if evidence.after_fill else ""
    if evidence.lasting is not None and evidence.mean_utilization is not None:
        mean = percent_beside(evidence.mean_utilization, evidence.required)
        between += f" after the rate fell, {mean} over the whole time"
    return (
        f"({percent_beside(evidence.utilization or 0.0, evidence.required)} busy{between}, "
        f"{evidence.required * 100:.4g} % required)"
    )


def _subject(evidence: Evidence, decision: Decision, found: Verdict) -> str:
    """The bottleneck, with what can't be told from it."""
    names = [_name(evidence, stage) for stage in (decision.bottleneck, *decision.also)]
    if found.storage_bound == "stragglers" and names == [SUBJECTS["storage"]]:
        return "storage, by stragglers among its reads,"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} together"


def _name(evidence: Evidence, stage: str) -> str:
    if stage == "storage" and evidence.watched:
        return "what your loader waits for (storage, a network or a lock)"
    if stage == "prep" and evidence.subject.reads_itself:
        if evidence.subject.users:
            return "your loader (making and delivering batches)"
        return f"the loader '{evidence.subject.kind}' (decoding, collating and delivering batches)"
    return SUBJECTS[stage]


def _is_bottleneck(decision: Decision) -> str:
    return "are the bottleneck" if decision.also else "is the bottleneck"


def _starves(evidence: Evidence, decision: Decision) -> str:
    verb = {"fed": "slow", "mildly starved": "mildly starve", "starved": "starve"}[
        degree(evidence.utilization or 0.0)
    ]
    return verb if decision.also else f"{verb}s"


def _feeds(evidence: Evidence, decision: Decision, fed: Fed | None) -> list[str]:
    """How many accelerators the storage can feed; nothing where that was not measured."""
    if evidence.cached and evidence.cached not in decision.reason:
        return [f"{evidence.cached}, so this says nothing about the storage"]
    if fed is None or fed.accelerators is None or evidence.utilization is None:
        return []
    at = f"at {evidence.required * 100:.4g} % utilization"
    searched = fed.basis == "find-max"
    number = format_count(fed.accelerators)
    if fed.low is not None and fed.high is not None and fed.low < fed.high:
        number += f" [{fed.low}, {fed.high}]"
    if searched:
        # Without an upper end, the search ended for another reason than the storage.
        bounded = fed.low is None or fed.high is not None
        number += " (measured)" if bounded else " or more (measured)"
    if decision.bottleneck == "undecided" and not searched and not evidence.fed:
        return []
    if "storage" not in (decision.bottleneck, *decision.also) or evidence.fed:
        alone = "storage" if evidence.fed or searched else "storage alone"
        return [f"{alone} could feed {number} {at}{_today(fed)}"]
    storage = "storage" if decision.also else "it"
    if fed.accelerators == 0 and not fed.high:
        few = "even one" if evidence.accelerators == 1 else "any of them"
        told = f"{storage} can't feed {few} {at}"
    else:
        told = f"{storage} can feed {number} of them {at}"
    if fed.potential is None:
        return [told]
    return [f"as it is read now {told}, but it could feed {format_count(fed.potential)}"]


def _today(fed: Fed) -> str:
    """What the storage feeds as the job reads it, where it could feed more."""
    if fed.today is None or fed.accelerators is None or fed.today >= fed.accelerators:
        return ""
    return f", and {format_count(fed.today)} as it is read now"


def changes(found: Verdict) -> Sequence[Advice]:
    """The advice that is a change, and not that none is needed."""
    return () if not found.advice or found.advice[0].id == "none" else found.advice


def _todo(found: Verdict) -> list[str]:
    """The first advice, with what it promises or, if it was tried, what it brought."""
    if not found.advice:
        return []
    first = found.advice[0]
    if first.id == "none":
        return ["no change that helps was found" if found.starved else "no change is needed"]
    gain = in_headline(first)
    if not gain:
        return [first.change]
    tried = " when it was tried" if first.found is not None else ""
    return [f"{first.change} ({gain} the samples/s{tried})"]


SPENT = {
    "metadata": "its metadata is the limit, since opening files takes as long as all of a request",
    "operations": "its operations/s are spent, its bandwidth is not",
    "bandwidth": "its bandwidth is spent",
    "operations or bandwidth": "it delivers no more",
    "latency": "the limit is the latency of its reads, and how many are in flight",
    "stragglers": "the limit is the few reads that take much longer than the others",
    "client": "the limit is the CPU of this host, and not the storage",
    "unknown": "more reads in flight were not measured",
}


def explained(evidence: Evidence, decision: Decision, found: Verdict) -> Iterator[str]:
    """The sentences of the explanation."""
    yield _rates(evidence, found)
    if decision.reason and decision.bottleneck != "undecided":
        yield f"{capital(decision.reason)}."
    if evidence.cached:
        yield f"{capital(evidence.cached)}, so the run's rate is not that of the storage."
    elif "storage" in (decision.bottleneck, *decision.also) or found.storage_bound == "client":
        yield from _storage(evidence, found)
        yield from _less_than_alone(evidence, decision, found)
    elif refuted := _refuted(evidence, decision):
        yield refuted
    if found.slowest_rank is not None:
        yield f"The others wait for {rank_name(evidence.job.hosts, found.slowest_rank)}."


def _rates(evidence: Evidence, found: Verdict) -> str:
    """Demand, what the run sustained, and what the stages deliver alone."""
    parts = []
    if evidence.accelerator is not None:
        who = "the accelerator demands" if evidence.accelerators == 1 else "the accelerators demand"
        who = "without waits your training would take" if evidence.watched else who
        parts.append(f"{who} {evidence.told(evidence.accelerator)}")
    if evidence.measured is not None and not (evidence.modelled or evidence.drained):
        run = "it" if evidence.watched else "the run"
        parts.append(f"{run} sustained {evidence.told(evidence.measured)}{_fell(evidence, found)}")
    if evidence.storage is not None and not evidence.cached:
        name = "storage alone" if evidence.fetch is not None else "raw storage"
        cold = (
            " cold" if evidence.job.workload.cache == "cold" and evidence.fetch is not None else ""
        )
        times = "" if found.headroom is None else f", {found.headroom:.2f} x the demand"
        if _is_lasting(found):
            kind = ", which was measured before its rate fell"
            parts.append(f"{name} delivered {evidence.told(evidence.storage)}{cold}{kind}")
        else:
            parts.append(f"{name} delivers {evidence.told(evidence.storage)}{cold}{times}")
    rate = {"prep": evidence.prep, "loader": evidence.loader, "cpu": evidence.cpu}.get(
        found.bottleneck
    )
    if rate is not None:
        what = {"prep": "preparation", "loader": "the loader", "cpu": "this host's CPU"}
        parts.append(f"{what[found.bottleneck]} alone yields {evidence.told(rate)}")
    text = "; ".join(parts) or "nothing was measured"
    return f"{capital(text)}."


def _is_lasting(found: Verdict) -> bool:
    """Whether what the storage feeds is what the run received after its rate fell."""
    return found.fed is not None and found.fed.basis == "run"


def _fell(evidence: Evidence, found: Verdict) -> str:
    """Which rate that is: that after a fall which stayed, or after the fill of what was cut."""
    lasts = evidence.lasting
    if lasts is None:
        return " after the first batch" if evidence.after_fill else ""
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
            f"The reader gets {format_share(share)} of the {evidence.told(evidence.raw)} of "
            f"{evidence.raw_source}: {spent}."
        )


def _less_than_alone(evidence: Evidence, decision: Decision, found: Verdict) -> Iterator[str]:
    """Why a storage that alone delivers enough feeds fewer accelerators than that."""
    fed, enough = found.fed, found.headroom is not None and found.headroom >= evidence.required
    if not enough or not found.starved or "storage" not in (decision.bottleneck, *decision.also):
        return
    if fed is None or fed.basis == "find-max" or evidence.modelled:
        return
    yield (
        "Alone it delivers enough, and the run got less of it: how many accelerators it feeds "
        "rests on what the run got."
    )


def _refuted(evidence: Evidence, decision: Decision) -> str:
    """A ceiling that the run exceeded was measured too low, and says so."""
    rate = {"prep": evidence.prep, "loader": evidence.loader}.get(decision.bottleneck)
    if rate is None or evidence.measured is None or evidence.measured <= rate * (1 + NOISE):
        return ""
    return "The run was faster than that ceiling, which was measured on a busier host."
