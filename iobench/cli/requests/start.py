"""What can be asked at first: ``check``, ``demo``, ``plan``, ``size``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from .flags import (
    CHECKPOINT,
    MORE,
    Count,
    Counts,
    Details,
    Dir,
    Documents,
    Name,
    Number,
    Overrides,
    Pages,
    Parameters,
    Results,
    Settings,
    SharedStorage,
    Size,
    StallBudgets,
    Tags,
    Time,
    Url,
    VerbRequest,
    above,
    at_least,
    group,
    named,
    needs,
    without,
)

OF_A_RUN = group("of a run")
SAVES = group("checkpoints, of one workload")
GRADIENTS = group("gradients, of one workload")
STORAGE = group("storage")


@dataclass(frozen=True, kw_only=True)
class CheckRequest(VerbRequest):
    """Generate a dataset below DIR that fits the time and the space, measure the storage and run
    the workload on it, print the verdict, and remove the data. A dataset that lies in DIR already
    is read as it is, and never removed. Nothing else in DIR is touched. Ctrl-C removes what was
    generated, and keeps what was measured.

    For example:

      iobench check /mnt/fast
      iobench check /mnt/fast --workload cosmoflow-h100 --accelerators 4 \\
          --budget 15min
      iobench check s3://bucket/prefix --budget 10min --keep-data
      iobench check /mnt/fast/resnet50 # a dataset: it is read, and stays
    """

    keeps: ClassVar[bool] = True

    format: Documents = "text"
    url: str = field(kw_only=False)
    """directory or URL: of a dataset, or one below which data may be generated"""
    workload: Name | None = None
    """name of a workload (iobench list workloads) or YAML file. Default: one that trains on the
    dataset that lies there, otherwise resnet50-h100, which reads many small images and is the
    best known"""
    accelerators: Count = 1
    """number of ranks, each with its own loader (default: 1)"""
    budget_s: Time = 300.0
    """time for everything: generating data, measuring, and removing the data (default: 5min)"""
    size: Size | None = None
    """total bytes of the data to generate, e.g. 20GiB (default: what the time allows, and at
    most 20 % of the free space)"""
    keep_data: bool = False
    """keep the generated data, and print where it is"""
    details: Details = False
    results: Results = Path("results")
    tags: Tags = ()
    overrides: Overrides = ()


@dataclass(frozen=True, kw_only=True)
class DemoRequest(VerbRequest):
    """Generate the dataset 'demo' (270 MiB) and run the workload 'demo' on it. On local disk the
    dataset stays in ./demo-data. With --s3, a real S3 server (rclone) is started on loopback over a
    temporary directory, and everything is removed at the end.

    For example:

      iobench demo
      iobench demo --s3
    """

    format: Documents = "text"
    s3: bool = False
    """run on an S3 server on loopback instead of local disk"""
    samples: Count | None = None
    """number of samples to generate (default: as in the dataset)"""
    repeat: Annotated[Count | None, Parameter(alias="-n")] = None
    """number of repetitions (default: 4, or what --budget has time for)"""
    calibration_s: Time | None = None
    """time to measure each ceiling (default: 2s)"""
    budget_s: Time | None = None
    """time for the run, beside the generation of the data"""
    details: Details = False
    results: Results = Path("results")
    tags: Tags = ()


@dataclass(frozen=True, kw_only=True)
class PlanRequest(SharedStorage):
    """Compute what a run would do before anything is generated or read. Nothing is written or
    evicted from the page cache, and only --probe reads data (18 blocks). Of a model: what its
    checkpoint needs, i.e. bytes of each rank, memory, free space in the target, and the write rate
    for a stall budget.

    For example:

      iobench plan resnet50-h100 --accelerators 8
      iobench plan resnet50-h100 --data /mnt/fast/resnet50 --accelerators 8 --json
      iobench plan resnet50-h100 --data /mnt/fast/resnet50 --probe
      iobench plan llama3-405b --to /mnt/ckpt
      iobench plan llama3-405b --interval 30min --stall-budget 1% \\
          --stall-budget 2%
      iobench plan llama3-405b --hosts-writing 64 --storage-write-limit 100GB/s
      iobench plan llama3-8b --to /mnt/ckpt --ranks 2 --scale 1/64
    """

    format: Pages = "text"
    workload: Annotated[str, named("workload", "model")] = field(kw_only=False)
    """name of a workload (iobench list workloads) or YAML file; or model to checkpoint (iobench
    list models)"""
    accelerators: Annotated[Count | None, at_least(1)] = None
    """number of ranks, each with its own loader (default: 1); of a checkpoint: accelerators in
    the real training, for its failure rate (default: as published)"""
    data: Annotated[Dir | None, OF_A_RUN] = None
    """directory or URL of the dataset, which need not exist yet"""
    origin: Annotated[Url | None, OF_A_RUN, MORE, needs("data")] = None
    """directory or URL of the data of a scanned dataset; without it, only data in the
    manifest's own directory is read"""
    probe: Annotated[bool, OF_A_RUN] = False
    """measure how long a few reads take, and compute how many must be in flight"""
    repeat: Annotated[Count, OF_A_RUN, MORE, Parameter(alias="-n")] = 6
    """number of repetitions (default: 6)"""
    overrides: Annotated[Settings, OF_A_RUN] = ()
    """override a key, e.g. loader.workers=8; repeatable"""
    to: Annotated[Dir | None, CHECKPOINT] = None
    """directory or URL for the checkpoints, to check its free space"""
    scale: Annotated[str | None, Parameter(metavar="SHARE"), CHECKPOINT] = None
    """share of the model's bytes, e.g. 1/64 (default: 1)"""
    ranks: Annotated[Count | None, CHECKPOINT] = None
    """number of ranks that share the state (default: as published)"""
    stall_budget: StallBudgets = ()
    mtbf_s: Annotated[Time | None, CHECKPOINT, MORE, above(0)] = None
    """mean time between interruptions of the whole job, e.g. 3h (default: from the published
    rate and the number of accelerators)"""
    interval_s: Annotated[Time | None, CHECKPOINT, MORE, above(0)] = None
    """time between two checkpoints, e.g. 30min (default: the best for each stall budget)"""


@dataclass(frozen=True, kw_only=True)
class SizeRequest(VerbRequest):
    """Compute what N accelerators demand of storage. Nothing is read or measured. With --from, the
    storage of a recorded run is compared with the demand. Of several workloads that are trained at
    the same time, the demands are added up.

    For example:

      iobench size unet3d-b200 --accelerators 64 --hosts 8
      iobench size unet3d-b200 --accelerators 64 --hosts 8 --latency 5ms \\
          --latency-p99 40ms --dataset-size 20TiB --cache 512GiB
      iobench size unet3d-h100 --accelerators 8 --instance p4d.24xlarge
      iobench size resnet50-h100 --accelerators 8 --from results/<run>
      iobench size unet3d-h100 resnet50-h100 --accelerators 16,8 --hosts 2,1 \\
          --html -o size.html
      iobench size resnet50-h100 --accelerators 64 --hosts 8 \\
          --checkpoint-bytes 105GB --checkpoint-budget 1m --restore-budget 2m \\
          --json
      iobench size resnet50-h100 --accelerators 32 --hosts 4 --parameters 25.6M \\
          --gradient-precision fp32
    """

    format: Pages = "text"
    workload: Annotated[tuple[str, ...], named("workload")] = field(kw_only=False)
    """name of a workload (iobench list workloads) or YAML file; several are trained on one
    storage at the same time, and what they need is added up"""
    accelerators: Counts
    """number of accelerators on all hosts together; of several workloads, that of each, or one
    for each: 16,8"""
    hosts: Counts = (1,)
    """number of hosts with these accelerators, or one for each workload (default: 1)"""
    run_directory: Annotated[str | None, Parameter(metavar="RUN_DIR")] = None
    """recorded run, whose storage is compared with the demand, of one workload"""
    required_au: Number | None = None
    """required accelerator utilization, 0 to 1 (default: as in the workload)"""
    latency_s: Annotated[Time | None, STORAGE] = None
    """latency of one read, the median, e.g. 5ms (default: as measured by the run of --from)"""
    latency_p99_s: Annotated[Time | None, STORAGE, MORE] = None
    """99th percentile of that latency, e.g. 40ms: the margin covers how it differs (default: as
    measured by the run of --from, or all reads alike)"""
    steps: Annotated[Count | None, MORE] = None
    """steps of an epoch, over which the utilization counts (default: those of the dataset, at
    least 500)"""
    dataset_size: Size | None = None
    """bytes of the real dataset, if it differs from the workload's, e.g. 20TiB"""
    alignment: Annotated[Size | None, STORAGE, MORE] = None
    """the storage reads whole blocks of this size: 1 for object stores (default: 4KiB, as file
    systems and O_DIRECT do, or as in the run of --from)"""
    cache: Annotated[Size | None, STORAGE] = None
    """memory for cached data in each host, e.g. 512GiB"""
    instance: Annotated[str | None, Parameter(metavar="TYPE")] = None
    """instance type of the hosts, to check its network (iobench list instances)"""
    checkpoint_bytes: Annotated[Size | None, SAVES] = None
    """bytes of one checkpoint of the whole job, e.g. 105GB"""
    checkpoint_budget_s: Annotated[Time | None, SAVES, MORE] = None
    """longest time for which one checkpoint may stop the training, e.g. 1m"""
    checkpoint_every_s: Annotated[Time | None, SAVES, MORE] = None
    """time from one checkpoint to the next, e.g. 30m, for the mean rate of writes"""
    restore_budget_s: Annotated[Time | None, SAVES, MORE] = None
    """longest time in which all ranks together may read the checkpoint after an interruption,
    e.g. 2m"""
    restore_copies: Annotated[Count, SAVES, MORE] = 1
    """how often a restore reads the checkpoint: 1 where each rank reads its own part, the
    number of ranks where each reads all of it (default: 1)"""
    gradient_bytes: Annotated[Size | None, GRADIENTS, MORE, without("parameters")] = None
    """bytes of the gradients that the hosts exchange in each step of data-parallel training,
    e.g. 346MB"""
    parameters: Annotated[Parameters | None, GRADIENTS, MORE] = None
    """parameters of the model, e.g. 86.6M, instead of --gradient-bytes"""
    gradient_precision: Annotated[
        Literal["fp32", "tf32", "bf16", "fp16", "fp8"] | None, GRADIENTS, MORE, needs("parameters")
    ] = None
    """of each gradient, with --parameters (default: fp32)"""
    overrides: Overrides = ()
