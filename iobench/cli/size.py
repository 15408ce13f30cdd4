"""``iobench size``: the storage that a number of accelerators needs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .common import add_overrides, number, whole_number
from .verbs import PAGES, Verb

if TYPE_CHECKING:
    from ..analyse.capacity.requirement import Demand, Requirement
    from ..schema.dataset import DatasetSpec
    from ..schema.instances import Instance
    from ..schema.packing import Layout

EXAMPLES = """examples:
  iobench size unet3d-b200 --accelerators 64 --hosts 8
  iobench size unet3d-b200 --accelerators 64 --hosts 8 --latency 5ms --latency-p99 40ms \
--dataset-size 20TiB --cache 512GiB
  iobench size unet3d-h100 --accelerators 8 --instance p4d.24xlarge
  iobench size resnet50-h100 --accelerators 8 --from results/<run>
  iobench size unet3d-h100 resnet50-h100 --accelerators 16 --hosts 2
  iobench size unet3d-h100 resnet50-h100 --accelerators 16,8 --hosts 2,1 --html -o size.html
  iobench size resnet50-h100 --accelerators 64 --hosts 8 --checkpoint-bytes 105GB \
--checkpoint-budget 1m --restore-budget 2m --json
  iobench size resnet50-h100 --accelerators 32 --hosts 4 --parameters 25.6M --gradient-precision \
fp32
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload",
        nargs="+",
        help="name of a workload (iobench list workloads) or YAML file; several are trained on one "
        "storage at the same time, and what they need is added up",
    )
    parser.add_argument(
        "--accelerators",
        type=_numbers,
        required=True,
        metavar="N",
        help="number of accelerators on all hosts together; of several workloads, that of each, or "
        "one for each: 16,8",
    )
    parser.add_argument(
        "--hosts",
        type=_numbers,
        default=(1,),
        metavar="H",
        help="number of hosts with these accelerators, or one for each workload (default: 1)",
    )
    parser.add_argument(
        "--from",
        dest="run_directory",
        metavar="RUN_DIR",
        help="recorded run, whose storage is compared with the demand",
    )
    parser.add_argument(
        "--required-au",
        type=number,
        metavar="AU",
        help="required accelerator utilization, 0 to 1 (default: as in the workload)",
    )
    parser.add_argument(
        "--latency",
        metavar="TIME",
        help="latency of one read, the median, e.g. 5ms (default: as measured by the run of "
        "--from)",
    )
    parser.add_argument(
        "--latency-p99",
        metavar="TIME",
        help="99th percentile of that latency, e.g. 40ms: the margin covers how it differs "
        "(default: as measured by the run of --from, or all reads alike)",
    )
    parser.add_argument(
        "--steps",
        type=whole_number,
        metavar="K",
        help="steps of an epoch, over which the utilization counts (default: those of the "
        "dataset, at least 500)",
    )
    parser.add_argument(
        "--dataset-size",
        metavar="SIZE",
        help="bytes of the real dataset, if it differs from the workload's, e.g. 20TiB",
    )
    parser.add_argument(
        "--alignment",
        metavar="SIZE",
        help="the storage reads whole blocks of this size: 1 for object stores (default: 4KiB, as "
        "file systems and O_DIRECT do, or as in the run of --from)",
    )
    parser.add_argument(
        "--cache", metavar="SIZE", help="memory for cached data in each host, e.g. 512GiB"
    )
    parser.add_argument(
        "--checkpoint-bytes",
        metavar="SIZE",
        help="bytes of one checkpoint of the whole job, e.g. 105GB",
    )
    parser.add_argument(
        "--checkpoint-budget",
        metavar="TIME",
        help="longest time for which one checkpoint may stop the training, e.g. 1m",
    )
    parser.add_argument(
        "--checkpoint-every",
        metavar="TIME",
        help="time from one checkpoint to the next, e.g. 30m, for the mean rate of writes",
    )
    parser.add_argument(
        "--restore-budget",
        metavar="TIME",
        help="longest time in which all ranks together may read the checkpoint after an "
        "interruption, e.g. 2m",
    )
    parser.add_argument(
        "--restore-copies",
        type=whole_number,
        default=1,
        metavar="N",
        help="how often a restore reads the checkpoint: 1 where each rank reads its own part, the "
        "number of ranks where each reads all of it (default: 1)",
    )
    gradients = parser.add_mutually_exclusive_group()
    gradients.add_argument(
        "--gradient-bytes",
        metavar="SIZE",
        help="bytes of the gradients that the hosts exchange in each step of data-parallel "
        "training, e.g. 346MB",
    )
    gradients.add_argument(
        "--parameters",
        metavar="COUNT",
        help="parameters of the model, e.g. 86.6M, instead of --gradient-bytes",
    )
    parser.add_argument(
        "--gradient-precision",
        choices=["fp32", "tf32", "bf16", "fp16", "fp8"],
        help="of each gradient, with --parameters (default: fp32)",
    )
    parser.add_argument(
        "--instance",
        metavar="TYPE",
        help="instance type of the hosts, to check its network (iobench list instances)",
    )
    add_overrides(parser, "reader.access=random")


OF_ONE = (
    "from",
    "dataset-size",
    "checkpoint-bytes",
    "checkpoint-budget",
    "checkpoint-every",
    "restore-budget",
    "gradient-bytes",
    "parameters",
    "gradient-precision",
)
"""Flags that are about one training, and mean nothing for several."""


def _numbers(text: str) -> tuple[int, ...]:
    """The ``type`` of a number for all workloads, or of one for each: ``16`` or ``16,8``."""
    return tuple(whole_number(each) for each in text.split(","))


def run(args: argparse.Namespace) -> int:
    from ..analyse.capacity.requirement import together
    from ..report.size import sections
    from ..report.size_rates import together_sections
    from .printing import print_report

    names = args.workload
    if len(names) > 1:
        _refuse_single(args)
    instance = None
    if args.instance is not None:
        from ..schema.instances import find_instance

        instance = find_instance(args.instance)
    accelerators = _each("--accelerators", args.accelerators, len(names))
    hosts = _each("--hosts", args.hosts, len(names))
    found = [
        _requirement(name, args, accelerators=one, hosts=on, instance=instance)
        for name, one, on in zip(names, accelerators, hosts, strict=True)
    ]
    if len(found) == 1:
        print_report(args.format, found[0], sections(found[0]))
        return 0
    whole = together(found)
    document = {"together": whole, "jobs": found, "instance": instance}
    shown = [(each, sections(each)) for each in found]
    print_report(args.format, document, together_sections(whole, shown))
    return 0


def _refuse_single(args: argparse.Namespace) -> None:
    """Raise UsageError for a flag that is about one workload, if several are given."""
    from ..errors import UsageError

    for flag in OF_ONE:
        dest = "run_directory" if flag == "from" else flag.replace("-", "_")
        if getattr(args, dest) is not None:
            raise UsageError(
                f"--{flag} is about one workload, but {len(args.workload)} are named",
                remedy=f"name one workload with --{flag}, and leave it out for several",
            )


def _each(flag: str, numbers: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The number of each workload. Raises UsageError if there are neither one nor one for each."""
    from ..errors import UsageError

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
    name: str,
    args: argparse.Namespace,
    *,
    accelerators: int,
    hosts: int,
    instance: Instance | None,
) -> Requirement:
    """What one workload requires. Raises UsageError."""
    from pathlib import Path

    from ..analyse.capacity.requirement import requirement
    from ..errors import UsageError
    from ..schema.dataset import load_dataset_spec, resized
    from ..schema.record import load_training
    from ..schema.workload import load_workload
    from ..units import parse_size

    demand = _demand(args, accelerators, hosts, instance)
    workload = load_workload(name, args.overrides)
    doc = None
    if args.run_directory is not None:
        if not Path(args.run_directory).exists():
            raise UsageError(
                f"--from {args.run_directory}: no such file or directory",
                remedy="name a run directory, e.g. results/<run>",
            )
        doc = load_training(Path(args.run_directory))
    size = None if args.dataset_size is None else parse_size(args.dataset_size)
    spec = resized(load_dataset_spec(workload.dataset), size_bytes=size)
    if spec.shards_unsaid:
        from ..dataset import with_shards_stated

        spec = with_shards_stated(spec)
    return requirement(workload, spec, demand, doc, layout=_layout(spec))


def _layout(spec: DatasetSpec) -> Layout | None:
    """How the dataset's format lays out samples; None where formats can't be loaded.

    Then the specification itself tells what it can: blocks, but no framing.
    """
    try:
        from ..dataset import layout_of
    except ImportError:
        return None
    return layout_of(spec)


def _demand(
    args: argparse.Namespace, accelerators: int, hosts: int, instance: Instance | None
) -> Demand:
    """The question of the command line. Raises UsageError."""
    from ..analyse.capacity.requirement import Demand
    from ..analyse.capacity.traffic import PRECISIONS, Saves
    from ..errors import UsageError
    from ..units import parse_count, parse_duration, parse_size

    def seconds(text: str | None) -> float | None:
        return None if text is None else parse_duration(text)

    def size(text: str | None) -> int | None:
        return None if text is None else parse_size(text)

    gradients = size(args.gradient_bytes)
    if args.parameters is not None:
        gradients = parse_count(args.parameters) * PRECISIONS[args.gradient_precision or "fp32"]
    elif args.gradient_precision is not None:
        raise UsageError(
            "--gradient-precision needs the number of parameters",
            remedy="give e.g. --parameters 86.6M",
        )
    return Demand(
        accelerators=accelerators,
        hosts=hosts,
        required=args.required_au,
        steps=args.steps,
        latency_s=seconds(args.latency),
        latency_p99_s=seconds(args.latency_p99),
        alignment=size(args.alignment),
        cache_bytes=size(args.cache),
        gradient_bytes=gradients,
        instance=instance,
        saves=Saves(
            checkpoint_bytes=size(args.checkpoint_bytes),
            budget_s=seconds(args.checkpoint_budget),
            every_s=seconds(args.checkpoint_every),
            restore_budget_s=seconds(args.restore_budget),
            restore_copies=args.restore_copies,
        ),
    )


VERB = Verb(
    help="how much storage to buy: rates, IOPS, cache, network",
    description=(
        "Compute what N accelerators demand of storage. Nothing is read or measured. With --from, "
        "the storage of a recorded run is compared with the demand. Of several workloads that are "
        "trained at the same time, the demands are added up."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=PAGES,
)
