"""``iobench cost``: samples per dollar, ways to pay ranked."""

from __future__ import annotations

from pathlib import Path

from ..ask.capacity.loads import LoadCost, load_costs
from ..ask.compare.cost import Terms
from ..ask.compare.pace import Schedule, saving_of
from ..ask.compare.ranking import Machine, rankings, runs_on
from ..ask.compare.runs import earlier_runs, usable
from ..base.errors import UsageError
from ..record.run import ModelLoadRecord, PricedRecord, RunRecord, load_run
from ..report.cost import sections
from ..report.size_serving import load_cost_sections
from ..settings.instances import instances_of, read_prices
from .printing import print_report
from .terminal import warn_of_left_out
from .verbs import CostRequest

_OF_TRAININGS = (
    *("efficiency", "storage_grows", "epochs", "samples", "deadline_s", "budget_usd"),
    *("interruptions_per_hour", "interval_s", "checkpoints", "restart_s"),
)


def run(request: CostRequest) -> int:
    terms = _terms(request)
    own = read_prices(request.prices) if request.prices else None
    given, left_out = runs_on(request.results, request.instance, request.hosts)
    instances = instances_of(
        [name for types, _ in given for name, _ in types],
        own,
        region=request.region,
        stated=request.host_price_per_hour or {},
        stated_spot=request.host_spot_price_per_hour or {},
        chosen=bool(request.instance),
    )
    priced: list[tuple[PricedRecord, Machine]] = []
    loads: list[LoadCost] = []
    for types, doc in given:
        machine = tuple((hosts, instances[name]) for name, hosts in types)
        if isinstance(doc, ModelLoadRecord):
            loads += load_costs(doc.run_id, doc.job, machine)
        else:
            priced.append((doc, machine))
    if not priced and (flag := request.first_of(_OF_TRAININGS)):
        raise UsageError(
            f"{flag} says nothing of runs of load, which have the cost of a start and no job",
            remedy=f"leave {flag} out, or name a run of a training, too",
        )
    ranked = rankings(priced, terms, earlier=earlier_runs(request.history, request.results))
    if not loads and not any(one.options for one in ranked):
        names = [name for one in ranked for name in one.without_price]
        names += [name for types, _ in given for name, _ in types]
        raise UsageError(
            f"the price of {names[0] if names else 'the hosts'} is not known",
            remedy="give --host-price-per-hour or --host-spot-price-per-hour, or a price list with "
            "--prices",
        )
    document = {"rankings": ranked, "loads": loads, "left_out": left_out}
    print_report(request, document, [*load_cost_sections(loads), *sections(ranked, left_out)])
    warn_of_left_out(left_out)
    return 0


def _terms(request: CostRequest) -> Terms:
    return request.made(
        Terms,
        schedule=Schedule(every_s=request.interval_s, restart_s=request.restart_s),
        checkpoints=_checkpoints(request.checkpoints) if request.checkpoints else None,
    )


def _checkpoints(directory: Path) -> RunRecord:
    found = load_run(directory)
    if why := usable(found, str(directory)):
        raise UsageError(why, remedy="name a run that is not INVALID, and did not fail")
    if saving_of(found) is None:
        raise UsageError(
            f"{directory} measured no saves",
            remedy="name a run of iobench checkpoint with --checkpoints",
        )
    return found
