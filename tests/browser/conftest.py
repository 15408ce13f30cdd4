"""A Chromium for each module of tests, driven by playwright. Pages are opened from files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.process import missing

if TYPE_CHECKING:  # processes that run other tests read this file, too
    from playwright.sync_api import Browser

    from tests.browser.pages import Opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's browser. It ends with the module: playwright keeps an event loop in this thread."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        missing("chromium (apt-get install chromium)")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=options)
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[type[Opened]]:
    """``opened(text)`` shows a page; what was opened is closed after the test."""
    from tests.browser.pages import Opened

    shown: list[Opened] = []

    class Here(Opened):
        def __init__(self, text: str, **context: object) -> None:
            path = tmp_path / f"{len(shown)}.html"
            path.write_text(text, encoding="ascii")
            super().__init__(browser, path, **context)
            shown.append(self)

    yield Here
    for each in shown:
        each.close()
