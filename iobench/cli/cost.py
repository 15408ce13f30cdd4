"""``iobench cost``: samples per dollar, ways to pay ranked."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .common import number, parse_time, whole_number
from .earlier import add_history, earlier_runs
from .pricing import instances_of, parts_of, prices_by_type
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from ..analyse.compare.cost import Terms
    from ..analyse.compare.ranking import Machine
    from ..schema.record import RunRecord

EXAMPLES = """examples:
  iobench cost results/<run> --instance g5.2xlarge
  iobench cost results/<run> --instance g5.2xlarge --host-spot-price-per-hour 0.45 \
--interruptions-per-hour 0.05 --interval 10m
  iobench cost results/<run> --instance p5.48xlarge --hosts 4 --efficiency 0.9 --epochs 90 \
--samples 1281167 --deadline 24h --max-cost 5000
  iobench cost results/<run> results/<run> --instance g5.xlarge --instance g5.2xlarge \
--host-spot-price-per-hour g5.xlarge=0.40,g5.2xlarge=0.45
  iobench cost results/<run> results/<run> --instance 4xg5.2xlarge --instance p4d.24xlarge \
--efficiency 0.9 --deadline 24h --epochs 90
  iobench cost results --instance 2xg5.2xlarge+1xg5.12xlarge --region us-east-1

Prices come from results/instances.yaml (iobench list instances), from your own file (--prices) or
from the command line (--host-price-per-hour, --host-spot-price-per-hour). Without --instance, the
instance type that was recorded with the run is used. Runs of the same settings, host and storage
are one option, with the median of their rates.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="run directories, or directories of runs, e.g. results/<run>",
    )
    add_history(parser, "RESULTS")
    _add_prices(parser)
    _add_hosts(parser)
    _add_job(parser)
    _add_losses(parser)


def _add_prices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prices")
    group.add_argument(
        "--instance",
        action="append",
        default=[],
        metavar="[N x]TYPE",
        help="instance type whose price is used (default: as recorded); give one for all RESULTS, "
        "or one for each in their order. 4xTYPE means 4 hosts, 2xTYPE+4xTYPE hosts of several "
        "types in one job, whose rates are those of the runs on each type",
    )
    for flag, dest, how in (
        ("--host-price-per-hour", "price", "on demand"),
        ("--host-spot-price-per-hour", "spot", "as a spot instance"),
    ):
        group.add_argument(
            flag,
            dest=dest,
            type=prices_by_type,
            default={},
            metavar="[TYPE=]USD",
            help=f"price of one host for one hour, {how}; with several types of instances: "
            "TYPE=USD,TYPE=USD",
        )
    group.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="price list: CSV with the columns type and usd_per_hour or spot_usd_per_hour, and "
        "region, priced (its date) and others if known; or JSON or YAML in the form of "
        "results/instances.yaml",
    )
    group.add_argument(
        "--region",
        default="",
        metavar="REGION",
        help="use prices of this region only, e.g. us-east-1",
    )


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hosts")
    group.add_argument(
        "--hosts",
        type=whole_number,
        default=1,
        metavar="N",
        help="number of hosts that train together (default: 1)",
    )
    group.add_argument(
        "--efficiency",
        type=number,
        default=1.0,
        metavar="E",
        help="scaling efficiency of several hosts, 0 to 1 (default: 1)",
    )
    group.add_argument(
        "--storage-grows",
        action="store_true",
        help="the storage delivers more with more hosts, as local disks do; without this flag, all "
        "hosts together get at most what it was measured to deliver",
    )


def _add_job(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("job")
    group.add_argument(
        "--epochs", type=whole_number, metavar="N", help="number of epochs of the job"
    )
    group.add_argument(
        "--samples",
        type=whole_number,
        metavar="N",
        help="samples in one epoch (default: those of the run's dataset)",
    )
    group.add_argument(
        "--deadline",
        metavar="TIME",
        help="time limit for the job, e.g. 24h, or the date of its end, e.g. 2027-01-31T18:00 in "
        "this host's time zone",
    )
    group.add_argument("--max-cost", type=number, metavar="USD", help="largest cost of the job")


def _add_losses(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("saves and interruptions")
    group.add_argument(
        "--interruptions-per-hour",
        dest="interruptions",
        type=number,
        metavar="RATE",
        help="interruptions of each spot instance in one hour, e.g. 0.05; an interruption stops "
        "all hosts. Without it, figures of spot instances hold only if they are never interrupted",
    )
    group.add_argument(
        "--interval",
        dest="checkpoint_every",
        default="1h",
        metavar="TIME",
        help="training time between two checkpoints, e.g. 10m; half of it is lost in an "
        "interruption, on average (default: 1h)",
    )
    group.add_argument(
        "--checkpoints",
        type=Path,
        metavar="RUN",
        help="run directory of iobench checkpoint: the time of its saves and restores counts "
        "(default: of saves that the runs themselves measured)",
    )
    group.add_argument(
        "--restart",
        default="5m",
        metavar="TIME",
        help="time to restart after an interruption, without the restore (default: 5m)",
    )


def run(args: argparse.Namespace) -> int:
    from ..analyse.compare.ranking import rankings
    from ..analyse.compare.runs import collect, usable, values_of
    from ..errors import UsageError
    from ..report.cost import sections
    from ..schema.prices import read_prices
    from ..schema.record import TrainingRecord
    from .printing import print_report

    _check(args)
    terms = _terms(args)
    own = read_prices(args.prices) if args.prices else None
    if len(args.instance) > 1 and len(args.instance) != len(args.results):
        raise UsageError(
            f"there are {len(args.instance)} --instance flags for {len(args.results)} RESULTS",
            remedy="give one --instance for all RESULTS, or one for each in their order",
        )
    asked = [parts_of(text, args.hosts) for text in args.instance] or [[("", args.hosts)]]
    if len(asked) == 1:
        asked *= len(args.results)
    given: dict[tuple[Path, tuple[tuple[str, int], ...]], TrainingRecord] = {}
    left_out: list[str] = []
    for place, parts in zip(args.results, asked, strict=True):
        found = collect(place)
        left_out += found.left_out
        for directory, doc in found.runs.items():
            why = usable(doc, str(directory))
            if not why and isinstance(doc, TrainingRecord) and values_of(doc, "samples_per_s"):
                named = tuple((name or doc.host.instance_type or "", n) for name, n in parts)
                given.setdefault((directory.resolve(), named), doc)
            else:
                left_out.append(why or f"{directory} measured no samples/s")
    if not given:
        raise UsageError(
            f"there is no run whose cost can be computed: {left_out[0] if left_out else 'no run'}"
        )
    instances = instances_of(args, own, list(dict.fromkeys(n for _, ns in given for n, _ in ns)))
    priced: list[tuple[TrainingRecord, Machine]] = [
        (doc, tuple((hosts, instances[name]) for name, hosts in named))
        for (_, named), doc in given.items()
    ]
    ranked = rankings(priced, terms, earlier=earlier_runs(args))
    if not any(one.options for one in ranked):
        names = [name for one in ranked for name in one.without_price]
        raise UsageError(
            f"the price of {names[0] if names else 'the hosts'} is not known",
            remedy="give --host-price-per-hour or --host-spot-price-per-hour, or a price list with "
            "--prices",
        )
    document = {"rankings": ranked, "left_out": left_out}
    print_report(args.format, document, sections(ranked, left_out))
    return 0


def _terms(args: argparse.Namespace) -> Terms:
    from ..analyse.compare.cost import Terms
    from ..analyse.compare.pace import Schedule
    from ..units import parse_duration

    every = parse_time("--interval", args.checkpoint_every)
    return Terms(
        efficiency=args.efficiency,
        storage_grows=args.storage_grows,
        epochs=args.epochs,
        samples=args.samples,
        deadline_s=_deadline(args.deadline),
        budget_usd=args.max_cost,
        interruptions_per_hour=args.interruptions,
        schedule=Schedule(
            every_s=every or 3600.0,
            restart_s=parse_duration(args.restart),
        ),
        checkpoints=_checkpoints(args.checkpoints) if args.checkpoints else None,
    )


def _checkpoints(directory: Path) -> RunRecord:
    from ..analyse.compare.pace import saving_of
    from ..errors import UsageError
    from ..schema.record import load_run

    found = load_run(directory)
    if saving_of(found) is None:
        raise UsageError(
            f"{directory} measured no saves",
            remedy="name a run of iobench checkpoint with --checkpoints",
        )
    return found


def _deadline(text: str | None) -> float | None:
    """Seconds of ``24h``, or until ``2027-01-31T18:00`` in the time zone of this host."""
    import datetime

    from ..errors import UsageError
    from ..units import parse_duration

    if text is None:
        return None
    example = "write it like 24h, or 2027-01-31T18:00"
    if not re.match(r"\s*\d{4}-\d", text):
        try:
            seconds = parse_duration(text)
        except UsageError as error:
            raise UsageError(f"--deadline: {error.what}", remedy=example) from None
        if seconds <= 0:
            raise UsageError(f"--deadline must be more than 0, but is '{text}'", remedy=example)
        return seconds
    try:
        end = datetime.datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"--deadline '{text}' is no date", remedy=example) from None
    seconds = (end - datetime.datetime.now(datetime.UTC)).total_seconds()
    if seconds <= 0:
        raise UsageError(f"--deadline {text} is in the past", remedy=example)
    return seconds


def _check(args: argparse.Namespace) -> None:
    from ..analyse.compare.cost import MAX_INTERRUPTIONS
    from ..errors import UsageError

    for name, least in (("hosts", 1), ("epochs", 1), ("samples", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise UsageError(f"--{name} must be at least {least}, but is {value}")
    if not 0 < args.efficiency <= 1:
        raise UsageError(
            f"--efficiency must be more than 0 and at most 1, but is {args.efficiency:g}"
        )
    if args.max_cost is not None and not args.max_cost > 0:
        raise UsageError(f"--max-cost must be more than 0 USD, but is {args.max_cost:g}")
    if args.interruptions is not None and not 0 <= args.interruptions <= MAX_INTERRUPTIONS:
        raise UsageError(
            f"--interruptions-per-hour must be 0 to {MAX_INTERRUPTIONS:g}, but is "
            f"{args.interruptions:g}"
        )


VERB = Verb(
    help="samples per dollar, dollars for a job and for waiting",
    description=(
        "Rank the ways to pay for the work of recorded runs: the cheapest first, and last what "
        "misses --deadline or --max-cost. Nothing is measured, and no price is looked up over a "
        "network."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
