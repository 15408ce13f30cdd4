"""``iobench cost``: samples per dollar, ways to pay ranked."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..ask.compare.cost import Terms
from ..ask.compare.pace import Schedule, saving_of
from ..ask.compare.ranking import Machine, rankings
from ..ask.compare.runs import collect, earlier_runs, usable, values_of
from ..base.errors import UnknownNameError, UsageError
from ..base.units import parse_duration
from ..record.run import RunRecord, TrainingRecord, load_run
from ..report.cost import sections
from ..settings.instances import Instance, find_instance, priced_at
from ..settings.prices import Prices, read_prices
from .printing import print_report
from .verbs import CostRequest


def run(request: CostRequest) -> int:
    terms = _terms(request)
    own = read_prices(request.prices) if request.prices else None
    if len(request.instance) > 1 and len(request.instance) != len(request.results):
        raise UsageError(
            f"{len(request.instance)} flags --instance stand beside {len(request.results)} RESULTS",
            remedy="give one --instance for all RESULTS, or one for each in their order",
        )
    asked = [parts_of(text, request.hosts) for text in request.instance] or [[("", request.hosts)]]
    if len(asked) == 1:
        asked *= len(request.results)
    given: dict[tuple[Path, tuple[tuple[str, int], ...]], TrainingRecord] = {}
    left_out: list[str] = []
    for place, parts in zip(request.results, asked, strict=True):
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
    instances = instances_of(request, own, list(dict.fromkeys(n for _, ns in given for n, _ in ns)))
    priced: list[tuple[TrainingRecord, Machine]] = [
        (doc, tuple((hosts, instances[name]) for name, hosts in named))
        for (_, named), doc in given.items()
    ]
    ranked = rankings(priced, terms, earlier=earlier_runs(request.history, request.results))
    if not any(one.options for one in ranked):
        names = [name for one in ranked for name in one.without_price]
        raise UsageError(
            f"the price of {names[0] if names else 'the hosts'} is not known",
            remedy="give --host-price-per-hour or --host-spot-price-per-hour, or a price list with "
            "--prices",
        )
    document = {"rankings": ranked, "left_out": left_out}
    print_report(request.format, document, sections(ranked, left_out), details=request.details)
    return 0


def _terms(request: CostRequest) -> Terms:
    return Terms(
        efficiency=request.efficiency,
        storage_grows=request.storage_grows,
        epochs=request.epochs,
        samples=request.samples,
        deadline_s=_deadline(request.deadline),
        budget_usd=request.max_cost,
        interruptions_per_hour=request.interruptions_per_hour,
        schedule=Schedule(
            every_s=request.interval_s,
            restart_s=request.restart_s,
        ),
        checkpoints=_checkpoints(request.checkpoints) if request.checkpoints else None,
    )


def _checkpoints(directory: Path) -> RunRecord:
    found = load_run(directory)
    if saving_of(found) is None:
        raise UsageError(
            f"{directory} measured no saves",
            remedy="name a run of iobench checkpoint with --checkpoints",
        )
    return found


def _deadline(text: str | None) -> float | None:
    """Seconds of ``24h``, or until ``2027-01-31T18:00`` in the time zone of this host."""
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


def instances_of(
    request: CostRequest, own: Prices | None, names: Sequence[str]
) -> dict[str, Instance]:
    """The instance of each name with its prices; '' is a host whose type was not recorded.

    ``own`` is the user's list, and the request has the prices that were stated, the region, and
    whether types were asked for. Raises UsageError.
    """
    named = [name for name in names if name]
    price, spot_price = request.host_price_per_hour or {}, request.host_spot_price_per_hour or {}
    for flag, stated in (
        ("--host-price-per-hour", price),
        ("--host-spot-price-per-hour", spot_price),
    ):
        if "" in stated and len(names) > 1:
            raise UsageError(
                f"{flag} has one price for {len(names)} types of instances: "
                f"{', '.join(name or 'not recorded' for name in names[:5])}",
                remedy="write TYPE=USD,TYPE=USD",
            )
        if unknown := sorted(set(stated) - {"", *named}):
            raise UsageError(
                f"{flag} names {unknown[0]}, which is no instance of these runs",
                remedy=f"known: {', '.join(named) or 'none, give --instance'}",
            )
    rows = own.of(request.region) if own else None
    found: dict[str, Instance] = {}
    for name in names:
        demand, spot = (_of_type(prices, name) for prices in (price, spot_price))
        if not name and demand is None and spot is None:
            raise UsageError(
                "the runs do not record the instance type of their host",
                remedy="name it with --instance, or give --host-price-per-hour",
            )
        if own:
            own.check(name, request.region)
        known = None
        try:
            known = find_instance(name, rows, request.region) if name else None
        except UnknownNameError:
            # A type that was only recorded need not be known if its price is stated.
            if request.instance or (demand is None and spot is None):
                raise
        found[name] = priced_at(name or "this machine", demand, spot, known)
    return found


def _of_type(prices: Mapping[str, float], name: str) -> float | None:
    return prices.get(name, prices.get(""))


def parts_of(text: str, hosts: int) -> list[tuple[str, int]]:
    """Parse ``2xg5.2xlarge+4xg5.4xlarge`` to the types and their numbers.

    A type without a number has ``hosts``.
    """
    parts = [_hosts_of(part, text, hosts) for part in text.split("+")]
    names = [name for name, _ in parts]
    if len(set(names)) < len(names) or not all(names):
        raise UsageError(
            f"--instance '{text}' names no type, or one twice",
            remedy="write it like 2xg5.2xlarge+4xg5.4xlarge",
        )
    return parts


def _hosts_of(part: str, text: str, hosts: int) -> tuple[str, int]:
    found = re.fullmatch(r"(\d{1,9})\s*x\s*(\S+)", part.strip())
    if found is None:
        return part.strip(), hosts
    if int(found[1]) < 1:
        raise UsageError(f"--instance '{text}': the number of hosts must be at least 1")
    return found[2], int(found[1])
