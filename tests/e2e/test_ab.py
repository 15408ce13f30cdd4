"""``iobench ab``: two sides in turns, from the datasets to the record and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import IobenchError
from iobench.host import timeline
from iobench.record.ab import AbRecord, load_ab
from iobench.record.run import FileDigest, ModelLoadRecord, ServingRecord, load_run, load_training
from iobench.runner import repeated as side
from iobench.runner.repetition import measure as original
from tests.conftest import MakeDataset
from tests.processes import in_process
from tests.small_models import small_weights

pytestmark = pytest.mark.usefixtures("nothing_left")

SAMPLES = 16
WORKLOAD = """
name: turns
dataset: demo
batch_size: 4
accelerator: {kind: "null"}
reader: {concurrency: 1}
loader: {workers: 0}
"""


@pytest.fixture(scope="module")
def data(make_dataset: MakeDataset) -> Path:
    return make_dataset(samples=SAMPLES, format="files")[1]


@pytest.fixture
def words(tmp_path: Path) -> tuple[object, ...]:
    """The workload and the place of the results."""
    workload = tmp_path / "turns.yaml"
    workload.write_text(WORKLOAD)
    return ("--workload", workload, "--results", tmp_path / "results", "--quiet")


def slow(data: Path, latency: str) -> str:
    return f"throttled+{data}?latency={latency}"


def the_record(tmp_path: Path) -> tuple[AbRecord, Path]:
    [directory] = (tmp_path / "results").iterdir()
    return load_ab(directory), directory


def test_a_slower_side_is_told(data: Path, tmp_path: Path, words: tuple[object, ...]) -> None:
    code, out, err = in_process(
        "ab", slow(data, "3ms"), slow(data, "9ms"), *words, "--fail-on", "5%", "--json"
    )
    assert (code, err.count("\n")) == (4, 1)
    found = json.loads(out)
    record, directory = the_record(tmp_path)
    assert record.model_dump(mode="json") == found
    assert (record.status, record.ended, record.threshold) == ("ok", "significant", 0.05)
    claim = record.claims[0]
    assert (claim.metric, claim.answer, claim.better) == ("samples_per_s", "different", False)
    assert 0.15 < claim.ratio.value <= claim.ratio.high < 1
    assert [turn.first for turn in record.rounds[:4]] == ["A", "B", "A", "B"]
    assert len({turn.seed for turn in record.rounds}) == len(record.rounds)
    for each in record.variants:
        run = load_training(directory / each.run)
        # the warm-up is not among them, and each turn has the seed of the other side
        assert [one.seed for one in run.job.repetitions] == [t.seed for t in record.rounds]
        assert {one.samples for one in run.job.repetitions} == {SAMPLES}
    assert record.a.identity["storage.latency_s"] != record.b.identity["storage.latency_s"]
    code, again, err = in_process("report", directory, "--json")
    assert (code, err) == (0, "")
    assert json.loads(again) == found
    assert in_process("compare", directory / "a", directory / "b")[0] in (0, 4)
    assert in_process("report", directory, "--fail-on", "samples_per_s<1")[0] == 2
    assert in_process("ab", directory, "--workload", "demo")[0] == 2


def test_a_side_against_itself_as_in_an_earlier_run(
    data: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    run = ("run", tmp_path / "turns.yaml", "--data", data, "--repeat", 1, "--calibration", "0s")
    assert in_process(*run, "--results", tmp_path / "runs", "--no-ablations", "--quiet")[0] == 0
    [earlier] = (tmp_path / "runs").iterdir()
    code, out, _ = in_process(
        "ab", earlier, *words[2:], "--max-rounds", 4, "--if-inconclusive", "pass"
    )
    assert code == 0
    assert out
    record, directory = the_record(tmp_path)
    assert record.a.identity == record.b.identity
    assert record.a.repeats == record.b.repeats == earlier.name
    assert len(record.rounds) == 4
    seeds = [each.seed for each in load_training(earlier).job.repetitions]
    assert record.rounds[0].seed == seeds[0]
    assert (directory / "report.html").is_file()


def raising(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException) -> None:
    """Raise ``error`` in place of the ``at``-th repetition, from 1, the warm-ups included."""
    begun = []

    def measure(*given: Any, **more: Any) -> Any:
        begun.append(1)
        if len(begun) == at:
            raise error
        return original(*given, **more)

    monkeypatch.setattr(side, "measure", measure)


def test_complete_turns_count_after_an_interrupt(
    data: Path, tmp_path: Path, words: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, 8, KeyboardInterrupt())
    code, out, err = in_process("ab", data, *words)
    assert (code, out, err.count("\n")) == (130, "", 1)
    record, directory = the_record(tmp_path)
    assert record.status == "interrupted"
    assert len(record.rounds) == 2
    assert record.claims[0].answer == "inconclusive"
    runs = [load_training(directory / each.run) for each in record.variants]
    assert [run.status for run in runs] == ["interrupted"] * 2
    assert [len(run.job.repetitions) for run in runs] == [3, 2]  # the third turn began with A
    assert in_process("report", directory)[0] == 0


def test_a_side_that_fails_is_named_and_the_turns_are_kept(
    data: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    bad = f"faulty+{data}?fail_at={SAMPLES * 2 + 1}"
    code, out, err = in_process("ab", data, bad, *words)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "variant B" in err
    record, directory = the_record(tmp_path)
    assert (record.status, len(record.rounds)) == ("failed", 1)
    assert f"measured until then is in {directory}\n" in err
    assert record.error
    statuses = [load_training(directory / each.run).status for each in record.variants]
    assert statuses == ["ok", "failed"]


def test_a_side_whose_run_cannot_be_written_does_not_cost_the_other_one(
    data: Path, tmp_path: Path, words: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does an exception of code that others wrote."""
    written: list[Path] = []

    def full(path: Path, parts: object) -> FileDigest:
        written.append(path)
        if len(written) == 1:
            raise IobenchError("cannot write the events: No space left on device")
        return write(path, parts)

    write = timeline.write_events
    monkeypatch.setattr(timeline, "write_events", full)
    raising(monkeypatch, 8, TypeError("planted"))
    code, _, err = in_process("ab", data, *words)
    assert (code, err.count("\n")) == (70, 1)
    record, directory = the_record(tmp_path)
    assert (record.status, record.error, len(record.rounds)) == ("failed", "TypeError: planted", 2)
    runs = [load_training(directory / each.run) for each in record.variants]
    assert [run.status for run in runs] == ["failed", "failed"]
    assert [len(run.job.repetitions) for run in runs] == [3, 2]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (("--budget", "1ms"), 2),  # how long a turn takes is known after the warm-up
        (("--metric", "accelerator_utilization_sustained", "--fail-on", "5%"), 1),
    ],
    ids=["no time for a turn", "a metric that a side does not measure"],
)
def test_what_cannot_be_compared_fails_with_a_record(
    asked: tuple[str, ...], code: int, data: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    found, _, err = in_process("ab", data, *words, *asked, "--if-inconclusive", "pass")
    assert (found, err.count("\n")) == (code, 1)
    record, _ = the_record(tmp_path)
    assert (record.status, record.rounds) == ("failed", [])


def test_repetitions_that_a_budget_has_no_time_for_are_shortened(
    data: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    """A whole one takes 16 s: 400 steps of four reads of 10 ms. Given steps stay as they are."""
    workload = tmp_path / "turns.yaml"
    workload.write_text(WORKLOAD + "epochs: 100\n")
    sides = (slow(data, "10ms"), slow(data, "30ms"))
    code, _, err = in_process("ab", *sides, *words, "--budget", "30s", "--max-rounds", 4)
    assert code == 0, err
    record, directory = the_record(tmp_path)
    assert len(record.rounds) >= 1
    steps = set()
    for each in record.variants:
        job = load_training(directory / each.run).job
        assert job.fitted is not None
        steps |= {one.steps for one in job.repetitions}
    assert len(steps) == 1
    assert max(steps) < 400


SCENARIO = """
name: asked
dataset: demo
limit: 20s
step_time: 1ms
cache: any
duration: 300ms
arrivals: {rate: 100}
reader: {concurrency: 64}
"""


def test_requests_take_turns_and_their_latency_decides(data: Path, tmp_path: Path) -> None:
    """Of two storages of 4 and 400 ms for a read, which is nearly all of a latency."""
    scenario, log = tmp_path / "asked.yaml", tmp_path / "log"
    scenario.write_text(SCENARIO)
    code, out, err = in_process(
        "ab", slow(data, "4ms"), slow(data, "400ms"), "--workload", scenario,
        "--results", tmp_path / "results", "--quiet", "--max-rounds", 8, "--fail-on", "5%",
        "--set", f"log.to={log}", "--set-b", "log.commit=group", "--json",
    )  # fmt: skip
    assert code in (3, 4), err  # a busy machine makes a client late, which is INVALID
    record, directory = the_record(tmp_path)
    assert json.loads(out) == record.model_dump(mode="json")
    assert (record.metric, record.a.workload) == ("latency_p99_s", "asked")
    claim = record.claims[0]
    # A busy machine may delay the one request of 30 that p99 is, and seldom half of them: of eight
    # rounds two can be lost in this way, and the others still tell.
    assert (claim.answer, claim.better) in {("different", False), ("inconclusive", None)}
    assert claim.ratio.value > 1
    claims = {each.metric: (each.answer, each.better) for each in record.claims}
    assert claims["latency_p50_s"] == ("different", False)
    assert "requests_per_s" in claims
    for each, commit in zip(record.variants, ("record", "group"), strict=True):
        run = load_run(directory / each.run)
        assert isinstance(run, ServingRecord)
        assert run.job.scenario.log.commit == commit
        assert [one.seed for one in run.job.trials] == [taken.seed for taken in record.rounds]
        assert {one.kind for one in run.job.trials} == {"repetition"}
        assert (directory / each.run / "events.parquet").is_file()
    assert not log.exists()
    assert in_process("report", directory)[0] in (0, 3)


def test_loads_take_turns_and_the_seconds_until_ready_decide(tmp_path: Path) -> None:
    """Of two links of 160 and 40 MB/s, with the loader that a variant names."""
    small_weights(tmp_path / "model")
    fast, less = (
        f"throttled+{tmp_path}/model?bandwidth={bandwidth}"
        for bandwidth in (160_000_000, 40_000_000)
    )
    turns = ("--results", tmp_path / "results", "--quiet", "--max-rounds", 4)
    code, _, err = in_process("ab", fast, less, "--workload", "model-load", *turns)
    assert (code, err) == (0, "")
    record, directory = the_record(tmp_path)
    assert (record.metric, record.a.workload, record.status) == ("ready_s", "model-load", "ok")
    claim = record.claims[0]
    assert (claim.answer, claim.better) == ("different", False)
    assert claim.ratio.value == pytest.approx(4, rel=0.3)
    run = load_run(directory / "a")
    assert isinstance(run, ModelLoadRecord)
    assert (run.job.spec.loaders, run.job.location) == (["direct"], fast)
    assert run.job.spec.repetitions == len(record.rounds)
    words = ("--set-b", "concurrency=2", *turns, "--if-inconclusive", "pass")
    code, _, err = in_process("ab", directory / "a", *words)
    assert (code, err) == (0, "")
    last = max((tmp_path / "results").iterdir(), key=lambda place: place.stat().st_mtime)
    found = load_ab(last)
    assert found.a.repeats == run.run_id
    assert [found.a.data, found.b.data] == [fast, fast]
    assert found.b.identity["concurrency"] == "2"
