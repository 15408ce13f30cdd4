"""What the README and the pages of docs/ say of commands, options and exit codes is true."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from cyclopts import CycloptsError

from iobench.base import errors
from iobench.base.errors import UsageError
from iobench.cli.main import VERBS, parse, program
from iobench.storage.nfs.storage import NfsStorage
from iobench.storage.s3.storage import S3Storage
from iobench.storage.simulated.faulty import FaultyStorage
from iobench.storage.simulated.throttled import ThrottledStorage
from tests.processes import completed
from tools import settings, site

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    """What stands between fences without a language: commands, and what they print."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), flags=re.S | re.M)
    return [body for language, body in fenced if not language]


def commands(page: Path) -> list[list[str]]:
    """The words of each command of a page, without what the shell takes for itself."""
    lines = "\n".join(blocks(page)).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("iobench ")]
    return [list(takewhile(lambda word: word not in (">", ">>"), each[1:])) for each in words]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_parses(page: Path) -> None:
    refused = []
    for words in commands(page):
        try:
            parse(words)
        except (CycloptsError, UsageError) as error:
            refused.append(f"{shlex.join(words)}: {error}")
    assert refused == []


def test_every_verb_has_a_page_that_begins_with_commands_of_it() -> None:
    pages = {page.stem: page for page in (ROOT / "docs/commands").glob("*.md")}
    assert set(pages) == set(VERBS)
    for verb, page in pages.items():
        assert page.read_text("utf-8").startswith(f"# {verb}: ")
        assert verb in {words[0] for words in commands(page)}
        assert f"(docs/commands/{page.name})" in README.read_text("utf-8")


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_is_told_on_the_page_of_its_verb_or_on_one_for_all(verb: str) -> None:
    pages = [README, *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/for").glob("*.md")]
    pages += [ROOT / f"docs/commands/{name}.md" for name in ("run", verb)]
    told = set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", "\n".join(map(Path.read_text, pages))))
    app = program()
    flags = app[verb].assemble_argument_collection(
        default_parameter=app.default_parameter, parse_docstring=True
    )
    named = [flag for flag in flags if flag.parse and flag.index is None]
    assert [flag.name for flag in named if not told & {*flag.names}] == []


def test_every_setting_and_option_is_told() -> None:
    assert settings.PAGE.read_text("utf-8") == settings.page(), "make settings writes it"
    for model in (model for models in settings.GROUPS.values() for model in models.values()):
        named = set(re.findall(r"\w+", " ".join(re.findall(r"``(.*?)``", model.__doc__ or ""))))
        assert {key for key, *_ in settings.keys(model)} - named == set(), model
    page = (ROOT / "docs/storage.md").read_text("utf-8")
    for storage in (S3Storage, NfsStorage, ThrottledStorage, FaultyStorage):
        assert {name for name in storage.OPTIONS if not re.search(rf"\b{name}\b", page)} == set()


def test_the_readme_is_short_and_its_answer_is_what_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    assert len(README.read_text("utf-8").splitlines()) <= 250
    words = ["report", "results/reference/storage-bound"]
    assert words in commands(README)
    assert completed(*words).stdout in blocks(README)


def test_the_exit_codes_are_the_documented_ones() -> None:
    page = (ROOT / "docs/scripts.md").read_text("utf-8")
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", page, flags=re.M)}
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.IobenchError)
    ]
    assert table == {0} | {kind.exit_code for kind in kinds}


def test_the_site_has_every_page_in_its_menu() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    assert sorted(re.findall(r"[\w/.-]+\.md", str(menu))) == [
        str(page.relative_to(ROOT)) for page in site.pages()
    ]


@pytest.mark.slow
def test_no_link_of_the_site_is_broken() -> None:
    assert site.main() == 0


def test_the_case_studies_have_the_figures_of_their_records() -> None:
    page = (ROOT / "docs/cases.md").read_text("utf-8")
    sections = page.split("\n## ")[1:]
    assert len(sections) == 3
    for section in sections:
        records = re.findall(r"\(\.\./(results/reference/[\w-]+)/run\.json\)", section)
        shown = "".join(
            completed("report", str(ROOT / record), "--details").stdout for record in records
        )
        said = " ".join(shown.split())
        figures = [text for text in re.findall(r"\*\*([^*]+)\*\*", section) if text != "Symptom."]
        assert len(figures) > 4
        assert [each for each in figures if " ".join(each.split()) not in said] == []
