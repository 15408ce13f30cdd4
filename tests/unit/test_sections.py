"""Sections are data, and each renderer shows all of them: every report, in every medium."""

from __future__ import annotations

import ast
import csv
import importlib
import io
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import iobench.report
from iobench.ask.capacity.ceilings import Change
from iobench.ask.capacity.hosts import HostsChange
from iobench.ask.capacity.jobs import RecordedJob
from iobench.ask.capacity.more_hosts import on_more_hosts
from iobench.ask.capacity.requirement import Demand, requirement, together
from iobench.ask.capacity.scaling import Band
from iobench.ask.capacity.whatif import what_if
from iobench.ask.compare.comparison import Comparison
from iobench.ask.compare.comparison import compare as compare_runs
from iobench.ask.compare.cost import Terms
from iobench.ask.compare.history import history as history_of
from iobench.ask.compare.pace import SaveTimes, Schedule
from iobench.ask.compare.ranking import Machine, rankings
from iobench.ask.compare.runs import Group
from iobench.ask.submission import read_submissions
from iobench.ask.tuning.recommend import TuningTarget, recommend, sweep_confirmation
from iobench.ask.tuning.sweepfolder import read_sweep
from iobench.base.text import csv_cell, github, markdown
from iobench.base.units import Quantity
from iobench.judge.figures.curve import conclude_curve, spent
from iobench.judge.rebuild import conclude
from iobench.record.checkpoint import CheckpointSpec, Training
from iobench.record.curve import Rate, StorageCurve, StorageProbe
from iobench.record.run import CheckpointRecord, TrainingRecord
from iobench.record.run import load_run as load
from iobench.record.serving import FoundRate
from iobench.record.sweep import SweepPoint
from iobench.record.verdict import Confirmation, ConfirmationRound, Estimate
from iobench.report import (
    ab,
    advise,
    compare,
    cost,
    curve,
    history,
    plan,
    record,
    size,
    submission,
    sweep,
    walk,
    whatif,
)
from iobench.report.page.whole import page
from iobench.report.record import several_sections
from iobench.report.render_csv import render_csv
from iobench.report.render_markdown import render_github, render_markdown
from iobench.report.render_text import render_text
from iobench.report.sections import (
    Bars,
    Cell,
    Column,
    Facts,
    Findings,
    FirstScreen,
    Headline,
    Items,
    Prose,
    Row,
    Section,
    SourceLines,
    Table,
    first_screen,
)
from iobench.runner.checkpoint_plan import describe_checkpoint
from iobench.runner.plan_figures import describe_plan
from iobench.settings.dataset import load_dataset_spec
from iobench.settings.instances import find_instance, priced_at
from iobench.settings.workload import load_workload
from tests.curves import curve as planted
from tests.curves import point
from tests.kv import ENOUGH, build_kv, build_kv_trial
from tests.reports import of_changes
from tests.requests import build_serving, build_trial
from tests.unit.conftest import build_run, build_sweep
from tests.unit.test_ab import FASTER, INCONCLUSIVE
from tests.unit.test_compare import BASE, FAST, document
from tests.unit.test_history import runs as runs_over_time
from tests.unit.test_submission import put, summary
from tests.words import long_sentences

REPORT = Path(iobench.report.__path__[0])
GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0"
WORKLOAD = "resnet50-h100"
FEW = SweepPoint(settings={"loader.workers": 2}, figures=[90.0, 95.0], dropped="too slow")
POINTS = [
    SweepPoint(settings={"loader.workers": 1}, figures=[100.0, 101.0, 102.0]),
    FEW,
    SweepPoint(settings={"loader.workers": 4}, failed="a worker died of a signal"),
]


def _group(label: str, rates: list[float]) -> Group:
    return Group(label, [TrainingRecord.model_validate(document([rate])) for rate in rates])


def _compare(rates: list[float]) -> Comparison:
    return compare_runs(_group("before", BASE), _group("after", rates))


def _history() -> list[Section]:
    docs = [TrainingRecord.model_validate(each) for each in runs_over_time([1.0] * 6 + [0.7] * 6)]
    docs[3] = docs[3].model_copy(update={"validity": "invalid"})
    return history.sections([history_of("w", docs, "samples_per_s")], ["a run that was left out"])


def _cost() -> list[Section]:
    priced = priced_at("g5.xlarge", 1.2, 0.4, find_instance("g5.xlarge"))
    schedule = Schedule(saving=SaveTimes(run_id="c", blocked_s=30.0))
    terms = Terms(epochs=90, deadline_s=60.0, budget_usd=5.0, schedule=schedule)
    machines: tuple[Machine, ...] = (
        ((2, priced),),
        ((1, find_instance("g5.12xlarge")),),
        ((1, priced), (1, find_instance("g5.8xlarge"))),
    )
    found = rankings(
        [
            (doc, machine)
            for doc in (build_run(), build_run(measured=900.0))
            for machine in machines
        ],
        terms,
    )
    return cost.sections(found, ["r2 has no repetition"])


def _size() -> list[Section]:
    workload = load_workload(WORKLOAD)
    instance = find_instance("g5.xlarge")
    demand = Demand(accelerators=64, hosts=4, cache_bytes=1 << 40, instance=instance)
    found = requirement(workload, load_dataset_spec(workload.dataset), demand, build_run())
    return size.sections(found)


def _size_of_two() -> list[Section]:
    jobs = [
        requirement(workload, load_dataset_spec(workload.dataset), Demand(accelerators=16))
        for workload in map(load_workload, ("unet3d-h100", "resnet50-h100"))
    ]
    return size.together_sections(together(jobs), [(job, size.sections(job)) for job in jobs])


def _confirmation() -> list[Section]:
    advice = recommend(read_sweep(GOLDEN / "sweep"), TuningTarget())
    found = sweep_confirmation(advice, _compare(FAST), "d", ("a note",))
    return advise.confirmation_sections(found)


def _tried() -> list[Section]:
    rounds = [
        ConfirmationRound(round=number, samples_per_s=rate, base_samples_per_s=100.0, seconds=2.0)
        for number, rate in enumerate((198.0, 200.0, 203.0))
    ]
    kept = Confirmation(
        id="concurrency",
        change="keep more reads in flight",
        settings=["reader.concurrency=8"],
        promised=Estimate(value=2.1, low=2.0, high=2.2),
        rounds=rounds,
    )
    failed = kept.model_copy(
        update={"settings": ["loader.workers=8"], "rounds": [], "not_measured": "no memory is left"}
    )
    return record.sections(conclude(build_run().with_job(confirmations=[kept, failed])))


def _sweep() -> list[Section]:
    asked = {"points": POINTS, "default": POINTS[0].settings, "repetitions": 3}
    return sweep.sections(build_sweep(**asked, left_out=["the budget was spent"]))


def _walk() -> list[Section]:
    """A step of which one setting was kept, one that has no time left, and one that is gone."""
    settings = [{"batch_size": 128}, {"batch_size": 64}]
    rates = [[9.0, 9.1, 9.05, 9.2], [12.0, 12.1, 12.2, 12.1]]
    points = [
        {"settings": each, "figures": rate, "runs": ["a", "b", "c", "d"], "step": 0}
        for each, rate in zip(settings, rates, strict=True)
    ]
    steps = [
        {"name": "batch size", "key": "batch_size", "values": [64]},
        {"name": "workers", "key": "loader.workers", "values": [1]},
        {"name": "old", "not_measured": "ended with 2.8"},
    ]
    asked = {"points": points, "walk": steps, "preset": "mine", "walked": 1}
    asked |= {"default": settings[0], "repetitions": 4, "usd_per_hour": 0.357}
    return walk.sections(build_sweep(**asked))


def _crossed() -> list[SweepPoint]:
    return [
        SweepPoint(
            settings={"dataset.codec": codec, "loader.workers": workers},
            figures=[100.0 * workers, 110.0 * workers] if workers < 4 else [],
            failed="" if workers < 4 else "no memory",
            stored_bytes=1e6 * (1 + len(codec)),
            read_bytes_per_sample=[None, 1e3 * workers],
            cpu_s_per_gb=[0.5, 0.25 * workers],
        )
        for codec in ("none", "zstd:1")
        for workers in (1, 2, 4)
    ]


def _whatif() -> list[Section]:
    starved = build_run(rates={"storage_raw": 650, "fetch": 600}, measured=580, au=0.29)
    change = Change(storage_bandwidth=Quantity(2, relative=True))
    return whatif.sections(what_if([(starved, {})], change))


def _more_hosts() -> list[Section]:
    jobs = [
        RecordedJob(
            run_id=f"run-{hosts}",
            hosts=hosts,
            ranks=4 * hosts,
            batch_size=10,
            busy_s=0.1,
            cycles_s=(0.102,),
            steps=None,
            storage=Band(500.0 * hosts, 480.0 * hosts, 520.0 * hosts),
            bytes_per_sample=1e6,
        )
        for hosts in (1, 2, 4)
    ]
    change = HostsChange(hosts=32, checkpoint_bytes=1e12, host_write_bytes_per_s=1e9)
    return whatif.sections(on_more_hosts(jobs, change))


def _curve(size: int, rates: list[float], order: str = "random") -> StorageCurve:
    points = [
        point(
            2**number,
            Rate(value=rate, low=0.98 * rate, high=1.02 * rate, windows=5),
            size,
            latency_p50_s=2**number / rate,
            disjoint=number < 2,
            client=number == 3,
        )
        for number, rate in enumerate(rates)
    ]
    return planted(points, size, order).model_copy(update={"stopped": "the time was used up"})


def _probe(*, large: bool) -> list[Section]:
    last = conclude_curve(_curve(1 << 22, [80, 90, 91, 70], "sequential")) if large else None
    failed = _curve(512, []).model_copy(update={"not_measured": "1 read failed: no route"})
    given = [_curve(4096, [100, 200, 300, 310, 305]), _curve(8192, [50, 100]), failed]
    curves = [conclude_curve(each, last) for each in given]
    asked = {"iobench_version": "0", "created": "", "command": ["iobench", "probe"]}
    about = {"url": "/data", "dataset": "demo" if large else None, "objects": 3, "bytes": 1 << 30}
    found = StorageProbe.model_validate(
        {**asked, **about, "budget_s": 30, "took_s": 12.5, "notes": ["other processes read"]}
        | {"curves": curves, "large": last, "spent": [spent(each, last) for each in curves]}
    )
    return curve.sections(found)


def _submission() -> list[Section]:
    """Of two systems; of one of them the files say little."""
    with TemporaryDirectory() as place:
        put(Path(place) / "box/unet3d/run1", summary())
        put(Path(place) / "b/run1", summary(metric={}), config={})
        put(Path(place) / "c/run1", [])
        return submission.sections(read_submissions(Path(place)))


def _recorded(name: str) -> list[Section]:
    return record.sections(conclude(load(GOLDEN / "runs" / name)))


REPORTS: dict[str, Callable[[], list[Section]]] = {
    "run": lambda: record.sections(build_run()),
    "several runs": lambda: several_sections(
        [
            (doc, record.sections(doc))
            for doc in (build_run(), conclude(load(GOLDEN / "runs" / "failed")))
        ]
    ),
    "run without fio": lambda: record.sections(build_run(rates={"storage_raw": None})),
    "run that tried its advice": _tried,
    "run without bytes": lambda: record.sections(
        build_run(dataset={"samples": None, "stored_bytes": None})
    ),
    **{
        f"record {path.name}": lambda name=path.name: _recorded(name)  # type: ignore[misc]
        for path in sorted((GOLDEN / "runs").iterdir())
    },
    "study of what changes": lambda: record.sections(
        conclude(CheckpointRecord.model_validate(of_changes(GOLDEN / "runs/checkpoint-stream")))
    ),
    "serving": lambda: record.sections(
        build_serving(
            [build_trial("find-max", rate=rate) for rate in (200.0, 800.0)]
            + build_serving().job.trials,
            found=FoundRate(low=400.0, high=430.0),
        )
    ),
    "kv_cache": lambda: record.sections(
        build_kv(
            [
                *(build_kv_trial("find-max", requests=300, factor=factor) for factor in (2, 0.1)),
                *build_kv().job.trials,
            ],
            found=FoundRate(low=5.0, high=6.0),
            job={"price_per_hour": 2.5},
        )
    ),
    "kv worth it": lambda: record.sections(build_kv(factor=0.5, failed=40)),
    "kv not worth it": lambda: record.sections(build_kv(factor=0.5, failed=40, scenario=ENOUGH)),
    "serving too slow": lambda: record.sections(build_serving(read_s=0.018, failed=40)),
    "compare": lambda: compare.sections(
        [_compare(FAST), _compare(FAST[:2]), _compare([])], ["left"]
    ),
    "ab": lambda: ab.sections(FASTER),
    "ab inconclusive": lambda: ab.sections(INCONCLUSIVE),
    "history": _history,
    "cost": _cost,
    "size": _size,
    "size of two": _size_of_two,
    "plan": lambda: plan.sections(
        describe_plan(load_workload(WORKLOAD), None, accelerators=8, repetitions=6)
    ),
    "checkpoint plan": lambda: plan.checkpoint_sections(
        describe_checkpoint(
            CheckpointSpec(model="llama3-70b"), None, ranks=None, training=Training()
        )
    ),
    "whatif": _whatif,
    "more_hosts": _more_hosts,
    "advise": lambda: advise.sections(recommend(read_sweep(GOLDEN / "sweep"), TuningTarget())),
    "sweep": _sweep,
    "walk": _walk,
    "sweep of two settings": lambda: sweep.sections(build_sweep(points=_crossed())),
    "curve": lambda: _probe(large=True),
    "curve of small files": lambda: _probe(large=False),
    "submission": _submission,
    "tried": _confirmation,
}


@cache
def report(name: str) -> list[Section]:
    return REPORTS[name]()


def plain(text: str) -> str:
    """Without line breaks and repeated spaces."""
    return " ".join(text.split())


def texts(section: Section, *where: str) -> Iterator[str]:
    """All that people get to see of a section in media that show it, but for tables."""
    if isinstance(section, Headline):
        yield from (section.title, *section.sentences)
    elif isinstance(section, Prose):
        yield from section.paragraphs
    elif isinstance(section, Facts) and section.where in where:
        yield section.title
        yield from (part for fact in section.facts for part in (fact.label, fact.text))
    elif isinstance(section, Items):
        yield section.title
        for item in section.items:
            yield from (item.text, item.lead, item.basis)
    elif isinstance(section, SourceLines):
        yield section.title if "pages" in where else ""
    elif isinstance(section, Findings):
        yield section.title
        for finding in section.findings:
            yield from (finding.rule, finding.evidence, finding.remedy)
    elif isinstance(section, Table) and section.where == "everywhere":
        yield from (section.title, *section.notes)


def cells(table: Table, *where: str) -> Iterator[str]:
    """What is shown of a table in media that show such columns."""
    for row in table.rows if table.where in where else ():
        yield row.mark
        yield from (
            cell.shown
            for column, cell in zip(table.columns, row.cells, strict=True)
            if column.where in where
        )


def tables(name: str) -> list[Table]:
    return [section for section in report(name) if isinstance(section, Table)]


@pytest.mark.parametrize("name", REPORTS)
def test_ids_are_unique_and_rows_have_a_cell_for_each_column(name: str) -> None:
    found = [section.id for section in report(name)]
    assert len(found) == len(set(found))
    assert all(re.fullmatch(r"[a-z][a-z0-9-]*", each) for each in found)
    for table in tables(name):
        assert all(len(row.cells) == len(table.columns) for row in table.rows), table.id
        assert len({column.name for column in table.columns}) == len(table.columns)
        named = [table.bars.column] if table.bars else []
        for chart in table.charts:
            named += [*chart.y, *chart.label, *chart.text, *chart.dots, *filter(None, [chart.x])]
        assert {column.name for column in table.columns}.issuperset(named), table.id


@pytest.mark.parametrize("name", REPORTS)
def test_text_shows_all_of_a_report(name: str) -> None:
    for width, room in ((100, None), (100, 140), (24, None)):
        shown = render_text(report(name), width=width, room=room)
        told = plain(shown)
        for section in report(name):
            for text in texts(section, "everywhere"):
                assert plain(text) in told, section.id
            if isinstance(section, Table):
                for cell in cells(section, "everywhere"):
                    assert plain(cell) in told, section.id
        assert "None" not in told
        assert "\x1b" not in shown
        assert all(line == line.rstrip() for line in shown.splitlines())
        if width == 100:
            assert max(map(len, shown.splitlines())) <= (room or width)
    assert all(not long_sentences(spoken(section)) for section in report(name))
    # One thing is not called many.
    assert not re.findall(r"(?<![\d.,-])1 (?:reads|samples|workers|steps|hosts|runs) ", told)


@pytest.mark.parametrize("name", REPORTS)
def test_the_answer_fits_on_one_screen_and_is_in_the_whole_text(name: str) -> None:
    """A screen has 30 lines of 80 columns, and the last ones say where the results are."""
    answer = render_text(first_screen(report(name)), width=80)
    assert max(map(len, answer.splitlines())) <= 80
    assert 1 < len(answer.splitlines()) <= 26
    whole = plain(render_text(report(name), width=80))
    for each in first_screen(report(name)):
        assert all(plain(text) in whole for text in texts(each, "everywhere"))


def spoken(section: Section) -> Iterator[str]:
    """The texts of an answer, of findings and of advice."""
    if isinstance(section, FirstScreen):
        yield from section.sentences
    elif isinstance(section, Findings):
        yield from (text for each in section.findings for text in (each.evidence, each.remedy))
    elif isinstance(section, Items) and section.id in ("advice", "help"):
        yield from (each.text for each in section.items)


@pytest.mark.parametrize("name", REPORTS)
def test_markdown_shows_all_of_a_report_in_rectangular_tables(name: str) -> None:
    shown, summary = render_markdown(report(name)), render_github(report(name))
    told, told_in_ci = plain(shown), plain(summary)
    unescaped = shown.replace("&#124;", "\\|").replace("&#91;", "\\[").replace("&#42;", "\\*")
    for section in report(name):
        for text in texts(section, "everywhere", "pages"):
            assert plain(markdown(text)) in told, section.id
        for text in texts(section):
            assert plain(github(text)) in told_in_ci, section.id
        if isinstance(section, SourceLines):
            for line in section.lines:
                assert plain(markdown(line)) in plain(unescaped), section.id
        if isinstance(section, Table):
            for cell in cells(section, "everywhere", "pages"):
                assert plain(markdown(cell)) in told, section.id
                assert plain(github(cell)) in told_in_ci, section.id
    for block in shown.split("\n\n"):
        lines = [line.replace("\\|", "") for line in block.splitlines()]
        if block.startswith("|"):
            assert len({line.count("|") for line in lines}) == 1
    assert summary.count("<details>") == summary.count("</details>")


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_is_named_by_its_answer_and_parts_no_number_from_its_unit(name: str) -> None:
    """Its name is in its heading and in the browser's tab."""
    shown = page(None, report(name))
    tab = re.findall(r"<title>(.*?)</title>", shown)[0]  # those of charts follow
    (heading,) = re.findall(r"<h1[^>]*>(.*?)</h1>", shown)
    assert re.sub(r"<[^>]*>", "", heading).replace("&#160;", " ") == tab
    assert tab != "iobench report"
    body = shown[shown.index("<main") : shown.index("</main>")]
    kept = re.findall(r"<pre>.*?</pre>|<code>.*?</code>", body, re.DOTALL)
    assert not any("&#160;" in each for each in kept)  # commands are copied
    seen = re.sub(r"<pre>.*?</pre>|<code>.*?</code>|<script.*?</script>|<[^>]*>", "|", body)
    assert not re.findall(r"\d (?:%|x|ms|s|GB/s|MB/s|MiB|GiB)(?![\w/])", seen)
    # Rates are told in MB/s and GB/s, in which storage is sold.
    assert not re.findall(r"[KMGT]iB/s", shown + render_text(report(name), width=200))


@pytest.mark.parametrize("name", REPORTS)
def test_csv_is_one_table_with_the_raw_value_of_each_cell(name: str) -> None:
    """Of data if there is some: a program reads one heading, and rows as long as it."""
    for table in tables(name):
        head, *rows = csv.reader(io.StringIO(render_csv([table])))
        held = [
            at
            for at, column in enumerate(table.columns)
            if column.where != "page" or table.where == "page"
        ]
        assert head == [table.columns[at].name for at in held]
        assert rows == [[str(csv_cell(row.cells[at].value)) for at in held] for row in table.rows]
    data = [table for table in tables(name) if table.where == "data"]
    data = data or [table for table in tables(name) if table.where != "page"]
    kinds = {tuple(col.name for col in table.columns if col.where != "page") for table in data}
    rows = list(csv.reader(io.StringIO(render_csv(report(name)))))
    if len(kinds) == 1:
        assert {len(row) for row in rows} == {len(next(iter(kinds)))}
        assert len(rows) == 1 + sum(len(table.rows) for table in data)


def test_every_subject_is_here() -> None:
    """A module with a function ``sections`` is a kind of report."""
    subjects = {
        module.name
        for module in pkgutil.iter_modules(iobench.report.__path__)
        if hasattr(importlib.import_module(f"iobench.report.{module.name}"), "sections")
    }
    assert subjects - {"run", "checkpoint", "model_load"} <= set(REPORTS) | {"record"}
    known = {"run", "record checkpoint-stream", "record model-load", "checkpoint plan"}
    assert known <= set(REPORTS)


def imports(path: Path) -> set[str]:
    """The modules that a module of ``report`` imports from iobench, with their dots."""
    tree = ast.parse(path.read_text())
    return {
        "." * node.level + (node.module or "")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    }


def test_no_renderer_needs_a_subject() -> None:
    renderers = sorted(REPORT.glob("render_*.py"))
    assert len(renderers) == 4
    for path in renderers:
        found = {each for each in imports(path) if not each.startswith(".page.")}
        assert found == {".sections", "..base.text"}, path
    assert imports(REPORT / "sections.py") == {"..record.run", "..record.metrics"}


def test_no_subject_needs_a_renderer() -> None:
    for path in REPORT.glob("*.py"):
        if not path.name.startswith("render_"):
            assert not [each for each in imports(path) if each.startswith(".render_")], path
            assert "Any" not in {
                node.id
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Name)
            }, path


COLUMNS = (
    Column(name="stage", label="stage"),
    Column(name="rate", label="rate", align="right"),
    Column(name="seconds", label="time", align="right"),
)


def table_of(rows: Sequence[tuple[Cell, ...]], bars: Bars | None = None) -> Table:
    made = tuple(
        Row(cells=row, mark="bottleneck" if number == 0 else "") for number, row in enumerate(rows)
    )
    return Table(id="t", title="Title", columns=COLUMNS, rows=made, bars=bars)


def test_a_bar_is_as_long_as_its_value_and_one_that_is_cut_says_so() -> None:
    values = (100.0, 50.0, 800.0, 0.0, None)
    rows = [
        (Cell(value="s"), Cell(value=value, text="v"), Cell(value=1, text="1 s"))
        for value in values
    ]
    lines = render_text([table_of(rows, Bars(column="rate", full=200.0))]).splitlines()[2:]
    whole = lines[2].count("█") + 1
    assert lines[2].endswith("█▶")
    assert [line.count("█") for line in lines[:2]] == [round(whole / 2), round(whole / 4)]
    assert lines[0].endswith(" < bottleneck")
    assert "█" not in lines[3] + lines[4]


def test_the_reason_of_a_missing_figure_stands_in_its_place() -> None:
    why = "not measured: " + "the file system has no such counter, " * 4
    rows = [
        (Cell(value="a", text="a"), Cell(value=1.5, text="1.5"), Cell(value=2.0, text="2.0 s")),
        (Cell(value="b", text="b"), Cell(value=None, why=why), Cell(value=None)),
    ]
    text = render_text([table_of(rows)], width=60)
    head, first, *rest = text.splitlines()[1:]
    assert first.index("1.5") + 3 == head.index("rate") + 4
    assert plain(" ".join(rest)) == plain(f"b {why}")
    assert max(map(len, rest)) <= 60
    assert f"| b | {plain(why)} | |" in plain(render_markdown([table_of(rows)]))
    assert render_csv([table_of(rows)]).endswith("\nb,,\n")
