"""Text from others stays text: no terminal, spreadsheet or page acts on what is in it.

The fields are found by walking the documents that earlier versions wrote, so that a new field
cannot be forgotten; each verb that reads a document is run on it.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import xxhash
import yaml

from iobench.base.errors import CorruptCheckpointError, IobenchError
from iobench.checkpoint.manifest import parse_manifest, parse_part
from iobench.cli.failure import report_error
from iobench.record.run import load_run
from tests.datasets import generated
from tests.hostile import BYTES, HOSTILE, NAME, check, replaced, run, strings
from tests.unit.test_sections import assert_only_own_elements

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0"

ANSWERS = (0, 1, 2, 3, 4)
"""The documented exit codes, but for those of an internal error and of an interruption."""


OWN_MARKUP = re.compile(
    r"< bottleneck|^<details><summary>[^<]*</summary>$|^</details>$|^</?pre>$", re.MULTILINE
)
"""What iobench itself writes with such characters in Markdown."""


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def save(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document))


def as_yaml(document: Any) -> str:
    return str(yaml.safe_dump(document, sort_keys=False))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, which also takes the log of an internal error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def readers(run_directory: str, workload: str) -> list[tuple[str, ...]]:
    """Every verb that reads a run as a text and in another form, and a report in every form."""
    forms = ("text", "json", "csv", "markdown", "github", "html")
    verbs: list[tuple[str, ...]] = [
        ("report", run_directory, "--format", form) for form in (*forms, "openmetrics")
    ]
    others = {
        ("report", run_directory, "plain"): "html",
        ("compare", "plain", run_directory): "html",
        ("compare", run_directory, "plain", "--by", "host.node"): "csv",
        ("cost", run_directory, "--host-price-per-hour", "1"): "csv",
        ("compare", ".", "--over-time", workload): "html",
        ("whatif", run_directory, "--storage-bandwidth", "2x"): "markdown",
        ("size", "demo", "--accelerators", "2", "--from", run_directory): "json",
        ("advise", "."): "github",
    }
    return verbs + [
        (*verb, "--format", form) for verb, other in others.items() for form in ("text", other)
    ]


def is_read(folder: Path) -> bool:
    try:
        load_run(folder)
    except IobenchError:
        return False
    return True


MORE = ("beside-saves", "calibrated", "library") if os.environ.get("IOBENCH_LOOPS") == "all" else ()
"""Runs of other kinds, whose reports have the same tables and charts."""


@pytest.mark.parametrize("name", ["checkpoint-dcp-async", *MORE])
def test_each_text_of_a_run(here: Path, name: str) -> None:
    """A few at a time in a report; then all that a run may hold at once, by every verb."""
    shutil.copytree(GOLDEN / "runs" / name, here / "run")
    shutil.copytree(GOLDEN / "runs" / name, here / "plain")
    document = dict(load(here / "run/run.json"))
    texts = []
    for path in strings(document):
        save(here / "run/run.json", replaced(document, path, HOSTILE))
        if path != ("rules",) and is_read(here / "run"):  # a report needs rules that it knows
            texts.append(path)
        else:
            check(run("report", "run"), (1, 2), path)
    assert len(texts) > 50
    for some in (*(texts[start::12] for start in range(12)), texts):
        accepted = document
        for path in some:
            accepted = replaced(accepted, path, HOSTILE)
        save(here / "run/run.json", accepted)
        out = check(run("report", "run", "--format", "markdown"), (0, 3), some)
        assert "<" not in OWN_MARKUP.sub("", out), some
    job = document["job"]
    workload = job["model"] if job["kind"] == "checkpoint" else job["workload"]["name"]
    for verb in readers("run", workload):
        out = check(run(*verb), ANSWERS, verb)
        if "html" in verb and out:
            assert_only_own_elements(out)
        if "csv" in verb and out:
            cells = [cell for row in csv.reader(io.StringIO(out)) for cell in row]
            assert not [cell for cell in cells if cell[:1] in "=@+" and cell], verb
        if ("json" in verb or "--json" in verb) and out:
            assert out.isascii()
            json.loads(out)
    again = json.loads(run("report", "run", "--json")[1])
    assert again["run_id"] == HOSTILE  # JSON carries it whole


def test_each_key_of_a_run(here: Path) -> None:
    """Names of keys are text from others, too: of ceilings, metrics, settings, packages."""
    shutil.copytree(GOLDEN / "runs/calibrated", here / "run")
    shutil.copytree(GOLDEN / "runs/calibrated", here / "plain")
    document = dict(load(here / "run/run.json"))
    job = document["job"]
    for place in (job["ceilings"], document["metrics"], document["timings"]):
        place[HOSTILE] = next(iter(place.values()))
    document["hosts"][0]["packages"] = {HOSTILE: "1"}
    job["workload"]["reader"] = {**job["workload"]["reader"], HOSTILE: 1}
    job["dataset"]["spec"] = {**job["dataset"]["spec"], HOSTILE: 1}
    document[HOSTILE] = {HOSTILE: HOSTILE}
    save(here / "run/run.json", document)
    for verb in readers("run", "smallrun"):
        out = check(run(*verb), ANSWERS, verb)
        if "html" in verb and out:
            assert_only_own_elements(out)


def test_each_text_of_a_sweep(here: Path) -> None:
    shutil.copytree(GOLDEN / "sweep", here / "sweep")
    document = load(here / "sweep/sweep.json")
    shutil.copy(GOLDEN / "small.yaml", here)
    shutil.copy(GOLDEN / "smallrun.yaml", here)
    for path in strings(document):
        save(here / "sweep/sweep.json", replaced(document, path, HOSTILE))
        check(run("advise", "sweep"), ANSWERS, path)
        check(run("advise", "sweep", "--json"), ANSWERS, path)
        if path[0] not in ("workload", "data_root") and path[-1] != "data":
            check(run("sweep", "--resume", "sweep", "--quiet"), ANSWERS, path)
    settings = document["points"][0]["settings"]
    document["points"][0]["settings"] = {HOSTILE: HOSTILE, **settings}
    save(here / "sweep/sweep.json", document)
    for verb in (("advise", "sweep"), ("sweep", "--resume", "sweep"), ("compare", "sweep")):
        check(run(*verb), ANSWERS, verb)


def test_each_text_of_a_dataset(here: Path) -> None:
    """``manifest.json``, with the right tables, and the marker beside it; and a scan's manifest."""
    shutil.copytree(GOLDEN / "datasets/tar", here / "data")
    document, marker = load(here / "data/manifest.json"), here / "data/.iobench-dataset"
    claimed = load(marker)
    for path in strings(document):
        save(here / "data/manifest.json", replaced(document, path, HOSTILE))
        check(run("verify", "data", "--workers", "1"), ANSWERS, path)
        check(run("plan", "demo", "--data", "data"), ANSWERS, path)
    save(here / "data/manifest.json", document)
    for path in strings(claimed):
        save(marker, replaced(claimed, path, HOSTILE))
        check(run("clean", "data", "--dry-run"), ANSWERS, path)
        check(run("generate", GOLDEN / "small.yaml", "--to", "data"), ANSWERS, path)
    save(marker, claimed)
    layout = here / "data/layouts/litdata"
    layout.mkdir(parents=True)
    save(layout / "layout.json", {"files": [HOSTILE, NAME], "kind": HOSTILE, "dataset": HOSTILE})
    (layout / NAME).write_text("x")
    check(run("clean", "data", "--dry-run"), (0,), "layout")
    assert "PWNED" not in check(run("clean", "data", "--dry-run", "--json"), (0,), "layout")


def test_each_text_of_a_checkpoint(
    here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    step = GOLDEN / "checkpoints/dcp/step-00000003"
    for name, parse in (("checkpoint.json", parse_manifest), ("rank-0000.json", parse_part)):
        document = load(step / name)
        for path in strings(document):
            changed = replaced(document, path, HOSTILE)
            try:
                parse(json.dumps(changed).encode(), f"{tmp_path}/{name}")
            except CorruptCheckpointError as error:
                code = report_error(error, debug=True)
                told = capsys.readouterr().err.splitlines()
                check((code, "", told[-1]), (1,), path)
        key = {**document, HOSTILE: HOSTILE, "files": {HOSTILE: 1}}
        if name == "rank-0000.json":
            with pytest.raises(CorruptCheckpointError) as refused:
                parse(json.dumps(key).encode(), name)
            check(
                (report_error(refused.value, debug=False), "", capsys.readouterr().err), (1,), "key"
            )


def test_each_text_of_a_workload_and_a_dataset_spec(here: Path) -> None:
    (here / "workloads").mkdir()
    (here / "datasets").mkdir()
    shown = HOSTILE.replace("\ud800", "")
    for kind, source in (("workload", "smallrun.yaml"), ("dataset", "small.yaml")):
        document = yaml.safe_load((GOLDEN / source).read_text())
        if kind == "workload":
            document["dataset"] = "demo"
        assert len(list(strings(document))) >= 3
        for path in strings(document):
            for text in (HOSTILE, shown):
                (here / f"{kind}s/mine.yaml").write_text(as_yaml(replaced(document, path, text)))
                verb = ("plan", "mine") if kind == "workload" else ("generate", "mine", "--to", "/")
                check(run(*verb), ANSWERS, (kind, path))
                check(run("list", f"{kind}s"), ANSWERS, (kind, path))
                if path == ("description",) and text is shown:
                    out = check(run("list", f"{kind}s", "--json"), (0,), path)
                    assert "PWNED" in json.loads(out)[f"{kind}s"]["mine"]
        (here / f"{kind}s" / "mine.yaml").write_text(as_yaml({**document, shown: 1}))
        check(run("plan", "demo", "--set", f"{shown}=1"), (2,), "key")
        check(run("plan", "mine"), ANSWERS, "key")
        (here / f"{kind}s" / "mine.yaml").unlink()
        (here / f"{kind}s" / f"{NAME}.yaml".replace("/", "")).write_text(json.dumps(document))
        check(run("list", f"{kind}s"), (0,), "file name")
    check(run("sweep", "demo", "--to", "x", "--sweep", f"{shown}={shown}"), (2,), "axis")
    check(run(HOSTILE), (2,), "verb")
    check(run("report", HOSTILE), (1,), "argument")
    check(run("verify", f"s3://{HOSTILE}/x"), ANSWERS, "URL")


def test_each_text_of_a_table_of_prices(here: Path) -> None:
    shutil.copytree(GOLDEN / "runs/calibrated", here / "run")
    shown = HOSTILE.replace("\ud800", "")
    (here / "prices.csv").write_text(f'type,usd_per_hour,region\n"{shown}",2,"{shown}"\n')
    for form in ("text", "csv", "markdown"):
        cost = ("cost", "run", "--instance", shown, "--prices", "prices.csv", "--format", form)
        check(run(*cost), (0,), form)
    check(run("cost", "run", "--prices", "prices.csv", "--instance", "x2"), (2,), "prices")


def test_names_of_files_and_folders(here: Path) -> None:
    generated(here / "data")
    for name in (os.fsencode(NAME), BYTES):
        (here / "data" / os.fsdecode(name)).write_text("mine")
        shutil.copytree(GOLDEN / "runs/calibrated", here / "results" / os.fsdecode(name))
        (here / "broken" / os.fsdecode(name)).mkdir(parents=True)
        (here / "broken" / os.fsdecode(name) / "run.json").write_text("{")
    out = check(run("clean", "data", "--dry-run"), (0,), "clean")
    assert "left in place" in out
    assert "\\x1b" in out
    foreign = json.loads(check(run("clean", "data", "--dry-run", "--json"), (0,), "c"))["foreign"]
    assert set(foreign) == {NAME, os.fsdecode(BYTES)}
    for name in (NAME, os.fsdecode(BYTES)):
        for verb in readers(f"results/{name}", "smallrun"):
            if name == NAME or verb[0] == "report":
                check(run(*verb), ANSWERS, verb)
        check(run("report", f"broken/{name}"), (1,), "broken")
    for place in ("results", "broken"):
        for verb in (("compare", place, "--by", "host.node"), ("advise", place)):
            check(run(*verb), ANSWERS, verb)
        check(run("compare", place, "--over-time", "smallrun"), ANSWERS, "history")
    check(run("generate", "demo", "--to", "results"), (2,), "not empty")


def test_damage_in_files_of_such_names_is_shown(here: Path) -> None:
    for name in (os.fsencode(NAME), BYTES):
        (here / "photos" / os.fsdecode(name)).parent.mkdir(exist_ok=True)
        (here / "photos" / os.fsdecode(name)).write_bytes(os.urandom(5000))
    check(run("scan", "photos", "--save", "s.yaml", "--checksums"), (0,), "scan")
    check(run("verify", "s.manifest", "--origin", "photos", "--workers", "1"), (0,), "verify")
    for path in (here / "photos").iterdir():
        path.write_bytes(os.urandom(4000))
    out = check(run("verify", "s.manifest", "--origin", "photos", "--workers", "1"), (1,), "verify")
    assert "\\x1b" in out
    told = json.loads(
        check(
            run("verify", "s.manifest", "--origin", "photos", "--workers", "1", "--json"),
            (1,),
            "json",
        )
    )
    assert {each["shard"] for each in told["damages"]} == {NAME, os.fsdecode(BYTES)}


def test_tables_with_hostile_names(here: Path) -> None:
    """A manifest from elsewhere names what it likes, with the right checksums."""
    from iobench.data.dataset import load_manifest
    from iobench.record.manifest import SHARD_COLUMNS, SHARDS, write_table

    shutil.copytree(GOLDEN / "datasets/scanned.manifest", here / "m")
    header, data = load(here / "m/manifest.json"), GOLDEN / "datasets/tar/data"
    header["origin"] = str(data)
    names: Sequence[str] = [NAME, os.fsdecode(BYTES), "x" * 5000]
    table = write_table(SHARD_COLUMNS, load_manifest(here / "m").shards, list(names))
    header["tables"][SHARDS] = xxhash.xxh3_64_hexdigest(table)
    (here / "m" / SHARDS).write_bytes(table)
    save(here / "m/manifest.json", header)
    check(run("verify", "m", "--origin", str(data), "--workers", "1"), (1, 5), "verify")
    check(run("plan", "demo", "--data", "m", "--origin", str(data)), ANSWERS, "plan")
