"""The charts of sweeps: every figure in its square, the front as brute force finds it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analyse.tuning.knee import front
from iobench.cli.main import main
from iobench.report import sweep
from iobench.report.sections import Heat, Lines, Ranges, Scatter, Section, Square, Table
from iobench.schema.sweep import Sweep, save_sweep
from tests.hostile import HOSTILE

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
    assert sum('class="inline"' not in each for each in drawn) == 3
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


# Other verbs that answer with a number


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
