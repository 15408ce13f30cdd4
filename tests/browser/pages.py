"""The pages that are opened: each report, recorded runs with their steps, and extremes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, ViewportSize

from iobench.host.timeline import read_events
from iobench.judge.figures.events import Events
from iobench.judge.rebuild import conclude, rebuild
from iobench.record.run import EVENTS_FILE, TrainingRecord, load_run
from iobench.record.training import EVENT_COLUMNS
from iobench.report.record import sections
from iobench.report.render_html import page
from iobench.report.sections import Section
from tests.hostile import HOSTILE, replaced, strings
from tests.unit.conftest import build_run
from tests.unit.test_sections import GOLDEN, REPORTS, report

RUNS = GOLDEN / "runs"
WIDE: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}


class Opened:
    """A page in a browser, with what it printed and all that it asked for."""

    def __init__(self, browser: Browser, path: Path, **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": WIDE, **context})
        self.page: Page = self.context.new_page()
        self.printed: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.printed.append(message.text))
        self.page.on("pageerror", lambda error: self.printed.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.address = path.as_uri()
        self.page.goto(self.address)

    def settle(self) -> None:
        """Until the page has drawn what it was told to, and what a new width changes."""
        self.page.evaluate(
            "() => new Promise(done => setTimeout(() => requestAnimationFrame("
            "() => requestAnimationFrame(done)), 200))"
        )

    def unfold(self) -> None:
        """Open all parts of the report, and all tables and files in them."""
        self.page.evaluate(
            "document.querySelectorAll('main details').forEach(each => { each.open = true })"
        )
        self.settle()

    def data(self, name: str) -> Any:
        """The JSON in the page's element of this id."""
        return json.loads(self.page.locator(f"script#{name}").text_content() or "")

    def close(self) -> None:
        self.context.close()


def recorded(name: str) -> tuple[TrainingRecord, Events]:
    """A run of tests/golden with its events, computed again as ``iobench report`` does."""
    doc = load_run(RUNS / name)
    assert isinstance(doc, TrainingRecord)
    events = read_events(RUNS / name / EVENTS_FILE)
    return conclude(rebuild(doc, events)), events


def with_steps(name: str) -> str:
    doc, events = recorded(name)
    return page(doc, sections(doc, events))


def steps(ranks: int, each: int, *, seed: int = 1) -> Events:
    """Events of ranks with ``each`` steps of 100 ms: waits of 1 to 50 ms, one of 2 s, a save."""
    random = np.random.default_rng(seed)
    rows = ranks * each
    wait = random.integers(1_000_000, 50_000_000, rows)
    wait[rows // 2] = 2_000_000_000
    columns: dict[str, Any] = {
        "rank": np.repeat(np.arange(ranks), each),
        "step": np.tile(np.arange(each), ranks),
        "steps": 1,
        "samples": 100,
        "start_ns": np.tile(np.arange(each) * 150_000_000, ranks),
        "wait_ns": wait,
        "busy_ns": 100_000_000,
        "checkpoint_ns": np.tile(np.arange(each) == each // 3, ranks) * 10_000_000,
        "phase": "measure",
    }
    found: Events = {}
    for name, told in EVENT_COLUMNS.items():
        kind = object if name == "phase" else np.dtype(told.split(",")[0])
        found[name] = np.empty(rows, dtype=kind)
        found[name][:] = columns.get(name, 0)
    return found


def run_of(ranks: int, each: int, **changes: Any) -> tuple[TrainingRecord, Events]:
    events = steps(ranks, each)
    doc = build_run(accelerators=ranks, repetitions=1, **changes)
    return conclude(rebuild(doc, events)), events


def made(ranks: int, each: int, **changes: Any) -> str:
    doc, events = run_of(ranks, each, **changes)
    return page(doc, sections(doc, events))


def hostile() -> str:
    """A record in which each text that may be any text is hostile, and wider than the page."""
    text = HOSTILE.replace("A" * 10_000, "A" * 500)  # more is only more paper to read
    doc, events = recorded("calibrated")
    document = json.loads(doc.model_dump_json())
    for path in list(strings(document)):
        changed = replaced(document, path, text)
        try:
            TrainingRecord.model_validate(changed)
        except ValueError:
            continue
        document = changed
    doc = TrainingRecord.model_validate(document)
    return page(doc, sections(doc, events))


def long_names() -> str:
    """Names as long as paths, hosts and models really are, without a space in them."""
    name = "s3://a-bucket-with-a-long-name/" + "a-prefix-of-a-team/" * 6 + "x" * 80
    return made(
        2, 40, workload={"name": name}, storage={"scheme": "s3", "url": name}, run_id="r" * 120
    )


def reported(name: str) -> Callable[[], str]:
    def text() -> str:
        shown: Sequence[Section] = report(name)
        return page({"report": name}, shown)

    return text


ALIKE = ("report results/", "curve of")
"""Reports whose pages have nothing that other pages lack; runs are opened with their steps."""

RECORDED = ("beside-saves", "calibrated", "checkpoint-dcp-async", "failed", "find-max")

PAGES: dict[str, Callable[[], str]] = {
    **{name: reported(name) for name in REPORTS if not name.startswith(ALIKE)},
    **{
        path.name: (lambda name=path.name: with_steps(name))  # type: ignore[misc]
        if (path / EVENTS_FILE).exists()
        else reported(f"report results/{path.name}")
        for path in map(RUNS.joinpath, RECORDED)
    },
    "one step": lambda: made(1, 1),
    "512 ranks": lambda: made(512, 3),
    "long names": long_names,
    "hostile": hostile,
    "nothing measured": lambda: page(
        empty := build_run(
            rates=dict.fromkeys(("storage_raw", "fetch", "prep", "loader", "accelerator")),
            measured=None,
            au=None,
            repetitions=0,
        ),
        sections(empty),
    ),
}
"""Each page by its name. What REPORTS has is in it, so a new report is opened, too."""
