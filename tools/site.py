"""``make docs``: the pages of this repository as a site in build/site, with every link checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"

PLACES = ("docs", "iobench", "results", "deploy")
"""Folders whose pages are part of the site; those of the repository itself are, too."""

LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
"""The target of a link or a picture of Markdown, without what follows a #."""


def pages() -> list[Path]:
    """The pages of the site, in the order of their names."""
    below = (page for place in PLACES for page in (ROOT / place).rglob("*.md"))
    return sorted([*ROOT.glob("*.md"), *below])


def links(page: Path) -> set[Path]:
    """The files that a page leads to, as paths; those of other hosts are left out."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


def copy_pages() -> None:
    """Put the pages, and every file that they link to, below ``PAGES`` in the same places."""
    shutil.rmtree(PAGES, ignore_errors=True)
    found = pages()
    for source in {*found, *(target for page in found for target in links(page))}:
        if source.is_file() and source.is_relative_to(ROOT):
            copy = PAGES / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def main() -> int:
    """Build the site. A link or a heading that leads nowhere is an error."""
    copy_pages()
    program = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement of the theme
    done = subprocess.run(program, cwd=ROOT, env=environment, check=False)
    if done.returncode == 0:
        print(f"the site: {ROOT / 'build' / 'site' / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
