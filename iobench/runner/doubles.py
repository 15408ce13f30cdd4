"""What each stage of a run is replaced by where it is left out: a double that costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..base.errors import UsageError
from ..judge.figures.ablations import in_step
from ..load.choose import make_reader
from ..record.training import Ceiling, Repetition
from ..record.verdict import AblatedStage
from .cache import fill_cache, why_not_warm
from .calibration.bench import Bench
from .phase import Phase
from .plan import Plan


@dataclass(frozen=True)
class Double:
    """A stage that a phase of its own leaves out.

    ``why_not``: why it can't be left out of this run, or empty. ``without``: the phase of a
    repetition without it. ``stored``: that phase reads the plan's storage.
    """

    stage: AblatedStage
    how: str
    why_not: Callable[[Bench, bool], str]
    without: Callable[[Bench, Phase, Repetition], Phase]
    stored: bool = True


def _storage(bench: Bench, saves: bool) -> str:
    return why_not_warm(bench.plan) if bench.plan.subject.users else ""


def _without_storage(bench: Bench, phase: Phase, base: Repetition) -> Phase:
    """Read a copy in memory; one that is smaller than the dataset is read repeatedly by each rank.

    The slower the storage is, the less is copied. A loader of the user's own gets the dataset in
    the page cache, since it opens the files itself.
    """
    if bench.plan.subject.users:
        if why := fill_cache(bench.plan, bench.agent):
            raise UsageError(why)
        return replace(phase, evicts=False)
    copy = bench.copy(base.read_bytes_per_s)
    reading = phase.reading
    if bench.plan.subject.reads_itself:
        reading = reading.model_copy(update={"direct": False})
    phase = replace(bench.with_reader(phase, "copy", reading), evicts=False)
    if copy.whole:
        return phase
    return replace(phase, shards=copy.shards, share=False, epochs=None)


def _nothing_to_prepare(bench: Bench, saves: bool) -> str:
    plan = bench.plan
    kind = plan.workload.loader.kind
    if plan.subject.users:
        why = plan.tried[0].not_replaced if plan.tried else ""
        return f"your loader can't run without its dataset: {why}" if why else ""
    if plan.subject.reads_itself:
        return f"the loader '{kind}' reads and prepares in one, so prep can't be left out"
    if not make_reader(plan.manifest, plan.storage, plan.workload.reader).prepares:
        return "there is nothing to prepare: the bytes are handed over as they are stored"
    return ""


def _without_prep(bench: Bench, phase: Phase, base: Repetition) -> Phase:
    """Hand ready samples over.

    A dataset of the user's own reads and prepares in one. So both are left out, and the gain is
    what is left after that of the storage.
    """
    if bench.plan.subject.users:
        return replace(
            phase, loading=phase.loading.model_copy(update={"replay": "samples"}), evicts=False
        )
    return bench.with_reader(phase, "ready", phase.reading)


def _no_accelerator(bench: Bench, saves: bool) -> str:
    null = bench.plan.workload.accelerator.kind == "null"
    return "the accelerator of this workload takes no time" if null else ""


def _without_accelerator(bench: Bench, phase: Phase, base: Repetition) -> Phase:
    nothing = {"kind": "null", "name": "null", "step_time": None, "gradient_sync": "none"}
    return replace(phase, accelerator=phase.accelerator.model_copy(update=nothing))


def _no_sync(bench: Bench, saves: bool) -> str:
    if bench.plan.accelerators == 1:
        return "there is one rank, which waits for no other"
    if in_step(bench.plan.workload.accelerator, bench.plan.accelerators):
        return ""
    return "the ranks do not wait for each other at each step"


def _without_sync(bench: Bench, phase: Phase, base: Repetition) -> Phase:
    alone = {"sync": "none", "gradient_sync": "none"}
    return replace(phase, accelerator=phase.accelerator.model_copy(update=alone))


DOUBLES = (
    Double(
        "storage", "the bytes come from a copy in memory", _storage, _without_storage, stored=False
    ),
    Double(
        "checkpoint",
        "no checkpoints are saved",
        lambda bench, saves: "" if saves else "no checkpoints are saved during the run",
        lambda bench, phase, base: replace(phase, saving=None),
    ),
    Double(
        "log",
        "no log is written",
        lambda bench, saves: "" if bench.log is not None else "no log is written",
        lambda bench, phase, base: replace(phase, log=None),
    ),
    Double("sync", "no rank waits for another one", _no_sync, _without_sync),
    Double(
        "prep",
        "bytes are read, and ready samples of the same size are handed over",
        _nothing_to_prepare,
        _without_prep,
    ),
    Double("accelerator", "steps take no time", _no_accelerator, _without_accelerator),
)
"""All stages that a phase of its own leaves out, the most important first: where the time is too
short for all of them, the last ones are not measured.
"""

_OF_USER: dict[AblatedStage, str] = {
    "storage": "the dataset is in the page cache",
    "prep": "the samples of one batch are kept: what the page cache brings is taken off",
}
"""How a stage is left out of a loader of the user's own, which opens the files itself."""


def how_left_out(double: Double, plan: Plan) -> str:
    """By what the stage is replaced in a run of this plan, in one sentence."""
    if plan.subject.users:
        return _OF_USER.get(double.stage, double.how)
    if double.stage == "sync" and plan.workload.accelerator.gradient_sync == "ddp":
        return f"{double.how}, and no gradients are exchanged"
    return double.how


_OF_CEILING: dict[AblatedStage, tuple[str, ...]] = {
    "storage": ("storage_raw", "fetch"),
    "prep": ("prep",),
}
"""The ceilings that tell what a stage can do at most; the lowest of them counts."""

UNLIKELY = 4.0
"""A stage that alone is so many times as fast as all together does not limit them."""


def _headroom(
    stage: AblatedStage, ceilings: Mapping[str, Ceiling], measured: float | None
) -> float | None:
    """The stage's rate alone over that of all together; None if it is not known."""
    names = _OF_CEILING.get(stage, ())
    known = [rate for name in names if name in ceilings and (rate := ceilings[name].samples_per_s)]
    return min(known) / measured if known and measured else None


def likely(
    stages: Sequence[AblatedStage], ceilings: Mapping[str, Ceiling], measured: float | None
) -> list[AblatedStage]:
    """The stages that may limit a run, by their ceilings; the accelerator is what they feed."""
    found: list[AblatedStage] = []
    for stage in stages:
        headroom = _headroom(stage, ceilings, measured)
        if stage != "accelerator" and (headroom is None or headroom < UNLIKELY):
            found.append(stage)
    return found


def by_likelihood(
    stages: Sequence[AblatedStage], ceilings: Mapping[str, Ceiling], measured: float | None
) -> list[AblatedStage]:
    """The stages, the likeliest limit first: where the time is short, the last are left out."""
    first = likely(stages, ceilings, measured)
    first.sort(key=lambda stage: _headroom(stage, ceilings, measured) or 1.0)
    return [*first, *(stage for stage in stages if stage not in first)]
