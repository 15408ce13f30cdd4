"""``iobench train``: a run whose accelerator trains a real model on the batches."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .common import add_overrides, duration, whole_number
from .recording import STEPS as RECORDED_STEPS
from .recording import TIME_S as RECORDED_S
from .recording import record_steps
from .run import add_measuring, measure
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from ..schema.workload import Workload

EXAMPLES = """examples:
  iobench train resnet18 --data demo-data
  iobench train vit-b16 --data /mnt/fast/resnet50 --device cuda --batch-size 128 \
--precision bfloat16
  iobench train resnet50 --data demo-data --set accelerator.memory_format=channels_last \
--set accelerator.threads=4
  iobench train mypkg.models:make --data /mnt/fast/resnet50
  iobench train resnet18 --batch-size 16 --record resnet18.json
  iobench train vit-b16 --device cuda --batch-size 128 --precision bfloat16 --record vit-b16.json

Replay recorded steps on any storage, without the device: iobench run WORKLOAD --data DIR \
--set batch_size=128 --set accelerator.kind=recorded --set accelerator.steps=vit-b16.json
"""

_MIN_STEPS, _TRIAL_S, _TRAINS_S = 10, 3.0, 10.0


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model, and the flags that say how it is trained."""
    parser.add_argument(
        "model", help="name of a model (iobench list networks), or module:callable that returns one"
    )
    parser.add_argument("--device", metavar="DEVICE", help="cuda, cuda:N or cpu (default: cpu)")
    parser.add_argument(
        "--batch-size",
        type=whole_number,
        default=32,
        metavar="N",
        help="samples in a batch (default: 32)",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="float32, or one of the others by autocast (default: float32)",
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="directory or URL of the dataset; needed without --record",
    )
    parser.add_argument(
        "--time",
        type=duration,
        metavar="TIME",
        help="about how long a repetition should train (default: 10s, or what --budget has time "
        f"for, and at least {_MIN_STEPS} steps); with --record the shortest time of all steps "
        f"together (default: {RECORDED_S:g}s)",
    )
    recorded = parser.add_argument_group("step times, to replay them without the device")
    recorded.add_argument(
        "--record",
        metavar="FILE",
        help="train on batches that are in memory, and write down how long each step takes; an "
        "existing file is not replaced",
    )
    recorded.add_argument(
        "--steps",
        type=whole_number,
        metavar="N",
        help=f"smallest number of steps with --record (default: {RECORDED_STEPS})",
    )
    add_measuring(parser, repeat=3)
    add_overrides(parser, "accelerator.compile=true")


def run(args: argparse.Namespace) -> int:
    from ..errors import UsageError

    if args.record is not None:
        return record_steps(args, asked_accelerator(args))
    if args.steps is not None:
        raise UsageError(
            "--steps can only be used with --record",
            remedy="leave it out, or say it with --set max_steps=N",
        )
    if args.data is None:
        raise UsageError(
            "train needs data to train on",
            remedy="add --data DIR, or --record FILE to write down the step times alone",
        )
    return measure(workload_of(args), args)


def asked_accelerator(args: argparse.Namespace) -> dict[str, object]:
    """The accelerator's section that the flags of ``add_model`` ask for."""
    return {
        "kind": "model",
        "name": args.model,
        "model": args.model,
        "device": args.device,
        "precision": args.precision,
    }


def workload_of(args: argparse.Namespace) -> Workload:
    """The workload that trains the model on the dataset, long enough for a figure.

    Raises what ``sample_bytes_of`` and ``find_dataset`` raise.
    """
    import os

    from ..accelerate.bind import use_allocator
    from ..accelerate.model import sample_bytes_of
    from ..accelerate.recording import mean_step
    from ..dataset import find_dataset
    from ..schema.base import apply_overrides, build
    from ..schema.workload import Workload

    taken = sample_bytes_of(args.model)
    manifest, _ = find_dataset(args.data, {}, origin=args.origin)
    asked: dict[str, object] = {
        "name": "train-" + "".join(c if c.isalnum() else "-" for c in args.model),
        "description": f"Trains {args.model}.",
        "dataset": manifest.spec.name,
        "accelerator": asked_accelerator(args),
        "batch_size": args.batch_size,
        "epochs": 1000,
        "reader": {"crop": taken},
        "loader": {"workers": min(8, max(1, len(os.sched_getaffinity(0)) // 2))},
    }
    asked = apply_overrides(asked, args.overrides)
    workload = build(Workload, asked, where="iobench train")
    if workload.accelerator.compile and "tail" not in workload.reader.model_fields_set:
        # A batch of another size would be compiled in the middle of an epoch.
        complete = workload.reader.model_copy(update={"tail": "drop"})
        workload = workload.model_copy(update={"reader": complete})
    if workload.max_steps is not None or (args.budget is not None and args.time is None):
        return workload
    trains_s = _TRAINS_S if args.time is None else args.time
    use_allocator(workload.accelerator.allocator, args.command_line[1:])
    step = mean_step(workload.accelerator, workload.batch_size, seconds=min(_TRIAL_S, trains_s))
    steps = max(_MIN_STEPS, round(trains_s / step))
    return workload.model_copy(update={"max_steps": steps})


VERB = Verb(
    help="train a real model: what limits it, or its step times",
    description=(
        "Train a real model on the batches that the storage delivers: on a GPU, or on the CPU "
        "beside its own loader. Measures the same ceilings as 'iobench run', and the training step "
        "alone. Needs no labels: the targets are computed from the data. With --record it reads "
        "no data, and writes down the step times, which a workload with accelerator.kind: "
        "recorded replays on any storage."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
