"""The charts of sweeps: every figure in its square, the front as brute force finds it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analyse.tuning.front import front
from iobench.cli.main import main
from iobench.report import ab, record, sweep
from iobench.report.cost import sections as cost_sections
from iobench.report.page.heat import SHADES, heat, shade
from iobench.report.page.scale import scale
from iobench.report.page.scatter import MAX_NAMED, scatter
from iobench.report.page.svg import chart
from iobench.report.sections import (
    Axis,
    Heat,
    Lines,
    Range,
    Ranges,
    Scatter,
    Section,
    Spot,
    Square,
    Table,
)
from iobench.schema.record import TrainingRecord, load_run
from iobench.schema.sweep import Sweep, save_sweep
from tests.hostile import HOSTILE
from tests.unit.test_ab import FASTER
from tests.unit.test_ab import record as turns
from tests.unit.test_sections import report

GOLDEN = Path(__file__).parents[1] / "golden/0.1.0"
Points = list[dict[str, Any]]


def asked(points: Points, **changes: object) -> Sweep:
    base = {"created": "", "command": [], "workload": "w", "data_root": "d", "seed": 1}
    base |= {"repetitions": 2, "calibration_s": 0, "axes": {}, "points": points}
    return Sweep.model_validate(base | changes)


def point(rate: float, **settings: object) -> dict[str, Any]:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return {"settings": named, "samples_per_s": [rate, rate * 1.1], "runs": ["a", "b"]}


def charts(points: Points, **changes: object) -> dict[str, Section]:
    found = sweep.sections(asked(points, **changes))
    return {each.id: each for each in found}


def crossed(**changes: float) -> Points:
    return [
        point(100.0 * x + y, a_x=x, a_y=y) | changes
        for x, y in itertools.product((1, 2, 4), (1, 8))
    ]


def test_two_settings_have_a_map_of_every_point_and_a_line_for_each_row() -> None:
    points = crossed()
    points[1] = {"settings": points[1]["settings"], "failed": "a worker died"}
    del points[4]
    found = charts(points, default=points[0]["settings"])
    drawn, lines = found["heat"], found["lines"]
    assert isinstance(drawn, Heat)
    assert isinstance(lines, Lines)
    assert (drawn.columns, drawn.rows) == (("1", "2", "4"), ("1", "8"))
    values = [[square.value for square in row] for row in drawn.squares]
    expected: list[list[float | None]] = [[101, 201, None], [None, 208, 408]]
    for row, wanted in zip(values, expected, strict=True):
        for value, middle in zip(row, wanted, strict=True):
            assert value == (middle and pytest.approx(middle * 1.05))
    assert drawn.squares[1][0].text == "failed"
    assert drawn.squares[0][2].text == "not run"
    assert [square.mark for row in drawn.squares for square in row] == [
        *("today", "", ""),
        *("", "", "highest"),
    ]
    assert [len(series.points) for series in lines.series] == [2, 2]
    assert lines.series[1].points[-1].high == pytest.approx(408 * 1.1)


def test_a_combination_that_means_the_same_has_the_same_figure() -> None:
    points = crossed()
    other = points.pop()["settings"]
    drawn = charts([*points[:-1], points[-1] | {"also": [other]}])["heat"]
    assert isinstance(drawn, Heat)
    assert drawn.squares[0][2] == drawn.squares[1][2]


def test_one_at_a_time_is_a_chart_for_each_setting_and_no_map() -> None:
    points = [
        point(10, a_x=1, a_y=1, a_z="p"),
        point(15, a_x=2, a_y=1, a_z="p"),
        point(12, a_x=1, a_y=3, a_z="p"),
        point(9, a_x=1, a_y=1, a_z="q"),
    ]
    found = charts(points, default=points[0]["settings"])
    drawn = [each for each in found.values() if isinstance(each, Lines | Ranges | Heat)]
    assert [(type(each), each.title) for each in drawn] == [
        (Lines, "Samples/s over x, with y=1 z=p"),
        (Lines, "Samples/s over y, with x=1 z=p"),
        (Ranges, "Samples/s over z, with x=1 y=1"),
    ]
    assert isinstance(drawn[0], Lines)
    assert [point.y for point in drawn[0].series[0].points] == pytest.approx([10.5, 15.75])


def test_of_three_settings_each_two_have_a_map_those_that_matter_most_first() -> None:
    points = [
        point(100 * x + 10 * y + z, a_x=x, a_y=y, a_z=z)
        for x, y, z in itertools.product((1, 2), (1, 2), (1, 2))
    ]
    found = charts(points)
    maps = [each for each in found.values() if isinstance(each, Heat)]
    assert [each.id for each in maps] == ["heat", "heat-2", "heat-3"]
    assert [{each.x, each.y} for each in maps] == [{"x", "y"}, {"x", "z"}, {"y", "z"}]
    assert "z=2" in maps[0].title
    lines = [each for each in found.values() if isinstance(each, Lines)]
    assert [each.id for each in lines] == ["lines", "lines-2", "lines-3"]
    assert "slice-1" not in found


def test_settings_that_were_varied_one_at_a_time_have_a_chart_each() -> None:
    points = [point(100.0, a_x=1, a_y=1), point(200.0, a_x=2, a_y=1), point(110.0, a_x=1, a_y=2)]
    found = charts(points)
    assert "heat" not in found
    assert found["slice-1"].title.startswith("Samples/s over x")  # type: ignore[union-attr]


@pytest.mark.parametrize("rates", [[], [[]], [[5.0]], [[0.0], [-3.0]], [[float("nan")], [1.0]]])
def test_too_few_figures_are_no_chart(rates: list[list[float]]) -> None:
    points = [{"settings": {"a": at}, "samples_per_s": each} for at, each in enumerate(rates)]
    found = charts(points)
    drawn = (Heat, Lines, Ranges, Scatter)
    assert not any(isinstance(each, drawn) for each in found.values())


COSTS = st.lists(
    st.tuples(*[st.one_of(st.none(), st.integers(0, 4).map(float))] * 3), min_size=1, max_size=9
)


@given(COSTS)
def test_the_front_is_what_nothing_beats(costs: list[tuple[float | None, ...]]) -> None:
    def beaten(mine: tuple[float | None, ...]) -> bool:
        for other in costs:
            pairs = [(a, b) for a, b in zip(other, mine, strict=True) if not a is b is None]
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            nowhere_worse = len(known) == len(pairs) and all(a <= b for a, b in known)
            if nowhere_worse and any(a < b for a, b in known):
                return True
        return False

    assert front(costs) == [not beaten(each) for each in costs]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=12))
def test_the_chart_of_the_front_marks_what_nothing_beats(figures: list[tuple[int, int]]) -> None:
    points = [
        point(rate, a_x=at) | {"stored_bytes": stored, "read_bytes_per_sample": [None, None]}
        for at, (rate, stored) in enumerate(figures)
    ]
    drawn = charts(points).get("front-stored")
    if drawn is None:
        assert len({stored for _, stored in figures}) == 1
        return
    assert isinstance(drawn, Scatter)
    for spot, (rate, stored) in zip(drawn.spots, figures, strict=True):
        better = any(r >= rate and s <= stored and (r, s) != (rate, stored) for r, s in figures)
        assert spot.front == (not better)
        assert (spot.x, spot.y) == (stored, pytest.approx(rate * 1.05))


def elements(svg: str, tag: str, kind: str) -> Iterator[ElementTree.Element]:
    for each in ElementTree.fromstring(svg).iter(tag):
        if kind in (each.get("class") or "").split():
            yield each


def squares(columns: int, rows: int, **changes: object) -> Heat:
    given = {
        "id": "h",
        "title": "t",
        "x": "x",
        "y": "y",
        "unit": "u",
        "columns": tuple(f"format=parquet compression=zstd:{at}" for at in range(columns)),
        "rows": tuple(map(str, range(rows))),
        "squares": tuple(
            tuple(
                Square(value=None, text="failed")
                if along == down
                else Square(value=float(along - down), text=f"{along - down}.0")
                for along in range(columns)
            )
            for down in range(rows)
        ),
        "low": -20.0,
        "high": 20.0,
    }
    return Heat(**(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("columns", "rows"), [(1, 2), (3, 5), (20, 20)])
def test_a_map_has_a_square_with_its_value_for_each_cell(columns: int, rows: int) -> None:
    drawn = heat(squares(columns, rows))
    cells = [each for each in elements(drawn, "rect", "square") if len(each)]
    texts = [each.text for each in ElementTree.fromstring(drawn).iter("text")]
    assert len(cells) == columns * rows
    lacking = [each for each in cells if "lacking" in (each.get("class") or "")]
    assert len(lacking) == min(columns, rows) == texts.count("failed")
    for value in range(1 - rows, columns):
        wanted = sum(along - down == value for along in range(columns) for down in range(rows))
        assert value == 0 or texts.count(f"{value}.0") == wanted
    sides = {(float(each.get("width") or 0), float(each.get("height") or 0)) for each in cells}
    assert len(sides) == 1
    wide = ElementTree.fromstring(drawn)
    right = max(float(each.get("x") or 0) + float(each.get("width") or 0) for each in cells)
    assert right <= float((wide.get("viewBox") or "").split()[2])


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_a_larger_value_is_no_lighter(one: float, other: float, third: float) -> None:
    low, value, high = sorted((one, other, third))
    assert 0 <= shade(low, low, high) <= shade(value, low, high) <= shade(high, low, high) < SHADES


def test_the_shades_are_even_steps_of_lightness() -> None:
    """In the light and in the dark page, and every text on them can be read (WCAG 2: 4.5)."""
    css = (Path(sweep.__file__).parent / "page/page.css").read_text()

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    found = [re.findall(rf"--{name}\d: (#\w+);", css) for name in ("h", "on")]
    assert [len(each) for each in found] == [3 * SHADES] * 2
    for start in range(0, 3 * SHADES, SHADES):
        fills = [luminance(each) for each in found[0][start : start + SHADES]]
        lightness = [116 * each ** (1 / 3) - 16 for each in fills]
        steps = [b - a for a, b in itertools.pairwise(lightness)]
        assert max(steps) < 0 or min(steps) > 0
        assert max(map(abs, steps)) < 1.5 * min(map(abs, steps))
        for fill, ink in zip(fills, found[1][start : start + SHADES], strict=True):
            high, low = sorted((fill + 0.05, luminance(ink) + 0.05), reverse=True)
            assert high / low > 4.5


def test_a_scatter_joins_and_names_the_front() -> None:
    spots = tuple(
        Spot(label=f"p{at}", text=f"{at}", x=1.0 + at, y=10.0 - (at - 4) ** 2, front=at < 5)
        for at in range(9)
    )
    axis = Axis(label="x", unit="bytes")
    section = Scatter(id="s", title="t", x=axis, y=Axis(label="y", unit="count"), spots=spots)
    drawn = scatter(section)
    assert len(list(elements(drawn, "circle", "off"))) == 4
    assert len([each for each in elements(drawn, "path", "front") if len(each)]) == 5
    (stairs,) = elements(drawn, "path", "stairs")
    path = stairs.get("d") or ""
    at_y = [float(each) for each in re.findall(r"V([\d.]+)", path)]
    assert len(at_y) == 4
    assert at_y == sorted(at_y, reverse=True)
    texts = [each.text for each in ElementTree.fromstring(drawn).iter("text")]
    assert all(f"{at}: p{at}" in texts for at in range(5))


def test_a_long_front_names_its_ends_and_says_how_many_more() -> None:
    spots = tuple(Spot(label=f"p{at}", text="t", x=at, y=at, front=True) for at in range(40))
    axis = Axis(label="x", unit="count")
    texts = [
        each.text or ""
        for each in ElementTree.fromstring(
            scatter(Scatter(id="s", title="t", x=axis, y=axis, spots=spots))
        ).iter("text")
    ]
    named = [text for text in texts if text.startswith("t: p")]
    assert (len(named), named[0], named[-1]) == (MAX_NAMED, "t: p0", "t: p39")
    assert any(f"{40 - MAX_NAMED} more" in text for text in texts)


def test_labels_of_others_stay_text_in_a_sweeps_page(tmp_path: Path) -> None:
    points = [
        point(10.0 * (x + y), a_x=f"{HOSTILE}{'long ' * 30}{x}", a_y=y)
        | {"stored_bytes": x + 1.0, "failed": ""}
        for x, y in itertools.product((0, 1), (1, 2, 3))
    ]
    save_sweep(tmp_path, asked(points, workload=HOSTILE))
    page = tmp_path / "p.html"
    assert main(["report", str(tmp_path), "--html", "-o", str(page)]) == 0
    text = page.read_text()
    drawn = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawn) == 3
    for each in drawn:
        names = {element.tag for element in ElementTree.fromstring(each).iter()}
        assert names <= {
            *("svg", "title", "desc", "text", "rect", "path", "line", "circle"),
            *("polyline", "polygon"),
        }


def test_report_prints_a_sweep_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(GOLDEN / "sweep")]) == 0
    told = capsys.readouterr().out
    assert main(["report", str(GOLDEN / "sweep/sweep.json")]) == 0
    assert capsys.readouterr().out == told
    assert main(["report", str(GOLDEN / "sweep"), "--rules", "mlperf"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("unit", "top", "ticks"),
    [("count", 13, [0, 5, 10]), ("s", 7200, [0, 1200, 2400, 3600, 4800, 6000, 7200])],
)
def test_ticks_are_whole_and_of_minutes(unit: Any, top: float, ticks: list[float]) -> None:
    made = scale(Axis(label="", unit=unit), [top / 1.05], 0.0, 700.0)
    assert made.ticks() == ticks


def test_labels_of_ticks_that_would_touch_are_left_out() -> None:
    row = Range(label="r" * 60, text="t" * 60, value=800 * 2.0**20)
    drawn = chart(
        Ranges(id="r", title="t", axis=Axis(label="b", unit="bytes/s"), rows=(row,), table="")
    )
    ticks = [
        (float(each.get("x") or 0), len(each.text or ""))
        for each in elements(drawn, "text", "tick")
    ]
    assert 2 <= len(ticks) < 5
    for (one, length), (other, long) in itertools.pairwise(ticks):
        assert other - one >= 6 * (length + long) / 2


# Other verbs that answer with a number


def chart_of(found: list[Section], name: str) -> Any:
    return next(each for each in found if each.id == name)


def test_a_search_has_the_required_line_and_its_answer() -> None:
    doc = load_run(GOLDEN / "runs/find-max")
    assert isinstance(doc, TrainingRecord)
    search = doc.job.find_max
    assert search is not None
    drawn = chart_of(record.sections(doc), "utilization")
    assert isinstance(drawn, Lines)
    assert drawn.limits[0].at == search.required_accelerator_utilization
    assert [mark.at for mark in drawn.marks] == [search.accelerators] * bool(search.accelerators)
    tried = sorted({each.accelerators for each in search.points})
    assert [point.x for point in drawn.series[0].points] == tried
    assert isinstance(chart_of(record.sections(doc), drawn.table), Table)


def test_the_turns_are_dots_and_the_interval_narrows() -> None:
    drawn = chart_of(ab.sections(FASTER), "narrowing")
    so_far, each = drawn.series
    assert not each.joined
    assert [point.y for point in each.points] == pytest.approx([1.34, 133 / 101, 135 / 99, 1.34])
    assert so_far.points[-1].x == 4
    assert so_far.points[-1].low < 1.34 < so_far.points[-1].high
    assert {mark.at for mark in drawn.limits} == {1.0, 1.05, 1 / 1.05}
    lacking = turns([100.0] * 4, [{"samples_per_s": 100.0}] * 3 + [{"cpu_s": 1.0}])
    assert "narrowing" not in {each.id for each in ab.sections(lacking)}


def test_a_price_has_its_bar_and_its_interval() -> None:
    found = report("cost")
    drawn = chart_of(found, "cost-1-usd")
    table = chart_of(found, "cost-1-options")
    at = table.at("usd_per_million_samples")
    assert [row.value for row in drawn.rows] == [row.cells[at].value for row in table.rows]
    for row in drawn.rows:
        assert row.low is None or row.low <= row.value <= row.high
    least = [row.text.startswith("at least") for row in drawn.rows]
    over = chart_of(found, "cost-1-time")
    assert len(over.spots) == least.count(False)
    kept = [spot for spot in over.spots if spot.front]
    for spot in over.spots:
        beaten = any(
            other.x <= spot.x and other.y <= spot.y and (other.x, other.y) != (spot.x, spot.y)
            for other in over.spots
        )
        assert (spot in kept) == (not beaten)
    assert cost_sections([], []) == []


def test_the_supply_is_beside_the_demand() -> None:
    found = report("size")
    drawn, table = chart_of(found, "supply"), chart_of(found, "rates")
    assert [row.value for row in drawn.rows] == [row.cells[1].value for row in table.rows]
    assert drawn.rows[-1].label == "measured"
    assert len(drawn.marks) == 1


def test_a_sweep_with_a_price_tells_what_samples_cost() -> None:
    points = [
        point(100.0, codec="none") | {"stored_bytes": 4e9},
        point(50.0, codec="zstd:1") | {"stored_bytes": 1e9},
        point(40.0, codec="zstd:9") | {"stored_bytes": 2e9},
    ]
    shown = charts(points, usd_per_hour=0.378, instance="m5.xlarge")
    table, paid = shown["points"], shown["front-usd"]
    assert isinstance(table, Table)
    assert isinstance(paid, Scatter)
    at = table.at("usd_per_million_samples")
    # 0.378 USD for 3,600 s x 105 samples/s, the median of both visits of the fastest.
    assert [row.cells[at].value for row in table.rows] == pytest.approx([1.0, 2.0, 2.5])
    assert table.columns[at].where == "everywhere"
    assert [spot.front for spot in paid.spots] == [True, True, False]
    free = charts(points)
    assert "front-usd" not in free
    table = free["points"]
    assert isinstance(table, Table)
    assert table.columns[at].where == "data"


@pytest.mark.parametrize("wrong", [["--instance", "no-such.type"], ["--host-price-per-hour", "0"]])
def test_a_price_that_is_none_is_refused(wrong: list[str], tmp_path: Path) -> None:
    asked = ["sweep", "demo", "--to", str(tmp_path / "d"), "--sweep", "loader.workers=1,2"]
    assert main([*asked, "--samples", "8", "--results", str(tmp_path / "r"), *wrong]) == 2
    assert not (tmp_path / "r").exists()
