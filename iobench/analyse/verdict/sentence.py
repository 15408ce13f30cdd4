"""Express the verdict in words: one sentence for everyone, and an explanation for an engineer."""

from __future__ import annotations

from ...schema.verdict import Fed, Verdict
from ...schema.workload import OWN_LOADER, USER_LOADER
from ...units import counted, format_count, percent_beside
from .decision import Decision
from .evidence import DRAINED, NOISE_OF_FILL, Evidence
from .explain import explained
from .promise import in_headline

SUBJECTS = {
    "storage": "storage",
    "prep": "data preparation on this host",
    "harness": "the loader itself (worker processes and batch transport)",
    "accelerator": "the accelerator",
    "cpu": "this host's CPU",
    "sync": "waiting for the slowest rank at each step",
    "saves": "saving checkpoints",
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


def sentence(evidence: Evidence, decision: Decision, found: Verdict) -> str:
    """The verdict in one sentence: starved or not, what binds, what to do, how many can be fed."""
    state, feeds = _state(evidence, decision, found), _feeds(evidence, decision, found.fed)
    parts = [state, *feeds, *_todo(found)]
    untested = (
        " (inferred, not tested)"
        if decision.basis == "inferred" and decision.binds != "undecided"
        else ""
    )
    return f"{_capital('; '.join(parts))}{untested}."


def explanation(evidence: Evidence, decision: Decision, found: Verdict) -> str:
    """What an engineer wants to know: the rates, the reads in flight, what was left out."""
    return " ".join(explained(evidence, decision, found))


def _state(evidence: Evidence, decision: Decision, found: Verdict) -> str:
    """Whether the accelerators starve, and what binds."""
    accelerators = _who(evidence)
    undecided = decision.binds == "undecided"
    if evidence.utilization is None:
        return _without_utilization(evidence, decision, found, accelerators)
    busy = _busy(evidence)
    if evidence.fed:
        is_are = "is" if evidence.accelerators == 1 else "are"
        fed = f"{accelerators} {is_are} fed {busy}"
        if decision.binds == "accelerator" and evidence.watched:
            return f"{fed}: the time goes into your step and the rest of its loop"
        if decision.binds == "accelerator":
            return fed
        if undecided:
            return f"{fed}; what takes the rest of the time is undecided: {decision.reason}"
        return f"{fed}, but {_subject(evidence, decision, found)} {_binds(decision)}"
    if undecided:
        starve = "starves" if evidence.accelerators == 1 else "starve"
        return f"{accelerators} {starve} {busy}, and why is undecided: {decision.reason}"
    if decision.binds == "accelerator":
        binds = "binds" if evidence.accelerators == 1 else "bind"
        return f"{accelerators} {busy} {binds}, and no other stage gains anything"
    what = _subject(evidence, decision, found)
    return f"{what} {_starves(evidence, decision)} {accelerators} {busy}"


def _who(evidence: Evidence) -> str:
    """Who is fed or starves."""
    if evidence.watched is None:
        return counted(evidence.accelerators, "accelerator")
    number = evidence.accelerators
    return "your training" if number == 1 else f"the {number} ranks of your training"


def _without_utilization(
    evidence: Evidence, decision: Decision, found: Verdict, accelerators: str
) -> str:
    if evidence.accelerator is None:
        cold = " cold" if evidence.cold and evidence.measured is not None else ""
        rate = (
            f"the accelerators set no demand: the loader sustains "
            f"{evidence.told(evidence.measured)}{cold}"
        )
    elif decision.binds == "accelerator":
        return f"the data pipeline is expected to keep up with {accelerators}"
    else:
        were = f"would be is not known ({DRAINED})" if evidence.drained else "were is not known"
        rate = f"how busy {accelerators} {were}"
    if decision.binds == "undecided":
        return f"{rate}; what binds is undecided: {decision.reason}"
    return f"{rate}, and {_subject(evidence, decision, found)} {_binds(decision)}"


def _busy(evidence: Evidence) -> str:
    between = " between saves" if evidence.saves else ""
    between += " after the fill" if evidence.cut_fill > NOISE_OF_FILL else ""
    if evidence.lasting is not None and evidence.mean_utilization is not None:
        mean = percent_beside(evidence.mean_utilization, evidence.required)
        between += f" after the rate fell, {mean} over the whole time"
    return (
        f"({percent_beside(evidence.utilization or 0.0, evidence.required)} busy{between}, "
        f"{evidence.required * 100:.4g} % required)"
    )


def _subject(evidence: Evidence, decision: Decision, found: Verdict) -> str:
    """What binds, with what can't be told from it."""
    names = [_name(evidence, stage) for stage in (decision.binds, *decision.also)]
    if found.storage_bound == "stragglers" and names == [SUBJECTS["storage"]]:
        return "storage, by stragglers among its reads,"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} together"


def _name(evidence: Evidence, stage: str) -> str:
    if stage == "storage" and evidence.watched:
        return "what your loader waits for (storage, a network or a lock)"
    if stage == "prep" and evidence.kind != OWN_LOADER:
        if evidence.kind == USER_LOADER:
            return "your loader (making and delivering batches)"
        return f"the loader '{evidence.kind}' (decoding, collating and delivering batches)"
    return SUBJECTS[stage]


def _binds(decision: Decision) -> str:
    return "bind" if decision.also else "binds"


def _starves(evidence: Evidence, decision: Decision) -> str:
    verb = {"fed": "slow", "mildly starved": "mildly starve", "starved": "starve"}[
        degree(evidence.utilization or 0.0)
    ]
    return verb if decision.also else f"{verb}s"


def _feeds(evidence: Evidence, decision: Decision, fed: Fed | None) -> list[str]:
    """How many accelerators the storage can feed; nothing where that was not measured."""
    if evidence.cached and decision.binds != "undecided":
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
    if decision.binds == "undecided" and not searched and not evidence.fed:
        return []
    if "storage" not in (decision.binds, *decision.also) or evidence.fed:
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
    """What the storage feeds with the reads in flight of today, where it takes more to feed all."""
    if fed.today is None or fed.accelerators is None or fed.today >= fed.accelerators:
        return ""
    reads = "more reads"
    if fed.reads_in_flight is not None:
        reads = counted(fed.reads_in_flight, "read")
    return f" with {reads} in flight, and {format_count(fed.today)} with today's"


def _todo(found: Verdict) -> list[str]:
    """The first advice, with what it promises or, if it was tried, what it brought."""
    if not found.advice:
        return []
    first = found.advice[0]
    if first.id == "none":
        return ["no change is needed"]
    gain = in_headline(first)
    if not gain:
        return [first.change]
    tried = " when it was tried" if first.found is not None else ""
    return [f"{first.change} ({gain} the samples/s{tried})"]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
