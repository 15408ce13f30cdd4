"""Each kind of page in a real browser: it asks for nothing, draws, fits, and can be read by all."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from PIL import Image
from playwright.sync_api import Browser
from pypdf import PdfReader

from tests.browser.pages import PAGES, PHONE, WIDE, Opened

CHECKS = (Path(__file__).parent / "checks.js").read_text(encoding="utf-8")
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

MIN_INK = 30
"""Pixels of a colour that count as drawn: an end of a letter or of a line has fewer."""


@cache
def axe() -> str:
    return Path(AXE_FILE_PATH).read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=PAGES)
def shown(
    browser: Browser, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    """One page. The tests of a page follow one another, and each puts back what it changed."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(PAGES[request.param](), encoding="ascii")
    found = Opened(browser, path)
    yield found
    found.close()


def test_it_asks_for_nothing_and_prints_nothing(shown: Opened) -> None:
    shown.settle()
    assert shown.asked == [shown.address]
    assert shown.printed == []


def test_every_chart_is_drawn(shown: Opened) -> None:
    """Paper, text, and at least one colour, in the pixels of each."""
    shown.unfold()
    charts = shown.page.locator("svg.chart, .timeline canvas")
    assert charts.count() == shown.page.locator("svg.chart, .timeline").count()
    for chart in charts.all():
        image = Image.open(io.BytesIO(chart.screenshot())).convert("RGB")
        pixels = np.asarray(image).reshape(-1, 3).astype(int)
        colors, counts = np.unique(pixels, axis=0, return_counts=True)
        inked = colors[counts > MIN_INK]
        # A hue, or several grays beside paper and text.
        hues = inked.max(axis=1) - inked.min(axis=1)
        assert len(inked) >= 3
        assert hues.max() > 40 or len(inked) > 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_desk_and_a_phone(shown: Opened, scheme: Any) -> None:
    shown.page.emulate_media(color_scheme=scheme)
    shown.unfold()
    found = {}
    for size in (PHONE, WIDE):
        shown.page.set_viewport_size(size)
        shown.settle()
        found[size["width"]] = shown.page.evaluate(CHECKS)
    shown.page.emulate_media(color_scheme=None)
    assert found == {PHONE["width"]: [], WIDE["width"]: []}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_it(shown: Opened, scheme: Any) -> None:
    """axe-core finds no violation: by its rules of WCAG 2.2 AA, and of best practice."""
    shown.page.emulate_media(color_scheme=scheme)
    shown.page.set_viewport_size(PHONE if scheme == "light" else WIDE)
    shown.settle()
    shown.page.evaluate(f"() => {{ if (!window.axe) {{ {axe()} }} }}")
    found = shown.page.evaluate(
        # Hundreds of rows of a table are alike.
        "rules => axe.run({ exclude: [['tbody tr:nth-child(n+20)']] },"
        " { runOnly: rules, resultTypes: ['violations'] })",
        # In the dark only the colours differ.
        TAGS if scheme == "light" else {"type": "rule", "values": ["color-contrast"]},
    )
    shown.page.emulate_media(color_scheme=None)
    shown.page.set_viewport_size(WIDE)
    told = {
        each["id"]: [(node["target"], node["failureSummary"]) for node in each["nodes"][:3]]
        for each in found["violations"]
    }
    assert told == {}


def test_it_prints_whole(shown: Opened, tmp_path: Path) -> None:
    """On paper are the last words of each part, and those of the tables that were closed."""
    shown.page.pdf(path=tmp_path / "page.pdf", format="A4")
    sheets = PdfReader(tmp_path / "page.pdf").pages
    # NFKC: two letters from one glyph, such as the ligature of "fi".
    told = normalize("NFKC", "".join("".join(each.extract_text().split()) for each in sheets))
    wanted = shown.page.evaluate(
        "() => [...document.querySelectorAll('h1, h2, th, dd, td, li, svg text')]"
        ".filter(each => !each.closest('header, .source'))"
        ".filter(each => each.checkVisibility() || each.closest('details'))"
        # A text of a chart may have a title, which is not printed.
        ".map(each => { const own = each.cloneNode(true);"
        "own.querySelectorAll('title, button, .unseen').forEach(title => title.remove());"
        "return own.textContent.replace(/\\s/g, '') })"
        ".filter(each => /^[ -~]{1,200}$/.test(each))"
    )
    assert [each for each in dict.fromkeys(wanted) if each not in told] == []
