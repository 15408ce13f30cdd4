"""Targets that are documents: run records, sweeps, specifications, price lists, locks, URLs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from iobench.ask.tuning.recommend import TuningTarget, recommend
from iobench.ask.tuning.sweepfolder import read_sweep
from iobench.base.documents import json_text
from iobench.base.errors import IobenchError
from iobench.base.text import printable
from iobench.data.generator.plan import plan_shards
from iobench.data.generator.target import parse_marker
from iobench.host.fio import parse as parse_fio
from iobench.host.samples import read_samples
from iobench.host.timeline import read_events
from iobench.judge.rebuild import conclude, rebuild
from iobench.judge.validity import violations
from iobench.load.layouts import read_layout
from iobench.record.checkpoint import CheckpointSpec
from iobench.record.manifest import layout_files, layout_names, unfinished_layout
from iobench.record.run import RunRecord, TrainingRecord, load_run, load_training
from iobench.record.sweep import load_sweep, parse_axis
from iobench.report import advise, record
from iobench.report import sweep as sweep_report
from iobench.report.render_csv import render_csv
from iobench.report.render_html import page
from iobench.report.render_markdown import render_markdown
from iobench.report.render_text import render_text
from iobench.report.sections import Section
from iobench.settings.base import apply_overrides, build
from iobench.settings.dataset import DatasetSpec, load_dataset_spec
from iobench.settings.instances import read_prices
from iobench.settings.workload import load_workload
from iobench.storage import is_local, open_storage, rewrapped, unwrapped
from iobench.storage.local.storage import LocalStorage
from iobench.storage.locks.holder import Holder, parse_holder
from tests.fuzz.target import Target, parts, scratch

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests/golden/0.1.0"
SAMPLES = 100_000
"""Of a dataset that is planned: more are only more of the same."""


@functools.cache
def _own_events() -> object:
    """Events that iobench recorded, for records that anybody could have written."""
    return read_events(GOLDEN / "runs/beside-saves/events.parquet")


def _written(name: str, file: str, data: bytes) -> Path:
    path = scratch(name) / file
    path.write_bytes(data)
    return path


def _in_every_medium(sections: Sequence[Section]) -> None:
    render_text(sections, width=80)
    render_csv(sections)
    render_markdown(sections)
    page({}, sections)


def _shown(doc: RunRecord) -> None:
    """In every form that ``iobench report`` has."""
    _in_every_medium(record.sections(doc))
    json_text(doc)
    violations(doc, ["samples_per_s<1", "headroom<1.2"])


def run_record(data: bytes) -> None:
    doc = load_run(_written("run", "run.json", data))
    with suppress(IobenchError):
        _shown(conclude(doc))
    if isinstance(doc, TrainingRecord):
        _shown(rebuild(doc, _own_events()))  # type: ignore[arg-type]


@functools.cache
def _own_record() -> TrainingRecord:
    return load_training(GOLDEN / "runs/beside-saves")


def events(data: bytes) -> None:
    """The library that decodes them (pyarrow) is not instrumented, and is fuzzed by itself."""
    _shown(rebuild(_own_record(), read_events(_written("events", "events.parquet", data))))


def resources(data: bytes) -> None:
    """What the host did over time, as a page shows it with the steps of a run."""
    found = read_samples(_written("resources", "resources.parquet", data))
    _in_every_medium(record.sections(_own_record(), _own_events(), found))  # type: ignore[arg-type]


@functools.cache
def _own_sweep() -> Path:
    folder = scratch("advice")
    for number, run in enumerate(sorted((GOLDEN / "sweep").glob("*/run.json"))[:3]):
        (folder / f"run-{number}").mkdir()
        (folder / f"run-{number}/run.json").write_bytes(run.read_bytes())
    return folder


def sweep(data: bytes) -> None:
    path = _written("sweep", "sweep.json", data)
    with suppress(IobenchError):
        found = load_sweep(path.parent)
        _in_every_medium(sweep_report.sections(found))
        json_text(found)
    folder = _own_sweep()
    (folder / "sweep.json").write_bytes(data)
    _in_every_medium(advise.sections(recommend(read_sweep(folder), TuningTarget())))


def workload(data: bytes) -> None:
    found = load_workload(str(_written("workload", "w.yaml", data)))
    json_text(found)
    _ = found.storage_options, found.samples_per_s_per_accelerator


def dataset(data: bytes) -> None:
    found = load_dataset_spec(str(_written("dataset", "d.yaml", data)))
    json_text(found)
    if found.samples <= SAMPLES:
        plan_shards(found)


def checkpoint(data: bytes) -> None:
    """A workload's checkpoint has no file of its own: it is a group of keys, and ``--set``."""
    text = data.decode("utf-8", "surrogateescape")
    found = build(CheckpointSpec, apply_overrides({}, [f"a={text}"])["a"], where="the checkpoint")
    json_text(found)
    _ = found.share, found.restore_count


def overrides(data: bytes) -> None:
    """One ``--set`` on each line, each of which is an axis of a sweep, too."""
    lines = data.decode("utf-8", "surrogateescape").splitlines()
    for line in lines:
        with suppress(IobenchError):
            parse_axis(line)
    given = {"name": "x", "samples": 8, "sample_size": {"mean": 100}}
    build(DatasetSpec, apply_overrides(given, lines), where="the dataset")


def prices(data: bytes) -> None:
    found = read_prices(_written("prices", "prices.csv", data))
    for row in (*found.rows, *found.of("us").values()):
        _ = row.network_bytes_per_s, json_text(row)


def holder(data: bytes) -> None:
    """``parse_holder`` raises nothing: what it can't understand is None."""
    found = parse_holder(data)
    if found is not None:
        assert printable(str(found)) == str(found)
        ours = Holder.this_process("x")
        found = replace(found, boot=ours.boot, namespace=ours.namespace)  # as if it were of here
        found.age_s()
        found.is_dead()
        found.dump()


def marker(data: bytes) -> None:
    parse_marker(data, where="marker")


def layout(data: bytes) -> None:
    """A dataset's ``layout.json``, what a layout that was not finished has, and litdata's index."""
    from iobench.load.libraries.lit import LitData

    root = scratch("layout")
    folder = root / "layouts/litdata"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chunk-0-0.bin").touch()
    record, begun, index = parts(data, 3)
    (folder / "layout.json").write_bytes(record)
    (folder / ".iobench-layout").write_bytes(begun)
    (folder / "index.json").write_bytes(index)
    found = read_layout(LocalStorage(root), "litdata")
    layout_files(folder)
    ours = layout_names(unfinished_layout(folder))
    for name in ("chunk-0-0.bin", "a" * 255, "a/b", *(found.files if found is not None else ())):
        ours(name)
    # As load/layouts.py: what these raise is a layout that iobench did not write.
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        LitData.check(folder, found.files if found is not None else ())


def fio(data: bytes) -> None:
    out, _, err = data.decode("utf-8", "replace").partition("\n--8<--\n")
    for code in (0, 1):
        for kind in ("read", "write"):
            with suppress(IobenchError):
                _ = parse_fio(out, err, code, kind=kind).bytes_per_s  # type: ignore[arg-type]


def url(data: bytes) -> None:
    """A URL or path on each line. Opening one contacts nothing."""
    for line in data.decode("utf-8", "surrogateescape").split("\n")[:4]:
        is_local(line)
        for use in (unwrapped, open_storage, functools.partial(rewrapped, place="/data")):
            with suppress(IobenchError):
                use(line)


TARGETS = {
    "run": Target(run_record),
    "events": Target(events),
    "resources": Target(resources),
    "sweep": Target(sweep),
    "workload": Target(workload, max_bytes=4096),
    "dataset": Target(dataset, max_bytes=4096),
    "checkpoint": Target(checkpoint, max_bytes=4096),
    "overrides": Target(overrides, max_bytes=4096),
    "prices": Target(prices, max_bytes=4096),
    "holder": Target(holder, max_bytes=2048),
    "marker": Target(marker, max_bytes=4096),
    "layout": Target(layout),
    "fio": Target(fio),
    "url": Target(url, max_bytes=1024),
}
