"""Planted truths: sweeps over storage, cores and codecs of known speed yield the settings that the
arithmetic predicts.

The planted machine: one stream waits ``latency`` and then reads ``stream`` bytes/s, all of them
share ``link``; a core undoes ``decode`` bytes/s and collates 10 GB/s; samples have 100 kB before
the codec. Repetitions differ by up to 1 %.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest

from iobench.ask.compare.comparison import Comparison, compare
from iobench.ask.compare.runs import Group
from iobench.ask.tuning.points import SweptPoint, pareto
from iobench.ask.tuning.reasons import judge_codec
from iobench.ask.tuning.recommend import Recommendation, TuningTarget, recommend, sweep_confirmation
from iobench.ask.tuning.sweepfolder import read_sweep
from iobench.base.errors import UsageError
from iobench.record.run import TrainingRecord
from iobench.record.sweep import SweepPoint, save_sweep
from iobench.report import advise
from iobench.report.sections import FirstScreen
from iobench.runner.sweeping.confirm import _trials
from tests.unit.conftest import build_run, build_sweep
from tests.unit.test_compare import BASE, FAST, document
from tests.words import long_sentences

Build = Callable[..., Any]
Swept = Callable[..., Recommendation]
SAMPLE, SAMPLES = 100_000, 2_000_000
MIB = 1 << 20
NOISE = (1.0, 0.99, 1.01, 0.995, 1.005, 1.0)


@pytest.fixture
def planted() -> Build:
    """A run on the planted machine."""

    def build(
        *,
        workers: int = 4,
        shard: int = 64 * MIB,
        codec: str = "none",
        form: str = "tar",
        ratio: float = 2.0,
        latency: float = 0.03,
        stream: float = 90e6,
        link: float = 1e12,
        decode: float = 1.3e9,
        cores: int = 8,
        demand: float = 1e9,
        repetitions: int = 6,
        cpu_s: float | None = 20.0,
    ) -> Any:
        packed = codec != "none"
        stored = SAMPLE / ratio if packed else SAMPLE
        fetch = min(link, workers * shard / (latency + shard / stream)) / stored
        prep = min(workers, cores) / (SAMPLE / 10e9 + (SAMPLE / decode if packed else 0))
        rate = min(fetch, prep, demand)
        rates = {"storage_raw": link / stored, "fetch": fetch, "prep": prep}
        spec = {"name": "test-data", "format": form, "codec": codec, "compress_ratio": ratio}
        all_bytes = round(SAMPLES * stored)
        doc = build_run(
            rates={**rates, "loader": 1e9, "accelerator": demand},
            measured=[rate * NOISE[number % 6] for number in range(repetitions)],
            accelerators=1,
            repetitions=repetitions,
            workload={
                "accelerator": {"kind": "emulated", "name": "a", "step_time": 100 / demand},
                "loader": {"workers": workers, "prefetch_factor": 2, "transport": "ring"},
            },
            dataset={
                "spec": {**spec, "shard_size": shard, "content": "raw"},
                "samples": SAMPLES,
                "stored_bytes": all_bytes,
                "shards": max(1, round(all_bytes / shard)),
            },
            host={
                **dict.fromkeys(("cores", "affinity_cores", "effective_cores"), cores),
                "memory_bytes": 64 << 30,
            },
            repetition={"cpu_s": cpu_s, "samples": SAMPLES}
            | dict.fromkeys(("sample_bytes", "bytes_read"), all_bytes),
            concluded=False,
        )
        return doc.model_copy(update={"validity": "valid"})

    return build


@pytest.fixture
def swept(planted: Build, tmp_path: Path) -> Swept:
    """The recommendation out of the cartesian product of ``axes``, read from a folder; ``default``
    names today's point.
    """

    def go(
        axes: Mapping[str, tuple[Any, ...]],
        default: Mapping[str, str] | None = None,
        target: TuningTarget | None = None,
        **machine: Any,
    ) -> Any:
        folder = tmp_path / f"sweep-{len(list(tmp_path.iterdir()))}"
        for index, values in enumerate(product(*axes.values())):
            save(
                folder / f"run-{index:03d}",
                planted(**dict(zip(axes, values, strict=True)), **machine),
            )
        found = recommend(read_sweep(folder, default=default), target)
        assert long_sentences([*found.why, *found.doubts]) == []
        return found

    return go


def save(directory: Path, doc: Any) -> Path:
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(doc.model_dump_json())
    return directory


# Workers


def test_the_worker_knee_is_where_storage_is_reached(swept: Swept) -> None:
    """A stream of 64 MiB shards gets 86.5 MB/s; the link has 400, so 4 workers (346) are short, 5
    and more are alike.
    """
    found = swept({"workers": (1, 2, 4, 5, 6, 8, 16)}, {"loader.workers": "1"}, link=400e6)
    assert found.settings == {"loader.workers": "5"}
    assert found.gain == pytest.approx(400 / 86.5, rel=0.02)
    assert found.gain_low > 4
    assert found.confidence == "high"
    assert any("loader.workers=5 it reaches 100.0 %" in line for line in found.why)


@pytest.mark.parametrize(
    ("workers", "machine", "knee"),
    [
        ((1, 2, 4, 8, 16, 32), {"codec": "zstd:1", "decode": 0.2e9, "stream": 5e9}, "8"),
        # Two streams get 1,730 samples/s; 1,500 are asked for: more would only cost memory.
        ((1, 2, 4, 8), {"demand": 1500}, "2"),
    ],
    ids=["the cores", "the demand"],
)
def test_the_worker_knee_is(
    swept: Swept, workers: tuple[int, ...], machine: dict[str, Any], knee: str
) -> None:
    assert swept({"workers": workers}, **machine).settings["loader.workers"] == knee


# Shard size


def test_the_shard_size_is_that_of_the_latency_bandwidth_model(
    swept: Swept,
) -> None:
    """90 MB/s and 30 ms: 95 % of a stream's rate need 51 MB; the power of two above is 64 MiB.
    Fitted from 4 and 256 MiB.
    """
    found = swept(
        {"shard": (4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)}, {"dataset.shard_size": "4MiB"}
    )
    assert found.shard.fit.latency_s == pytest.approx(0.03, rel=0.02)
    assert found.shard.fit.bytes_per_s == pytest.approx(90e6, rel=0.02)
    assert found.shard.fit.trusted
    assert found.shard.efficient_bytes == pytest.approx(90e6 * 0.03 * 19, rel=0.02)
    assert found.shard.bytes == 64 * MIB
    assert found.settings["dataset.shard_size"] == "64MiB"
    assert found.shard.bound_by == ""
    assert found.confidence == "high"


@pytest.mark.parametrize(
    ("shards", "machine", "asked", "streams", "chosen"),
    [
        # 8 streams have 720 MB/s between them, the link 300.
        ((MIB // 2, MIB, 2 * MIB, 64 * MIB), {"workers": 8, "link": 300e6}, 300e6, 8, "2MiB"),
        # 4 streams have 360 MB/s between them, the accelerators take 150.
        ((MIB, 4 * MIB, 16 * MIB, 64 * MIB), {"demand": 1500}, 150e6, 4, "4MiB"),
    ],
    ids=["a link that many streams fill", "a job that takes little"],
)
def test_where_less_is_asked_of_a_stream_shards_are_smaller(
    swept: Swept,
    shards: tuple[int, ...],
    machine: dict[str, Any],
    asked: float,
    streams: int,
    chosen: str,
) -> None:
    """Shards of 1.8 MB do. The smallest that was measured and reaches it is chosen."""
    found = swept({"shard": shards}, **machine)
    arithmetic = 0.95 * asked * 0.03 / (streams - 0.95 * asked / 90e6)
    assert found.shard.efficient_bytes == pytest.approx(arithmetic, rel=0.02)
    assert found.shard.bytes == 2 * MIB
    assert found.settings["dataset.shard_size"] == chosen


@pytest.mark.parametrize(
    ("target", "bytes_", "by"),
    [
        (TuningTarget(dataset_bytes=256 * MIB), 16 * MIB, "4 shards for each of 4 streams"),
        (
            TuningTarget(first_batch_s=0.2),
            8 * MIB,
            "a first shard within 0.2 s",
        ),  # 0.17 s x 90 MB/s
        (TuningTarget(shuffle_window_bytes=40 * MIB), 32 * MIB, "a shuffle window"),
    ],
)
def test_what_bounds_a_shard_from_above(
    swept: Swept, target: TuningTarget, bytes_: int, by: str
) -> None:
    found = swept({"shard": (4 * MIB, 16 * MIB, 64 * MIB)}, target=target)
    assert found.shard.bytes == bytes_
    assert found.shard.bound_by.startswith(by)
    assert found.shard.efficiency == pytest.approx(bytes_ / (0.03 + bytes_ / 90e6) / 90e6, rel=0.02)
    assert any(by in line for line in found.why)


def test_a_wait_that_no_shard_keeps_bounds_none(swept: Swept) -> None:
    """A stream waits 30 ms for a shard, also for one of a byte, which was advised."""
    found = swept({"shard": (4 * MIB, 16 * MIB, 64 * MIB)}, target=TuningTarget(first_batch_s=0.02))
    assert found.shard.bytes == 64 * MIB
    assert any("no shard is there within 0.02 s" in doubt for doubt in found.doubts)


def test_too_few_shards_lose_against_enough_that_are_as_good(
    swept: Swept,
) -> None:
    """32 workers want 128 shards: of 10 GB in shards of 256 MiB there are 37, of 64 MiB 149."""
    target = TuningTarget(dataset_bytes=10e9)
    found = swept(
        {"shard": (64 * MIB, 256 * MIB)},
        {"dataset.shard_size": "256MiB"},
        target,
        workers=32,
        demand=5000,
    )
    assert found.settings["dataset.shard_size"] == "64MiB"
    assert "1 of them has fewer than 4 shards" in found.why[0]
    only = swept({"shard": (257 * MIB, 512 * MIB)}, None, target, workers=32, demand=5001)
    assert any("fewer than 4" in doubt for doubt in only.doubts)


def test_a_model_that_fails_its_check_is_not_trusted(planted: Build, tmp_path: Path) -> None:
    """The middle size is twice as fast as the model says."""
    for shard in (4 * MIB, 32 * MIB, 256 * MIB):
        doc = planted(shard=shard)
        if shard == 32 * MIB:
            fetch = doc.job.ceilings["fetch"].model_copy(
                update={"samples_per_s": 2 * doc.job.ceilings["fetch"].samples_per_s}
            )
            doc = doc.with_job(ceilings=doc.job.ceilings | {"fetch": fetch})
        save(tmp_path / f"run-{shard}", doc)
    found = recommend(read_sweep(tmp_path))
    assert found.shard.fit.worst == pytest.approx(-0.5, abs=0.01)
    assert any("-50%" in doubt for doubt in found.doubts)
    assert found.confidence != "high"


@pytest.mark.parametrize(
    ("part", "key", "values"),
    [("host", "effective_cores", (1.0, 2.0)), ("storage", "bandwidth_bytes_per_s", (1e8, 2.9e8))],
)
def test_runs_of_two_places_are_no_sweep(
    planted: Build, tmp_path: Path, part: str, key: str, values: tuple[float, float]
) -> None:
    for number_, value in enumerate(values):
        doc = planted(workers=number_ + 1)
        setattr(getattr(doc, part), key, value)
        doc.storage.url = f"/data/{number_}"
        save(tmp_path / f"run-{number_}", doc)
    with pytest.raises(UsageError, match=key):
        read_sweep(tmp_path)


# Compression


@pytest.mark.parametrize(
    ("link", "cores", "worth"),
    [
        (200e6, 8, True),  # 8 x 1.15 GB/s against 0.2
        (400e6, 2, True),
        (3e9, 2, False),  # 2 x 1.15 GB/s against 3
        (20e9, 8, False),
    ],
)
def test_compression_iff_the_cores_outrun_storage(
    swept: Swept, link: float, cores: int, worth: bool
) -> None:
    """A core undoes 1.3 GB/s and collates 10: 1.15 GB/s in all. The data shrinks by half."""
    found = swept(
        {"codec": ("none", "zstd:1")},
        {"dataset.codec": "none"},
        link=link,
        cores=cores,
        workers=cores,
        stream=1e11,
        latency=0.0,
    )
    (codec,) = found.codecs
    assert codec.worth is worth
    assert codec.agrees
    assert found.settings["dataset.codec"] == ("zstd:1" if worth else "none")
    each = 1 / (1 / 1.3e9 + 1 / 10e9)
    assert codec.decode_bytes_per_s == pytest.approx(cores * each, rel=0.01)
    assert codec.ratio == pytest.approx(2.0)
    assert codec.predicted == pytest.approx(min(2 * link, cores * each) / link, rel=0.01)


# All at once, and what the front shows


def test_a_whole_sweep(swept: Swept) -> None:
    """Three kinds of settings at once: zstd doubles what the link of 300 MB/s brings, 4 workers
    fill it with shards of 16 MiB, and today's 2 get 109 MB/s of shards of 4 MiB.
    """
    axes = {
        "workers": (2, 4, 8),
        "shard": (4 * MIB, 16 * MIB, 64 * MIB),
        "codec": ("none", "zstd:1"),
    }
    default = {"loader.workers": "2", "dataset.shard_size": "4MiB", "dataset.codec": "none"}
    found = swept(axes, default, link=300e6)
    assert found.settings == {
        "loader.workers": "4",
        "dataset.shard_size": "16MiB",
        "dataset.codec": "zstd:1",
    }
    assert found.gain == pytest.approx(600 / 109.5, rel=0.02)
    assert len(found.alternatives) >= 1


def test_a_codec_without_ceilings_is_not_judged(planted: Build) -> None:
    plain, packed = (
        SweptPoint({"dataset.codec": codec}, planted(codec=codec).with_job(ceilings={}))
        for codec in ("none", "zstd:1")
    )
    assert judge_codec(packed, plain) is None


def test_one_axis_at_a_time_names_the_combination_that_nobody_ran(
    planted: Build, tmp_path: Path
) -> None:
    for index, settings in enumerate(({}, {"workers": 8}, {"codec": "zstd:1"})):
        save(tmp_path / f"run-{index}", planted(**{"workers": 2, "link": 300e6, **settings}))
    found = recommend(
        read_sweep(tmp_path, default={"loader.workers": "2", "dataset.codec": "none"})
    )
    assert found.untested == {"loader.workers": "8", "dataset.codec": "zstd:1"}
    save(tmp_path / "run-3", planted(workers=8, codec="zstd:1", link=300e6))
    assert (
        recommend(
            read_sweep(tmp_path, default={"loader.workers": "2", "dataset.codec": "none"})
        ).untested
        is None
    )


def test_the_pareto_front(planted: Build) -> None:
    fast = SweptPoint({"a": "fast"}, planted(workers=8, cpu_s=40))
    frugal = SweptPoint({"a": "frugal"}, planted(workers=4, cpu_s=10))
    beaten = SweptPoint({"a": "beaten"}, planted(workers=2, cpu_s=20))
    small = SweptPoint({"a": "small"}, planted(workers=1, cpu_s=90, codec="zstd:1"))
    assert [point.settings["a"] for point in pareto([beaten, small, frugal, fast])] == [
        "fast",
        "frugal",
        "small",
    ]
    assert fast.cpu_s_per_gb == pytest.approx(40 / (SAMPLES * SAMPLE / 1e9))


# A folder of runs


def test_sweep_json_names_points_and_default(planted: Build, tmp_path: Path) -> None:
    """Two runs of one repetition each are one point; the settings are as the sweep spelled them."""
    for name, workers in (("a1", 2), ("b1", 4), ("a2", 2), ("b2", 4), ("c1", 8)):
        save(tmp_path / name, planted(workers=workers, repetitions=1))
    points = ((2, ["a1", "a2"]), (4, ["b1", "b2"]), (8, ["c1"]))
    failed = {8: "a worker died"}
    save_sweep(
        tmp_path,
        build_sweep(
            workload="test",
            axes={"loader.workers": [2, 4, 8], "reader.crop": [None]},
            points=[
                SweepPoint(
                    settings={"loader.workers": workers, "reader.crop": None},
                    runs=runs,
                    failed=failed.get(workers, ""),
                )
                for workers, runs in points
            ],
            default={"loader.workers": 2, "reader.crop": None},
        ),
    )
    sweep = read_sweep(tmp_path)
    assert [len(point.rates) for point in sweep.points] == [2, 2]
    assert sweep.default is sweep.points[0]
    assert sweep.points[0].settings == {"loader.workers": "2", "reader.crop": "null"}
    (unused,) = sweep.left_out
    assert unused.startswith("loader.workers=8, reader.crop=null:")
    found = recommend(sweep)
    assert found.changes == {"loader.workers": "4"}
    assert found.confidence == "low"
    assert any("too few" in doubt for doubt in found.doubts)


@pytest.mark.parametrize(
    ("gain", "low", "state"),
    [
        (1.09, 0.99, "perhaps b=2, whose gain is"),
        (1.09, 1.02, "take b"),
        (0.99, 0.95, "today's, or b=2, which is about as fast"),
    ],
)
def test_a_gain_that_may_be_none_is_no_advice_to_take_the_settings(
    gain: float, low: float, state: str
) -> None:
    found = replace(
        recommend(read_sweep(Path(__file__).parents[1] / "golden/0.1.0/sweep")),
        changes={"b": "2"},
        gain=gain,
        gain_low=low,
        gain_high=1.18,
    )
    (first,) = (each for each in advise.sections(found) if isinstance(each, FirstScreen))
    assert first.state.startswith(state)


def test_what_cannot_be_used_is_left_out_by_name(planted: Build, tmp_path: Path) -> None:
    save(tmp_path / "a", planted(workers=2))
    save(tmp_path / "b", planted(workers=4))
    save(tmp_path / "bad", planted(workers=8).model_copy(update={"validity": "invalid"}))
    save(tmp_path / "failed", planted(workers=8).model_copy(update={"status": "failed"}))
    save(tmp_path / "none", planted(workers=16, repetitions=0))
    save(tmp_path / "newer", planted(workers=8).model_copy(update={"schema_version": "9.0"}))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text('{"schema_version": "1.0", "run_id"')
    (tmp_path / "notes.txt").write_text("mine")
    sweep = read_sweep(tmp_path)
    assert [point.settings["loader.workers"] for point in sweep.points] == ["2", "4"]
    told = "\n".join(sweep.left_out)
    for word in (
        "bad: INVALID",
        "failed: the run failed",
        "loader.workers=16: no complete repetition",
        "9.0",
        "foreign",
        "half",
    ):
        assert word in told
    assert len(sweep.left_out) == 6


def test_the_shipped_workload_is_the_default(planted: Build, tmp_path: Path) -> None:
    """Workload demo ships with 2 workers."""
    for workers in (2, 4):
        doc = planted(workers=workers)
        save(
            tmp_path / f"w{workers}",
            doc.with_job(workload=doc.job.workload.model_copy(update={"name": "demo"})),
        )
    sweep = read_sweep(tmp_path)
    assert sweep.default.settings == {"loader.workers": "2"}


def test_several_workloads(planted: Build, tmp_path: Path) -> None:
    doc = planted()
    save(tmp_path / "a", planted(workers=2))
    save(tmp_path / "b", planted(workers=4))
    save(
        tmp_path / "c", doc.with_job(workload=doc.job.workload.model_copy(update={"name": "other"}))
    )
    with pytest.raises(UsageError, match="other, test"):
        read_sweep(tmp_path)
    assert len(read_sweep(tmp_path, workload="test").points) == 2
    with pytest.raises(UsageError, match=r"reader\.block_size"):
        read_sweep(tmp_path, workload="test", default={"reader.block_size": "4MiB"})


# Read amplification


@pytest.mark.parametrize("form", ["parquet", "tar"])
def test_bytes_that_nobody_needs_are_told(planted: Build, tmp_path: Path, form: str) -> None:
    for workers in (1, 4):
        doc = planted(workers=workers, form=form)
        wasteful = [
            r.model_copy(update={"bytes_read": r.sample_bytes * 3}) for r in doc.job.repetitions
        ]
        save(tmp_path / str(workers), doc.with_job(repetitions=wasteful))
    doubts = recommend(read_sweep(tmp_path)).doubts
    assert len([doubt for doubt in doubts if "3.00 bytes are read" in doubt]) == 1


# Confirmation of a sweep


def point(folder: Path, validities: list[str]) -> SweepPoint:
    for number, validity in enumerate(validities):
        (folder / f"r{number}").mkdir(parents=True)
        (folder / f"r{number}" / "run.json").write_text(
            json.dumps(document([100.0 + number], validity=validity))
        )
    return SweepPoint(
        settings={"loader.workers": 4}, runs=[f"r{number}" for number in range(len(validities))]
    )


def test_trials_that_are_invalid_or_too_few_tell_nothing(tmp_path: Path) -> None:
    found = _trials(
        point(tmp_path / "some", ["valid", "invalid", "unknown", "valid", "valid"]),
        tmp_path / "some",
    )
    assert [run.median for run in found.values("samples_per_s")] == [100.0, 102.0, 103.0, 104.0]
    with pytest.raises(UsageError, match=r"\b3 of the 4\b.*\br1\b"):
        _trials(
            point(tmp_path / "broken", ["valid", "invalid", "valid", "valid"]), tmp_path / "broken"
        )
    with pytest.raises(UsageError, match=r"\b1 of the 4\b"):
        _trials(point(tmp_path / "late", ["valid"]), tmp_path / "late")


class Advised:
    def __init__(self, gain: float) -> None:
        self.gain = gain
        self.gain_low, self.gain_high = gain * 0.98, gain * 1.02


def compared(candidate: list[float]) -> Comparison:
    before, after = (
        Group("", [TrainingRecord.model_validate(document([rate])) for rate in rates])
        for rates in (BASE, candidate)
    )
    return compare(before, after, metrics=("samples_per_s",))


@pytest.mark.parametrize(
    ("gain", "fresh", "confirmed"),
    [
        (1.2, FAST, True),
        (1.2, BASE, False),
        (2.0, [rate * 1.1 for rate in BASE], False),  # better, but far from twice as fast
        (2.0, [rate * 1.9 for rate in BASE], True),  # within 5 % of the promise
        (2.0, [rate * 2.5 for rate in BASE], True),  # more than was promised
        (1.01, BASE, True),
        (1.01, [80.0, 81, 82, 79, 78], False),
    ],
)
def test_a_promised_gain_is_confirmed_by_a_gain_alone(
    gain: float, fresh: list[float], confirmed: bool
) -> None:
    """Smaller settings that promised none are confirmed by no difference."""
    advice = cast(Recommendation, Advised(gain))
    assert sweep_confirmation(advice, compared(fresh), "").confirmed is confirmed


def test_fresh_runs_that_are_not_comparable_confirm_nothing() -> None:
    obstacle = "loader.slot_pages: huge and small in the baseline"
    with pytest.raises(UsageError, match=obstacle):
        sweep_confirmation(
            cast(Recommendation, Advised(1.2)), replace(compared([]), obstacles=(obstacle,)), ""
        )
