"""A rule that compares the two ways in which a verdict is found."""

from __future__ import annotations

from ...schema.record import TrainingRecord
from ..compare.statistics import NOISE
from .bind import judged
from .inferred import by_inference
from .promise import shown
from .rules_data import Outcome


def disagreement(doc: TrainingRecord) -> Outcome | None:
    """Check that the ceilings predict the stage that binds by test.

    Where they differ by more than noise, the test decides. The what-if and the sizes of this run
    then rest on ceilings that do not describe it.
    """
    found = judged(doc)
    evidence, decision = found.evidence, found.decision
    if decision.basis != "tested":
        return None
    ceilings = {
        "storage": None if evidence.cached else evidence.storage,
        "prep": evidence.prep,
        "harness": evidence.harness,
        "accelerator": evidence.accelerator,
    }
    guess = by_inference(evidence).binds
    predicted, tested = ceilings.get(guess), ceilings.get(decision.binds)
    if guess in (decision.binds, *decision.also) or predicted is None or tested is None:
        return None
    if predicted * (1 + NOISE) >= tested:
        return None
    gain = evidence.gains.get(guess)
    without = f", but leaving it out brought {shown(gain)}" if gain is not None else ""
    return Outcome(
        f"by its ceiling {guess} binds ({evidence.told(predicted)}){without}; "
        f"{decision.binds} binds by test, and its ceiling is {evidence.told(tested)}",
        "trust the test; a ceiling was measured under other conditions than the run (a cache, "
        "another load on the host, other reads in flight): measure for longer with --calibration",
    )
