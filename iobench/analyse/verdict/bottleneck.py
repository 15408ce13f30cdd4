"""The answer to the question what binds, before it is put into words.

Decide what binds: by the stages that were left out, or else by the ceilings.

Stages that were left out in turns with the repetitions decide (``tested``). Without them the
ceilings and the time that the run spent on each stage do (``inferred``).
"""

from __future__ import annotations

from . import by_ablation as tested
from . import by_ceilings as inferred
from .evidence import Decision, Evidence
from .short import too_short


def decide(evidence: Evidence) -> Decision:
    """What binds the run, and why; ``undecided`` with the reason where nothing tells."""
    short = too_short(evidence)
    if short:
        return Decision(binds="undecided", reason=short.why, too_short=short)
    if evidence.measured is None:
        return Decision(binds="undecided", reason="no repetition was completed")
    if any(stage != "fill" for stage in evidence.gains):
        return tested.by_test(evidence)
    if tested.convinces(evidence.gains.get("fill"), evidence.unsteady):
        # It was computed from the events, without a run in which anything was left out.
        return Decision(binds="fill", basis="inferred")
    return inferred.by_inference(evidence)
