"""The advice of a verdict: changes that would speed up a run.

``SITUATIONS`` is the table of what is advised where, in the order in which it is applied; the words
and the check of each change are in ``changes_storage`` and ``changes_host``. The changes of the
bottleneck come first, by predicted gain.

A gain is a factor on the measured samples/s. No change is promised more than the accelerators
demand. Where a stage was left out in turns with the repetitions, no change of that stage is
promised more than that test found. Otherwise the gain is that of the roofline model, in which one
ceiling moves and the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..record.curve import Bound
from ..record.verdict import Advice, Estimate
from ..settings.subject import Subject
from . import changes_host as host
from . import changes_storage as storage
from .evidence import Decision, Evidence
from .figures.ablations import is_told
from .promise import (
    WORTH,
    AdvisedChange,
    advice_of,
    demanded,
    in_order,
    limited,
    reached,
    required_gain,
    shown,
)
from .watched import CAUSES, watched_advice, watched_nothing

When = Callable[[Evidence, Bound | None], bool]


def _bound_by(known: Bound) -> When:
    return lambda _, bound: bound == known


def _where(holds: Callable[[Evidence], bool]) -> When:
    return lambda evidence, _: holds(evidence)


def _is_advice(change: AdvisedChange) -> When:
    return lambda evidence, _: change.check(evidence) is not None


def _otherwise(_: Evidence, __: Bound | None) -> bool:
    return True


class Situation(NamedTuple):
    """What is advised on a stage. Of a group of changes, it is the first that is advice there."""

    stage: str
    when: When
    changes: tuple[AdvisedChange | tuple[AdvisedChange, ...], ...]


MORE_READS = (storage.concurrent_reads, storage.workers_that_read)
CHEAPER_SAMPLES = (host.cheaper_codec, host.less_decoding)

SITUATIONS = (
    Situation(
        "storage",
        _is_advice(storage.reads_instead_of_a_map),
        (storage.reads_instead_of_a_map, storage.faster_storage),
    ),
    Situation("storage", _bound_by("latency"), ((*MORE_READS, storage.faster_storage),)),
    Situation("storage", _bound_by("stragglers"), ((storage.more_batches, *MORE_READS),)),
    Situation("storage", _bound_by("client"), (host.direct_reads, host.twice_the_cores)),
    Situation("storage", _bound_by("operations"), (storage.LARGER_READS, storage.faster_storage)),
    Situation("storage", _bound_by("bandwidth"), (storage.compression, storage.faster_storage)),
    Situation(
        "storage",
        _bound_by("unknown"),
        (storage.PERHAPS_LARGER_READS, storage.compression, storage.faster_than_more_reads),
    ),
    Situation(
        "storage",
        _otherwise,
        (storage.PERHAPS_LARGER_READS, storage.compression, storage.faster_than_larger_reads),
    ),
    Situation("prep", _is_advice(host.batches_in_any_order), (host.batches_in_any_order,)),
    Situation("prep", _where(host.mostly_waits), (host.workers_that_wait,)),
    Situation(
        "prep",
        _otherwise,
        (
            (host.workers_for_idle_cores, host.cores_for_preparation),
            host.another_loader,
            CHEAPER_SAMPLES,
        ),
    ),
    Situation("cpu", _otherwise, (host.twice_the_cores, host.direct_reads, CHEAPER_SAMPLES)),
    Situation(
        "loader", _otherwise, ((host.ring_transport, host.cores_for_workers, host.larger_batches),)
    ),
    Situation("fill", _otherwise, ((host.whole_epochs, host.first_batches, host.longer_epochs),)),
    Situation("sync", _otherwise, (host.no_barrier,)),
    Situation("checkpoint", _otherwise, (host.faster_saves,)),
)
"""What is advised on each stage; its first situation that holds decides."""


STAGES = frozenset(each.stage for each in SITUATIONS)

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
        only = watched_nothing if evidence.watched else host.nothing
        return [each for each in [advice_of(only, evidence)] if each is not None]
    if evidence.watched and decision.bottleneck in CAUSES:
        return watched_advice(evidence, decision)
    evidence = reached(evidence)
    found = [
        each for stage in _stages(evidence, decision) for each in _of_stage(stage, evidence, bound)
    ]
    if evidence.subject.users:
        found = [_of_user(each) for each in found if _moves(evidence.subject, each)]
    once = {_same(each): each for each in reversed(found)}  # the first of several
    return [each for each in found if once[_same(each)] is each]


def _of_stage(stage: str, evidence: Evidence, bound: Bound | None) -> list[Advice]:
    """The advice on a stage in its order, without that which promises too little."""
    gain, most = evidence.gains.get(stage), demanded(evidence)
    several = [*_applying(stage, evidence, bound)]
    longer = [each for _, each in several if each.id == "longer-run"]
    promising = [
        limited(each, evidence.gains.get(change.moves or stage), most)
        for change, each in several
        if each.id != "longer-run"
    ]
    worth = [each for each in promising if (each.predicted_gain or 0) >= WORTH]
    if not worth and gain is not None and is_told(gain, evidence.unsteady):
        worth = [_of_unknown_gain(each, gain) for each in promising[:1]]
    return in_order(worth, required_gain(evidence)) + longer


def _applying(
    stage: str, evidence: Evidence, bound: Bound | None
) -> Iterator[tuple[AdvisedChange, Advice]]:
    """The changes that are advised on a stage, with their words and what they promise."""
    known = (each for each in SITUATIONS if each.stage == stage)
    for group in next(each.changes for each in known if each.when(evidence, bound)):
        for change in group if isinstance(group, tuple) else (group,):
            if (found := advice_of(change, evidence)) is not None:
                yield change, found
                break


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
    return [stage for stage in dict.fromkeys(stages) if stage in STAGES]
