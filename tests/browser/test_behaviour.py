"""What people do with a page: zoom, use the keyboard, choose a theme, download, print in gray."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page

from iobench.judge.figures.events import select
from tests.browser.pages import RUNS, Opened, recorded, with_steps
from tests.processes import in_process

Open = Callable[..., Opened]

RANGE = "() => [plots[0].scales.x.min, plots[0].scales.x.max]"
"""What the timeline shows, in seconds."""

FOCUS = """() => {
  const at = document.activeElement, style = getComputedStyle(at);
  return at === document.body ? null : {
    number: [...document.querySelectorAll("*")].indexOf(at),
    seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  };
}"""


def gray(page: Page, selector: str) -> np.ndarray:
    image = Image.open(io.BytesIO(page.locator(selector).first.screenshot()))
    return np.asarray(image.convert("L")).astype(int)


@pytest.fixture
def timeline(opened: Open) -> Opened:
    found = opened(with_steps("calibrated"))
    found.unfold()
    return found


def test_the_timeline_is_zoomed_by_keyboard(timeline: Opened) -> None:
    page = timeline.page
    low, high = page.evaluate(RANGE)
    before = gray(page, ".timeline canvas")
    page.locator("button[data-move=in]").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    timeline.settle()
    new_low, new_high = page.evaluate(RANGE)
    assert new_high - new_low == pytest.approx((high - low) / 4)
    assert (before != gray(page, ".timeline canvas")).any()
    page.locator("button[data-move=left]").focus()
    for _ in range(3):
        page.keyboard.press("Enter")
        timeline.settle()
    assert page.evaluate(RANGE) == pytest.approx([low, low + (high - low) / 4])
    page.locator("button[data-move=all]").focus()
    page.keyboard.press("Enter")
    timeline.settle()
    assert page.evaluate(RANGE) == [low, high]
    assert (before == gray(page, ".timeline canvas")).mean() > 0.99


def test_the_timeline_is_zoomed_by_the_mouse(timeline: Opened) -> None:
    page = timeline.page
    low, high = page.evaluate(RANGE)
    plot = page.locator(".timeline .u-over").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.25 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], middle, steps=4)
    page.mouse.up()
    timeline.settle()
    shown = [(each - low) / (high - low) for each in page.evaluate(RANGE)]
    assert shown == pytest.approx([0.25, 0.5], abs=0.01)
    plot.dblclick()
    timeline.settle()
    assert page.evaluate(RANGE) == [low, high]


def test_every_control_is_reached_by_the_tab_key_and_seen(timeline: Opened) -> None:
    page = timeline.page
    wanted = page.evaluate(
        "() => { const all = [...document.querySelectorAll('*')]; return all.filter(each => "
        "each.checkVisibility() && each.tabIndex >= 0 && !each.closest('details:not([open]) > :not("
        "summary)')).map(each => all.indexOf(each)) }"
    )
    reached = []
    for _ in range(len(wanted) + 3):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUS)
        if at is None:
            break
        assert at["seen"], at
        reached.append(at["number"])
    assert set(wanted) <= set(reached)
    part = page.locator("details.part").first
    for state in ("closed", "open"):
        part.locator("summary").first.focus()
        page.keyboard.press("Enter")
        assert (part.get_attribute("open") is not None) == (state == "open")


def test_the_theme_is_chosen_and_paper_stays_white(timeline: Opened) -> None:
    page = timeline.page
    paper = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    folded = "() => [...document.querySelectorAll('main details')].map(each => each.open)"
    page.locator("details.part").last.evaluate("each => { each.open = false }")
    before = page.evaluate(folded)
    page.locator("#theme").press("Enter")
    timeline.settle()
    assert page.evaluate(paper) != light
    assert gray(page, ".timeline canvas").mean() < 128  # drawn again in the dark colours
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    timeline.settle()
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    assert gray(page, ".timeline canvas").mean() > 200
    assert all(page.evaluate(folded))
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    timeline.settle()
    assert page.evaluate(paper) != light
    assert page.evaluate(folded) == before


def test_parts_of_a_bar_differ_in_gray(timeline: Opened) -> None:
    """By lightness or by pattern: each pair of the legend's squares."""
    page = timeline.page
    page.emulate_media(media="print")
    squares = page.locator("svg.chart rect.part[width='16']")
    found = []
    for each in squares.all():
        image = Image.open(io.BytesIO(each.screenshot())).convert("L")
        found.append(np.asarray(image.resize((16, 16))).astype(int))
    assert len(found) >= 4
    for one, other in combinations(found, 2):
        assert np.abs(one - other).mean() > 10


def test_a_script_that_others_bring_does_not_run(opened: Open) -> None:
    shown = opened(with_steps("calibrated"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        place = f"http://127.0.0.1:{server.getsockname()[1]}/"
        shown.page.evaluate(
            "place => { const own = document.createElement('script'); own.textContent = "
            "'window.ran = 1'; document.body.append(own); const image = new Image();"
            "image.src = place; image.setAttribute('onerror', 'window.ran = 2');"
            "document.body.append(image); return fetch(place).catch(() => 0) }",
            place,
        )
        shown.settle()
        with pytest.raises(BlockingIOError):
            server.accept()
    assert shown.page.evaluate("() => window.ran") is None
    assert len([each for each in shown.printed if "Content Security Policy" in each]) >= 3


def test_a_page_is_complete_without_scripts_and_moves_nothing(opened: Open) -> None:
    shown = opened(with_steps("calibrated"), java_script_enabled=False, reduced_motion="reduce")
    assert shown.page.locator("main h1").count() == 1
    assert not any(each.is_visible() for each in shown.page.locator("header button").all())
    opened_parts = shown.page.locator("details.part[open]")
    before = opened_parts.count()
    shown.page.locator("details.part:not([open]) > summary").first.click()
    assert opened_parts.count() == before + 1
    opened_parts.locator("details > summary").first.click()
    assert opened_parts.locator("details[open] table").first.is_visible()
    assert shown.page.locator("svg.chart").first.is_visible()
    moving = opened(with_steps("calibrated"), reduced_motion="reduce")
    assert moving.page.evaluate("() => document.getAnimations().length") == 0


def test_the_figures_of_a_page_are_those_of_its_record(opened: Open) -> None:
    directory = RUNS / "calibrated"
    code, text, _ = in_process("report", directory, "--format", "html")
    assert code in (0, 3)
    told = {kind: in_process("report", directory, "--format", kind)[1] for kind in ("json", "csv")}
    shown = opened(text)
    for kind in ("json", "csv"):
        with shown.page.expect_download() as download:
            shown.page.locator(f"header button[data-of={kind}]").click()
        got = Path(download.value.path()).read_text(encoding="utf-8")
        if kind == "json":
            assert json.loads(got) == json.loads(told["json"])
        else:
            assert got.split() == told["csv"].split()
    # The steps that are drawn are those of the events.
    doc, events = recorded("calibrated")
    data = shown.data("timeline-data")
    tracks = data.get("tracks") or data["panes"][0]["tracks"]
    number = next(
        at
        for at in range(len(doc.job.repetitions))
        if (select(events, "measure", at)["wait_ns"] / 1e9).max()
        == pytest.approx(max(tracks[0]["high"]), abs=1e-6)
    )
    mine = select(events, "measure", number)
    for track, name in zip(tracks, ("wait_ns", "busy_ns"), strict=False):
        assert sorted(track["low"]) == pytest.approx(sorted(mine[name] / 1e9), abs=1e-6)
