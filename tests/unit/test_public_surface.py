"""The public API is a promise: a name that comes or goes is a decision, and shows up here."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import inspect
import re
import sys
from pathlib import Path

import pytest

import iobench
from iobench import api
from iobench.base import errors
from iobench.cli import verbs
from iobench.cli.flags import VerbRequest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")

FUNCTIONS = {
    *("command", "compare", "generate", "make_loader", "open_dataset", "open_run", "run"),
    *("load_dataset_spec", "load_manifest", "load_run", "load_workload", "open_storage"),
    *("generate_dataset", "make_plan", "read_labels", "run_plan", "verify_dataset"),
    "watch",
}
RESULTS = {
    *("CommandResult", "Batch", "BatchLoader", "Comparison", "Dataset", "Finding"),
    *("GenerateReport", "LibraryLoader", "Manifest", "Options", "Plan", "Run", "RunRecord"),
    *("Observer", "Examples", "Labels", "Padded", "TrainingLoader"),
    *("Summary", "Verdict", "VerifyReport"),
}
SPECS = {"DatasetSpec", "LoaderSpec", "ReaderSpec", "Workload"}
PROTOCOLS = {"Accelerator", "CheckpointWriter", "Codec", "Content", "Format", "Sink", "Storage"}
ERRORS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.IobenchError)
}
PUBLIC = {"__version__"} | FUNCTIONS | RESULTS | SPECS | PROTOCOLS | ERRORS


def test_the_public_names_are_these() -> None:
    assert set(iobench.__all__) == PUBLIC
    assert set(dir(iobench)) == PUBLIC
    assert len(iobench.__all__) == len(PUBLIC)


def test_type_checkers_see_the_names_that_python_gives() -> None:
    """The imports for type checkers are of the same objects that the lazy table finds."""
    tree = ast.parse(Path(iobench.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    typed = {
        alias.asname or alias.name: (f"iobench.{node.module}", alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(typed) == PUBLIC - {"__version__"}
    for name, (module, attribute) in typed.items():
        __import__(module)
        assert getattr(iobench, name) is getattr(sys.modules[module], attribute), name
    assert (Path(iobench.__file__).parent / "py.typed").is_file()


def test_the_page_names_every_public_name() -> None:
    named = set(re.findall(r"`(\w+)(?:\([^`]*\))?`", PAGE))
    assert named >= PUBLIC
    signatures = dict(re.findall(r"^\| `(\w+)\(([^`]+)\)` \|", PAGE, flags=re.MULTILINE))
    for name in ("generate", "open_dataset", "make_loader", "run", "open_run", "compare"):
        assert re.findall(r"\w+", signatures[name]) == list(
            inspect.signature(getattr(iobench, name)).parameters
        )


@pytest.mark.parametrize(
    ("function", "verb"), [("run", "RunRequest"), ("generate", "GenerateRequest")]
)
def test_a_verb_is_asked_the_same_from_python(function: str, verb: str) -> None:
    """Each parameter is a flag of the verb, but for what Python alone has."""
    flags = {each.name for each in dataclasses.fields(getattr(verbs, verb))}
    asked = set(inspect.signature(getattr(iobench, function)).parameters)
    assert asked <= flags
    assert not asked & {each.name for each in dataclasses.fields(VerbRequest)}


@pytest.mark.nightly
def test_the_pages_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = doctest.DocTestParser().get_doctest(PAGE, {}, "api.md", "docs/api.md", 0)
    assert len(examples.examples) > 10
    told: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(examples, out=told.append).failed == 0, told


@pytest.mark.nightly
def test_the_docstrings_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"iobench": iobench, "small": {"batch_size": 5, "loader.workers": 1}}
    for function in (
        *(api.generate, iobench.open_dataset, iobench.make_loader),
        *(api.run, api.open_run, api.compare),
    ):
        examples = doctest.DocTestParser().get_doctest(
            inspect.getdoc(function) or "", names, function.__name__, None, 0
        )
        assert examples.examples, function
        told: list[str] = []
        runner = doctest.DocTestRunner(verbose=False)
        assert runner.run(examples, out=told.append, clear_globs=False).failed == 0, told
        names = examples.globs


def test_the_api_refuses_what_contradicts_itself(tmp_path: Path, make_dataset: object) -> None:
    for wrong in (
        lambda: iobench.generate("demo", to=tmp_path / "d", samples=1, size=1 << 20),
        lambda: iobench.generate("demo", to=tmp_path / "d", workers=0),
        lambda: iobench.run("demo", data=tmp_path, rules="none"),  # type: ignore[arg-type]
        lambda: iobench.run("demo", data=tmp_path, accelerators=0),
        lambda: iobench.run("demo", data=tmp_path, checkpoint="llama3-8b"),
        lambda: iobench.run("demo", data=tmp_path, tags={"no label": "x"}),
        lambda: iobench.compare(tmp_path, tmp_path),
        lambda: iobench.compare(tmp_path, tmp_path, metrics=["speed"]),
        lambda: iobench.compare([], []),
        lambda: iobench.make_loader(tmp_path, batch_size=1, num_workers=1, loader={"workers": 2}),
    ):
        with pytest.raises(iobench.UsageError):
            wrong()
    assert list(tmp_path.iterdir()) == []


def test_a_command_returns_its_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "d"
    made = iobench.command(f"generate demo --to {data} --samples 6 --quiet")
    assert (made.exit_code, made.document["samples"]) == (0, 6)
    checked = iobench.command(["verify", str(data), "--quiet"])
    assert checked.document["ok"] is True
    (next(data.glob("data/**/*.tar"))).write_bytes(b"")
    assert iobench.command(["verify", str(data), "--quiet"]).exit_code == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("line", ["", "nothing", "size --accelerators", "size --help", "list -o x"])
def test_a_line_that_is_no_command_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(iobench.UsageError):
        iobench.command(line)


def test_scanned_data_is_opened_where_it_lies(tmp_path: Path) -> None:
    from iobench.cli.main import main

    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 5000)
    assert main(["scan", str(folder), "--save", str(tmp_path / "s.yaml"), "--quiet"]) == 0
    dataset = iobench.open_dataset(tmp_path / "s.manifest", origin=str(folder))
    assert (dataset.place, dataset.sample_count) == (str(folder), 6)
    loader = iobench.make_loader(dataset, batch_size=3, num_workers=0)
    assert sorted(int(batch[i][0]) for batch in loader for i in range(3)) == list(range(6))
    # A wrapper is put around it once.
    url = f"throttled+{tmp_path / 's.manifest'}?latency=1ms"
    dataset = iobench.open_dataset(url, origin=str(folder))
    assert dataset.place.count("throttled+") == 1


def test_a_wrong_argument_is_one_of_the_function() -> None:
    with pytest.raises(TypeError, match="'time'") as caught:
        iobench.run("demo", data="nowhere", time=5)  # type: ignore[call-arg]
    assert str(caught.value).startswith("iobench.run()")
