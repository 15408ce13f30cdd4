"""``iobench record``: write down the step times of a model, to replay them without its device."""

from __future__ import annotations

import argparse
from errno import EEXIST

from .common import add_overrides, duration, whole_number
from .train import add_model, asked_accelerator
from .verbs import Verb

EXAMPLES = """examples:
  iobench record resnet18 --batch-size 16 --to resnet18.json
  iobench record vit-b16 --device cuda --batch-size 128 --precision bfloat16 --to vit-b16.json

Replay it on any storage, without the device: iobench run WORKLOAD --data DIR --set batch_size=128 \
--set accelerator.kind=recorded --set accelerator.steps=vit-b16.json
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--to", required=True, metavar="FILE", help="file for the step times; not replaced"
    )
    parser.add_argument(
        "--steps",
        type=whole_number,
        default=300,
        metavar="N",
        help="smallest number of steps (default: 300)",
    )
    parser.add_argument(
        "--time",
        type=duration,
        default=30.0,
        metavar="TIME",
        help="shortest time of all steps together (default: 30s)",
    )
    add_overrides(parser, "accelerator.compile=true")


def run(args: argparse.Namespace) -> int:
    import os
    from pathlib import Path

    from ..accelerate.bind import use_allocator
    from ..accelerate.recording import record
    from ..documents import json_text, write_whole
    from ..errors import StorageError, UsageError
    from ..schema.base import apply_overrides, build
    from ..schema.workload import AcceleratorSpec
    from ..units import format_duration
    from .terminal import say, show_json

    target = Path(args.to)
    if target.exists():
        raise UsageError(f"{target} exists already", remedy="choose another name for --to")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is no directory", remedy="create it first")
    if not os.access(target.parent, os.W_OK):
        raise UsageError(
            f"no file can be made in {target.parent}", remedy="choose another place for --to"
        )
    if args.steps < 2:
        raise UsageError(f"--steps must be at least 2, but is {args.steps}")
    asked = apply_overrides({"accelerator": asked_accelerator(args)}, args.overrides)
    spec = build(AcceleratorSpec, asked["accelerator"], where="iobench record")
    use_allocator(spec.allocator, args.command_line[1:])
    recording = record(spec, args.batch_size, steps=args.steps, seconds=args.time)
    try:
        if target.exists():  # made meanwhile
            raise FileExistsError(EEXIST, "it exists already")
        write_whole(target, json_text(recording))
    except OSError as error:
        raise StorageError(
            f"cannot write {target}: {error.strerror or error}",
            remedy="the step times are lost: record again with another --to",
        ) from error
    if args.format == "json":
        show_json(recording.model_dump())
        return 0
    times = recording.quantiles_s
    say(
        f"{recording.model} on {recording.where.device}, batches of {recording.batch_size}, "
        f"{recording.precision}: {len(recording.steps_s)} steps, mean "
        f"{format_duration(recording.mean_s)}, p50 {format_duration(times[50])}, "
        f"p99 {format_duration(times[99])}"
    )
    where = recording.where
    known = (
        ("MFU {:.1%}", recording.mfu),
        ("SMs at {:,.0f} MHz", where.clock_mhz),
        ("power {:,.0f} W", where.power_w),
        ("power limit {:,.0f} W", where.power_limit_w),
    )
    if told := [text.format(value) for text, value in known if value is not None]:
        say(", ".join(told))
    say(f"written to {target}; replay it on any storage:")
    say(
        "  iobench run WORKLOAD --data DIR --set accelerator.kind=recorded "
        f"--set accelerator.steps={target} --set batch_size={recording.batch_size}"
    )
    return 0


VERB = Verb(
    help="record the step times of a real model, to replay them without its device",
    description=(
        "Train a model on batches that are in memory, and write down how long each step takes. "
        "A workload with accelerator.kind: recorded replays them on any storage."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
