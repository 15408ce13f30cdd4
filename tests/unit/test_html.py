"""A page shows all of a report, asks for nothing, and cannot be made to run what others wrote."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from html.parser import HTMLParser
from typing import NamedTuple

import pytest

from iobench.report.figures import word
from iobench.report.page.whole import page as page_of
from iobench.report.sections import (
    Cell,
    Chart,
    Column,
    Facts,
    FirstScreen,
    Headline,
    Mark,
    Row,
    Section,
    SourceLines,
    Table,
    Timeline,
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
    text = page_of({"a": "</script>"}, found)
    return Made(text, Page(text))


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
