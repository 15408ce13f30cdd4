"""``iobench ab``: measure two configurations in turns until their difference is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..ask.compare.sequential import MIN_ROUNDS, metrics_like, primary, verdict
from ..base.errors import UnknownNameError, UsageError
from ..base.units import counted
from ..judge.statistics import NOISE
from ..record.ab import AB_FILE, AbRecord, AbVariant
from ..record.job import DatasetFacts
from ..record.run import RUN_FILE, ModelLoadRecord, RunRecord, load_run
from ..record.sweep import SWEEP_FILE
from ..report.ab import answer, planned_line, round_line
from ..runner.ab import VariantAsked, compare_in_turns, naming, shortest_s
from ..runner.hosts.hosts import Hosts
from ..runner.options import AbOptions
from ..runner.repeated import RECORDS, Asked, asked_again, check_same_data, plan_of, recorded_of
from ..settings.any_workload import load_any_workload
from ..settings.workload import Workload
from .hosts import trials
from .live import Live
from .printing import finish_ab, status_of
from .terminal import whole_seconds
from .verbs import AbRequest


def run(request: AbRequest) -> int:
    places = request.a, request.b, request.data, request.origin, request.origin_a, request.origin_b
    return trials(
        request,
        lambda hosts: _compare(request, hosts),
        workloads=[request.workload],
        overrides=[*request.overrides, *request.set_a, *request.set_b],
        places=places,
    )


def _compare(request: AbRequest, hosts: Hosts) -> int:
    a, b = variants_of(request, hosts.count)
    if not isinstance(a.asked.workload, Workload):
        request.check_of_training(a.asked.name, "accelerators")
    headline = RECORDS[type(a.asked.workload)].headline
    metric, names = request.metric or headline, [each.name for each in metrics_like(headline)]
    if metric not in names:
        raise UnknownNameError("metric", metric, names)
    options = request.made(AbOptions, metric=metric, threshold=_threshold(request))
    with ShownRounds(quiet=request.quiet) as told:
        told.announce(a, b, options)
        record, directory = compare_in_turns(a, b, options, told, hosts)
    code = finish_ab(request, record, directory, new=True)
    return code if request.fail_on is None else gated(request, record)


def gated(request: AbRequest, record: AbRecord) -> int:
    """The exit code of ``--fail-on``: 4 if B is worse, or as ``--if-inconclusive`` says.

    What is told of a variant that is INVALID is inconclusive.
    """
    found = verdict(primary(record))
    inconclusive = [f"variant {variant.name} is INVALID" for variant in invalid_variants(record)]
    if found == "inconclusive":
        inconclusive.append(answer(record).removeprefix("inconclusive").lstrip(": "))
    return status_of(
        request, failed=[answer(record)] if found == "worse" else [], inconclusive=inconclusive
    )


def invalid_variants(record: AbRecord) -> list[AbVariant]:
    return [variant for variant in record.variants if variant.validity == "invalid"]


def _threshold(request: AbRequest) -> float:
    """``--threshold``, or the change of ``--fail-on``, which must not be another one."""
    given = [each for each in (request.threshold, request.fail_on) if each is not None]
    if len(set(given)) > 1:
        raise UsageError(
            "--fail-on and --threshold are different, though both are the threshold",
            remedy="give one of them",
        )
    return given[0] if given else NOISE


class ShownRounds(Live):
    """What is told while the rounds are taken: the time they take, and a line for each."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._round_s = 0.0

    def announce(self, a: VariantAsked, b: VariantAsked, options: AbOptions) -> None:
        """Tell what will be measured, and how long it takes at least."""

        for name, variant in (("A", a), ("B", b)):
            given = f", {', '.join(variant.settings)}" if variant.settings else ""
            self.note(f"{name}: {variant.asked.name} on {variant.asked.data}{given}")
        if a.asked == b.asked:
            self.note("A and B are the same: a difference would be a false alarm")
        least, max_rounds = shortest_s(a.plan, b.plan, options.budget), options.max_rounds
        if least is None:
            self.note("how long it takes is known after the warm-up of both variants")
            return
        first = whole_seconds((1 + MIN_ROUNDS) * least)
        line = f"a warm-up, then {MIN_ROUNDS} rounds of 2 repetitions: at least {first}"
        if max_rounds > MIN_ROUNDS:
            most = whole_seconds((1 + max_rounds) * least)
            line += f"; if these give no answer, up to {max_rounds} rounds: at least {most}"
        self.note(line)

    def shortened(self, steps: int, whole: int) -> None:
        self.note(f"a repetition has {counted(steps, 'step')} instead of {whole}, by --budget")

    def planned(self, record: AbRecord, round_s: float) -> None:
        self._round_s = round_s
        self._expect(record)
        self.note(planned_line(record, round_s))

    def round_taken(self, record: AbRecord) -> None:
        self._expect(record)
        self.note(round_line(record))

    def _expect(self, record: AbRecord) -> None:
        """The rounds that an answer takes at least; after these, each may be the last."""

        self.expect(max(1, MIN_ROUNDS - len(record.rounds)) * self._round_s, more=True)


SEED, ACCELERATORS = 42, 1
"""Where neither a flag nor a run that is repeated says so."""


def variants_of(request: AbRequest, hosts: int = 1) -> tuple[VariantAsked, VariantAsked]:
    """Make the plans of both variants, with a rank on each host at least.

    Raises UsageError, and as ``make_plan``, with the variant.
    """
    places = (request.a, request.a if request.b is None else request.b)
    runs = []
    for name, place in zip("AB", places, strict=True):
        with naming(name):
            runs.append(_run_of(place))
    known = next((doc for doc in runs if doc is not None), None)
    if known is None and request.workload is None:
        raise UsageError(
            "it is not known which workload to run on the data",
            remedy="add --workload NAME (iobench list workloads), or name a run directory for A",
        )
    if request.workload is not None and all(doc is not None for doc in runs):
        raise UsageError(
            "--workload can't be used with run directories, which have a workload",
            remedy="leave it out, or name the datasets",
        )
    if request.data is not None and known is None:
        raise UsageError(
            "--data is for run directories, but A and B are datasets", remedy="leave it out"
        )
    found = []
    for name, place, doc in zip("AB", places, runs, strict=True):
        with naming(name):
            found.append(_variant(request, name.lower(), place, doc, known, hosts))
    a, b = found
    if a.asked.name != b.asked.name:
        raise UsageError(
            f"A runs the workload '{a.asked.name}', but B '{b.asked.name}', so that their figures "
            "can't be compared",
            remedy="name two runs of one workload, or two datasets and --workload",
        )
    return a, b


def _run_of(place: str) -> RunRecord | None:
    """The record of a run directory; None for a dataset."""
    path = Path(place)
    for file, kind in ((AB_FILE, "comparison in turns"), (SWEEP_FILE, "sweep")):
        if (path / file).is_file():
            raise UsageError(
                f"{place} is a {kind}, not one run", remedy="name the directory of a run below it"
            )
    if path.name == RUN_FILE and path.is_file():
        return load_run(path)
    return load_run(path) if (path / RUN_FILE).is_file() else None


def _variant(
    request: AbRequest,
    name: str,
    place: str,
    doc: RunRecord | None,
    known: RunRecord | None,
    hosts: int,
) -> VariantAsked:
    """The plan of a variant: of a run (``doc``), or of a dataset with a workload.

    ``known``: the run whose workload a dataset without --workload gets. Its seed is that of both
    variants.
    """
    own = tuple(getattr(request, f"set_{name}"))
    overrides = [*request.overrides, *own]
    origin = getattr(request, f"origin_{name}") or request.origin
    if doc is not None:
        asked = asked_again(doc, data=request.data, origin=origin, overrides=overrides)
    elif request.workload is None:
        assert known is not None  # or ``variants_of`` has refused it
        elsewhere = known
        if not isinstance(known, ModelLoadRecord):
            elsewhere = known.with_job(dataset=DatasetFacts(location=None))
        asked = asked_again(elsewhere, data=place, origin=origin, overrides=overrides)
    else:
        asked = Asked(
            workload=load_any_workload(request.workload, overrides),
            data=place,
            origin=origin,
            accelerators=ACCELERATORS if known is None else recorded_of(known).accelerators,
        )
    seed = request.seed
    if seed is None:
        seed = SEED if known is None else recorded_of(known).seed
    ranks = max(request.accelerators or asked.accelerators, hosts)
    plan = plan_of(replace(asked, accelerators=ranks, seed=seed), repetitions=request.max_rounds)
    if doc is not None and request.data is None:
        check_same_data(doc, plan)
    return VariantAsked(plan=plan, settings=own, repeats=doc.run_id if doc is not None else "")
