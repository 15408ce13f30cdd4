"""Reads in flight: how many requests a job's readers have at the storage at the same time.

``plan``, ``size``, ``whatif``, the ceilings and the verdict all compute it with
``job_reads_in_flight``. It needs neither torch nor a storage.
"""

from __future__ import annotations

import math

from ...record.run import TrainingRecord
from ...record.training import Ceiling
from ...settings.workload import Workload


def job_reads_in_flight(
    *,
    concurrency: int,
    workers: int,
    ranks: int,
    requests_per_batch: float | None,
    reads_ahead: bool,
) -> int:
    """The most reads that the readers of a job keep in flight, over all ranks; at least 1.

    ``workers`` are those of one rank; with 0 the rank itself reads. Each worker has at most
    ``concurrency`` requests in flight. A reader that does not read ahead is also limited to the
    requests of its current batch: ``requests_per_batch`` on average, None if that is not known.
    """
    each = float(concurrency)
    if not reads_ahead and requests_per_batch is not None:
        each = min(each, max(1.0, requests_per_batch))
    return max(1, round(ranks * max(1, workers) * each))


def reads_per_sample(
    *,
    sample_bytes: float,
    block_size: int,
    batch_size: int,
    samples_per_shard: float,
    sequential: bool,
) -> float:
    """Mean number of read requests for one sample, in blocks of at most ``block_size`` bytes.

    With sequential access a batch is one contiguous range of its shard, cut into blocks, plus one
    more range at each shard's end. With random access each sample is a range of its own. All
    samples have the same size; framing and the alignment of O_DIRECT (up to 8 KiB a range) are
    ignored.
    """
    if not sequential or samples_per_shard <= 1:
        return float(max(1, math.ceil(sample_bytes / block_size - 1e-9)))
    stretch = min(batch_size, samples_per_shard)
    pieces = max(1, math.ceil(stretch * sample_bytes / block_size - 1e-9))
    border = 1 / samples_per_shard if samples_per_shard > batch_size else 0.0
    return pieces / stretch + border


def asked_reads_in_flight(
    workload: Workload, *, ranks: int, sample_bytes: float, samples_per_shard: float, blocks: bool
) -> int:
    """The most reads in flight of a job that has not run, from its settings and its dataset.

    ``sample_bytes`` is what is read of one sample, on average. ``blocks``: the format is read by
    blocks, as Parquet is, and so never ahead.
    """
    reader, loader = workload.reader, workload.loader
    each = reads_per_sample(
        sample_bytes=sample_bytes,
        block_size=reader.block_size,
        batch_size=workload.batch_size,
        samples_per_shard=samples_per_shard,
        sequential=reads_sequentially(reader.access, samples_per_shard),
    )
    return job_reads_in_flight(
        concurrency=reader.concurrency,
        workers=loader.workers,
        ranks=ranks,
        requests_per_batch=each * workload.batch_size,
        reads_ahead=reader.read_ahead is not False and not blocks,
    )


def reads_sequentially(access: str, samples_per_shard: float) -> bool:
    """Whether ``reader.access`` means sequential access, for a format without a preference."""
    return access == "sequential" or (access == "auto" and samples_per_shard > 1)


def run_reads_per_sample(doc: TrainingRecord) -> float | None:
    """Read requests per sample of a recorded run, computed with ``reads_per_sample``."""
    size, samples, shards = (bytes_per_sample(doc), doc.job.dataset.samples, doc.job.dataset.shards)
    reader, batch = doc.job.workload.reader, doc.job.workload.batch_size
    if not (size and samples and batch):
        return None
    per_shard = samples / (shards or samples)
    access = doc.job.loader.access or reader.access
    return reads_per_sample(
        sample_bytes=size,
        block_size=reader.block_size,
        batch_size=batch,
        samples_per_shard=per_shard,
        sequential=reads_sequentially(access, per_shard),
    )


def run_requests_per_batch(doc: TrainingRecord) -> float | None:
    """Requests that the reader of a recorded run has for one batch, on average.

    As the reader itself counted them, else computed; None if the record has too few facts.
    """
    if doc.job.loader.requests_per_batch is not None:
        return doc.job.loader.requests_per_batch
    each, batch = run_reads_per_sample(doc), doc.job.workload.batch_size
    return None if each is None or batch is None else each * batch


def run_reads_in_flight(
    doc: TrainingRecord,
    *,
    concurrency: int | None = None,
    workers: int | None = None,
    ranks: int | None = None,
) -> int:
    """The most reads in flight of a recorded run, over all of its ranks.

    ``concurrency``, ``workers`` (of one rank) and ``ranks`` replace those of the run.
    """
    reader, job = doc.job.workload.reader, doc.job
    return job_reads_in_flight(
        concurrency=reader.concurrency if concurrency is None else concurrency,
        workers=job.workers if workers is None else workers,
        ranks=job.accelerators if ranks is None else ranks,
        requests_per_batch=run_requests_per_batch(doc),
        reads_ahead=bool(job.loader.reads_ahead),
    )


def bytes_per_sample(doc: TrainingRecord) -> float | None:
    """Mean stored bytes of one sample, from the first source that has them.

    The sources are the dataset (unless only some columns are read), the fetch calibration, what
    the repetitions delivered, and the dataset's mean sample size.
    """
    stored, samples = doc.job.dataset.stored_bytes, doc.job.dataset.samples
    if stored and samples and not doc.job.workload.reader.columns:
        return stored / samples
    fetch = doc.job.ceilings.get("fetch", Ceiling())
    if fetch.bytes_per_s and fetch.samples_per_s:
        return fetch.bytes_per_s / fetch.samples_per_s
    done = [each for each in doc.job.repetitions if each.complete]
    samples, stored = sum(each.samples for each in done), sum(each.sample_bytes for each in done)
    if samples > 0 and stored > 0:
        return stored / samples
    return doc.job.dataset.sample_bytes_mean or None
