"""The page of a run of a million steps: how long it takes to write, and a browser to draw.

Prints seconds of CPU, which other programs on the machine do not change. Needs chromium.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from iobench.report.record import sections
from iobench.report.render_html import page
from tests.browser.pages import run_of

RANKS, STEPS = 10, 100_000


def main() -> int:
    program = shutil.which("chromium")
    if program is None:
        print("NOT MEASURED: chromium is missing (apt-get install chromium)", file=sys.stderr)
        return 0
    doc, events = run_of(RANKS, STEPS)
    began = time.process_time()
    text = page(doc, sections(doc, events))
    wrote_s = time.process_time() - began
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "report.html"
        path.write_text(text, encoding="ascii")
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=program, args=options)
        shown = browser.new_page(viewport={"width": 1440, "height": 900})
        meter = shown.context.new_cdp_session(shown)
        meter.send("Performance.enable", {"timeDomain": "threadTicks"})
        shown.goto(path.as_uri())
        shown.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        figures = meter.send("Performance.getMetrics")["metrics"]
        drew_s = next(each["value"] for each in figures if each["name"] == "TaskDuration")
        browser.close()
    print(f"page of {RANKS * STEPS:,} steps: {len(text) / 1e6:.2f} MB")
    print(f"  written in {wrote_s:.2f} s of CPU, read and drawn in {drew_s:.2f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
