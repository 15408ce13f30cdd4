"""``iobench scan``: describe data that others wrote, without writing to it, to measure it."""

from __future__ import annotations

import shlex

import numpy as np

from ..base.units import counted, format_bytes
from ..data.scan.contents import types_of
from ..data.scan.saving import save
from ..data.scan.scanner import scan
from ..record.manifest import Header
from ..storage import open_storage, unwrapped
from .live import progress_bar
from .terminal import show_lines
from .verbs import ScanRequest


def run(request: ScanRequest) -> int:
    with progress_bar("scanning", quiet=request.quiet) as tell:
        report = scan(
            open_storage(request.url), name=request.name, checksums=request.checksums, progress=tell
        )
    folder = save(report, request.save)
    header, sizes = report.manifest.header, report.manifest.samples["size"]
    points = np.quantile(sizes, (0.0, 0.5, 0.95, 1.0), method="inverted_cdf")
    least, p50, p95, most = (int(size) for size in points)
    document = {
        "url": header.origin,
        "spec": str(request.save),
        "manifest": str(folder),
        "samples": header.samples,
        "shards": header.shards,
        "stored_bytes": header.stored_bytes,
        "sample_bytes": {"min": least, "p50": p50, "p95": p95, "max": most},
        "format": header.spec.format,
        "content": header.spec.content,
        "left_out": len(report.left_out),
        "bytes_read": report.bytes_read,
        "notes": report.notes,
    }
    span = f"{format_bytes(least)} to {format_bytes(most)}, half below {format_bytes(p50)}"
    lines = [
        _what(header),
        f"sample sizes: {span}, 95 % below {format_bytes(p95)}",
        *(f"note: {note}" for note in report.notes),
    ]
    if report.left_out:
        keys = [entry.key for entry in report.left_out]
        size = format_bytes(sum(entry.size for entry in report.left_out))
        files = f"{counted(len(keys), 'file')}, {size} ({types_of(keys)}), e.g. {keys[0]}"
        lines.append(f"left out: {files}")
        lines.append("          the kind of file with most bytes is what is described")
    data, origin = shlex.quote(str(folder)), shlex.quote(unwrapped(request.url))
    batch = _batch(header.samples, header.stored_bytes)
    asked = f"--set reader.crop=null --set batch_size={batch} --set accelerator.step_time=25ms"
    lines += [
        f"saved {request.save} and {folder}",
        f"run it:   iobench run demo --data {data} --origin {origin} {asked}",
        "          with the batch size of your training, and the time that a step of it takes",
        f"clone it: iobench generate {shlex.quote(str(request.save))} --to DIR",
    ]
    show_lines(document, lines, json=request.json)
    return 0


def _what(header: Header) -> str:
    spec = header.spec
    what = spec.format if spec.content == "raw" else f"{spec.format} of {spec.content}"
    counts = f"{counted(header.samples, 'sample')} in {counted(header.shards, 'shard')}"
    return f"{header.origin}: {counts}, {format_bytes(header.stored_bytes)}, {what}"


_BATCH, _BATCH_BYTES, _BATCHES = 64, 1 << 30, 20


def _batch(samples: int, stored_bytes: int) -> int:
    """Samples of a batch with which the data can be run, whatever its size is."""
    fit = _BATCH_BYTES * samples // max(1, stored_bytes)
    return max(1, min(_BATCH, samples // _BATCHES, fit))
