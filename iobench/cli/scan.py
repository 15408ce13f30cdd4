"""``iobench scan``: describe data that others wrote, without writing to it, to measure it."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np

from ..base.units import counted, format_bytes
from ..data.scan import save, scan
from ..storage import open_storage, unwrapped
from .live import progress_bar
from .terminal import say, show_json
from .verbs import ScanRequest


def run(request: ScanRequest) -> int:
    with progress_bar("scanning", quiet=request.quiet) as tell:
        report = scan(
            open_storage(request.url), name=request.name, checksums=request.checksums, progress=tell
        )
    folder = save(report, request.save)
    header, sizes = report.manifest.header, report.manifest.samples["size"]
    p50, p95 = (int(value) for value in _quantiles(sizes, (0.5, 0.95)))
    if request.json:
        document = {
            "url": header.origin,
            "spec": str(request.save),
            "manifest": str(folder),
            "samples": header.samples,
            "shards": header.shards,
            "stored_bytes": header.stored_bytes,
            "sample_bytes": {
                "min": int(sizes.min()),
                "p50": p50,
                "p95": p95,
                "max": int(sizes.max()),
            },
            "format": header.spec.format,
            "content": header.spec.content,
            "left_out": len(report.left_out),
            "bytes_read": report.bytes_read,
            "notes": report.notes,
        }
        show_json(document)
        return 0
    spec = header.spec
    what = spec.format if spec.content == "raw" else f"{spec.format} of {spec.content}"
    counts = f"{counted(header.samples, 'sample')} in {counted(header.shards, 'shard')}"
    say(f"{header.origin}: {counts}, {format_bytes(header.stored_bytes)}, {what}")
    span = f"{format_bytes(int(sizes.min()))} to {format_bytes(int(sizes.max()))}"
    say(f"sample sizes: {span}, half below {format_bytes(p50)}, 95 % below {format_bytes(p95)}")
    for note in report.notes:
        say(f"note: {note}")
    if report.left_out:
        shown = ", ".join(entry.key for entry in report.left_out[:3]) + (
            " ..." if len(report.left_out) > 3 else ""
        )
        say(f"left out, because not data: {counted(len(report.left_out), 'file')} ({shown})")
    say(f"saved {request.save} and {folder}")
    data, origin = shlex.quote(str(folder)), shlex.quote(unwrapped(request.url))
    batch = _batch(header.samples, header.stored_bytes)
    asked = f"--set reader.crop=null --set batch_size={batch} --set accelerator.step_time=25ms"
    say(f"run it:   iobench run demo --data {data} --origin {origin} {asked}")
    say("          with the batch size of your training, and the time that a step of it takes")
    say(f"clone it: iobench generate {shlex.quote(str(request.save))} --to DIR")
    return 0


_BATCH, _BATCH_BYTES, _BATCHES = 64, 1 << 30, 20


def _batch(samples: int, stored_bytes: int) -> int:
    """Samples of a batch with which the data can be run, whatever its size is."""
    fit = _BATCH_BYTES * samples // max(1, stored_bytes)
    return max(1, min(_BATCH, samples // _BATCHES, fit))


def _quantiles(sizes: Any, points: tuple[float, ...]) -> Any:
    return np.quantile(sizes, points, method="inverted_cdf")
