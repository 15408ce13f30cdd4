"""What the repository's files promise, and what none of them may say."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from iobench.record.run import RunRecord
from iobench.record.training import EVENT_COLUMNS

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).relative_to(ROOT)

FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.])/(?:work|tmp/[a-z])/|/home/(?!user\b)[a-z]"),
    "a package index": re.compile(
        r"(?:extra-)?index-url|find-links|pythonhosted\.org|download\.pytorch\.org"
    ),
    "a mail address": re.compile(r"\b[\w.+-]+@(?!example\.)[\w-]+\.[a-z]{2,}\b"),
    "a secret": re.compile(
        r"\bAKIA[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY|\bgh[pousr]_[A-Za-z0-9]{30}"
    ),
    "how the project came about": re.compile(
        r"\b(?:this|last|next|earlier) session\b|\b(?:the|my|your) brief\b|\bsub-?agents?\b",
        re.IGNORECASE,
    ),
}


def repository_files() -> list[Path]:
    """Tracked files, and untracked ones that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [
        Path(line) for line in sorted(set(listed.stdout.splitlines())) if (ROOT / line).is_file()
    ]


HINTS = re.compile(
    r"/(?:work|tmp|home)/|index-url|find-links|pythonhosted|download\.pytorch|@|AKIA|PRIVATE KEY"
    r"|gh[pousr]_|ession|ESSION|rief|RIEF|gent|GENT"
)
"""One of these is in every line with something forbidden: only such lines are looked at."""


def forbidden(text: str) -> list[str]:
    begins = sorted({text.rfind("\n", 0, hint.start()) + 1 for hint in HINTS.finditer(text)})
    return [
        f"line {text.count(chr(10), 0, begin) + 1}: {what}: {match.group()}"
        for begin in begins
        for what, p in FORBIDDEN.items()
        for match in p.finditer(line_at(text, begin))
    ]


def line_at(text: str, begin: int) -> str:
    end = text.find("\n", begin)
    return text[begin:] if end < 0 else text[begin:end]


def make_targets() -> set[str]:
    return set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_no_file_says_what_does_not_belong() -> None:
    found = {}
    for path in repository_files():
        if path == HERE:
            continue  # it has to name what it forbids
        try:
            problems = forbidden((ROOT / path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        if problems:
            found[str(path)] = problems
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "see /" + "work/x",
        "in /home/me/data",
        "pip install --extra-index-url x",
        "write to a.b@mail.com",
        "in this " + "session",
    ],
)
def test_the_check_can_fail(text: str) -> None:
    assert forbidden(text)


CONSTANTS = re.compile(r"^([A-Z_][A-Z0-9_, ]*)(?:: [^=\n]+)? = ", re.MULTILINE)


def test_no_constant_of_a_module_is_given_another_value_further_down() -> None:
    """Whatever uses it above would have that value, too, once the module is imported."""
    twice = []
    for file in repository_files():
        if file.suffix == ".py":
            found = CONSTANTS.findall((ROOT / file).read_text("utf-8"))
            names = Counter(name for left in found for name in left.split(", "))
            twice += [f"{file}: {name}" for name, count in names.items() if count > 1]
    assert twice == []


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", ".ci/run"]
)
def test_every_make_target_that_is_promised_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    # In code: a line that starts with the command, or a span in backticks. Prose may say "make
    # sure".
    promised = set(re.findall(r"^\s*(?:\$ )?make ([a-z-]+)", text, re.MULTILINE)) | set(
        re.findall(r"`make ([a-z-]+)`", text)
    )
    assert promised <= make_targets()


def test_ci_runs_what_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    lines = script.read_text(encoding="utf-8").splitlines()
    given = [line.partition("#")[0].strip() for line in lines if line.startswith("make ")]
    prepared = {"make setup", "make gcc strace ganesha slurm chromium &"}
    assert [line for line in given if line not in prepared] == [
        "make check",
        "make test",
        "make test-slow",
    ]
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^test-all: test test-slow\b", rules, re.MULTILINE)  # CI leaves nothing out
    assert "set -euo pipefail" in lines
    assert script.stat().st_mode & 0o111


def test_every_link_between_documents_leads_somewhere() -> None:
    broken = []
    for path in repository_files():
        if path.suffix != ".md":
            continue
        for target in re.findall(
            r"\]\(([^)#\s]+)[^)]*\)", (ROOT / path).read_text(encoding="utf-8")
        ):
            if "://" not in target and not (ROOT / path.parent / target).exists():
                broken.append(f"{path}: {target}")
    assert broken == []


EXAMPLES = {"mine.py", "train.py", "reader_handler.py", "_compat.py"}
"""Files of users and of other projects, and endings of names."""


def test_every_file_that_documents_name_exists() -> None:
    """But for tables of durations, which are of their day."""
    known = {path.name for path in repository_files()}
    missing = [
        f"{path}: {name}"
        for path in repository_files()
        if path.suffix == ".md" and path.name != "testing.md"
        for name in re.findall(r"(\w+\.py)\b", (ROOT / path).read_text(encoding="utf-8"))
        if name not in known | EXAMPLES and not re.search("NAME|GROUP", name)
    ]
    assert missing == []


def test_constraints_pin_every_dependency_exactly() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    pins = dict(line.split("==") for line in lines)
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins.values()), (
        "no build tags: they name one index's build"
    )
    names = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        requirement = Requirement(text)
        pinned = names.get(canonicalize_name(requirement.name))
        assert pinned is not None, f"{requirement.name} has no pin"
        assert requirement.specifier.contains(pinned), (
            f"{requirement.name}=={pinned} is outside {requirement.specifier}"
        )


def test_the_schema_page_names_every_key_and_column() -> None:
    page = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:u?int\d+|string) \|", page, re.MULTILINE)
    assert rows == list(EVENT_COLUMNS), "the table has the columns of EVENT_COLUMNS, in their order"
    assert [key for key in RunRecord.model_fields if f"`{key}`" not in page] == []
