"""``iobench size``: the storage that a number of accelerators needs."""

from __future__ import annotations

from pathlib import Path

from ..ask.capacity.loads import load_need
from ..ask.capacity.requests import SIMULATED, recorded_reads, served_need, stated_reads
from ..ask.capacity.requirement import Demand, Requirement, requirement, together
from ..ask.capacity.sizing import PRECISIONS, Saves
from ..base.errors import UsageError
from ..host.tables import read_requests
from ..record.packing import Layout
from ..record.run import EVENTS_FILE, ModelLoadRecord, ServingRecord, load_kind, load_training
from ..report.size import sections, together_sections
from ..report.size_serving import load_sections, request_sections
from ..settings.dataset import DatasetSpec, expected_stored_bytes, load_dataset_spec, resized
from ..settings.instances import Instance, find_instance
from ..settings.scenario import load_scenario
from ..settings.workload import load_workload
from .printing import print_report
from .verbs import OF_ONE_TRAINING, SizeRequest


def run(request: SizeRequest) -> int:
    names = request.workload
    if request.replicas is not None:
        return _loads(request, request.replicas)
    if request.rate is not None:
        return _requests(request, request.rate)
    if not request.accelerators:
        raise UsageError(
            "the number of accelerators is not known",
            remedy="add e.g. --accelerators 8, or name weights and --replicas, or a scenario and "
            "--rate",
        )
    if flag := request.first_of(("run_directory", *OF_ONE_TRAINING)):
        _one(request, flag)
    instance = None if request.instance is None else find_instance(request.instance)
    accelerators = _each("--accelerators", request.accelerators, len(names))
    hosts = _each("--hosts", request.hosts, len(names))
    found = [
        _requirement(name, request, accelerators=one, hosts=on, instance=instance)
        for name, one, on in zip(names, accelerators, hosts, strict=True)
    ]
    if len(found) == 1:
        print_report(request, found[0], sections(found[0]))
        return 0
    whole = together(found)
    document = {"together": whole, "jobs": found, "instance": instance}
    shown = [(each, sections(each)) for each in found]
    print_report(request, document, together_sections(whole, shown))
    return 0


def _loads(request: SizeRequest, replicas: int) -> int:
    """What so many replicas of a model need."""
    from ..serve.models import find_served_model

    model, doc = find_served_model(_one(request, "--replicas")), None
    if request.run_directory is not None:
        doc = load_kind(Path(request.run_directory), ModelLoadRecord)
    found = load_need(
        model.name,
        sum(tensor.nbytes for tensor in model.tensors()),
        replicas=replicas,
        ready_s=request.ready_s or 0.0,
        engine_start_s=request.engine_start_s or 0.0,
        run=None if doc is None else doc.job,
        instance=None if request.instance is None else find_instance(request.instance),
    )
    print_report(request, found, load_sections(found))
    return 0


def _requests(request: SizeRequest, rate: float) -> int:
    """What so many requests of a scenario need of the storage."""
    from ..serve.arrivals import Arrivals

    limit = [] if request.limit_s is None else [f"limit={request.limit_s}"]
    scenario = load_scenario(_one(request, "--rate"), [*request.overrides, *limit])
    reads, measured = None, None
    if request.latency_s is not None:
        reads = stated_reads(request.latency_s, request.latency_p99_s)
    elif request.run_directory is not None:
        place = Path(request.run_directory)
        measured = load_kind(place, ServingRecord)
        reads = recorded_reads(measured, read_requests(place / EVENTS_FILE))
    instants = Arrivals(scenario.arrivals).window(rate, SIMULATED / rate, seed=0)
    found = served_need(
        scenario,
        instants,
        reads,
        rate=rate,
        sample_bytes=expected_stored_bytes(load_dataset_spec(scenario.dataset)),
        measured=measured,
    )
    print_report(request, found, request_sections(found))
    return 0


def _one(request: SizeRequest, flag: str) -> str:
    """The only name that was given. Raises UsageError for several, of which ``flag`` is not."""
    if len(request.workload) > 1:
        raise UsageError(
            f"{flag} is about one workload, but {len(request.workload)} are named",
            remedy=f"name one workload with {flag}, and leave it out for several",
        )
    return request.workload[0]


def _each(flag: str, numbers: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The number of each workload. Raises UsageError if there are neither one nor one for each."""
    if len(numbers) == 1:
        return numbers * count
    if len(numbers) != count:
        workloads = "1 workload" if count == 1 else f"{count} workloads"
        raise UsageError(
            f"{flag} has {len(numbers)} numbers for {workloads}",
            remedy="give one number for all of them, or one for each",
        )
    return numbers


def _requirement(
    name: str, request: SizeRequest, *, accelerators: int, hosts: int, instance: Instance | None
) -> Requirement:
    """What one workload requires. Raises UsageError."""
    demand = _demand(request, accelerators, hosts, instance)
    workload = load_workload(name, request.overrides)
    doc = None
    if request.run_directory is not None:
        doc = load_training(Path(request.run_directory))
    size = request.dataset_size
    spec = resized(load_dataset_spec(workload.dataset), size_bytes=size)
    if spec.shards_unsaid:
        from ..data.dataset import with_shards_stated

        spec = with_shards_stated(spec)
    return requirement(workload, spec, demand, doc, layout=_layout(spec))


def _layout(spec: DatasetSpec) -> Layout | None:
    """How the dataset's format lays out samples; None where formats can't be loaded.

    Then the specification itself tells what it can: blocks, but no framing.
    """
    try:
        from ..data.dataset import layout_of
    except ImportError:
        return None
    return layout_of(spec)


def _demand(
    request: SizeRequest, accelerators: int, hosts: int, instance: Instance | None
) -> Demand:
    """The question of the command line. Raises UsageError."""
    gradients = request.gradient_bytes
    if request.parameters is not None:
        gradients = request.parameters * PRECISIONS[request.gradient_precision or "fp32"]
    return request.made(
        Demand,
        accelerators=accelerators,
        hosts=hosts,
        required=request.required_au,
        cache_bytes=request.cache,
        gradient_bytes=gradients,
        instance=instance,
        saves=request.made(
            Saves, budget_s=request.checkpoint_budget_s, every_s=request.checkpoint_every_s
        ),
    )
