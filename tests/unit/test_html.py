"""A page shows all of a report, asks for nothing, and cannot be made to run what others wrote."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.report.page.scale import scale, spread_out
from iobench.report.page.svg import chart
from iobench.report.render_csv import render_csv
from iobench.report.render_html import DRAWN, html_page, hypertext
from iobench.report.sections import (
    Axis,
    Headline,
    Lines,
    Mark,
    Point,
    Range,
    Ranges,
    Series,
    Shares,
    Source,
    Table,
    Timeline,
    Track,
)
from tests.hostile import HOSTILE
from tests.unit.test_sections import REPORTS, cells, plain, report, texts

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


class Made(NamedTuple):
    text: str
    page: Page


def made(name: str) -> Made:
    found = report(name)
    text = html_page(
        found, title="t", made="m", document='{"a": "</script>"}', table=render_csv(found)
    )
    return Made(text, Page(text))


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_shows_all_of_a_report(name: str) -> None:
    text, page = made(name)
    assert text.isascii()
    assert len(page.ids) == len(set(page.ids))
    drawn = {each.table for each in report(name) if isinstance(each, DRAWN)}
    for section in report(name):
        if isinstance(section, Table):
            if section.where != "data":
                shown = [*cells(section, "everywhere", "pages"), *section.notes]
                shown += [] if section.id in drawn else [section.title]
                assert all(plain(each) in page.told for each in shown), section.id
        elif isinstance(section, DRAWN):
            assert section.title in page.told
        else:
            assert all(
                plain(each) in page.told for each in texts(section, "everywhere", "pages")
            ), section.id
        if isinstance(section, Source):
            assert all(plain(line) in page.told for line in section.lines), section.id


def source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("name", ["run", "curve", "cost"])
def test_a_page_asks_for_nothing_and_runs_only_its_own_script(name: str) -> None:
    page = made(name).page
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
    for _, key, value in page.attributes:
        assert key != "style"
        assert not key.startswith("on")
        assert key not in ASKS or (value or "").startswith("#")


def test_the_data_in_a_page_is_the_document_and_its_tables() -> None:
    data = {each["id"]: json.loads(text) for each, text in made("run").page.raw if "id" in each}
    assert data["json"] == {"a": "</script>"}
    assert data["csv"] == render_csv(report("run"))


def test_text_of_others_stays_text() -> None:
    found = [
        Headline(id="h", title=HOSTILE, sentences=('"><img src=x onerror=alert(1)>',)),
        Ranges(
            id="r",
            title=HOSTILE,
            axis=Axis(label=HOSTILE, unit="ratio"),
            rows=(Range(label=HOSTILE, text=HOSTILE, value=1.0),),
            marks=(Mark(at=1.0, label=HOSTILE),),
        ),
    ]
    text = html_page(found, title=HOSTILE, made=HOSTILE, document="{}", table=HOSTILE)
    page = Page(text)
    assert '"><img src=x onerror=alert(1)>' in page.told
    assert "img" not in {tag for tag, *_ in page.attributes}
    assert text.count("<script") == text.count("</script>") == 3
    assert "\u202e" not in html.unescape(text)


@given(st.text(max_size=50))
def test_hypertext_is_one_text(text: str) -> None:
    assert Page(f'<p title="{hypertext(text)}">{hypertext(text)}</p>').attributes[0][1] == "title"


def positions(svg: str, name: str) -> list[float]:
    return [float(each) for each in re.findall(rf' {name}="(-?[\d.]+)"', svg)]


def test_a_curve_is_drawn_where_its_figures_are() -> None:
    """On axes of the logarithm of 2 and from 0: equal factors are equal distances."""
    points = tuple(
        Point(x=2.0**at, y=100.0 * at, low=90.0 * at, high=110.0 * at) for at in range(5)
    )
    drawn = chart(
        Lines(
            id="l",
            title="t",
            x=Axis(label="x", unit="count", scale="log2"),
            y=Axis(label="y", unit="count"),
            series=(Series(label="s", points=points),),
        )
    )
    at_x, at_y = positions(drawn, "cx"), positions(drawn, "cy")
    steps = [b - a for a, b in pairwise(at_x)]
    assert max(steps) - min(steps) < 0.3
    falls = [a - b for a, b in pairwise(at_y)]
    assert min(falls) > 0
    assert max(falls) - min(falls) < 0.3


def test_bars_are_as_long_as_their_gains_and_what_is_cut_says_so() -> None:
    rows = tuple(Range(label="a", text="b", value=value) for value in (3.0, 2.0, 0.5, 20.0))
    drawn = chart(
        Ranges(
            id="r", title="t", axis=Axis(label="x", unit="ratio"), rows=rows, origin=1.0, full=5.0
        )
    )
    widths = positions(drawn, "width")
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.02)
    assert widths[2] == pytest.approx(widths[1] / 2, rel=0.02)
    assert drawn.count('class="cut"') == 2


def test_a_long_legend_has_several_lines() -> None:
    parts = tuple(f"part number {number}" for number in range(9))
    drawn = chart(Shares(id="s", title="t", parts=parts, rows=(("r", (1 / 9,) * 9),)))
    texts = re.findall(r'<text class="tick" x="([\d.]+)" y="(\d+)">([^<]+)<', drawn)
    assert [text for _, _, text in texts] == list(parts)
    assert len({y for _, y, _ in texts}) > 1
    assert all(float(x) + 5 * len(text) < 720 for x, _, text in texts)


def test_shares_fill_a_bar() -> None:
    drawn = chart(Shares(id="s", title="t", parts=("a", "b"), rows=(("r", (0.25, 0.75)),)))
    parts = "".join(each for each in drawn.split("<") if each.startswith('rect class="part'))
    _, _, first, second = positions(parts, "width")
    assert second == pytest.approx(3 * first, rel=0.01)


@given(
    st.lists(st.floats(min_value=0), max_size=8),
    st.sampled_from(["linear", "log2", "log10"]),
    st.sampled_from(["bytes/s", "count", "s", "ratio"]),
)
def test_every_scale_has_ticks_inside_it(values: list[float], kind: str, unit: str) -> None:
    made = scale(Axis(label="", unit=unit, scale=kind), values, 10.0, 700.0)  # type: ignore[arg-type]
    ticks = made.ticks()
    assert len(ticks) <= 12
    assert all(10.0 <= made.at(tick) <= 700.0 for tick in ticks)
    assert all(math.isfinite(made.at(value)) for value in values)


@given(st.lists(st.floats(min_value=0, max_value=100), min_size=1, max_size=12))
def test_labels_do_not_overlap(wanted: list[float]) -> None:
    placed = spread_out(wanted, 5.0, 0.0, 100.0)
    ordered = sorted(placed)
    gaps = [b - a for a, b in pairwise(ordered)]
    assert all(gap >= 5.0 - 1e-9 for gap in gaps)
    assert ordered[0] >= -1e-9
    assert ordered[-1] <= 100 + 1e-9


def test_a_timeline_brings_its_data_and_the_library_that_draws_it() -> None:
    section = Timeline(
        id="steps",
        title="t",
        y=Axis(label="y", unit="s"),
        tracks=(Track(label="</script>", at=(0.0, 1.0), low=(0.1, 0.2), high=(0.1, 0.4)),),
        marks=(Mark(at=0.5, label="save"),),
    )
    text = html_page([section], title="t", made="m", document="{}", table="")
    page = Page(text)
    data = {each["id"]: json.loads(text) for each, text in page.raw if "id" in each}
    (track,) = data["steps-data"]["panes"][0]["tracks"]
    assert (track["at"], track["low"], track["high"]) == ([0.0, 1.0], [0.1, 0.2], [0.1, 0.4])
    assert data["steps-data"]["marks"] == [{"at": 0.5, "label": "save"}]
    running = [text for attributes, text in page.raw if "type" not in attributes]
    policy = next(value or "" for _, key, value in page.attributes if key == "content")
    assert len(running) == 4
    assert all(source(each) in policy for each in running)
    assert "uPlot" in text
    assert (
        "uPlot"
        not in html_page([], title="t", made="m", document="{}", table="").partition(
            '<script>"use strict"'
        )[0]
    )
