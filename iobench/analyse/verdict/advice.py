"""Changes that would speed up a run: first those of the bottleneck, by predicted gain.

A gain is a factor on the measured samples/s. No change is promised more than the accelerators
demand. Where a stage was left out in turns with the repetitions, no change of that stage is
promised more than that test found. Otherwise the gain is that of the roofline model, in which one
ceiling moves and the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...schema.curve import Bound
from ...schema.subject import Subject
from ...schema.verdict import Advice, AdviceId, Estimate
from ..figures.ablations import is_told
from .advice_host import (
    cpu_advice,
    fill_advice,
    loader_advice,
    nothing,
    prep_advice,
    saves_advice,
    sync_advice,
)
from .advice_storage import storage_advice
from .evidence import Decision, Evidence
from .promise import WORTH, demanded, in_order, limited, reached, required_gain, shown
from .watched import CAUSES, watched_advice, watched_nothing

ByStage = Callable[[Evidence, Bound | None], Sequence[Advice | None]]

BY_STAGE: dict[str, ByStage] = {
    "storage": storage_advice,
    "prep": prep_advice,
    "cpu": cpu_advice,
    "loader": loader_advice,
    "fill": fill_advice,
    "sync": sync_advice,
    "checkpoint": saves_advice,
}

CHANGED: dict[AdviceId, str] = {"direct": "storage", "codec": "prep", "decoding": "prep"}
"""The stage that some advice changes, whatever is the bottleneck: stages that share the CPU get
advice on each of them.
"""


EACH_ONCE = "let each sample be delivered once in an epoch, and measure again"

_OURS = ("loader.", "reader.")


def advise(evidence: Evidence, decision: Decision, bound: Bound | None) -> list[Advice]:
    """Changes worth making. ``bound`` is what limits the storage.

    If nothing is worth a change, the only entry says so. It is empty if nothing is known.
    """
    if decision.too_short is not None:
        return [
            Advice(
                id="longer-run",
                change=f"measure for longer: {decision.too_short.command}",
                basis=decision.too_short.why,
            )
        ]
    if evidence.repeated:
        # What the loader costs is that of a loader that does too much.
        return [Advice(change=EACH_ONCE, basis=evidence.repeated)]
    if decision.bottleneck == "accelerator":
        return [watched_nothing(evidence) if evidence.watched else nothing(evidence)]
    if evidence.watched and decision.bottleneck in CAUSES:
        return watched_advice(evidence, decision)
    evidence = reached(evidence)
    found, most = [], demanded(evidence)
    for stage in _stages(evidence, decision):
        gain = evidence.gains.get(stage)
        several = [each for each in BY_STAGE[stage](evidence, bound) if each]
        longer = [each for each in several if each.id == "longer-run"]
        several = [
            limited(each, evidence.gains.get(CHANGED.get(each.id, stage)), most)
            for each in several
            if each.id != "longer-run"
        ]
        worth = [each for each in several if (each.predicted_gain or 0) >= WORTH]
        if not worth and gain is not None and is_told(gain, evidence.unsteady):
            worth = [_of_unknown_gain(each, gain) for each in several[:1]]
        found += in_order(worth, required_gain(evidence)) + longer
    if evidence.subject.users:
        found = [_of_user(each) for each in found if _moves(evidence.subject, each)]
    once = {_same(each): each for each in reversed(found)}  # the first of several
    return [each for each in found if once[_same(each)] is each]


def _moves(subject: Subject, advice: Advice) -> bool:
    """Whether the settings of an advice change what the loader under test does."""
    return all(subject.moved_by(each.partition("=")[0]) for each in advice.settings)


def _of_user(advice: Advice) -> Advice:
    """The advice without settings of iobench's: the user's own code makes the change."""
    mine = any(each.startswith(_OURS) for each in advice.settings)
    return advice.model_copy(update={"settings": []}) if mine else advice


def _same(advice: Advice) -> tuple[str, ...]:
    """What two lines have in common that advise the same change, perhaps for different stages."""
    return (advice.id, *advice.settings) if advice.id else (advice.change,)


def _of_unknown_gain(advice: Advice, tested: Estimate) -> Advice:
    """Advice on a stage that gains by test, where the ceilings say that it does not."""
    return advice.model_copy(
        update={
            "predicted_gain": None,
            "low": None,
            "high": None,
            "at_most": False,
            "basis": f"leaving the stage out brings {shown(tested)}, but its ceiling does not "
            "tell how much of that this change brings",
        }
    )


def _stages(evidence: Evidence, decision: Decision) -> list[str]:
    """The stages about which there is advice: the bottleneck, what may be it, the rest."""
    stages: list[str] = [decision.bottleneck, *decision.also]
    others = [
        stage
        for stage, gain in evidence.gains.items()
        if is_told(gain, evidence.unsteady) and not (stage == "storage" and evidence.cached)
    ]
    stages += sorted(others, key=lambda stage: -evidence.gains[stage].value)
    return [stage for stage in dict.fromkeys(stages) if stage in BY_STAGE]
