"""Imports only go down. The layers are the ones of iobench/README.md; this test reads every
module's syntax tree: imports inside functions and for types alone are imports, too.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest

from iobench.judge.judged import Judged
from iobench.judge.rebuild import conclude
from iobench.record.run import RunRecord, load_training

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "iobench"

NESTED = {"base", "data"}
"""Folders whose parts have rows of their own: ``base.errors``, ``data.formats``."""

BASE = {
    f"base.{name}"
    for name in (
        *("errors", "units", "limits", "safety", "beneath", "buffers", "processes", "interrupts"),
        *("text", "documents", "cgroup", "memory", "extras", "lazily", "filesystem"),
        *("pagecache", "payload"),
    )
}
WORDS = {"base.errors", "base.units", "base.documents", "base.text"}
SCHEMA = {"settings", "record"}
FORMATS = {"data.formats", "data.contents", "data.codecs"}
PLUG_INS = {"storage", "accelerate", "checkpoint", "host"} | FORMATS
DATASET = {"data.dataset"}
"""The plug-ins of one dataset, resolved: above them, and below what reads and writes data."""

ENGINES = {"data.generator", "data.verify", "data.scan", "load", "subject", "serve"}
BELOW = BASE | SCHEMA | PLUG_INS | DATASET | ENGINES | {"plugins"}
"""All that measures, and what it rests on."""

MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(BASE, BASE),
    "plugins": BASE,
    "settings": BASE | {"plugins"},
    "record": BASE | {"settings"},
    **{unit: BASE | SCHEMA | {"plugins"} for unit in PLUG_INS},
    "checkpoint": BASE | SCHEMA | {"plugins", "storage", "host"},  # it writes to any storage
    "data.formats": BASE | SCHEMA | {"plugins", "data.codecs"},  # some compress by themselves
    "accelerate": BASE | SCHEMA | {"plugins", "host"},  # recorded steps say what the GPU did
    "data.dataset": BASE | SCHEMA | PLUG_INS | {"plugins"},
    **dict.fromkeys(ENGINES, BELOW),
    "judge": WORDS | SCHEMA,
    "ask": WORDS | SCHEMA | {"judge"},
    "report": WORDS | SCHEMA | {"judge", "ask"},
    "runner": BELOW | {"judge", "ask"},
    "cli": BELOW | {"judge", "ask", "report", "runner"},
    "api": BELOW | {"judge", "ask", "report", "runner", "cli"},
    "testing": BELOW,
    "__main__": {"cli"},
}
"""Part of the package -> the other parts that it may import. Every part may import itself and the
version in ``iobench``.
"""

FOREIGN: dict[str, set[str]] = {
    "torch": {"load", "subject", "checkpoint", "accelerate", "serve", "testing"},
    "pytest": {"testing"},
    "pydantic": {"settings", "record"},
    "tests": set(),
    "tools": set(),
}
"""Package outside of iobench -> the parts that may import it, at the top or lazily."""

FOREIGN_MODULES = {("iobench.runner.hosts.meeting", "torch")}
"""A module that may import a third-party package, though its part may not: hosts meet in torch's
store.
"""

PRINTERS = {"cli", "report", "__main__"}


@pytest.fixture(autouse=True)
def _no_collection_in_between() -> Iterator[None]:
    """A collection that formats a traceback parses, too, and Python 3.11 can't parse while it
    parses (python/cpython 106905).
    """
    gc.disable()
    yield
    gc.enable()


class Module(NamedTuple):
    """What a module imports and defines, each with its line."""

    imports: list[tuple[int, str]]
    prints: list[int]
    classes: list[str]


def read(source: str, module: str, *, is_package: bool = False) -> Module:
    """``from a import b`` imports ``a.b``, which may be an attribute; names are absolute."""
    found = Module([], [], [])
    parts = module.split(".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.imports.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found.imports.extend((node.lineno, f"{stem}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ClassDef):
            found.classes.append(node.name)
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in {"import_module", "__import__"} and isinstance(node.args[0], ast.Constant):
                found.imports.append((node.lineno, str(node.args[0].value)))
            if isinstance(node.func, ast.Name) and called == "print":
                found.prints.append(node.lineno)
    return found


def part_of(name: str) -> str:
    """The part of the package to which a dotted name belongs; empty for the package itself."""
    parts = name.split(".")[1:]
    return ".".join(parts[: 2 if parts and parts[0] in NESTED else 1])


def violations(module: str, found: Module) -> list[str]:
    """One line for each arrow of ``module`` that runs up, sideways between plug-ins, or to a
    package that is kept elsewhere.
    """
    part, told = part_of(module), []
    for line, name in found.imports:
        top, target = name.partition(".")[0], part_of(name)
        allowed = MAY_IMPORT.get(part, set()) | {part}
        if top == "iobench" and part and target in MAY_IMPORT and target not in allowed:
            told.append(f"{module}:{line} ({part}) imports {name}")
        if top in FOREIGN and part not in FOREIGN[top] and (module, top) not in FOREIGN_MODULES:
            told.append(f"{module}:{line} imports {top}, which is for {sorted(FOREIGN[top])}")
    if part not in PRINTERS:
        told += [f"{module}:{line} prints" for line in found.prints]
    return told


@cache
def modules() -> dict[str, Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        found[module] = read(path.read_text("utf-8"), module, is_package=is_package)
    return found


def test_arrows_run_down() -> None:
    assert [line for module in modules().items() for line in violations(*module)] == []


def test_no_module_imports_itself_in_a_circle() -> None:
    assert circles(arrows()) == []


def test_circles_are_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def test_a_class_name_stands_for_one_class() -> None:
    found = Counter(name for module in modules().values() for name in module.classes)
    shared = {name for name, count in found.items() if count > 1}
    assert shared == set(), "give the new class a name of its own"


def arrows() -> dict[str, set[str]]:
    """Each module of the package and those that it imports."""
    found: dict[str, set[str]] = {}
    for module, its in modules().items():
        names = {n if n in modules() else n.rpartition(".")[0] for _, n in its.imports}
        found[module] = names & modules().keys() - {"iobench", module}
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules of which each reaches all others."""
    reach = {module: set(direct) for module, direct in graph.items()}
    changed = True
    while changed:
        changed = False
        for found in reach.values():
            more = set().union(*(reach[each] for each in found)) - found
            found |= more
            changed = changed or bool(more)
    found = []
    for module, others in reach.items():
        if module in others and not any(module in circle for circle in found):
            found.append({other for other in others if module in reach[other]})
    return found


def test_every_part_has_its_place() -> None:
    parts = set(map(part_of, modules())) - {"", *NESTED}
    assert parts <= set(MAY_IMPORT), "a new part of the package needs its row in MAY_IMPORT"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("iobench.base.errors", "from ..settings.dataset import DatasetSpec"),
        ("iobench.plugins", "if TYPE_CHECKING:\n    from .data.codecs.zstd import Zstd"),
        ("iobench.storage.local.storage", "def f():\n    from iobench.load.reader import Reader"),
        (
            "iobench.storage.local.storage",
            "import importlib\nimportlib.import_module('iobench.runner.plan')",
        ),
        ("iobench.data.formats.tar", "from ...host.host import fingerprint"),
        ("iobench.data.generator", "def f():\n    import torch"),
        ("iobench.runner.plan", "import pydantic"),
        ("iobench.runner.experiment", "print('done')"),
    ],
)
def test_the_checker_sees_a_bad_module(module: str, source: str) -> None:
    assert violations(module, read(source, module))


# Records are read without plug-ins


HERE = Path(__file__).parent.parent / "golden"
VERSIONS = sorted(folder.name for folder in HERE.iterdir() if (folder / "runs").is_dir())

BLOCKED = (
    "torch",
    *(f"iobench.{name}" for name in ("storage", "accelerate", "checkpoint", "load", "runner")),
    "iobench.data",
    "pandas",
)

PROGRAM = """
import json, sys
from iobench.cli.main import main
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))  # an import of any of them fails
print([main(command) for command in json.loads(sys.argv[2])])
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_what_reads_records_needs_no_plug_in(version: str, tmp_path: Path) -> None:
    runs = Path(shutil.copytree(HERE / version / "runs", tmp_path / "runs"))
    run = str(runs / "calibrated")
    commands = [
        ["report", run, "--format", "markdown"],
        ["compare", run, str(runs / "throttled")],
        ["compare", str(runs), "--over-time", "smallrun"],
        ["cost", run, "--host-price-per-hour", "1.20"],
        ["size", "resnet50-h100", "--accelerators", "8", "--from", run],
        ["whatif", run, "--storage-bandwidth", "2x"],
        ["verify", str(HERE / version / "datasets/tar")],  # and this one can't work
    ]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    program = [sys.executable, "-c", PROGRAM, json.dumps(BLOCKED), json.dumps(commands)]
    told = subprocess.run(program, env=environment, capture_output=True, check=True).stdout
    *codes, blocked = json.loads(told.splitlines()[-1])
    assert (codes, blocked == 0) == ([0] * 6, False)


# A record passes through few files


MOST = 15


def test_a_record_passes_through_few_files() -> None:
    doc = load_training(ROOT / "results/reference/storage-bound")
    seen: set[str] = set()

    def enter(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and "/iobench/" in code.co_filename:
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(isinstance(frame.f_locals.get(name), RunRecord | Judged) for name in names):
                seen.add(code.co_filename.rpartition("/iobench/")[2])

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        conclude(doc)
    finally:
        sys.setprofile(before)
    assert "judge/rebuild.py" in seen
    assert len(seen) <= MOST, sorted(seen)
