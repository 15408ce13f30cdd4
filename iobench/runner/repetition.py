"""A repetition: the phase in which all stages work together, and the record of what it did."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..base.interrupts import defer_interrupts
from ..host.nvml import GpuWatch
from ..judge.figures.metrics import evaluation_of
from ..judge.figures.requests import joined_log
from ..load.choose import make_reader
from ..record.host import HostTime
from ..record.training import Repetition
from .agent import Used
from .calibration.bench import Bench
from .counters import slowest
from .phase import Outcome, Phase, PhaseInterrupted, Saving
from .plan import Plan
from .results import with_figures
from .trials import Kind, seed_of


def repetition_phase(
    plan: Plan,
    number: int,
    *,
    name: str = "measure",
    kind: Kind = "repetition",
    saving: Saving | None = None,
) -> Phase:
    """The phase of a repetition; each has a seed of its own."""
    workload, held_out = plan.workload, plan.held_out
    return Phase(
        name=name,
        reader=make_reader(plan.manifest, plan.front, workload.reader),
        reading=workload.reader,
        loading=workload.loader,
        accelerator=workload.accelerator,
        accelerators=plan.accelerators,
        batch_size=workload.batch_size,
        seed=seed_of(plan.seed, kind, number),
        repetition=number,
        epochs=workload.epochs,
        max_steps=workload.max_steps,
        evicts=workload.cache == "cold",
        log=workload.log if workload.log.to is not None else None,
        saving=saving,
        shards=None if held_out is None else np.arange(held_out[0]),
        evaluation=workload.evaluation if name == "measure" else None,
        held_out=held_out,
    )


def measure(
    bench: Bench,
    phase: Phase,
    keep: Callable[[Repetition], None],
    *,
    keep_interrupted: bool = True,
) -> Outcome:
    """Run a repetition's phase over the plan's storage, and pass its record to ``keep``.

    An interrupted repetition is kept with what was recorded, unless that is nothing, or
    ``keep_interrupted`` is False.
    """
    agent = bench.agent
    before = agent.snapshot()
    gpus = GpuWatch(phase.accelerator.device, phase.accelerators)
    sampler = agent.sampler(gpus)
    try:
        outcome = bench.run(phase, stored=True, sampler=sampler)
    except PhaseInterrupted as interrupt:
        found = interrupt.outcome
        with defer_interrupts(discard=True):
            if keep_interrupted and any(len(c["step"]) for c in found.columns.values()):
                keep(_record(bench, phase, found, agent.used_since(before), gpus))
        raise
    finally:
        bench.samples.append((phase.name, phase.repetition, sampler.close()))
    with defer_interrupts():
        keep(_record(bench, phase, outcome, agent.used_since(before), gpus))
    return outcome


def _record(bench: Bench, phase: Phase, outcome: Outcome, used: Used, gpus: GpuWatch) -> Repetition:
    """Keep the events, and build the repetition from them and from the host's counters."""
    devices, why_none = gpus.result()
    workers, left_out = slowest(outcome.workers)
    context = Repetition(
        seed=phase.seed,
        accelerators=phase.accelerators,
        sync=phase.accelerator.sync,
        epochs=outcome.epochs,
        evaluation=evaluation_of(outcome.evaluated()),
        complete=outcome.complete,
        log=joined_log(outcome.logs, phase.log),
        cpu_s=outcome.cpu_s,
        workers=workers,
        workers_left_out=left_out,
        requests=sum(each.requests for each in outcome.workers) or None,
        hosts=[
            _host_time(place, share, used)
            for place, share in enumerate(bench.hosts.share(phase.accelerators))
        ],
        devices=devices,
        not_measured={"devices": why_none} if why_none else {},
    )
    bench.keep(phase, outcome)
    return with_figures(
        context,
        outcome.events(),
        used=used,
        subject=phase.loading.subject,
        workers=phase.loading.workers,
    )


def _host_time(place: int, share: range, used: Used) -> HostTime:
    """What is known of a host before the events are looked at."""
    own = used.hosts[place] if place < len(used.hosts) else None
    return HostTime(
        host=place,
        first_rank=share.start,
        ranks=len(share),
        resources=own.resources if own else None,
        nfs=own.nfs if own else None,
    )
