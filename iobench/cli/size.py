"""``iobench size``: the storage that a number of accelerators needs."""

from __future__ import annotations

import argparse

from .common import add_overrides, number, whole_number
from .verbs import PAGES, Verb

EXAMPLES = """examples:
  iobench size unet3d-b200 --accelerators 64 --hosts 8
  iobench size unet3d-b200 --accelerators 64 --hosts 8 --latency 5ms --dataset-size 20TiB \
--cache 512GiB
  iobench size unet3d-h100 --accelerators 8 --instance p4d.24xlarge
  iobench size resnet50-h100 --accelerators 8 --from results/<run>
  iobench size resnet50-h100 --accelerators 64 --hosts 8 --checkpoint-bytes 105GB \
--checkpoint-budget 1m --json
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", help="name of a workload (iobench list workloads) or YAML file")
    parser.add_argument(
        "--accelerators",
        type=whole_number,
        required=True,
        metavar="N",
        help="number of accelerators on all hosts together",
    )
    parser.add_argument(
        "--hosts",
        type=whole_number,
        default=1,
        metavar="H",
        help="number of hosts with these accelerators (default: 1)",
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
        help="latency of one read, e.g. 5ms (default: as measured by the run of --from)",
    )
    parser.add_argument(
        "--dataset-size",
        metavar="SIZE",
        help="bytes of the real dataset, if it differs from the workload's, e.g. 20TiB",
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
        "--instance",
        metavar="TYPE",
        help="instance type of the hosts, to check its network (iobench list instances)",
    )
    add_overrides(parser, "reader.access=random")


def run(args: argparse.Namespace) -> int:
    from dataclasses import asdict
    from pathlib import Path

    from ..analyse.capacity.requirement import Demand, requirement
    from ..errors import UsageError
    from ..report.size import sections
    from ..schema.dataset import load_dataset_spec, resized
    from ..schema.record import load_training
    from ..schema.workload import load_workload
    from ..units import parse_duration, parse_size
    from .printing import print_report

    demand = Demand(
        accelerators=args.accelerators,
        hosts=args.hosts,
        required=args.required_au,
        latency_s=None if args.latency is None else parse_duration(args.latency),
        cache_bytes=None if args.cache is None else parse_size(args.cache),
        checkpoint_bytes=None
        if args.checkpoint_bytes is None
        else parse_size(args.checkpoint_bytes),
        checkpoint_budget_s=None
        if args.checkpoint_budget is None
        else parse_duration(args.checkpoint_budget),
    )
    workload = load_workload(args.workload, args.overrides)
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
    found = requirement(workload, spec, demand, doc)
    instance = None
    if args.instance is not None:
        from ..schema.instances import find_instance

        instance = find_instance(args.instance)
    document = {**asdict(found), "instance": instance}
    print_report(args.format, document, sections(found, instance))
    return 0


VERB = Verb(
    help="how much storage to buy: read and write rates, IOPS, concurrency, cache, network",
    description=(
        "Compute what N accelerators demand of storage. Nothing is read or measured. With --from, "
        "the storage of a recorded run is compared with the demand."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=PAGES,
)
