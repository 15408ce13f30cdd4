"""``iobench cost``: samples per dollar."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

from .common import add_renamed, number, parse_time, whole_number
from .verbs import DOCUMENTS, Verb

EXAMPLES = """examples:
  iobench cost results/<run> --instance g5.2xlarge
  iobench cost results/<run> --instance g5.2xlarge --host-spot-price-per-hour 0.45 \
--interruptions-per-hour 0.05 --interval 10m
  iobench cost results/<run> --instance p5.48xlarge --hosts 4 --efficiency 0.9 --epochs 90 \
--samples 1281167 --deadline 24h --budget 5000
  iobench cost results/<run> results/<run> --host-price-per-hour 1.20
  iobench cost results/<run> results/<run> --instance 4xg5.2xlarge --instance p4d.24xlarge \
--efficiency 0.9 --deadline 24h --epochs 90

Prices come from results/instances.yaml (iobench list instances), from your own CSV file (--prices)
or from the command line (--host-price-per-hour, --host-spot-price-per-hour). Without --instance,
the instance type that was recorded with the run is used.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="run directories, or directories of runs, e.g. results/<run>",
    )
    parser.add_argument(
        "--instance",
        action="append",
        default=[],
        metavar="[N x]TYPE",
        help="instance type whose price is used (default: as recorded); give one for all RESULTS, "
        "or one for each in their order. 4xTYPE means 4 hosts",
    )
    parser.add_argument(
        "--host-price-per-hour",
        dest="price",
        type=number,
        metavar="USD",
        help="price of one host for one hour, on demand",
    )
    parser.add_argument(
        "--host-spot-price-per-hour",
        dest="spot",
        type=number,
        metavar="USD",
        help="price of one host for one hour, as a spot instance",
    )
    add_renamed(parser, "--price", "--host-price-per-hour", dest="price", type=number)
    add_renamed(parser, "--spot", "--host-spot-price-per-hour", dest="spot", type=number)
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="CSV",
        help="price list with the columns type and usd_per_hour",
    )
    parser.add_argument(
        "--hosts",
        type=whole_number,
        default=1,
        metavar="N",
        help="number of hosts that train together (default: 1)",
    )
    parser.add_argument(
        "--efficiency",
        type=number,
        default=1.0,
        metavar="E",
        help="scaling efficiency of several hosts, 0 to 1 (default: 1)",
    )
    parser.add_argument(
        "--epochs", type=whole_number, metavar="N", help="number of epochs of the job"
    )
    parser.add_argument(
        "--samples",
        type=whole_number,
        metavar="N",
        help="samples in one epoch (default: those of the run's dataset)",
    )
    parser.add_argument("--deadline", metavar="TIME", help="time limit for the job, e.g. 24h")
    parser.add_argument("--budget", type=number, metavar="USD", help="largest cost of the job")
    parser.add_argument(
        "--interruptions-per-hour",
        dest="interruptions",
        type=number,
        default=0.0,
        metavar="RATE",
        help="interruptions of each spot instance in one hour (default: 0)",
    )
    parser.add_argument(
        "--interval",
        dest="checkpoint_every",
        default="1h",
        metavar="TIME",
        help="time between two checkpoints, e.g. 10m; half of it is lost in an interruption "
        "(default: 1h)",
    )
    add_renamed(
        parser, "--interruptions", "--interruptions-per-hour", dest="interruptions", type=number
    )
    add_renamed(parser, "--checkpoint-every", "--interval", dest="checkpoint_every")
    parser.add_argument(
        "--restart",
        default="5m",
        metavar="TIME",
        help="time to restart after an interruption (default: 5m)",
    )


def run(args: argparse.Namespace) -> int:
    from ..analyse.compare.collect import collect
    from ..analyse.compare.cost import Terms, cost
    from ..analyse.compare.runs import usable
    from ..errors import UsageError
    from ..report.cost import document, sections
    from ..schema.instances import (
        Instance,
        find_instance,
        priced_at,
        read_prices,
    )
    from ..schema.record import TrainingRecord
    from ..units import parse_duration
    from .printing import print_report

    _check(args)
    prices = read_prices(args.prices) if args.prices else None
    terms = Terms(
        hosts=args.hosts,
        efficiency=args.efficiency,
        epochs=args.epochs,
        samples=args.samples,
        deadline_s=parse_time("--deadline", args.deadline),
        budget_usd=args.budget,
        interruptions_per_hour=args.interruptions,
        checkpoint_every_s=parse_duration(args.checkpoint_every),
        restart_s=parse_duration(args.restart),
    )

    if len(args.instance) > 1 and len(args.instance) != len(args.results):
        raise UsageError(
            f"there are {len(args.instance)} --instance flags for {len(args.results)} RESULTS",
            remedy="give one --instance for all RESULTS, or one for each in their order",
        )
    asked = [_hosts_of(text, args.hosts) for text in args.instance] or [("", args.hosts)]
    if len(asked) == 1:
        asked *= len(args.results)

    def instance_of(asked_for: str, recorded: object) -> Instance:
        name = asked_for or recorded
        if not name and args.price is None and args.spot is None:
            raise UsageError(
                "the runs do not record the instance type of their host",
                remedy="name it with --instance, or give --host-price-per-hour",
            )
        named = str(name) if name else "this machine"
        stated = args.price is not None or args.spot is not None
        known = find_instance(named, prices) if name and not (stated and not asked_for) else None
        return priced_at(named, args.price, args.spot, known)

    costs, left_out = [], []
    for place, (name, hosts) in zip(args.results, asked, strict=True):
        found = collect(place)
        left_out += found.left_out
        for directory, doc in found.runs.items():
            why = usable(doc, str(directory))
            one = (
                None
                if why or not isinstance(doc, TrainingRecord)
                else cost(
                    doc,
                    instance_of(name, doc.host.instance_type),
                    replace(terms, hosts=hosts),
                )
            )
            if one is None:
                left_out.append(why or f"{directory} measured no samples/s")
            else:
                costs.append(one)
    if not costs:
        raise UsageError(
            f"there is no run whose cost can be computed: {left_out[0] if left_out else 'no run'}"
        )
    if not any(one.prices for one in costs):
        raise UsageError(
            f"the price of {costs[0].instance.type} is not known",
            remedy="give --host-price-per-hour or --host-spot-price-per-hour, or a price list with "
            "--prices",
        )
    print_report(args.format, document(costs, left_out), sections(costs, left_out))
    return 0


def _hosts_of(text: str, hosts: int) -> tuple[str, int]:
    """Parse '4xg5.2xlarge' to ('g5.2xlarge', 4); without a number, ``hosts`` is used."""
    from ..errors import UsageError

    found = re.fullmatch(r"(\d+)\s*x\s*(\S+)", text.strip())
    if found is None:
        return text, hosts
    if int(found[1]) < 1:
        raise UsageError(f"--instance '{text}': the number of hosts must be at least 1")
    return found[2], int(found[1])


def _check(args: argparse.Namespace) -> None:
    from ..errors import UsageError

    for name, least in (("hosts", 1), ("epochs", 1), ("samples", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise UsageError(f"--{name} must be at least {least}, but is {value}")
    if not 0 < args.efficiency <= 1:
        raise UsageError(
            f"--efficiency must be more than 0 and at most 1, but is {args.efficiency:g}"
        )
    if args.budget is not None and not args.budget > 0:
        raise UsageError(f"--budget must be more than 0 USD, but is {args.budget:g}")
    if not 0 <= args.interruptions <= 60:
        raise UsageError(f"--interruptions-per-hour must be 0 to 60, but is {args.interruptions:g}")


VERB = Verb(
    help="samples per dollar, dollars for a job, dollars lost while accelerators wait",
    description=(
        "Compute the cost of recorded runs. Nothing is measured, and no price is looked up over a "
        "network."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
