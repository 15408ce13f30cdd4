"""The command line as its users call it: what it prints where, its exit codes, its examples, what a
run leaves behind.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from iobench import memory
from iobench.analyse.compare.identity import identity, role_of
from iobench.cli.main import build_parser, main
from iobench.cli.verbs import VERBS, one_word
from iobench.measure.samples import read_samples
from iobench.schema.record import RunRecord, load_run
from tests.processes import completed, in_process

Found = subprocess.CompletedProcess[str]

QUICK = (
    "--repeat",
    "2",
    "--calibration",
    "0.2",
    "--set",
    "batch_size=10",
    "--set",
    "epochs=1",
    "--set",
    "loader.workers=1",
)


def started(*arguments: str | Path, **environment: str) -> Found:
    """``iobench`` in a process of its own, as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "iobench", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **environment},
    )


def ok(*arguments: str | Path, cwd: Path | None = None) -> str:
    found = completed(*arguments, "--quiet", cwd=cwd)
    assert (found.returncode, found.stderr) == (0, ""), found
    return found.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 JPEGs of 20 kB in 4 shards."""
    root = tmp_path_factory.mktemp("cli") / "data"
    ok(
        "generate",
        "demo",
        "--to",
        root,
        "--samples",
        "200",
        "--set",
        "sample_size.mean=20kB",
        "--set",
        "samples_per_shard=50",
    )
    return root


CANARY = "canary-7f3e91c0b2d84a56"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[Found, Path]:
    """A run with text output, and its directory. Secrets are in its environment, as they are in
    real ones.
    """
    root = tmp_path_factory.mktemp("ran")
    secrets = {
        "AWS_SECRET_ACCESS_KEY": CANARY,
        "IOBENCH_CANARY": CANARY,
        "FSSPEC_S3_SECRET": CANARY,
    }
    words = ("run", "demo", "--data", data, *QUICK, "--results", root / "results", "--quiet")
    found = started(*words, **secrets)
    assert found.returncode == 0, found
    (directory,) = (root / "results").iterdir()
    return found, directory


# Help and examples


def examples(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith("  iobench ")]


def words_of(example: str) -> list[str]:
    """Those that iobench gets: the shell keeps comments, and what writes to a file."""
    words = shlex.split(example, comments=True)[1:]
    return list(takewhile(lambda word: word not in (">", ">>"), words))


def help_of(*verb: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        code, out, err = in_process(*verb, "--help")
    assert (code, err) == (0, ""), verb
    return out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_ends_its_help_with_examples(verb: str) -> None:
    text = help_of(*verb.split())
    assert text.startswith(f"usage: iobench {verb}")
    tail = text.partition("examples:\n")[2]
    shown = examples(tail)
    assert len(shown) >= 2
    for example in shown:
        words = one_word(words_of(example))
        assert words[0] == verb
        assert build_parser().parse_args(words)


def test_the_help_of_the_whole_names_every_verb_and_exit_code() -> None:
    text = help_of()
    named = re.findall(r"^    (\w+(?: \w+)?)(?:  |$)", text, flags=re.M)
    assert named == list(VERBS)
    assert re.findall(r"^  (\d+) ", text, flags=re.M) == ["0", "1", "2", "3", "4", "5", "70", "130"]
    assert len(examples(text)) >= 2


def _small(words: list[str], home: Path) -> list[str]:
    """An example with its places below ``home`` and its sizes scaled down; its meaning stays."""
    spots = {
        "/mnt/ckpt": home / "ckpt",
        "/mnt/fast": home / "mnt",
        "/mnt/slow": home / "mnt",
        "/tmp/iobench-demo": home / "tmp-demo",
        "demo-data": home / "demo-data",
    }
    for spot, place in spots.items():
        words = [
            re.sub(rf"(?<![\w/]){re.escape(spot)}(?![\w-])", str(place), word) for word in words
        ]
    verb = words[0]
    scaled = {"20GiB": "6MB", "10000": "60"}
    if verb == "demo":
        words += ["--samples", "100", "--repeat", "1", "--calibration", "0.1"]
    if verb == "probe":
        words += ["--max-in-flight", "2", "--time", "6s"]
    if verb == "generate":
        words = [scaled.get(word, word) for word in words]
        if "--memory-multiple" in words:
            words[words.index("--memory-multiple") + 1] = str(30e6 / (memory.total_bytes() or 1))
        if words[1] == "unet3d":
            words += ["--set", "sample_size.distribution=constant", "--set", "sample_size.mean=3MB"]
            words += [
                text for key in ("min", "max") for text in ("--set", f"sample_size.{key}=null")
            ]
        if words[1] == "demo":
            words += ["--samples", "40"]
    if verb == "run":
        own = ("mypkg.data:make_loader", "tests.planted_loaders:of_stream")
        words = [word.replace(*own) for word in words]
        # Ceilings and knock-outs where the demo is run, and where an example is about them.
        whole = any(one in words for one in ("demo", "--confirm", "--find-max", "--headspace"))
        words += ["--calibration", "0.1"] if whole else ["--calibration", "0", "--no-knockouts"]
        words += [
            "--repeat",
            "1",
            "--set",
            "batch_size=5",
            "--set",
            "epochs=1",
            "--set",
            "loader.workers=1",
        ]
        if "--find-max" in words:  # not even one can be fed, so that only one is tried
            words += ["--set", "accelerator.step_time=50us", "--set", "reader.direct=false"]
        else:
            words += ["--set", "accelerator.step_time=2ms"]
    if verb in ("train", "record"):
        words = [verb, "tests.networks:Tiny", *words[2:], "--batch-size", "2", "--time", "0.1s"]
        words = ["cpu" if word == "cuda" else word for word in words]
        words += ["--precision", "float32", "--set", "accelerator.threads=1"]
        words += (
            ["--steps", "5"]
            if verb == "record"
            else [*("--repeat", "1", "--calibration", "0", "--no-knockouts")]
        )
        words = [str(home / word) if word.endswith(".json") else word for word in words]
    if verb == "check":
        words += ["--budget", "10s", "--set", "batch_size=2", "--set", "loader.workers=1"]
        words += ["--set", "reader.crop=null", "--set", "accelerator.step_time=2ms"]
        if str(home / "mnt" / "resnet50") not in words:
            small = "name: small\nsamples: 40\nsample_size: {mean: 20000}\nformat: tar\n"
            (home / "small.yaml").write_text(small)
            words += ["--set", "dataset=./small.yaml"]
    if verb == "sweep":
        words = [{"2000": "20"}.get(word, word) for word in words]
        words += [
            "--repeat",
            "1",
            "--calibration",
            "0",
            *("--set", "batch_size=5", "--set", "epochs=1", "--set", "accelerator.step_time=2ms"),
        ]
    if verb == "ab":
        words += ["--max-turns", "4", "--set", "batch_size=5", "--set", "epochs=1"]
        words += ["--set", "accelerator.step_time=2ms"]
    if verb == "checkpoint" and words[1] != "plan":
        words = ["step_time=20ms" if word == "step_time=200ms" else word for word in words]
        words += ["--scale", "1/8192", "--repeat", "1"]
    if "--checkpoint-scale" in words:
        words += ["--checkpoint-scale", "1/8192", "--checkpoint-every", "4"]
    if words == ["clean", str(home / "ckpt")]:
        ok(
            "checkpoint",
            "resnet50",
            "--to",
            words[1],
            "--scale",
            "1/16",
            "--repeat",
            "1",
            "--keep-data",
            cwd=home,
        )
    if verb == "compare":  # a run with itself, and all runs by their workers
        words = [str(_sweep(home)) if word == "results" else word for word in words]
    runs = _runs(home)
    if verb == "ab":  # beside the data of that workload
        runs = [path for path in runs if path.name.startswith("resnet50-h100-")]
    words = [str(runs[0]) if word == "results/<run>" else word for word in words]
    if "results/<sweep>" in words:
        words[words.index("results/<sweep>")] = str(_sweep(home))
    return words


def _runs(home: Path) -> list[Path]:
    """The runs that loaded data which is still there: ``check`` removes what it made."""
    return [
        path.parent
        for path in sorted((home / "results").glob("*/run.json"))
        if json.loads(path.read_text())["command"][1] == "run"
    ]


def _photographs(folder: Path) -> None:
    """What the examples of ``scan`` find."""
    pixels = np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8)
    for number in range(30):
        path = folder / f"n{number % 3}" / f"{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, "JPEG")


def _sweep(home: Path) -> Path:
    """A run of resnet50-h100, and what it would have recorded with other workers."""
    folder = home / "sweep"
    recorded = (json.loads((directory / "run.json").read_text()) for directory in _runs(home))
    document = next(
        document for document in recorded if document["job"]["workload"]["name"] == "resnet50-h100"
    )
    for workers in (1, 2, 4):
        document["job"]["workload"]["loader"]["workers"] = workers
        (folder / f"w{workers}").mkdir(parents=True, exist_ok=True)
        (folder / f"w{workers}" / "run.json").write_text(
            json.dumps(document | {"validity": "valid"})
        )
    return folder


@pytest.mark.slow
def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All examples of all helps, from generating to cleaning, in a directory of their own.

    In this process, since each start of Python and torch takes a second; other tests start it as a
    user does.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("{name: mine, samples: 20, sample_size: {mean: 10kB}}\n")
    _photographs(tmp_path / "mnt" / "imagenet" / "train")
    order = (
        "demo",
        "list",
        "doctor",
        "generate",
        "scan",
        "plan",
        "probe",
        "run",
        "train",
        "record",
        "check",
        "sweep",
        "ab",
        "checkpoint",
        "checkpoint plan",
        "report",
        "compare",
        "cost",
        "history",
        "size",
        "whatif",
        "advise",
        "verify",
        "completion",
        "clean",
    )
    assert set(order) == set(VERBS)
    commands = [
        words
        for verb in order
        for example in examples(help_of(*verb.split()))
        for words in [words_of(example)]
    ]
    commands = [
        words for words in commands if not any("s3://" in word for word in words)
    ]  # they run in test_s3.py
    # More hosts need longer runs, and runs of several: test_cluster.py has them.
    commands = [words for words in commands if words[0] != "whatif" or "--hosts" not in words]
    # test_sweep.py has walks, and each of these verbs has tests of its own: one example will do.
    commands = [words for words in commands if words[:2] != ["sweep", "cpu-training"]]
    few = {verb: [w for w in commands if w[0] == verb][1:] for verb in ("train", "check", "ab")}
    commands = [words for words in commands if words not in few.get(words[0], [])]
    commands += [shlex.split(example)[1:] for example in examples(help_of())][
        ::-1
    ]  # run demo-data once more, generated before
    done = 0
    for words in commands:
        if words[0] == "generate" and words[1:] == ["demo", "--to", "demo-data"]:
            continue
        if "demo-data" in words and not (tmp_path / "demo-data").exists():
            ok(*_small(["generate", "demo", "--to", "demo-data"], tmp_path), cwd=tmp_path)
        if "run" in words[:1] and "unet3d-h100" in words:
            assert (tmp_path / "mnt" / "unet3d").exists(), "no example generates what this one runs"
        small = _small(words, tmp_path)
        capsys.readouterr()
        code = main(small)
        shown = capsys.readouterr()
        may_end_with = {0, 4} if "--fail-on" in words else {0, 3} if "mlperf" in words else {0}
        if words[0] == "advise" and "--confirm" in words:
            may_end_with = {0, 2, 4}  # such a small run may have no advice to try, or a wrong one
        assert code in may_end_with, (small, shown)
        assert shown.out.strip() or code == 2 or "-o" in small, small
        if "--json" in words:
            json.loads(shown.out)
        done += 1
    assert done >= 20
    assert not (tmp_path / "mnt" / "resnet50").exists()  # the examples of clean end it


# --json


def test_json_is_one_document_and_nothing_else(
    tmp_path: Path, data: Path, ran: tuple[Found, Path]
) -> None:
    for arguments in (
        ("list",),
        ("list", "codecs"),
        ("plan", "demo"),
        (
            "size",
            "demo",
            "--accelerators",
            "4",
            "--hosts",
            "2",
            "--cache",
            "1GiB",
            "--from",
            ran[1],
        ),
        ("plan", "demo", "--data", data),
        ("generate", "demo", "--to", tmp_path / "d", "--samples", "2"),
        ("verify", tmp_path / "d"),
        ("clean", tmp_path / "d"),
        ("report", ran[1]),
        ("whatif", ran[1], "--storage-bandwidth", "2x", "--workers", "4"),
        ("doctor", tmp_path),
    ):
        document = json.loads(
            ok(*arguments, "--json"), parse_constant=lambda text: pytest.fail(f"{text} is not JSON")
        )
        assert isinstance(document, dict), arguments
        assert document, arguments


def test_run_json_is_the_document_of_the_directory(tmp_path: Path, data: Path) -> None:
    printed = ok("run", "demo", "--data", data, *QUICK, "--results", tmp_path / "results", "--json")
    (directory,) = (tmp_path / "results").iterdir()
    assert json.loads(printed) == json.loads((directory / "run.json").read_text())
    assert sorted(path.name for path in directory.iterdir() if path.is_file()) == [
        "events.parquet",
        "report.html",
        "resources.parquet",
        "run.json",
    ]


def test_the_work_of_each_worker_and_of_the_host_is_recorded(ran: tuple[Found, Path]) -> None:
    """The batches of the workers are those of the steps, and each epoch has samples of the host."""
    run = json.loads((ran[1] / "run.json").read_text())
    samples = read_samples(ran[1] / "resources.parquet")
    for number, repetition in enumerate(run["job"]["repetitions"]):
        workers = repetition["workers"]
        assert sum(each["batches"] for each in workers) == repetition["steps"]
        assert sum(each["sample_bytes"] for each in workers) == repetition["sample_bytes"]
        assert all(each["cpu_s"] > 0 for each in workers)
        mine = samples["repetition"] == number
        wall_s = samples["wall_ns"][mine].sum() / 1e9
        assert 0 < wall_s < 2 * repetition["resources"]["wall_s"]
        assert (samples["memory_used_bytes"][mine] > 0).all()


# What goes where


def test_piped_output_has_no_ansi_and_stderr_is_silent(
    tmp_path: Path, data: Path, ran: tuple[Found, Path]
) -> None:
    for found in (
        ran[0],
        completed("generate", "demo", "--to", tmp_path / "d", "--samples", "5"),
        completed("verify", data),
        completed("list"),
    ):
        assert found.stderr == ""
        assert "\x1b" not in found.stdout
        assert "\r" not in found.stdout


def test_the_verdict_comes_first_and_every_ceiling_has_its_bar(ran: tuple[Found, Path]) -> None:
    lines = ran[0].stdout.splitlines()
    assert lines[0].startswith("Verdict: ")
    for stage in (
        "storage, raw",
        "fetch",
        "prep",
        "harness",
        "accelerators",
        "predicted",
        "measured",
    ):
        assert [line for line in lines if line.startswith(f"  {stage} ")], stage
    assert max(map(len, lines)) <= 160
    assert str(ran[1]) in lines[-1]


# Exit codes


def test_exit_codes(tmp_path: Path, data: Path, ran: tuple[Found, Path]) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(data, damaged)
    shard = min((damaged / "data").iterdir())
    shard.write_bytes(shard.read_bytes()[:-5000])
    assert completed("verify", data).returncode == 0
    assert completed("verify", damaged).returncode == 1
    assert completed("report", ran[1], "--fail-on", "no_such_metric<1").returncode == 2
    assert completed("report", ran[1], "--rules", "mlperf").returncode == 3
    assert completed("report", ran[1], "--fail-on", "samples_per_s<1e12").returncode == 4
    assert completed("report", ran[1], "--fail-on", "samples_per_s<0").returncode == 0


def test_fail_on_names_what_failed(tmp_path: Path, data: Path) -> None:
    arguments = (
        "run",
        "demo",
        "--data",
        f"throttled+{data}?bandwidth=1MB",
        *QUICK,
        "--results",
        tmp_path,
        "--set",
        "max_steps=5",
        "--no-knockouts",
    )
    found = completed(
        *arguments,
        "--calibration",
        "0",
        "--fail-on",
        "accelerator_utilization<90%",
        "--fail-on",
        "samples_per_s<0",
        "--quiet",
    )
    assert found.returncode == 4
    assert found.stdout.startswith("Verdict")
    (line,) = found.stderr.splitlines()
    assert line.startswith("iobench: ")
    assert "accelerator_utilization" in line
    assert "samples_per_s" not in line
    (directory,) = (path.parent for path in tmp_path.glob("*/run.json"))
    facts = identity(load_run(directory))
    assert facts["storage.bandwidth_bytes_per_s"] == "1000000"
    assert role_of("storage.bandwidth_bytes_per_s") == "place"


def test_mlperfs_rules_refuse_a_tiny_run_by_name(tmp_path: Path, data: Path) -> None:
    found = completed(
        "run",
        "demo",
        "--data",
        data,
        *QUICK,
        "--calibration",
        "0",
        "--no-knockouts",
        "--results",
        tmp_path,
        "--rules",
        "mlperf",
    )
    assert found.returncode == 3
    assert "invalid" in found.stdout.splitlines()[0].lower()
    for rule in ("run.steps", "run.repetitions"):  # few steps, 2 of 5 repetitions
        (line,) = [line for line in found.stdout.splitlines() if rule in line]
        assert "invalid" in line.lower()
    document = json.loads(next(tmp_path.iterdir()).joinpath("run.json").read_text())
    assert document["validity"] == "invalid"
    refusing = {
        finding["rule"] for finding in document["findings"] if finding["level"] == "invalid"
    }
    assert {"run.steps", "run.repetitions"} <= refusing
    assert all(
        finding["remedy"] for finding in document["findings"] if finding["level"] == "invalid"
    )


# plan


def _state(root: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(p.relative_to(root)): ((s := p.lstat()).st_mtime_ns, s.st_ctime_ns, s.st_size)
        for p in [root, *root.rglob("*")]
    }


def _resident(path: Path) -> int:
    """Pages of a file in the page cache, by mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = path.stat().st_size
    with path.open("rb") as file:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    assert address not in (None, ctypes.c_void_p(-1).value)
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    assert libc.mincore(address, size, pages) == 0
    libc.munmap(address, size)
    return sum(byte & 1 for byte in pages.raw[: -(-size // mmap.PAGESIZE)])


def test_plan_has_no_side_effects(tmp_path: Path, data: Path) -> None:
    shards = sorted((data / "data").iterdir())
    for shard in shards[::2]:  # every other one goes out of the cache, the rest comes in
        fd = os.open(shard, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    for shard in shards[1::2]:
        shard.read_bytes()
    residency = [_resident(shard) for shard in shards]
    if max(residency[::2]) > 0:
        pytest.skip(
            "this file system keeps evicted pages: the page cache before and after a plan was NOT "
            "compared"
        )
    assert min(residency[1::2]) > 0
    before = _state(data)
    ok("plan", "demo", "--data", data, "--accelerators", "2", cwd=tmp_path)
    ok("plan", "resnet50-h100", "--data", tmp_path / "not-there", "--json", cwd=tmp_path)
    assert _state(data) == before
    after = [_resident(shard) for shard in shards]
    assert after[::2] == residency[::2], "plan read shards"
    assert all(now >= 0.9 * then for now, then in zip(after[1::2], residency[1::2], strict=True)), (
        "plan evicted shards"
    )
    assert list(tmp_path.iterdir()) == []


def test_plan_does_its_sums(data: Path) -> None:
    """The demo's accelerator takes 64 samples in 25 ms; 200 samples make 4 batches for one
    accelerator and 2 for each of two.
    """
    size = sum(path.stat().st_size for path in (data / "data").iterdir())
    for accelerators, batches in ((1, 4), (2, 2)):
        plan = json.loads(
            ok(
                "plan",
                "demo",
                "--data",
                data,
                "--accelerators",
                str(accelerators),
                "--repeat",
                "3",
                "--json",
            )
        )
        assert plan["samples"] == 200
        assert plan["shards"] == 4
        assert plan["bytes"] == pytest.approx(size, rel=0.05)
        assert plan["steps_per_repetition"] == batches * 2  # epochs
        assert plan["demanded_samples_per_s"] == pytest.approx(accelerators * 64 / 0.025)
        assert plan["demanded_bytes_per_s"] == pytest.approx(
            accelerators * 64 / 0.025 * plan["bytes"] / 200
        )
        assert plan["busy_s"] == pytest.approx(batches * 2 * 0.025 * 3)
        assert plan["memory_multiple"] == pytest.approx(plan["bytes"] / plan["memory_bytes"])


# report


def _figures(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return document


def test_report_prints_what_run_printed(ran: tuple[Found, Path]) -> None:
    assert ok("report", ran[1]) == ran[0].stdout
    assert ok("report", ran[1] / "run.json") == ran[0].stdout
    assert json.loads(ok("report", ran[1], "--json")) == _figures(ran[1])


def test_report_needs_the_events_alone(tmp_path: Path, ran: tuple[Found, Path], data: Path) -> None:
    """Every figure that follows from events is taken out of run.json, the dataset is elsewhere, and
    the report is the same.
    """
    copy = tmp_path / ran[1].name
    shutil.copytree(ran[1], copy)
    document = _figures(copy)
    said = {"verdict", "metrics", "findings", "validity"}
    for key in said:
        document[key] = {"verdict": None, "metrics": {}, "findings": [], "validity": "unknown"}[key]
    context = {
        "seed",
        "accelerators",
        "sync",
        "epochs",
        "complete",
        "cpu_s",
        "throttled_s",
        "resources",
        "residency_before",
        "workers",
    }
    document["job"]["repetitions"] = [
        # What a GPU counts, or why none does, is no event.
        {key: value for key, value in one.items() if key in context}
        | {"not_measured": {"devices": one["not_measured"]["devices"]}}
        for one in document["job"]["repetitions"]
    ]
    for name in ("fetch", "prep", "harness", "accelerator"):
        document["job"]["ceilings"][name].update(samples_per_s=1.0, bytes_per_s=1.0)
    for knock_out in document["job"]["knock_outs"]:
        knock_out["gain"] = None
        for one in knock_out["rounds"]:
            one.update(samples_per_s=None, base_samples_per_s=None)
    (copy / "run.json").write_text(json.dumps(document))
    moved = data.rename(data.with_name("elsewhere"))
    try:
        again = json.loads(ok("report", copy, "--json"))
    finally:
        moved.rename(data)
    original = _figures(ran[1])
    for key in ("metrics", "findings", "validity"):
        assert again[key] == original[key], key
    for key in ("repetitions", "knock_outs", "verdict"):
        assert again["job"][key] == original["job"][key], key
    for name, ceiling in original["job"]["ceilings"].items():
        # An accelerator alone moves no bytes: its bytes/s are the dataset's mean size, which is
        # context.
        for figure in (
            ("samples_per_s",) if name == "accelerator" else ("samples_per_s", "bytes_per_s")
        ):
            assert again["job"]["ceilings"][name][figure] == ceiling[figure], (name, figure)


def test_report_in_other_forms(ran: tuple[Found, Path]) -> None:
    rows = ok("report", ran[1], "--format", "csv").splitlines()
    assert len(rows) == 3
    assert len({row.count(",") for row in rows}) == 1
    column = rows[0].split(",").index("samples_per_s")
    recorded = [one["samples_per_s"] for one in _figures(ran[1])["job"]["repetitions"]]
    assert [float(row.split(",")[column]) for row in rows[1:]] == pytest.approx(recorded)
    assert ok("report", ran[1], "--format", "markdown").count("\n| ") >= 10
    assert json.loads(ok("report", ran[1], "--format", "json")) == _figures(ran[1])


# What a run leaves behind


def test_a_run_directory_is_never_used_twice(tmp_path: Path, data: Path) -> None:
    arguments = (
        "run",
        "demo",
        "--data",
        data,
        *QUICK,
        "--repeat",
        "1",
        "--calibration",
        "0",
        "--no-knockouts",
        "--results",
        tmp_path,
    )
    ok(*arguments)
    (first,) = tmp_path.iterdir()
    before = _state(first)
    ok(*arguments)
    assert len(list(tmp_path.iterdir())) == 2
    assert _state(first) == before


def test_no_environment_and_no_secret_is_written(ran: tuple[Found, Path]) -> None:
    assert CANARY not in ran[0].stdout
    written = [path for path in ran[1].rglob("*") if path.is_file()]
    assert len(written) >= 2
    for path in written:
        content = path.read_bytes()
        assert CANARY.encode() not in content, path
        assert b"AWS_SECRET" not in content, path
        assert b"IOBENCH_CANARY" not in content, path


COMMON = {
    "schema_version",
    "iobench_version",
    "run_id",
    "created",
    "command",
    "status",
    "validity",
    "findings",
}
COMMON |= {"hosts", "storage", "metrics", "timings", "job"}
JOB = {"kind", "workload", "dataset", "loader", "ceilings", "repetitions", "verdict"}
REPETITION = {
    "seed",
    "residency_before",
    "samples",
    "bytes_read",
    "wall_s",
    "busy_s",
    "wait_s",
    "cpu_s",
    "time_to_first_batch_s",
    "accelerator_utilization",
    "accelerator_utilization_strict",
    "samples_per_s",
    "read_bytes_per_s",
    "wait_p50_s",
    "wait_p99_s",
}
VERDICT = {
    "binds",
    "sentence",
    "headroom",
    "accelerators_fed",
    "predicted_samples_per_s",
    "fetch_stall",
    "prep_stall",
    "advice",
}


def test_run_json_has_the_agreed_keys(ran: tuple[Found, Path]) -> None:
    """The keys are the design's, section 9, typed here again."""
    document = _figures(ran[1])
    assert set(document) >= COMMON
    assert set(document["job"]) >= JOB
    assert document["status"] in ("ok", "failed", "interrupted")
    assert document["validity"] in ("valid", "invalid", "unknown")
    assert set(document["job"]["ceilings"]) == {
        "storage_raw",
        "fetch",
        "prep",
        "harness",
        "cpu",
        "accelerator",
    }
    for name, ceiling in document["job"]["ceilings"].items():
        assert set(ceiling) >= {"samples_per_s", "bytes_per_s", "cpu_s_per_gb", "how"}, name
        assert ceiling["samples_per_s"] is not None or ceiling["not_measured"], name
        assert ceiling["samples_per_s"] != 0, name
    assert len(document["job"]["repetitions"]) == 2
    for repetition in document["job"]["repetitions"]:
        assert set(repetition) >= REPETITION
        for key in REPETITION:
            assert repetition[key] is not None or repetition["not_measured"].get(key), key
    for name, summary in document["metrics"].items():
        assert set(summary) >= {"median", "min", "max", "n"}, name
        assert summary["min"] <= summary["median"] <= summary["max"], name
    assert set(document["metrics"]) >= REPETITION - {
        "seed",
        "residency_before",
        "samples",
        "bytes_read",
    }
    assert set(document["job"]["verdict"]) >= VERDICT
    assert document["job"]["verdict"]["binds"] in (
        "storage",
        "prep",
        "harness",
        "accelerator",
        "cpu",
        "sync",
        "saves",
        "fill",
        "undecided",
    )
    for advice in document["job"]["verdict"]["advice"]:
        assert set(advice) >= {"change", "predicted_gain", "basis"}
    for finding in document["findings"]:
        assert set(finding) >= {"rule", "level", "evidence", "remedy"}
    assert document["job"]["repetitions"][0]["seed"] != document["job"]["repetitions"][1]["seed"]


def test_what_host_and_device_did_is_kept_of_each_repetition(ran: tuple[Found, Path]) -> None:
    for repetition in _figures(ran[1])["job"]["repetitions"]:
        used = repetition["resources"]
        assert used["wall_s"] >= repetition["wall_s"]
        assert used["throttled_s"] == repetition["throttled_s"]
        assert used["cpu_busy"] is None or 0 < used["cpu_busy"] <= 1
        assert used["device"] is None or used["device_read_bytes"] >= 0
        assert {key for key, value in used.items() if value is None} == set(used["not_measured"])


def test_run_json_fits_its_schema_and_nothing_is_lost_in_it(ran: tuple[Found, Path]) -> None:
    text = (ran[1] / "run.json").read_text()
    assert json.loads(RunRecord.model_validate_json(text).model_dump_json()) == json.loads(text)


def test_fios_job_file_is_kept(ran: tuple[Found, Path]) -> None:
    raw = _figures(ran[1])["job"]["ceilings"]["storage_raw"]
    if raw["bytes_per_s"] is None:
        assert "install" in raw["not_measured"], "not measured, and no way to have it"
        return
    jobs = [path for path in ran[1].rglob("*.fio") if path.is_file()]
    assert jobs
    assert any("[" in job.read_text() for job in jobs)
