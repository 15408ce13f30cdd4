"""The commands of MLPerf Storage's own tool for what was planned, and what its validation asks.

A result of iobench can't be submitted. What it knows before a run is the size of the data, and
what the rules ask of the place of the results and of the cache.

Sources: README.md, ManPage.md and Rules.md (edition 3.0, whose numbers the lines have) of
https://github.com/mlcommons/storage. There GB are 2^30 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..ask.capacity.sizing import mlperf_minimum_samples
from ..base.errors import UsageError
from ..base.text import filled, quoted
from ..base.units import counted, format_bytes, format_count
from ..judge.rules_cache import MEMORY_MULTIPLE
from ..judge.rules_data import MIN_STEPS
from ..record.plan import CheckpointPlanFigures, PlanFigures
from ..settings.dataset import DatasetSpec
from ..settings.workload import Workload

TRAININGS = {
    "unet3d": {"b200": "closed", "a100": "whatif"},
    "retinanet": {"b200": "closed", "mi355": "closed"},
    "cosmoflow": {"a100": "whatif", "h100": "whatif"},
    "resnet50": {"a100": "whatif", "h100": "whatif"},
    "dlrm": {"b200": "whatif", "mi355": "whatif"},
    "flux": {"b200": "whatif", "mi355": "whatif"},
}
"""The mode of each model and accelerator (ManPage.md). What is only ``whatif`` can't be submitted.
"""

PARAMETERS = {"loader.workers": "reader.read_threads", "reader.direct": "reader.odirect"}
"""Settings that CLOSED allows (3.6.2), and their names there."""

RUNS = 6
SAVES = 10
CACHE_MULTIPLE = 3
ACCELERATOR_MEMORY_BYTES = {"b200": 180e9, "mi355": 288e9}
"""Table 3 of the rules, of the accelerators of CLOSED."""

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Clients:
    """The hosts of a submission. ``memory_bytes``: of each of them."""

    hosts: int
    memory_bytes: int

    @property
    def told(self) -> str:
        return f"{counted(self.hosts, 'host')} with {self.memory_bytes / _GIB:.1f} GiB of memory"


def training_lines(
    plan: PlanFigures,
    workload: Workload,
    dataset: DatasetSpec,
    *,
    clients: Clients,
    data: str | None,
    overrides: Sequence[str] = (),
) -> str:
    """The commands for a training, and what validation asks of it, as a script for a shell.

    Raises UsageError for a workload that the tool does not have, for settings that CLOSED does not
    allow, and for accelerators that the hosts can't share equally.
    """
    model, _, accelerator = workload.name.rpartition("-")
    mode = TRAININGS.get(model, {}).get(accelerator)
    if mode is None:
        known = (f"{name}-{each}" for name, found in TRAININGS.items() for each in found)
        raise UsageError(
            f"mlpstorage (v3.0) has no workload {workload.name}",
            remedy=f"name one of {', '.join(known)}",
        )
    accelerators = plan.accelerators
    if accelerators % clients.hosts:
        raise UsageError(
            f"{counted(clients.hosts, 'host')} can't have equally many of "
            f"{counted(accelerators, 'accelerator')} (3.3.6)",
            remedy=f"name a multiple of {clients.hosts} with --accelerators",
        )
    record_bytes = dataset.sample_size.mean or plan.sample_bytes_mean
    samples = mlperf_minimum_samples(
        batch_size=workload.batch_size,
        accelerators=accelerators,
        memory_bytes=clients.memory_bytes,
        hosts=clients.hosts,
        record_bytes=record_bytes,
    )
    files = math.ceil(samples / round(plan.samples / plan.shards))
    by_steps = MIN_STEPS * workload.batch_size * accelerators
    place, apart = _place(data, "$DATA")
    return filled(
        Path(__file__).with_name("mlpstorage_training.sh"),
        **_of_clients(clients, mode),
        WORKLOAD=workload.name,
        RANKS=counted(accelerators, "accelerator"),
        DATA=quoted(data or _ANYWHERE),
        FILES=files,
        SIZE=format_bytes(samples * record_bytes),
        WHY=f"{MIN_STEPS} steps" if by_steps >= samples else f"{MEMORY_MULTIPLE} x all memory",
        MODE=mode,
        MODEL=model,
        ACCELERATOR=accelerator,
        NUMBER=accelerators,
        PLACE=place,
        RUNS=RUNS,
        PARAMS="".join(f" {each}" for each in _params(overrides, model)),
        VALIDATE='mlpstorage validate "$RESULTS"' if mode == "closed" else "",
        APART=apart,
        REQUIRED=f"{workload.required_accelerator_utilization:.0%}",
        EACH=accelerators // clients.hosts,
    )


def _params(overrides: Sequence[str], model: str) -> list[str]:
    found = []
    for each in overrides:
        key, _, value = each.partition("=")
        if key not in PARAMETERS or (key == "reader.direct" and model != "unet3d"):
            raise UsageError(
                f"--set {each} is no setting that CLOSED allows {model} (3.6.2)",
                remedy=f"leave it out; {' and '.join(PARAMETERS)} (unet3d) are allowed",
            )
        found.append(quoted(f"{PARAMETERS[key]}={value.capitalize()}"))
    return found


def checkpoint_lines(plan: CheckpointPlanFigures, *, clients: Clients) -> str:
    """The commands for the checkpoints of a model, as ``training_lines``.

    Raises UsageError for a model that the tool does not have, and for a part of one.
    """
    whole = plan.bytes == plan.full_bytes and plan.optimizer_bytes > 0 and not plan.state_bytes
    if not whole or not plan.model.startswith("llama3-"):
        raise UsageError(
            f"mlpstorage saves whole models, and only llama3-8b, -70b, -405b and -1t: "
            f"{plan.model}, {format_bytes(plan.bytes)}",
            remedy="name one of them, without --scale, --weights-only and --changed",
        )
    each = SAVES * plan.bytes / clients.hosts
    cached = each <= CACHE_MULTIPLE * clients.memory_bytes
    needed = plan.bytes / plan.ranks
    fitting = (name for name, memory in ACCELERATOR_MEMORY_BYTES.items() if memory >= needed)
    accelerator = next(fitting, None)
    if accelerator is None:
        raise UsageError(
            f"{counted(plan.ranks, 'accelerator')} can't hold {format_bytes(plan.bytes)} of "
            f"{plan.model} (4.3.4): each would have {format_bytes(needed)}",
            remedy="leave --ranks out, or raise it",
        )
    place, apart = _place(plan.target, "$CHECKPOINTS")
    run = (
        f"mlpstorage closed checkpointing {plan.model} run {place} --accelerator-type "
        f'{accelerator} --num-processes {plan.ranks} --hosts "$HOSTS" --client-host-memory-in-gb '
        f"{clients.memory_bytes / _GIB:.4g} --num-client-hosts {clients.hosts} "
        '--checkpoint-folder "$CHECKPOINTS" --results-dir "$RESULTS" --systemname "$SYSTEM" '
        "--num-checkpoints-write {} --num-checkpoints-read {}"
    )
    parts = [run.format(SAVES, SAVES)]
    if cached:
        parts = [run.format(SAVES, 0), *_CLEARED, run.format(0, SAVES)]
    return filled(
        Path(__file__).with_name("mlpstorage_checkpoint.sh"),
        **_of_clients(clients, "closed"),
        MODEL=plan.model,
        RANKS=counted(plan.ranks, "process", "processes"),
        TARGET=quoted(plan.target or _ANYWHERE),
        RUNS="\n".join(parts),
        WRITTEN=format_bytes(each),
        MULTIPLE=CACHE_MULTIPLE,
        CACHE=format_bytes(CACHE_MULTIPLE * clients.memory_bytes),
        KEPT="the cache is cleared between saves and restores." if cached else "that is enough.",
        NEEDED=counted(plan.ranks, "accelerator"),
        SIZE=format_bytes(plan.bytes),
        ACCELERATOR=accelerator,
        HELD=format_bytes(ACCELERATOR_MEMORY_BYTES[accelerator]),
        PROCESSES=format_count(plan.ranks),
        APART=apart,
        SAVES=SAVES,
    )


_ANYWHERE = "/mnt/storage-under-test"

_CLEARED = (
    'for host in $(echo "$HOSTS" | tr , " "); do',
    "  ssh \"$host\" 'sync; echo 3 | sudo tee /proc/sys/vm/drop_caches'",
    "done",
)
"""What empties the caches of the hosts."""


def _place(url: str | None, name: str) -> tuple[str, str]:
    """The tool's word for a kind of place, and what its files need: a file system of their own."""
    if (url or "").startswith("s3://"):
        return "object", ""
    rule = "3.4.2" if name == "$DATA" else "4.4.2"
    return "file", f"#   {rule}  $RESULTS is on another file system than {name}."


def _of_clients(clients: Clients, mode: str) -> dict[str, object]:
    """What both scripts say of the hosts, by the names in them."""
    hosts = ",".join(f"host{number + 1}" for number in range(min(clients.hosts, 3)))
    return {
        "DIVISION": "CLOSED" if mode == "closed" else "what-if, which can't be submitted",
        "CLIENTS": clients.told,
        "HOSTS": f"{hosts}{',...' if clients.hosts > 3 else ''}",
        "MEMORY": f"{clients.memory_bytes / _GIB:.4g}",
        "COUNT": clients.hosts,
    }
