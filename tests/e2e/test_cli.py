"""The command line as its users call it: what it prints where, its exit codes, its examples, what a
run leaves behind.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import socket
import subprocess
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from iobench.base import memory, pagecache
from iobench.cli.main import VERBS, parse
from iobench.cli.verbs import ReportRequest
from iobench.host.samples import read_samples
from iobench.record.metrics import BY_NAME
from iobench.record.run import RunRecord
from tests.processes import completed, document, in_process, printed
from tests.snapshots.texts import help_of

Found = subprocess.CompletedProcess[str]

QUICK = (
    "--repeat 2 --calibration 0.1s --ablations 2s --set batch_size=10 --set epochs=1 "
    "--set loader.workers=1"
)
CANARY = "canary-7f3e91c0b2d84a56"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 JPEGs of 20 kB in 4 shards."""
    root = tmp_path_factory.mktemp("cli") / "data"
    size = "--samples 200 --set sample_size.mean=20kB --set samples_per_shard=50"
    printed(f"generate demo --to {root} {size}")
    return root


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[Found, Path]:
    """A run with text output, and its directory. Secrets are in its environment, as they are in
    real ones.
    """
    root = tmp_path_factory.mktemp("ran")
    words = f"run demo --data {data} {QUICK} --results {root}/results --quiet"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_SECRET_ACCESS_KEY", "IOBENCH_CANARY", "FSSPEC_S3_SECRET"):
            patch.setenv(name, CANARY)
        found = completed(*words.split())
    assert (found.returncode, found.stderr) == (0, ""), found
    (directory,) = (root / "results").iterdir()
    return found, directory


# Help and examples


def examples(text: str) -> list[list[str]]:
    """The words that iobench gets: the shell keeps comments, and what writes to a file."""
    whole = text.replace("\\\n", " ").splitlines()
    lines = [line.strip() for line in whole if line.startswith("  iobench ")]
    all_words = [shlex.split(line, comments=True)[1:] for line in lines]
    return [list(takewhile(lambda word: word not in (">", ">>"), words)) for words in all_words]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_ends_its_help_with_examples(verb: str) -> None:
    text = help_of(verb)
    assert text.startswith(f"Usage: iobench {verb} ")
    shown = examples(text.partition("For example:\n")[2])
    assert len(shown) >= 2
    for words in shown:
        assert words[0] == verb
        assert parse(words)


def test_the_help_of_the_whole_names_every_verb_and_exit_code() -> None:
    text = help_of()
    assert re.findall(r"^│ (\w+)  +\w.*$", text, flags=re.M) == list(VERBS)
    codes = text.partition("Exit codes:")[2].partition("For example:")[0]
    assert re.findall(r"\b(\d+) ", codes) == ["0", "1", "2", "3", "4", "5", "70", "130"]
    assert len(examples(text)) >= 2


ORDER = (
    *("list", "doctor", "generate", "scan", "plan", "probe", "run", "sweep", "checkpoint"),
    *("report", "compare", "cost", "size", "whatif", "advise"),
    *("verify", "clean"),
)
ELSEWHERE = {"demo", "check", "train", "ab", "load", "serve", "kv"}
"""Verbs whose examples differ in what takes long: each has tests of its own."""

NOT_HERE = (
    "s3://",
    "storage_results",
    "cpu-training",
    "sweep resnet50-server",
    "sweep model-load",
    "--hosts",
    "--budget",
    "--confirm",
    "--find-max",
    "--headspace",
)
"""test_every_verb.py has S3; the others need longer runs or data of others, as other tests have."""

SMALL = {
    "probe": "--max-in-flight 1 --budget 5s",
    "run": "--repeat 1 --calibration 0 --no-ablations --set batch_size=5 --set epochs=1 "
    "--set loader.workers=1 --set accelerator.step_time=2ms",
    "sweep": "--repeat 1 --calibration 0 --set batch_size=5 --set epochs=1 "
    "--set accelerator.step_time=2ms",
    "checkpoint": "--scale 1/8192 --repeat 1",
}
"""What is added to the examples of a verb, to make them small."""

REPLACED = {
    "20GiB": "6MB",
    "10000": "60",
    "2000": "20",
    "step_time=200ms": "step_time=20ms",
    "mypkg.data:make_loader": "tests.planted_loaders:of_stream",
}


def _small(words: list[str], home: Path) -> list[str]:
    """An example with its places below ``home`` and its sizes scaled down; its meaning stays."""
    for spot in ("/mnt/ckpt", "/mnt/fast", "/tmp/iobench-demo", "demo-data"):
        place = str(home / spot.removeprefix("/"))
        words = [re.sub(rf"(?<![\w/]){spot}(?![\w-])", place, word) for word in words]
    words = [REPLACED.get(word, word) for word in words]
    if "--memory-multiple" in words:
        words[words.index("--memory-multiple") + 1] = str(30e6 / (memory.total_bytes() or 1))
    if words[:2] == ["generate", "unet3d"]:
        size = "distribution=constant mean=3MB min=null max=null"
        words += [word for each in size.split() for word in ("--set", f"sample_size.{each}")]
    if words[:2] == ["generate", "demo"]:
        words += ["--samples", "40"]
    words += SMALL.get(words[0], "").split()
    if words[:2] == ["run", "demo"]:  # the run of which other examples tell more
        words += ["--calibration", "0.1s"]
    if "--checkpoint-scale" in words:
        words += ["--checkpoint-scale", "1/8192", "--checkpoint-every", "4"]
    runs = sorted(_runs(home))
    words = [str(runs[0]) if word == "results/<run>" else word for word in words]
    if words[0] in ("compare", "advise"):
        words = [
            str(_sweep(home)) if word in ("results", "results/<sweep>") else word for word in words
        ]
    return words


def _photographs(folder: Path) -> None:
    """What the examples of ``scan`` find."""
    pixels = np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8)
    for number in range(30):
        path = folder / f"n{number % 3}" / f"{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, "JPEG")


def _runs(home: Path) -> dict[Path, dict[str, Any]]:
    """The directories of the runs that loaded data, and their records."""
    paths = (home / "results").glob("*/run.json")
    found = {path.parent: _figures(path.parent) for path in paths}
    return {path: record for path, record in found.items() if record["command"][1] == "run"}


def _sweep(home: Path) -> Path:
    """A run of resnet50-h100, and what it would have recorded with other workers."""
    folder = home / "sweep"
    jobs = _runs(home).values()
    run = next(each for each in jobs if each["job"]["workload"]["name"] == "resnet50-h100")
    for workers in (1, 2, 4):
        run["job"]["workload"]["loader"]["workers"] = workers
        (folder / f"w{workers}").mkdir(parents=True, exist_ok=True)
        (folder / f"w{workers}" / "run.json").write_text(json.dumps(run | {"validity": "valid"}))
    return folder


@pytest.mark.nightly
def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of all helps, from generating to cleaning, in a directory of their own."""
    assert {*ORDER, *ELSEWHERE} == set(VERBS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("{name: mine, samples: 20, sample_size: {mean: 10kB}}\n")
    _photographs(tmp_path / "mnt/fast/imagenet/train")
    commands = [words for verb in ORDER for words in examples(help_of(verb))]
    commands = [
        words for words in commands if not any(part in " ".join(words) for part in NOT_HERE)
    ]
    assert len(commands) >= 50
    printed("generate demo --to demo-data --samples 40")
    for words in commands:
        small = _small(words, tmp_path)
        if small == ["clean", str(tmp_path / "mnt/ckpt")]:
            printed(f"checkpoint resnet50 --to {small[1]} --scale 1/2048 --repeat 1 --keep-data")
        may_end_with = {0, 4} if "--fail-on" in words else {0, 3} if "mlperf" in words else {0}
        found = completed(*small)
        assert found.returncode in may_end_with, found
        assert found.stdout.strip() or "-o" in small, small
        if "--json" in words:
            json.loads(found.stdout)
    assert not (tmp_path / "mnt/fast/resnet50").exists()  # the examples of clean end it


# What is printed, and exit codes


def test_exit_codes(tmp_path: Path, data: Path, ran: tuple[Found, Path]) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(data, damaged)
    shard = min((damaged / "data").iterdir())
    shard.write_bytes(shard.read_bytes()[:-5000])
    assert completed("verify", data).returncode == 0
    assert completed("verify", damaged).returncode == 1
    assert completed("report", ran[1], "--fail-on", "no_such_metric<1").returncode == 2
    assert completed("report", ran[1], "--rules", "mlperf").returncode == 3
    crossed, not_crossed = ("--fail-on", "samples_per_s<1e12"), ("--fail-on", "wall_s<0")
    found = completed("report", ran[1], *crossed, *not_crossed)
    assert (found.returncode, found.stderr.count("\n")) == (4, 1)
    assert "samples_per_s" in found.stderr
    assert "wall_s" not in found.stderr
    assert completed("report", ran[1], *not_crossed).returncode == 0


# plan


def _state(root: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(p.relative_to(root)): ((s := p.lstat()).st_mtime_ns, s.st_ctime_ns, s.st_size)
        for p in [root, *root.rglob("*")]
    }


def test_plan_has_no_side_effects(tmp_path: Path, data: Path) -> None:
    shards = sorted((data / "data").iterdir())
    for shard in shards[1::2]:  # every other one is in the cache
        shard.read_bytes()
    for shard in shards[::2]:
        pagecache.evict([shard])
    if pagecache.residency(shards[::2]).resident_bytes:
        pytest.skip("this file system keeps evicted pages: page caches were NOT compared")
    kept = pagecache.residency(shards[1::2]).resident_bytes
    assert kept > 0
    before = _state(data)
    printed(f"plan demo --data {data} --accelerators 2", cwd=tmp_path)
    document(f"plan resnet50-h100 --data {tmp_path}/not-there", cwd=tmp_path)
    assert _state(data) == before
    assert pagecache.residency(shards[::2]).resident_bytes == 0, "plan read shards"
    assert pagecache.residency(shards[1::2]).resident_bytes >= 0.9 * kept, "plan evicted shards"
    assert list(tmp_path.iterdir()) == []


def test_plan_does_its_sums(data: Path) -> None:
    """The demo's accelerator takes 64 samples in 25 ms; 200 samples make 2 batches for each of
    two.
    """
    accelerators, batches = 2, 2
    size = sum(path.stat().st_size for path in (data / "data").iterdir())
    plan = document(f"plan demo --data {data} --accelerators {accelerators} --repeat 3")
    assert (plan["samples"], plan["shards"]) == (200, 4)
    assert plan["bytes"] == pytest.approx(size, rel=0.05)
    assert plan["steps_per_repetition"] == batches * 2  # epochs
    demand = accelerators * 64 / 0.025
    assert plan["demanded_samples_per_s"] == pytest.approx(demand)
    assert plan["demanded_bytes_per_s"] == pytest.approx(demand * plan["bytes"] / 200)
    assert plan["busy_s"] == pytest.approx(batches * 2 * 0.025 * 3)
    assert plan["memory_multiple"] == pytest.approx(plan["bytes"] / plan["memory_bytes"])


# report


def _figures(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return found


def test_report_prints_what_run_printed(ran: tuple[Found, Path]) -> None:
    assert str(ran[1]) in ran[0].stdout.splitlines()[-1]
    assert printed("report", ran[1]) == ran[0].stdout
    assert printed("report", ran[1] / "run.json") == ran[0].stdout
    assert document("report", ran[1]) == _figures(ran[1])


# What a run leaves behind


def test_no_environment_and_no_secret_is_written(ran: tuple[Found, Path]) -> None:
    assert CANARY not in ran[0].stdout
    written = [path for path in ran[1].rglob("*") if path.is_file()]
    assert len(written) >= 2
    for path in written:
        for secret in (CANARY, "AWS_SECRET", "IOBENCH_CANARY"):
            assert secret.encode() not in path.read_bytes(), path


def test_what_was_not_measured_has_its_reason(ran: tuple[Found, Path]) -> None:
    text = (ran[1] / "run.json").read_text()
    job = _figures(ran[1])["job"]
    assert json.loads(RunRecord.model_validate_json(text).model_dump_json()) == json.loads(text)
    for name, ceiling in job["ceilings"].items():
        assert ceiling["samples_per_s"] is not None or ceiling["not_measured"], name
        assert ceiling["samples_per_s"] != 0, name
    first, second = job["repetitions"]
    assert first["seed"] != second["seed"]
    for repetition in (first, second):
        missing = {key for key, value in repetition.items() if value is None} & set(BY_NAME)
        assert missing - {"checkpoint_s"} <= set(repetition["not_measured"])  # there are no saves
        used = repetition["resources"]
        assert used["wall_s"] >= repetition["wall_s"]
        assert used["throttled_s"] == repetition["throttled_s"]
        assert used["device"] is None or used["device_read_bytes"] >= 0
        assert {key for key, value in used.items() if value is None} == set(used["not_measured"])


def test_the_work_of_each_worker_and_of_the_host_is_recorded(ran: tuple[Found, Path]) -> None:
    """The batches of the workers are those of the steps, and each epoch has samples of the host."""
    samples = read_samples(ran[1] / "resources.parquet")
    for number, repetition in enumerate(_figures(ran[1])["job"]["repetitions"]):
        workers = repetition["workers"]
        assert sum(each["batches"] for each in workers) == repetition["steps"]
        assert sum(each["sample_bytes"] for each in workers) == repetition["sample_bytes"]
        assert all(each["cpu_s"] > 0 for each in workers)
        mine = samples["repetition"] == number
        assert samples["wall_ns"][mine].sum() > 0
        assert (samples["memory_used_bytes"][mine] > 0).all()


def test_fios_job_file_is_kept(ran: tuple[Found, Path]) -> None:
    raw = _figures(ran[1])["job"]["ceilings"]["storage_raw"]
    if raw["bytes_per_s"] is None:
        assert "install" in raw["not_measured"], "not measured, and no way to have it"
        return
    jobs = [path for path in ran[1].rglob("*.fio") if path.is_file()]
    assert any("[" in job.read_text() for job in jobs)


# Logs


LINE = re.compile(
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z host=(?P<host>\S+)( rank=(?P<rank>\d+))? "
    r"pid=(?P<pid>\d+) (?P<level>debug|info|warning|error) (?P<module>[\w.]+): ."
)


def lines(text: str) -> list[dict[str, str | None]]:
    found = [LINE.match(line) for line in text.splitlines()]
    assert found
    assert all(found), text
    return [match.groupdict() for match in found if match]


def test_a_runs_log_has_the_ranks_in_it(tmp_path: Path, make_dataset: Any) -> None:
    _, root = make_dataset()
    file = tmp_path / "log"
    printed(
        f"run demo --data {root} --results {tmp_path}/results -n 1 --calibration 0s "
        "--no-ablations --accelerators 2 --set batch_size=5 --set loader.workers=1 "
        f"--set reader.crop=null --set epochs=1 --log-file {file} --log-level debug"
    )
    found = lines(file.read_text())
    assert {line["host"] for line in found} == {socket.gethostname()}
    assert {line["rank"] for line in found} == {None, "0", "1"}
    assert len({line["pid"] for line in found}) == 3
    assert {"iobench.runner.experiment", "iobench.runner.crew"} <= {
        line["module"] for line in found
    }


def test_the_log_goes_to_stderr_where_no_file_is_named(tmp_path: Path) -> None:
    words = ("generate", "demo", "--to", tmp_path / "d", "--samples", 2, "--workers", 1)
    _, _, told = in_process(*words, "--json", "--log-level", "info")
    assert {line["module"] for line in lines(told)} == {"iobench.data.generator.engine"}
    for more in (("--log-level", "warning"), ()):
        code, _, told = in_process(*words, *more)
        assert (code, told) == (0, "")
    assert logging.getLogger("iobench").level == logging.NOTSET


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from iobench.cli.terminal import logging_to

    with logging_to("info", None):
        logging.getLogger("iobench.x").info("two\nlines %s", "\x1b[31m")
        logging.getLogger("library.y").info("not shown")
        logging.getLogger("library.y").warning("shown")
    told = lines(capsys.readouterr().err)
    assert [line["module"] for line in told] == ["iobench.x", "library.y"]


def test_a_log_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from iobench.cli.terminal import logging_to

    with logging_to("info", "/dev/full"):
        for text in ("first", "second"):
            logging.getLogger("iobench.x").info(text)
    told = capsys.readouterr().err.splitlines()
    assert told == ["iobench: the log /dev/full can't be written: No space left on device"]


def test_the_home_directory_is_found_behind_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell replaces ~ only at the beginning of a word, and not between quotes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = parse(["report", "~/a", "a~/b", "--output=~/c"])
    assert isinstance(asked, ReportRequest)
    assert asked.directories == (f"{tmp_path}/a", "a~/b")
    assert asked.output == f"{tmp_path}/c"
