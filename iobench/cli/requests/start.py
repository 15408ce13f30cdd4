"""What can be asked at first: ``check``, ``demo``, ``plan``, ``size``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...report.media import DOCUMENTS, PAGES
from .flags import (
    COUNT,
    COUNTS,
    DETAILS,
    DIR,
    NAME,
    NUMBER,
    OVERRIDES,
    PARAMETERS,
    RESULTS,
    SIZE,
    TAGS,
    TIME,
    FlagGroup,
    ValueKind,
    VerbRequest,
    flag,
    many,
    must,
    shared,
    switch,
    verb,
    word,
)
from .hosts_sharing import CHECKPOINT, STALL_BUDGETS, SharedStorage


@verb(
    "check",
    "a first answer about a storage, with data of its own",
    examples=(
        "/mnt/fast",
        "/mnt/fast --workload cosmoflow-h100 --accelerators 4 --budget 15min",
        "s3://bucket/prefix --budget 10min --keep-data",
        "/mnt/fast/resnet50                      # a dataset: it is read, and stays",
    ),
    formats=DOCUMENTS,
    keeps=True,
)
@dataclass(frozen=True, kw_only=True)
class CheckRequest(VerbRequest):
    """Generate a dataset below DIR that fits the time and the space, measure the storage and run
    the workload on it, print the verdict, and remove the data. A dataset that lies in DIR already
    is read as it is, and never removed. Nothing else in DIR is touched. Ctrl-C removes what was
    generated, and keeps what was measured.
    """

    url: str = word(
        "DIR", "directory or URL: of a dataset, or one below which data may be generated"
    )
    workload: str | None = flag(
        NAME,
        "name of a workload (iobench list workloads) or YAML file. Default: one that trains on "
        "the dataset that lies there, otherwise resnet50-h100, which reads many small images "
        "and is the best known",
    )
    accelerators: int = flag(
        COUNT, "number of ranks, each with its own loader (default: 1)", default=1
    )
    budget_s: float = flag(
        TIME,
        "time for everything: generating data, measuring, and removing the data (default: 5min)",
        default=300.0,
    )
    size: int | None = flag(
        SIZE,
        "total bytes of the data to generate, e.g. 20GiB (default: what the time allows, and at "
        "most 20 % of the free space)",
    )
    keep_data: bool = switch("keep the generated data, and print where it is")
    details: bool = shared(DETAILS)
    results: Path = shared(RESULTS, Path("results"))
    tags: tuple[str, ...] = shared(TAGS)
    overrides: tuple[str, ...] = shared(OVERRIDES)


@verb(
    "demo",
    "generate a small dataset, and run a workload on it",
    examples=("", "--s3"),
    formats=DOCUMENTS,
)
@dataclass(frozen=True, kw_only=True)
class DemoRequest(VerbRequest):
    """Generate the dataset 'demo' (270 MiB) and run the workload 'demo' on it. On local disk the
    dataset stays in ./demo-data. With --s3, a real S3 server (rclone) is started on loopback over a
    temporary directory, and everything is removed at the end.
    """

    s3: bool = switch("run on an S3 server on loopback instead of local disk")
    samples: int | None = flag(COUNT, "number of samples to generate (default: as in the dataset)")
    repeat: int | None = flag(
        COUNT, "number of repetitions (default: 4, or what --budget has time for)", short="-n"
    )
    calibration_s: float | None = flag(TIME, "time to measure each ceiling (default: 2s)")
    budget_s: float | None = flag(TIME, "time for the run, beside the generation of the data")
    details: bool = shared(DETAILS)
    results: Path = shared(RESULTS, Path("results"))
    tags: tuple[str, ...] = shared(TAGS)


OF_A_RUN = FlagGroup("of a run")


@verb(
    "plan",
    "bytes, memory and time of a run or of a checkpoint",
    examples=(
        "resnet50-h100 --accelerators 8",
        "resnet50-h100 --data /mnt/fast/resnet50 --accelerators 8 --json",
        "resnet50-h100 --data /mnt/fast/resnet50 --probe",
        "llama3-405b --to /mnt/ckpt",
        "llama3-405b --interval 30min --stall-budget 1% --stall-budget 2%",
        "llama3-405b --hosts-writing 64 --storage-write-limit 100GB/s",
        "llama3-8b --to /mnt/ckpt --ranks 2 --scale 1/64",
    ),
    formats=PAGES,
)
@dataclass(frozen=True, kw_only=True)
class PlanRequest(SharedStorage):
    """Compute what a run would do before anything is generated or read. Nothing is written or
    evicted from the page cache, and only --probe reads data (18 blocks). Of a model: what its
    checkpoint needs, i.e. bytes of each rank, memory, free space in the target, and the write rate
    for a stall budget.
    """

    workload: str = word(
        "WORKLOAD|MODEL",
        "name of a workload (iobench list workloads) or YAML file; or model to checkpoint "
        "(iobench list models)",
    )
    accelerators: int | None = flag(
        COUNT,
        "number of ranks, each with its own loader (default: 1); of a checkpoint: accelerators "
        "in the real training, for its failure rate (default: as published)",
        least=1,
    )
    data: str | None = flag(
        DIR, "directory or URL of the dataset, which need not exist yet", of=OF_A_RUN
    )
    origin: str | None = flag(
        ValueKind("URL"),
        "directory or URL of the data of a scanned dataset; without it, only data in the "
        "manifest's own directory is read",
        of=OF_A_RUN,
        more=True,
        requires=("--data",),
    )
    probe: bool = switch(
        "measure how long a few reads take, and compute how many must be in flight", of=OF_A_RUN
    )
    repeat: int = flag(
        COUNT, "number of repetitions (default: 6)", default=6, of=OF_A_RUN, more=True, short="-n"
    )
    overrides: tuple[str, ...] = many(
        ValueKind("KEY=VALUE"),
        "override a key, e.g. loader.workers=8; repeatable",
        name="--set",
        of=OF_A_RUN,
    )
    to: str | None = flag(
        DIR, "directory or URL for the checkpoints, to check its free space", of=CHECKPOINT
    )
    scale: str | None = flag(
        ValueKind("SHARE"), "share of the model's bytes, e.g. 1/64 (default: 1)", of=CHECKPOINT
    )
    ranks: int | None = flag(
        COUNT, "number of ranks that share the state (default: as published)", of=CHECKPOINT
    )
    stall_budget: tuple[float, ...] = shared(STALL_BUDGETS)
    mtbf_s: float | None = flag(
        TIME,
        "mean time between interruptions of the whole job, e.g. 3h (default: from the published "
        "rate and the number of accelerators)",
        of=CHECKPOINT,
        more=True,
        above=0,
    )
    interval_s: float | None = flag(
        TIME,
        "time between two checkpoints, e.g. 30min (default: the best for each stall budget)",
        of=CHECKPOINT,
        more=True,
        above=0,
    )


SAVES = FlagGroup("checkpoints, of one workload")
GRADIENTS = FlagGroup("gradients, of one workload")
STORAGE = FlagGroup("storage")


@verb(
    "size",
    "how much storage to buy: rates, IOPS, cache, network",
    examples=(
        "unet3d-b200 --accelerators 64 --hosts 8",
        "unet3d-b200 --accelerators 64 --hosts 8 --latency 5ms --latency-p99 40ms "
        "--dataset-size 20TiB --cache 512GiB",
        "unet3d-h100 --accelerators 8 --instance p4d.24xlarge",
        "resnet50-h100 --accelerators 8 --from results/<run>",
        "unet3d-h100 resnet50-h100 --accelerators 16,8 --hosts 2,1 --html -o size.html",
        "resnet50-h100 --accelerators 64 --hosts 8 --checkpoint-bytes 105GB "
        "--checkpoint-budget 1m --restore-budget 2m --json",
        "resnet50-h100 --accelerators 32 --hosts 4 --parameters 25.6M --gradient-precision fp32",
    ),
    formats=PAGES,
)
@dataclass(frozen=True, kw_only=True)
class SizeRequest(VerbRequest):
    """Compute what N accelerators demand of storage. Nothing is read or measured. With --from, the
    storage of a recorded run is compared with the demand. Of several workloads that are trained at
    the same time, the demands are added up.
    """

    workload: tuple[str, ...] = word(
        "WORKLOAD",
        "name of a workload (iobench list workloads) or YAML file; several are trained on one "
        "storage at the same time, and what they need is added up",
        several=True,
    )
    accelerators: tuple[int, ...] = must(
        COUNTS,
        "number of accelerators on all hosts together; of several workloads, that of each, or "
        "one for each: 16,8",
    )
    hosts: tuple[int, ...] = flag(
        COUNTS,
        "number of hosts with these accelerators, or one for each workload (default: 1)",
        default=(1,),
    )
    run_directory: str | None = flag(
        ValueKind("RUN_DIR"),
        "recorded run, whose storage is compared with the demand, of one workload",
        name="--from",
    )
    required_au: float | None = flag(
        NUMBER, "required accelerator utilization, 0 to 1 (default: as in the workload)"
    )
    latency_s: float | None = flag(
        TIME,
        "latency of one read, the median, e.g. 5ms (default: as measured by the run of --from)",
        of=STORAGE,
    )
    latency_p99_s: float | None = flag(
        TIME,
        "99th percentile of that latency, e.g. 40ms: the margin covers how it differs (default: "
        "as measured by the run of --from, or all reads alike)",
        of=STORAGE,
        more=True,
    )
    steps: int | None = flag(
        COUNT,
        "steps of an epoch, over which the utilization counts (default: those of the dataset, "
        "at least 500)",
        more=True,
    )
    dataset_size: int | None = flag(
        SIZE, "bytes of the real dataset, if it differs from the workload's, e.g. 20TiB"
    )
    alignment: int | None = flag(
        SIZE,
        "the storage reads whole blocks of this size: 1 for object stores (default: 4KiB, as "
        "file systems and O_DIRECT do, or as in the run of --from)",
        of=STORAGE,
        more=True,
    )
    cache: int | None = flag(SIZE, "memory for cached data in each host, e.g. 512GiB", of=STORAGE)
    instance: str | None = flag(
        ValueKind("TYPE"),
        "instance type of the hosts, to check its network (iobench list instances)",
    )
    checkpoint_bytes: int | None = flag(
        SIZE, "bytes of one checkpoint of the whole job, e.g. 105GB", of=SAVES
    )
    checkpoint_budget_s: float | None = flag(
        TIME,
        "longest time for which one checkpoint may stop the training, e.g. 1m",
        of=SAVES,
        more=True,
    )
    checkpoint_every_s: float | None = flag(
        TIME,
        "time from one checkpoint to the next, e.g. 30m, for the mean rate of writes",
        of=SAVES,
        more=True,
    )
    restore_budget_s: float | None = flag(
        TIME,
        "longest time in which all ranks together may read the checkpoint after an "
        "interruption, e.g. 2m",
        of=SAVES,
        more=True,
    )
    restore_copies: int = flag(
        COUNT,
        "how often a restore reads the checkpoint: 1 where each rank reads its own part, the "
        "number of ranks where each reads all of it (default: 1)",
        default=1,
        of=SAVES,
        more=True,
    )
    gradient_bytes: int | None = flag(
        SIZE,
        "bytes of the gradients that the hosts exchange in each step of data-parallel training, "
        "e.g. 346MB",
        of=GRADIENTS,
        more=True,
        excludes=("--parameters",),
    )
    parameters: int | None = flag(
        PARAMETERS,
        "parameters of the model, e.g. 86.6M, instead of --gradient-bytes",
        of=GRADIENTS,
        more=True,
    )
    gradient_precision: str | None = flag(
        NAME,
        "of each gradient, with --parameters (default: fp32)",
        of=GRADIENTS,
        more=True,
        choices=("fp32", "tf32", "bf16", "fp16", "fp8"),
        requires=("--parameters",),
    )
    overrides: tuple[str, ...] = shared(OVERRIDES)
