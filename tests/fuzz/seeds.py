"""Make the seeds in ``tests/corpus``: ``python -m tests.fuzz.seeds``.

Small inputs of every target that are good, from the golden files and from iobench's own writers:
what a fuzzer changes from there reaches more than what it finds by itself. A seed that is there
already stays as it is; remove it to have it made again.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from iobench.base.documents import json_text
from iobench.data.contents.jpeg import Jpeg
from iobench.data.generator import journal
from iobench.data.generator.engine import generate
from iobench.data.generator.writer import UnitResult
from iobench.host.samples import write_samples
from iobench.record.host import SAMPLE_COLUMNS
from iobench.record.manifest import MANIFEST, SAMPLES, SHARDS
from iobench.settings.base import build
from iobench.settings.dataset import DatasetSpec
from iobench.storage.local.storage import LocalStorage
from iobench.storage.locks.holder import Holder
from tests.fuzz.checkpoints import FILES, saved, small_plan
from tests.fuzz.documents import GOLDEN, ROOT
from tests.fuzz.target import CUT

CORPUS = ROOT / "tests/corpus"
MAX_BYTES = 4096
MAX_PARQUET_BYTES = 8192
"""The footer of many columns alone has more than MAX_BYTES."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="iobench-seeds-") as scratch:
        for target, name, data in seeds(Path(scratch)):
            limit = MAX_PARQUET_BYTES if target in ("events", "resources") else MAX_BYTES
            if len(data) > limit:
                raise ValueError(f"the seed {name} of {target} has {len(data)} bytes")
            folder = CORPUS / target
            folder.mkdir(exist_ok=True)
            path = folder / f"seed-{name}"
            if not path.exists():
                path.write_bytes(data)


def seeds(scratch: Path) -> Iterator[tuple[str, str, bytes]]:
    """(target, name, bytes) of each seed."""
    yield from _records()
    yield from _specs()
    yield from _datasets(scratch)
    yield from _samples()
    yield from _resources(scratch)
    yield from _checkpoints(scratch)


def _records() -> Iterator[tuple[str, str, bytes]]:
    for run in ("beside-saves", "calibrated", "checkpoint-stream", "find-max", "library"):
        yield "run", f"{run}.json", _compact(_record(GOLDEN / "runs" / run / "run.json"))
    yield "events", "saves.parquet", (GOLDEN / "runs/beside-saves/events.parquet").read_bytes()
    sweep = json.loads((GOLDEN / "sweep/sweep.json").read_text())
    for number, point in enumerate(sweep["points"]):
        point["runs"] = [f"run-{number}"]
    yield "sweep", "points.json", _compact(sweep)


def _resources(scratch: Path) -> Iterator[tuple[str, str, bytes]]:
    """Two samples of an epoch of a host without NFS and GPUs."""
    times = {"epoch": [0, 0], "start_ns": [0, 5 * 10**8], "wall_ns": [5 * 10**8] * 2}
    columns = {
        name: np.array(times.get(name, [np.nan if name[:3] in ("nfs", "gpu") else 1e6] * 2))
        for name in SAMPLE_COLUMNS
    }
    path = scratch / "resources.parquet"
    write_samples(path, [("measure", 0, columns)])
    yield "resources", "two.parquet", path.read_bytes()


def _compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _record(path: Path) -> Any:
    """A run record with what the analysis reads; figures that it computes again are left out."""
    run: Any = json.loads(path.read_text())
    run |= {"findings": [], "metrics": {}, "timings": {}, "command": [], "error": ""}
    job = run["job"]
    parts = [
        (host, ("cpu_model", "cores", "effective_cores", "memory_bytes")) for host in run["hosts"]
    ]
    for part, keys in (*parts, (run["storage"], ("url", "fs_type", "page_cache", "latency_s"))):
        for key in set(part) - set(keys):
            del part[key]
    study = job
    if job["kind"] == "training":
        study = job.pop("saves", None)
        job.pop("verdict", None)
        job["repetitions"] = [_short(each) for each in job["repetitions"][:1]]
        job["quiet"] = _short(job.get("quiet"))
        for ceiling in job["ceilings"].values():
            ceiling.pop("how", None)
        job["dataset"].get("spec", {}).pop("description", None)
    if study is not None:
        for key in ("saves", "alone", "restores"):
            study[key] = study.get(key, [])[:1]
            for each in study[key]:
                each.pop("ranks", None)
        study["meaning"] = {"asked": (study.get("meaning") or {}).get("asked") or {}}
        for key in ("figures", "bytes_per_rank", "not_measured"):
            study.pop(key, None)
    if job["kind"] == "training" and study is not None:
        job["saves"] = study
    return _slim(run) | {"command": [], "hosts": run["hosts"], "job": _slim(job)}


def _slim(part: Any) -> Any:
    return {key: value for key, value in part.items() if value not in (None, [], {}, "")}


def _short(repetition: Any) -> Any:
    if repetition:
        repetition["epochs"] = repetition.get("epochs", [])[:1]
    keep = ("seed", "accelerators", "epochs", "complete", "cpu_s", "nfs", "residency_before")
    return {key: repetition[key] for key in keep if key in repetition} if repetition else None


def _specs() -> Iterator[tuple[str, str, bytes]]:
    for kind in ("workload", "dataset"):
        smallest = sorted((ROOT / f"{kind}s").glob("*.yaml"), key=lambda p: p.stat().st_size)[:3]
        for path in smallest:
            yield kind, path.name, path.read_bytes()[:MAX_BYTES]
    yield "dataset", "quantiles.yaml", (GOLDEN / "datasets/scanned.yaml").read_bytes()
    spec = b"{model: llama3-8b, writer: stream, scale: 1/64, ranks: 2, parallelism: {tensor: 2}}"
    yield "checkpoint", "spec.yaml", spec
    yield ("overrides", "lines", b"codec=zstd:3\nsample_size.mean=64KiB\ndescription=x")
    yield (
        "prices",
        "sky.csv",
        b"InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n"
        b"p5.48xlarge,192.0,2048,H100,8.0,98.32,40.1,us-east-1\n",
    )
    yield "overrides", "axis", b"format=tar,files,null"
    yield "prices", "own.csv", b"type,usd_per_hour,cores\nmine,1.5,8\n"
    yield "holder", "lock.json", Holder.this_process("run").dump()
    yield "marker", "dataset.json", (GOLDEN / "datasets/tar/.iobench-dataset").read_bytes()
    index = {"chunks": [{"filename": "chunk-0-0.bin"}], "config": {"data_format": ["bytes"]}}
    layout = {"kind": "litdata", "package": "litdata 1", "dataset": "0" * 32}
    layout |= {"seconds": 1.5, "bytes": 3, "files": ["chunk-0-0.bin", "index.json"]}
    begun = {"kind": "litdata", "writes": ["chunk-*.bin", "*.index.json"]}
    yield "layout", "litdata", CUT.join(map(_compact, (layout, begun, index)))
    side = {"io_bytes": 4096, "runtime": 20, "total_ios": 1, "clat_ns": {"percentile": {}}}
    side["clat_ns"] = {"percentile": {"50.000000": 1000, "99.000000": 2000}}
    job = {"error": 0, "read": side, "write": side, "usr_cpu": 1.5, "sys_cpu": 2, "job_runtime": 20}
    yield "fio", "jobs.json", b"fio: a warning\n" + _compact({"jobs": [job]})
    yield "fio", "failed", b"{}" + CUT + b"fio: io_u error on file /x: Input/output error"
    urls = (
        "/data",
        "file:///data",
        "s3://bucket/prefix?endpoint=http://127.0.0.1:1&client=obstore",
        "throttled+faulty+/data?latency=10ms&bandwidth=1MB/s&fail=0.1",
        "nfs://host/export/path?connections=4",
        "gs://bucket/x",
        "memory://x",
    )
    for number, text in enumerate(urls):
        yield "url", f"{number}", text.encode()


SPECS: dict[str, dict[str, Any]] = {
    "tar": {"format": "tar"},
    "tar-zstd": {"format": "tar", "codec": "zstd", "compress_ratio": 3},
    "tfrecord": {"format": "tfrecord"},
    "mds": {"format": "mds"},
    "parquet": {"format": "parquet", "block_size": 900},
    "parquet-columns": {"format": "parquet", "columns": 3, "codec": "zstd"},
}


def _datasets(scratch: Path) -> Iterator[tuple[str, str, bytes]]:
    for name, given in SPECS.items():
        full = {"name": "a", "samples": 4, "sample_size": {"mean": 400}, "samples_per_shard": 2}
        root = scratch / name
        spec = build(DatasetSpec, {**full, **given}, where="a seed")
        made = generate(spec, LocalStorage(root), workers=0).manifest
        header, shard = made.header, (root / made.key(0)).read_bytes()
        tables = (root / SAMPLES).read_bytes(), (root / SHARDS).read_bytes()
        yield "manifest-header", f"{name}.json", json_text(header, indent=None).encode()
        yield "manifest", name, CUT.join([json_text(header, indent=None).encode(), *tables])
        form = name.partition("-")[0]
        if form != "mds":  # iobench only writes it: no file of others is read
            yield form, name, shard
        if form == "parquet":
            yield "parquet-rows", name, shard
    scanned = GOLDEN / "datasets/scanned.manifest"
    document = json.loads((scanned / MANIFEST).read_text())
    document["spec"]["sample_size"] = {"mean": 1200}
    document["spec"].pop("description", None)
    tables = (scanned / SAMPLES).read_bytes(), (scanned / SHARDS).read_bytes()
    yield "manifest", "scanned", CUT.join([_compact(document), *tables])
    yield "parquet-rows", "others", _foreign_table()
    yield "parquet", "others", _foreign_table()
    yield "parquet-labels", "others", _foreign_table()
    yield "tar-labels", "others", _foreign_tar()
    reference = np.array([(1, 0, 1)], "<u4, <u8, <u4").tobytes()
    heap = b"GCOL\1\0\0\0" + (56).to_bytes(8, "little")
    heap += b"\1\0\0\0\0\0\0\0" + (8).to_bytes(8, "little") + b"contents" + bytes(16)
    yield "hdf5-heap", "collection", b"\1" + reference + heap


def _foreign_table() -> bytes:
    """Of a writer that is not iobench: a struct, text with null, a list, a dictionary."""
    images = [{"bytes": b"abc" * n, "path": f"{n}.jpg"} for n in range(6)]
    columns = {"label": list(range(6)), "image": images, "text": [None, "a", "b"] * 2}
    out = io.BytesIO()
    table = pa.table({**columns, "list": [[1, 2]] * 6})
    pq.write_table(table, out, row_group_size=4, compression="snappy", write_statistics=False)
    return out.getvalue()


def _foreign_tar() -> bytes:
    """Of a writer that is not iobench: a sample of two members, one of them JSON."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in (("1.json", b'{"a": {"b": 5}}'), ("1.bin", b"sample")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()[: 5 * 512]


def _samples() -> Iterator[tuple[str, str, bytes]]:
    stored, deflated = io.BytesIO(), io.BytesIO()
    np.savez(stored, x=np.arange(20, dtype=np.uint8))
    np.savez_compressed(deflated, x=np.arange(50), y=np.ones((3, 5)))
    yield "npz", "stored.npz", stored.getvalue()
    yield "npz", "deflated.npz", deflated.getvalue()
    image = memoryview(bytearray(1500))
    Jpeg().build(image, seed=1, index=1, compress_ratio=1.0)
    yield "jpeg", "noise.jpg", bytes(image)
    text = b"iobench " * 100
    packed = (gzip.compress(text, mtime=0), zstandard.compress(text), lz4.frame.compress(text))
    for number, data in enumerate(packed):
        yield "codecs", f"{number}", bytes([number, 13]) + data


def _checkpoints(scratch: Path) -> Iterator[tuple[str, str, bytes]]:
    for writer, name in FILES.items():
        target = saved(writer, scratch / f"ck-{writer}")
        folder = target.path()
        assert folder is not None
        data = (folder / name).read_bytes()
        if writer == "stream":  # the target makes its checksum and its length again
            end = 24 + int.from_bytes(data[8:16], "little")
            data = data[24:end] + CUT + data[4096:]
        if writer == "safetensors":
            end = 8 + int.from_bytes(data[:8], "little")
            data = data[8:end] + CUT + data[end:]
            yield "weights", "no-index", data
            entries = json.loads(data.partition(CUT)[0])
            names = {name: "a.safetensors" for name in entries if name != "__metadata__"}
            yield "weights", "index", data + CUT + json.dumps({"weight_map": names}).encode()
        yield writer, f"small.{writer}", data
        yield "checkpoint-manifest", f"{writer}.json", (folder / "checkpoint.json").read_bytes()
        yield "checkpoint-part", f"{writer}.json", (folder / "rank-0000.json").read_bytes()
    marker = (scratch / "ck-torch/.iobench-checkpoints").read_bytes()
    yield "checkpoint-root", "marker.json", marker
    yield "journal", "entry.json", _journal(LocalStorage(scratch / "journal"))


def _journal(storage: LocalStorage) -> bytes:
    """The entry of the first unit of the plan that the target has."""
    plan, numbers = small_plan(), np.arange(8)
    shards = int(plan.units[1])
    samples = int(plan.first[shards])
    arrays = [numbers[:samples]] * 3 + [numbers[:shards]] * 2
    journal.record(storage, UnitResult(0, *arrays))
    return (storage.root / journal.entry_key(0)).read_bytes()


if __name__ == "__main__":
    main()
