"""``run --loader``: a stranger's loader as a user meets it, from the command to the record."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import iobench
from iobench.cli.main import main
from iobench.judge.cache import read_nothing
from iobench.record.run import Finding, TrainingRecord, load_training
from iobench.report.record import sections
from iobench.report.render_text import render_text
from iobench.runner import user_loader
from tests import planted_loaders
from tests.processes import wait_until

pytestmark = pytest.mark.filterwarnings("ignore")

PLANTED = "tests.planted_loaders"
BARE = ("--repeat", "1", "--calibration", "0s", "--no-ablations")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("user") / "data"
    size = ("--set", "samples=64", "--set", "sample_size.mean=100kB", "--set", "format=files")
    assert main(["generate", "demo", "--to", str(place), *size, "--quiet"]) == 0
    return place


@pytest.fixture
def run(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """``run(flags...)``: (exit code, stdout, stderr) of a run of the demo on the data."""

    def call(loader: str, *flags: str) -> tuple[int, str, str]:
        where = ("--data", str(data), "--results", str(tmp_path / "results"), "--quiet")
        code = main(["run", "demo", "--loader", f"{PLANTED}:{loader}", *where, *flags])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_two_ranks_that_read_the_same(run: Run, data: Path) -> None:
    code, out, err = run("of_files", *BARE, "--accelerators", "2", "--json")
    assert not err, err
    assert code == 0
    doc = json.loads(out)
    job = doc["job"]
    user = job["loader"]["user"]
    assert (job["workload"]["batch_size"], job["workload"]["loader"]["workers"]) == (8, 1)
    # Two ranks, two epochs, eight batches of eight samples, of 1000 bytes and an index each.
    assert (user["batches"], user["samples"]) == (32, 256)
    assert user["delivered_bytes"] == 256 * 1008
    stored = 4 * sum(path.stat().st_size for path in data.rglob("*.jpg"))
    # Workers also read their queues, their own counters, and modules that they import late.
    assert stored <= user["process_bytes"] < 1.5 * stored
    assert user["files_outside"] == 0
    assert user["shared_samples"] == user["compared_samples"] > 0
    assert "user.ranks_overlap" in {each["rule"] for each in doc["findings"]}
    repetition = job["repetitions"][0]
    assert repetition["samples"] == 256
    assert all(rank["fetch_s"] is not None for rank in repetition["ranks"])
    text = render_text(sections(TrainingRecord.model_validate(doc)), width=100, color=False)
    assert f"Your loader {PLANTED}:of_files" in text


REPEATS = [
    ({}, {"user.workers_overlap"}),
    ({"noise": True}, {"user.samples_repeat"}),  # the samples differ, but there are too many
    ({"turned": True}, {"user.workers_overlap", "user.samples_repeat"}),
    ({"share": True}, set()),
    ({"workers": 1}, set()),
]
"""What a loader is told, and the finding that it gets: one of these."""


def repeats(findings: Sequence[Finding]) -> set[str]:
    return {each.rule for each in findings} & {"user.workers_overlap", "user.samples_repeat"}


@pytest.mark.parametrize(("told", "rules"), [REPEATS[0], REPEATS[3]])
def test_workers_that_deliver_the_same_samples(
    told: dict[str, object], rules: set[str], run: Run
) -> None:
    given = [word for key, value in told.items() for word in ("--loader-args", f"{key}={value}")]
    code, out, err = run("shared", *BARE, *given, "--json", "--set", "accelerator.step_time=1ms")
    assert code == 0, err
    doc = TrainingRecord.model_validate_json(out)
    found = repeats(doc.findings)
    assert len(found) == bool(rules)
    assert found <= rules
    advice = [each.id for each in doc.job.verdict.advice]
    assert not (rules and "none" in advice)  # "no change is needed"


@pytest.mark.parametrize(
    ("known", "told", "rules"),
    [
        ("manifest", *REPEATS[2]),
        ("folder", *REPEATS[1]),
        ("nowhere", *REPEATS[0]),
        pytest.param("manifest", *REPEATS[3], marks=pytest.mark.nightly),
        pytest.param("manifest", *REPEATS[4], marks=pytest.mark.nightly),
    ],
)
def test_watched_workers_that_deliver_the_same_samples(
    told: dict[str, bool], rules: set[str], known: str, data: Path, tmp_path: Path
) -> None:
    place: Path | None = {"manifest": data, "folder": data / "data", "nowhere": None}[known]
    loader = planted_loaders.shared(str(data), **told)  # type: ignore[arg-type]
    with (watch := iobench.watch(loader, results=tmp_path, data=place)) as batches:
        for _ in range(2):
            for _ in batches:
                pass
    assert watch.directory is not None
    doc = load_training(watch.directory)
    found = repeats(doc.findings)
    if known == "nowhere":
        rules = rules - {"user.samples_repeat"}  # how many samples there are is not known
    assert len(found) == bool(rules) or "turned" in told
    assert found <= rules
    advice = [each.id for each in doc.job.verdict.advice]
    assert not (found and "none" in advice)


@pytest.mark.parametrize(
    ("loader", "flags", "code"),
    [
        ("exits_in_a_batch", (), 1),
        ("ends_at_once", (), 2),
        ("endless", (), 2),
        ("fails_later", (), 1),
        ("of_dicts", ("--set", "epochs=2"), 2),
        ("endless", ("--set", "max_steps=3"), 0),
        ("ragged", ("--set", "batch_size=8", "--set", "epochs=1"), 0),
    ],
)
def test_bad_loaders_end_in_one_line(
    run: Run, loader: str, flags: tuple[str, ...], code: int
) -> None:
    found, _, err = run(loader, *BARE, *flags, "--json")
    assert found == code
    assert len(err.splitlines()) == (1 if code else 0), err


@pytest.mark.parametrize("factory", ["nowhere.py:f", "no-colon"])
def test_a_factory_that_is_nowhere_is_refused_before_a_scan(
    factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.bin").write_bytes(b"a")
    where = ("--data", str(tmp_path), "--results", str(tmp_path / "results"))
    assert main(["run", "demo", *where, "--loader", factory]) == 2
    assert factory.partition(":")[0] in (err := capsys.readouterr().err)
    assert len(err.splitlines()) == 1, err


def test_what_a_loader_does_beside_loading_stays_with_it(run: Run, tmp_path: Path) -> None:
    mark = tmp_path / "processes"
    flags = ("--loader-args", f"mark={mark}", "--set", "epochs=1")
    code, out, err = run("talks_and_leaves", *flags, *BARE, "--json")
    assert code == 0
    assert json.loads(out)["job"]["loader"]["user"]["batches"] == 8
    assert err == "TALK\n"  # once, and not for each phase
    left = mark.read_text().split()
    assert len(left) == 2
    wait_until(lambda: not any(is_running(pid) for pid in left), "processes are left")


def is_running(pid: str) -> bool:
    """Whether a process is there, and no zombie that nobody has reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_loader_that_never_delivers_is_ended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_loader, "MAX_TRY_S", 1.0)
    code, _, err = run("never_returns", *BARE)
    assert (code, len(err.splitlines())) == (2, 1)


def test_files_outside_the_dataset_are_found(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(b"x" * 1000)
    flags = ("--loader-args", f"other={other}", "--set", "epochs=1")
    code, out, _ = run("reads_elsewhere", *flags, *BARE, "--json")
    doc: dict[str, Any] = json.loads(out)
    assert code == 0
    assert doc["job"]["loader"]["user"]["outside"] == [str(other)]
    found = {each["rule"]: each["level"] for each in doc["findings"]}
    assert found["user.reads_outside_dataset"] == "warning"


def test_what_reads_nothing_is_not_said_to_be_cached(run: Run) -> None:
    code, out, _ = run("zeros", *BARE, "--json")
    doc = TrainingRecord.model_validate_json(out)
    assert code == 0
    assert read_nothing(doc)
    assert read_nothing(doc) in doc.job.verdict.not_measured["accelerators_fed"]
    found = {each.rule: each.level for each in doc.findings}
    assert found["cache.cold-fetch"] == "unknown"
    assert "device.served-by-cache" not in found
    # Pages of its own code may come from the storage at any time, but not half of the samples.
    assert read_nothing(fetched(doc, 1 << 20))
    assert not read_nothing(fetched(doc, 4_000_000))
    _, out, _ = run("of_files", *BARE, "--json")
    assert not read_nothing(TrainingRecord.model_validate_json(out))


def fetched(doc: TrainingRecord, count: int) -> TrainingRecord:
    """The record if ``count`` bytes had come from the storage in each epoch."""
    planted = doc.model_copy(deep=True)
    for epoch in planted.job.repetitions[0].epochs:
        epoch.bytes_fetched = count
    return planted
