"""Ways to pay for the same work, best first, and what may be said about their order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...base.documents import UNPRINTED
from ...base.errors import UsageError
from ...judge.statistics import NOISE
from ...record.ab import Drift
from ...record.run import ModelLoadRecord, PricedRecord, RunRecord, ServingRecord, TrainingRecord
from ...settings.instances import Instance
from .claims import MIN_RUNS, Sides, answer_of, claim, combined, drift_of, in_turns, like
from .cost import Against, Option, PricedHosts, Terms, break_even_efficiency, options_of
from .identity import by_identity, differences, identity, workload_of
from .pace import METRIC, Pace, metric_of, pace_of, rates_of
from .runs import apart, collect, question

Machine = tuple[tuple[int, Instance], ...]
"""The hosts of a job: how many of each type of instance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEven:
    """The scaling efficiency at which an option costs as much for a sample as another one."""

    machine: str
    kind: str
    other: str
    other_kind: str
    efficiency: float  # above 1: it cannot be as cheap
    never_interrupted: bool = field(metadata=UNPRINTED)  # the first of the two


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """The options for one workload on one dataset, best first. The first is compared with none.

    ``apart``: what sets its runs apart from those of other rankings of the same workload.
    """

    workload: str
    apart: tuple[str, ...] = ()
    options: tuple[Option, ...]
    break_evens: tuple[BreakEven, ...]
    without_price: tuple[str, ...]  # types of instances
    terms: Terms = field(metadata=UNPRINTED)


def rankings(
    priced: Sequence[tuple[PricedRecord, Machine]],
    terms: Terms,
    *,
    earlier: Sequence[RunRecord] = (),
) -> list[Ranking]:
    """Rank the ways to pay for each workload among ``priced``: runs, and machines to run them on.

    Runs of the same identity and machine are one option. Runs that measured no rate are left out.
    ``earlier``: runs that tell how much equal ones differ, where an option has fewer than
    ``MIN_RUNS`` of them.
    """
    works: dict[tuple[str, ...], list[tuple[PricedRecord, Machine]]] = {}
    for doc, machine in priced:
        # Of a server it counts that a rate held its limit; machines differ in how large it is.
        works.setdefault(question(doc, ["rate"]), []).append((doc, machine))
    found = {facts: _ranking(each, terms, earlier) for facts, each in works.items()}
    ranked = {facts: ranking for facts, ranking in found.items() if ranking is not None}
    return [
        replace(ranking, apart=apart(facts, [one for one in ranked if one[0] == facts[0]]))
        for facts, ranking in ranked.items()
    ]


def _ranking(
    priced: Sequence[tuple[PricedRecord, Machine]], terms: Terms, earlier: Sequence[RunRecord]
) -> Ranking | None:
    machines: dict[Machine, list[PricedRecord]] = {}
    for doc, machine in priced:
        machines.setdefault(machine, []).append(doc)
    options: list[Option] = []
    unpriced: list[str] = []
    for machine, docs in machines.items():
        for parts in _jobs(machine, docs, earlier):
            made = options_of(parts, terms)
            options += made
            unpriced += [] if made else [part.instance.type for part in parts]
    if not options and not unpriced:
        return None
    options.sort(key=_order)
    compared = options[:1]
    for one in options[1:]:
        against, differs = _against(one, options[0]), _differs(one, options[0])
        compared.append(replace(one, against=against, differs=differs))
    return Ranking(
        workload=workload_of(priced[0][0]),
        options=tuple(compared),
        break_evens=tuple(_break_evens(options, terms)),
        without_price=tuple(dict.fromkeys(unpriced)),
        terms=terms,
    )


def _jobs(
    machine: Machine, docs: Sequence[PricedRecord], earlier: Sequence[RunRecord]
) -> list[tuple[PricedHosts, ...]]:
    """The jobs on this machine: one for each group of runs, or one if it has several types.

    Each type then has the slowest pace among the runs on that type; a type without runs has the
    slowest of all.
    """
    groups = [
        [doc for doc in group if isinstance(doc, TrainingRecord | ServingRecord)]
        for group in by_identity(docs)
    ]
    paces = [
        pace for group in groups if (pace := pace_of(group, _drift(group, earlier))) is not None
    ]
    if not paces:
        return []
    if len(machine) == 1:
        ((hosts, instance),) = machine
        return [(PricedHosts.of(instance, pace, hosts=hosts),) for pace in paces]
    parts = []
    for hosts, instance in machine:
        own = [pace for pace in paces if pace.type == instance.type]
        among = own or paces
        parts.append(
            PricedHosts.of(
                instance,
                min(among, key=lambda pace: pace.middle),
                hosts=hosts,
                measured=bool(own),
                groups=len(among),
            )
        )
    return [tuple(parts)]


def _drift(group: Sequence[PricedRecord], earlier: Sequence[RunRecord]) -> Drift | None:
    """How much runs like these differ, as other runs tell; None if there are enough of these."""
    if len(group) >= MIN_RUNS:
        return None
    own = {doc.run_id for doc in group}
    return drift_of(
        like(group[0], [doc for doc in earlier if doc.run_id not in own]), metric_of(group[0])
    )


def _drift_of_both(one: Pace, other: Pace) -> Drift | None:
    """The drift of both sides; None if a side of few runs has none."""
    known = [pace.drift for pace in (one, other) if pace.drift is not None]
    enough = all(pace.drift or len(pace.values) >= MIN_RUNS for pace in (one, other))
    return combined(known) if known and enough else None


def _order(option: Option) -> tuple[bool, bool, float]:
    """Best first: what meets the deadline and the budget, then what is known, then the cost."""
    return (
        not option.in_time_and_budget,
        option.figures.never_interrupted,
        -option.figures.samples_per_usd,
    )


def _against(option: Option, best: Option) -> Against:
    """The cost of a sample with ``option``, over that with ``best``.

    Prices and losses are stated figures; only the rates are uncertain. Two options of the same runs
    differ by these stated figures alone, unless the storage limits one of them.
    """
    if not option.figures.samples_per_usd or not best.figures.samples_per_usd:
        return Against(answer="different", ratio=None)
    ratio = best.figures.samples_per_usd / option.figures.samples_per_usd
    one, other = option.slowest.pace, best.slowest.pace
    if option.figures.never_interrupted and not best.figures.never_interrupted:
        if ratio > 1 + NOISE and _same_runs(one, other):
            return Against(answer="different", ratio=ratio, low=ratio)
        why = "its interruptions are not known"
        return Against(answer="inconclusive", ratio=ratio, low=ratio, why=why)
    if option.figures.if_storage_grows != best.figures.if_storage_grows:
        why = "one of the two needs a storage that grows with its hosts"
        return Against(answer="inconclusive", ratio=ratio, why=why)
    if option.figures.storage_limits or best.figures.storage_limits:
        return _by_intervals(option, best, ratio)
    if _same_runs(one, other):
        return Against(answer=answer_of(ratio, ratio, NOISE), ratio=ratio, low=ratio, high=ratio)
    drift = _drift_of_both(one, other)
    sides = Sides(
        candidate=other.values,
        baseline=one.values,
        drift=drift,
        in_turns=in_turns([*one.runs, *other.runs]),
    )
    found = claim(METRIC, sides)
    interval = found.ratio
    if interval is None or interval.low is None or interval.high is None:
        return Against(answer="inconclusive", ratio=ratio, why=found.why)
    factor = ratio * one.middle / other.middle  # of the stated figures
    low, high = interval.low * factor, interval.high * factor
    return Against(
        answer=answer_of(low, high, NOISE), ratio=interval.value * factor, low=low, high=high
    )


def _by_intervals(option: Option, best: Option, ratio: float) -> Against:
    """The widest interval of the ratio that those of both options allow."""
    least, most = option.figures.samples_per_usd_low, option.figures.samples_per_usd_high
    low, high = best.figures.samples_per_usd_low, best.figures.samples_per_usd_high
    if not least or not most or low is None or high is None:
        why = "how exactly the storage was measured is not known"
        return Against(answer="inconclusive", ratio=ratio, why=why)
    low, high = low / most, high / least
    return Against(answer=answer_of(low, high, NOISE), ratio=ratio, low=low, high=high)


def _same_runs(one: Pace, other: Pace) -> bool:
    return len(one.runs) == len(other.runs) and all(
        doc is each for doc, each in zip(one.runs, other.runs, strict=True)
    )


def _break_evens(options: Sequence[Option], terms: Terms) -> list[BreakEven]:
    """For each option of more hosts than were measured: the efficiency to be as cheap as another.

    An option that waits for its storage has none, since its efficiency does not matter then.
    """
    found = []
    for option in options:
        others = [
            other
            for other in options
            if other.machine != option.machine and not other.figures.never_interrupted
        ]
        measured = option.slowest.pace.hosts
        if option.hosts <= measured or option.figures.storage_limits or not others:
            continue
        other = max(others, key=lambda each: each.figures.samples_per_usd)
        whole = option.figures.samples_per_s / terms.efficiency
        if whole <= 0 or other.figures.samples_per_s <= 0:
            continue
        needed = break_even_efficiency(
            option.figures.usd_per_hour,
            other.figures.usd_per_hour,
            whole / other.figures.samples_per_s,
        )
        found.append(
            BreakEven(
                machine=option.machine,
                kind=option.figures.kind,
                other=other.machine,
                other_kind=other.figures.kind,
                efficiency=needed,
                never_interrupted=option.figures.never_interrupted,
            )
        )
    return found


def _differs(option: Option, best: Option) -> tuple[str, ...]:
    """What differs in the runs of the two options: settings, host, storage, versions."""
    one, other = option.slowest.pace, best.slowest.pace
    return (
        ()
        if _same_runs(one, other)
        else differences(identity(other.runs[0]), identity(one.runs[0]))
    )


Types = tuple[tuple[str, int], ...]
"""The hosts of a job: types of instances and their numbers; '' is a type that is not recorded."""


def runs_on(
    results: Sequence[Path], instances: Sequence[str], hosts: int | None
) -> tuple[list[tuple[Types, PricedRecord | ModelLoadRecord]], list[str]]:
    """The runs that can be priced, each with the types of its hosts, and why others can't be.

    ``instances``: one text for all ``results``, one for each of them, or none (as recorded); a type
    without a number has ``hosts``, or as many as the run if that is None. Raises UsageError.
    """
    if len(instances) > 1 and len(instances) != len(results):
        raise UsageError(
            f"{len(instances)} flags --instance stand beside {len(results)} RESULTS",
            remedy="give one --instance for all RESULTS, or one for each in their order",
        )
    asked = [_parts_of(text, hosts) for text in instances] or [[("", hosts)]]
    if len(asked) == 1:
        asked *= len(results)
    found: dict[tuple[Path, Types], PricedRecord | ModelLoadRecord] = {}
    left_out: list[str] = []
    for place, parts in zip(results, asked, strict=True):
        usable = collect(place).usable()
        left_out += usable.left_out
        for directory, doc in usable.runs.items():
            tells = isinstance(doc, TrainingRecord | ServingRecord) and rates_of(doc)
            if tells or (isinstance(doc, ModelLoadRecord) and doc.job.figures):
                assert isinstance(doc, PricedRecord | ModelLoadRecord)
                own = max(1, len(doc.hosts)) if len(parts) == 1 else 1
                types = tuple((name or doc.host.instance_type or "", n or own) for name, n in parts)
                found.setdefault((directory.resolve(), types), doc)
            else:
                serves = isinstance(doc, ServingRecord)
                none = "a rate at which its limit held" if serves else "samples/s or loads"
                left_out.append(f"{directory} did not measure {none}")
    if not found:
        raise UsageError(
            f"there is no run whose cost can be computed: {left_out[0] if left_out else 'no run'}"
        )
    return [(types, doc) for (_, types), doc in found.items()], left_out


def _parts_of(text: str, hosts: int | None) -> list[tuple[str, int | None]]:
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


def _hosts_of(part: str, text: str, hosts: int | None) -> tuple[str, int | None]:
    found = re.fullmatch(r"(\d{1,9})\s*x\s*(\S+)", part.strip())
    if found is None:
        return part.strip(), hosts
    if int(found[1]) < 1:
        raise UsageError(f"--instance '{text}': the number of hosts must be at least 1")
    return found[2], int(found[1])
