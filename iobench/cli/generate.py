"""``iobench generate``: generate shards and a manifest from a dataset spec."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..base.errors import UsageError
from ..base.memory import total_bytes
from ..base.units import counted, format_bytes, format_duration, format_rate
from ..data.dataset import load_dataset_spec
from ..data.generator.engine import GenerateReport, generate, marker_hash, write_share
from ..data.generator.target import dataset_id
from ..data.generator.writer import UnitResult
from ..runner.hosts.control import Control
from ..runner.hosts.serving import Same, Served, SharedWork
from ..runner.hosts.sharing import HostShare, SharedTasks
from ..serve.generate import generate_weights
from ..serve.models import find_served_model
from ..settings.dataset import DatasetSpec, resized
from ..storage import open_storage
from ..storage.base import Guarded, Storage, address_of
from .hosts import host_lines, hosts_document, on_all_hosts
from .live import progress_bar
from .terminal import show_lines
from .verbs import GenerateQuestion, GenerateRequest

WEIGHTS = "-weights"
"""The end of a name that means the weights of a model, and no dataset."""


def run(request: GenerateRequest) -> int:
    if request.dataset.endswith(WEIGHTS):
        return _weights(request)
    if request.layers is not None or request.vocabulary is not None:
        raise UsageError(
            f"--layers and --vocabulary are of a model's weights, and {request.dataset} is a "
            "dataset",
            remedy="leave them out, or name weights (iobench list served-models)",
        )

    def same(plan: tuple[DatasetSpec, Storage]) -> Same:
        spec, storage = plan
        return {"to": storage.url, "spec": dataset_id(spec)}

    # Each host writes a share of the units; the first one claims the place, and completes it.

    def lead(control: Control | None, plan: tuple[DatasetSpec, Storage]) -> int:
        spec, storage = plan
        shared = SharedTasks(
            control,
            UnitResult,
            weigh=lambda result: int(result.shard_size.sum()),
            seen=lambda: marker_hash(storage),
        )
        with progress_bar("generating", quiet=request.quiet) as tell:
            report = generate(
                spec,
                storage,
                workers=request.workers,
                progress=tell,
                break_lock=request.break_lock,
                run=shared,
            )
        _print(request, report, address_of(storage), shared.hosts)
        return 0

    def serve(plan: tuple[DatasetSpec, Storage]) -> Served:
        spec, storage = plan
        work = SharedWork(
            UnitResult,
            lambda _, tasks, seen, check: write_share(
                spec, storage, tasks, marker=seen, workers=request.workers, check=check
            ),
        )
        return Served(shared=work)

    return on_all_hosts(request, lambda _: prepared(request), same, lead=lead, serve=serve)


def _weights(request: GenerateRequest) -> int:
    """Write the safetensors files of a released model."""
    of_datasets = ("size", "samples", "memory_multiple", "overrides", "workers", "hosts")
    if other := request.first_of(of_datasets):
        raise UsageError(
            f"{other} is of a dataset, and {request.dataset} are a model's weights",
            remedy="leave it out; --layers and --vocabulary make them smaller",
        )
    model, storage = find_served_model(request.dataset), open_storage(str(request.to))
    layers, vocabulary = request.layers, request.vocabulary
    total = sum(each.nbytes for each in model.tensors(layers=layers, vocabulary=vocabulary))
    began, done = time.monotonic(), 0
    with progress_bar("generating", quiet=request.quiet) as tell:

        def progress(count: int) -> None:
            nonlocal done
            done += count
            tell(done, total)

        made = generate_weights(
            model,
            storage,
            layers=layers,
            vocabulary=vocabulary,
            seed=request.seed or 0,
            break_lock=request.break_lock,
            progress=progress,
        )
    wall_s = time.monotonic() - began
    whole = sum(tensor.nbytes for tensor in model.tensors())
    document = {
        "path": address_of(storage),
        "model": model.name,
        "tensors": len(made.tensors),
        "shards": len(made.shards),
        "bytes": made.nbytes,
        "model_bytes": whole,
        "wall_s": wall_s,
    }
    part = f" of the {format_bytes(whole)} of {model.name}" if made.nbytes < whole else ""
    counts = f"{counted(len(made.tensors), 'tensor')} and {counted(len(made.shards), 'shard')}"
    there = f"{format_bytes(made.nbytes)}{part} in {counts}"
    line = f"generated {there}, after {format_duration(wall_s)}: {address_of(storage)}"
    show_lines(document, [line], json=request.json)
    return 0


def _print(
    request: GenerateRequest, report: GenerateReport, target: str, hosts: Sequence[HostShare] = ()
) -> None:
    """``hosts``: what each of them wrote, where there are several."""
    header = report.manifest.header
    rate = report.written_bytes / report.wall_s if report.wall_s > 0 else 0.0
    document = {
        "path": target,
        "dataset": header.spec.model_dump(mode="json"),
        "id": header.id,
        **{name: getattr(header, name) for name in _COUNTED},
        **{name: getattr(report, name) for name in _WRITTEN},
        "write_bytes_per_s": rate if report.written_bytes else None,
        **hosts_document(hosts),
    }
    counts = f"{counted(header.samples, 'sample')} and {counted(header.shards, 'shard')}"
    what = f"{format_bytes(header.stored_bytes)} in {counts}"
    if 0 < report.written_samples < header.samples:
        what += f" ({format_bytes(report.written_bytes)} of it now)"
    speed = f"at {format_rate(rate)}, durable, in {format_duration(report.wall_s)}"
    lines = [f"generated {what} {speed}: {target}", *host_lines(hosts)]
    if report.complete:
        lines = [f"nothing to do: {target} already holds this dataset, {what}"]
    elif not report.written_samples:
        lines = [f"finished {what}, of which only the manifest was missing: {target}"]
    show_lines(document, lines, json=request.json)


_COUNTED = ("samples", "shards", "stored_bytes", "sample_bytes")
_WRITTEN = ("written_samples", "written_bytes", "wall_s", "workers")
"""Keys of the document of a dataset, and of what this call wrote of it."""


def prepared(request: GenerateQuestion) -> tuple[DatasetSpec, Storage]:
    """What is to be generated, and where. Raises UsageError and its subclasses."""
    spec, storage = _spec(request), open_storage(str(request.to))
    if isinstance(storage, Guarded):
        storage.check_target()
    return spec, storage


def _spec(request: GenerateQuestion) -> DatasetSpec:
    seed = [f"seed={request.seed}"] if request.seed is not None else []
    spec = load_dataset_spec(str(request.dataset), [*request.overrides, *seed])
    size = request.size
    if request.memory_multiple is not None:
        size = round(request.memory_multiple * _memory())
    return resized(spec, samples=request.samples, size_bytes=size)


def _memory() -> int:
    memory = total_bytes()
    if memory is None:
        raise UsageError(
            "--memory-multiple can't be used: the size of this host's memory is not known",
            remedy="use --size",
        )
    return memory
