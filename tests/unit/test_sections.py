"""Sections are data, and each renderer shows all of them: every report, in every medium.

A page asks for nothing, and cannot be made to run what others wrote.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from iobench.ask.compare.comparison import compare as compare_runs
from iobench.ask.compare.runs import Group
from iobench.ask.tuning.recommend import TuningTarget, recommend, sweep_confirmation
from iobench.ask.tuning.sweepfolder import read_sweep
from iobench.base.text import csv_cell, github, markdown
from iobench.cli import printing
from iobench.judge.figures.curve import conclude_curve, spent
from iobench.record.checkpoint import CheckpointSpec, Training
from iobench.record.curve import Rate, StorageCurve, StorageProbe
from iobench.record.run import TrainingRecord
from iobench.record.serving import FoundRate
from iobench.report import (
    advise,
    curve,
    plan,
    record,
    walk,
)
from iobench.report.figures import word
from iobench.report.render_csv import render_csv
from iobench.report.render_html import page as page_of
from iobench.report.render_markdown import render_github, render_markdown
from iobench.report.render_text import render_text
from iobench.report.sections import (
    Bars,
    Cell,
    Chart,
    Column,
    Facts,
    Findings,
    FirstScreen,
    Headline,
    Items,
    Mark,
    Prose,
    Row,
    Section,
    SourceLines,
    Table,
    Timeline,
    first_screen,
)
from iobench.runner.checkpoint_plan import describe_checkpoint
from iobench.runner.plan_figures import describe_plan
from iobench.settings.workload import load_workload
from tests.curves import curve as planted
from tests.curves import point
from tests.hostile import HOSTILE
from tests.kv import ENOUGH, build_kv, build_kv_trial
from tests.processes import in_process
from tests.requests import build_serving, build_trial
from tests.snapshots.texts import REPORTS as shown
from tests.snapshots.texts import workplace
from tests.unit.conftest import build_run, build_sweep
from tests.unit.test_compare import BASE, FAST, document
from tests.words import long_sentences

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0"


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


def _confirmation() -> list[Section]:
    groups = [
        Group(label, [TrainingRecord.model_validate(document([rate])) for rate in rates])
        for label, rates in (("before", BASE), ("after", FAST))
    ]
    advice = recommend(read_sweep(GOLDEN / "sweep"), TuningTarget())
    found = sweep_confirmation(advice, compare_runs(*groups), "d", ("a note",))
    return advise.confirmation_sections(found)


ALIKE = (
    *("report results/failed", "report results/interrupted", "report results/throttled"),
    *(
        "report results/checkpoint-stream",
        "size unet3d-h100 ",
        "size unet3d-b200 --accelerators 2 ",
    ),
)
"""Reports that have the sections of others."""

COMMANDS = [
    command
    for command in shown
    if "--print" not in command
    and command.removesuffix(" --details") not in {*shown} - {command}
    and not command.startswith(ALIKE)
]
"""Those whose reports are in the snapshots. One with details has the same sections as without."""

BUILT: dict[str, Callable[[], list[Section]]] = {
    "run without fio": lambda: record.sections(build_run(rates={"storage_raw": None})),
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
    "kv not worth it": lambda: record.sections(build_kv(factor=0.5, failed=40, scenario=ENOUGH)),
    "serving too slow": lambda: record.sections(build_serving(read_s=0.018, failed=40)),
    "plan": lambda: plan.sections(
        describe_plan(load_workload("resnet50-h100"), None, accelerators=8, repetitions=6)
    ),
    "checkpoint plan": lambda: plan.checkpoint_sections(
        describe_checkpoint(
            CheckpointSpec(model="llama3-70b"), None, ranks=None, training=Training()
        )
    ),
    "walk": _walk,
    "curve": lambda: _probe(large=True),
    "curve of small files": lambda: _probe(large=False),
    "tried": _confirmation,
}
REPORTS = [*COMMANDS, *BUILT]


@cache
def commanded() -> dict[str, list[Section]]:
    """What each command hands to the renderer of text."""
    found: dict[str, list[Section]] = {}
    seen: list[Sequence[Section]] = []

    def answer(sections: Sequence[Section]) -> Sequence[Section]:
        seen.append(sections)
        return first_screen(sections)

    def whole(sections: Sequence[Section], **how: Any) -> str:
        seen.append(sections)
        return render_text(sections, **how)

    with workplace(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(printing, "first_screen", answer)
        patch.setattr(printing, "render_text", whole)
        for command in COMMANDS:
            seen.clear()
            in_process(*shlex.split(command))
            found[command] = [*seen[0]]
    return found


@cache
def report(name: str) -> list[Section]:
    return BUILT[name]() if name in BUILT else commanded()[name]


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
    if "no rate is enough" not in told:  # which takes a long sentence
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


def test_what_would_help_is_told_once() -> None:
    """Beside saves the verdict's own words are shown, which end with the first advice elsewhere."""
    found = report("report results/beside-saves")
    (answer,) = [each for each in found if isinstance(each, FirstScreen)]
    assert answer.changes is not None
    told = " ".join(answer.sentences).casefold()
    assert not any(change.text.casefold() in told for change in answer.changes.items)


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
    shown, _ = made(name)
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


# Pages

VOID = {"meta", "line", "rect", "circle", "path", "polyline", "polygon"}
ASKS = ("src", "href", "srcset", "action", "data", "poster", "background")


class Page(HTMLParser):
    """Elements, texts, styles and scripts; fails where an end tag does not fit."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.raw: list[tuple[dict[str, str | None], str]] = []  # attributes, content
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, *each) for each in attrs]
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag in ("style", "script"):
            self.raw.append((dict(attrs), ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, *each) for each in attrs]

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            attributes, before = self.raw.pop()
            self.raw.append((attributes, before + data))
        else:
            self.texts.append(data)

    @property
    def told(self) -> str:
        return plain(" ".join(self.texts))


ACTIVE = {"img", "image", "iframe", "object", "embed", "link", "base", "form", "input", "use"}
ACTIVE |= {"video", "audio", "animate", "set", "foreignobject", "math"}
"""Elements that no page has: they would ask for something, or act."""


def assert_only_own_elements(text: str) -> None:
    """No text of others has become an element, an attribute or a script of the page."""
    page = Page(text)
    assert not page.tags & ACTIVE
    for _, key, value in page.attributes:
        assert key not in ("style", "srcdoc")
        assert not key.startswith("on"), key
        assert key not in ASKS or (value or "").startswith("#")
    policy = next(value or "" for _, key, value in page.attributes if key == "content")
    for attributes, content in page.raw:
        if attributes.get("type") == "application/json":
            json.loads(content)
        else:
            assert source(content) in policy


@cache
def made(name: str) -> tuple[str, Page]:
    text = page_of({"a": "</script>"}, report(name))
    return text, Page(text)


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_shows_all_of_a_report(name: str) -> None:
    text, page = made(name)
    assert text.isascii()
    assert len(page.ids) == len(set(page.ids))
    for section in report(name):
        if isinstance(section, Table):
            if section.where != "data":
                shown = [*cells(section, "everywhere", "pages", "page"), *section.notes]
                shown += [each.title for each in section.charts] or [section.title]
                assert all(plain(each) in page.told for each in shown), section.id
        elif isinstance(section, Timeline):
            assert section.title in page.told
        elif isinstance(section, FirstScreen):
            assert plain(section.state) in page.told
            for gauge in section.gauges:
                assert plain(gauge.value) in page.told
                assert plain(gauge.note) in page.told
            assert all(
                plain(each) in page.told
                for part in section.plain()
                if not isinstance(part, Headline | Facts)
                for each in texts(part, "everywhere")
            )
        else:
            assert all(
                plain(each) in page.told for each in texts(section, "everywhere", "pages")
            ), section.id
        if isinstance(section, SourceLines):
            assert all(plain(line) in page.told for line in section.lines), section.id


def source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize(
    "name",
    [
        "report results/calibrated",
        "curve",
        "cost results/calibrated --instance g5.xlarge --epochs 90 --deadline 24h",
    ],
)
def test_a_page_asks_for_nothing_and_runs_only_its_own_script(name: str) -> None:
    text, page = made(name)
    policy = next(
        value
        for tag, key, value in page.attributes
        if (tag, key) == ("meta", "content") and value and "default-src" in value
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    style, *scripts = page.raw
    assert rules["default-src"] == "'none'"
    assert rules["style-src"] == source(style[1])
    running = [text for attributes, text in scripts if "type" not in attributes]
    assert [source(text) for text in running] == [rules["script-src"]]
    assert_only_own_elements(text)


def test_text_of_others_stays_text() -> None:
    found: list[Section] = [
        FirstScreen(job=HOSTILE, state=HOSTILE),
        Headline(id="h", title=HOSTILE, sentences=('"><img src=x onerror=alert(1)>',)),
        Table(
            id="t",
            title=HOSTILE,
            columns=(Column(name=HOSTILE, label=HOSTILE), Column(name="y", label=HOSTILE)),
            rows=(Row(cells=(word(HOSTILE), Cell(value=1.0, text=HOSTILE)), mark=HOSTILE),),
            charts=tuple(
                Chart(
                    kind=kind,
                    y=("y",),
                    label=(HOSTILE,),
                    title=HOSTILE,
                    y_label=HOSTILE,
                    marks=(Mark(at=1.0, label=HOSTILE),),
                )
                for kind in ("bars", "parts", "heat")
            ),
        ),
    ]
    text = page_of({HOSTILE: HOSTILE}, found)
    page = Page(text)
    assert '"><img src=x onerror=alert(1)>' in page.told
    assert "img" not in {tag for tag, *_ in page.attributes}
    assert text.count("<script") == text.count("</script>") == 4
    assert "\u202e" not in html.unescape(text)
