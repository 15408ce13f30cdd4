"""What can be asked of records: ``report``, ``compare``, ``whatif``, ``advise``, ``cost``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...report.media import DOCUMENTS, RECORDS
from .flags import (
    BREAK_LOCK,
    BYTES_PER_S,
    COUNT,
    DETAILS,
    DIR,
    FAIL_ON_CHANGE,
    FAIL_ON_CONDITION,
    HISTORY,
    IF_INCONCLUSIVE,
    NAME,
    NUMBER,
    SETTING,
    SIZE,
    TIME,
    USD,
    FlagGroup,
    ValueKind,
    VerbRequest,
    flag,
    many,
    shared,
    switch,
    verb,
    word,
)
from .prices import prices_by_type


@verb(
    "report",
    "print a recorded run again: verdict, ceilings, findings",
    examples=(
        "results/<run>",
        "results/<run> --format csv",
        'results/<run> --format github >> "$GITHUB_STEP_SUMMARY"',
        "results/<run> --format trace -o trace.json     # for ui.perfetto.dev",
        "results/<run> results/<run> --html -o report.html",
        "results --format csv -o runs.csv               # all runs below results",
        "results/<run> --fail-on 'accelerator_utilization_sustained<0.9' --fail-on 'headroom<1.2'",
        "results/<run> --rules mlperf",
    ),
    formats=RECORDS,
)
@dataclass(frozen=True, kw_only=True)
class ReportRequest(VerbRequest):
    """Compute every figure of a run again from its recorded events, and print it. Neither torch nor
    the storage is needed. Exit status: 0 ok, 1 failed, 2 usage, 3 the run is invalid, 4 a --fail-on
    condition holds.
    """

    directories: tuple[str, ...] = word(
        "RUN_DIR",
        "directory of a run, or its run.json; of a sweep; of a comparison in turns (iobench "
        "ab); or of runs. Several runs become one document",
        several=True,
    )
    details: bool = shared(DETAILS)
    fail_on: tuple[str, ...] = shared(FAIL_ON_CONDITION)
    rules: str | None = flag(
        NAME,
        "rule set by which to judge (default: the one of the run)",
        choices=("quick", "mlperf"),
    )


@verb(
    "compare",
    "what became better or worse, also over time",
    examples=(
        "results/<run> results/<run>",
        "results/<run> results/<run> --fail-on 2% --if-inconclusive warn",
        "results/<run> results/<run> --across dataset.shard_size,dataset.codec --format markdown",
        "results --by loader.workers --metric samples_per_s",
        "results --over-time resnet50-h100",
    ),
    formats=DOCUMENTS,
)
@dataclass(frozen=True, kw_only=True)
class CompareRequest(VerbRequest):
    """Compare recorded runs: the first place is the baseline, each other one a candidate, and
    several candidates are listed best first. The runs of a directory are compared separately for
    each workload, and for each kind of host, storage, version and settings. With --over-time: one
    workload over time. Exit status: 2 if nothing could be compared, 4 if --fail-on holds.
    """

    results: tuple[Path, ...] = word(
        "RESULTS",
        "run directories, or directories of runs, e.g. results/<run>",
        kind=ValueKind("RESULTS", Path),
        several=True,
    )
    by: str | None = flag(
        ValueKind("KEY"),
        "group all runs by this key of run.json or setting; the first value is the baseline",
    )
    across: str = flag(
        ValueKind("KEYS"),
        "keys that may differ between the runs, e.g. dataset.shard_size,dataset.format",
        default="",
    )
    metric: tuple[str, ...] = many(
        NAME, "compare only this metric; repeatable: the intervals are then corrected (Holm)"
    )
    over_time: str | None = flag(
        ValueKind("WORKLOAD"),
        "show the runs of this workload (of checkpoint studies: of this model) in one directory "
        "over time: trend, when it changed, and what else changed then (of samples_per_s, or of "
        "checkpoints blocked_s, or of --metric)",
        excludes=(
            *("--by", "--across", "--history", "--fail-on", "--if-inconclusive"),
            "--include-invalid",
        ),
    )
    history: tuple[Path, ...] = shared(HISTORY)
    fail_on: float | None = shared(FAIL_ON_CHANGE)
    if_inconclusive: str = shared(IF_INCONCLUSIVE, "fail")
    include_invalid: bool = switch("also use INVALID runs", more=True)


MORE_HOSTS = FlagGroup("more hosts")
OF_HOSTS = FlagGroup(MORE_HOSTS.title, requires=("--hosts",))
OF_ONE_HOST = FlagGroup("", excludes=("--hosts",))


@verb(
    "whatif",
    "a recorded run with other storage, settings or hosts",
    examples=(
        "results/<run> --storage-bandwidth 2x",
        "results/<run> --storage-bandwidth 5GB/s --latency 2ms --workers 16",
        "results/<run> --cache 512GiB --json",
        "results/<run> --accelerators 8 --step-time 0.5x",
        "results/<1-host> results/<2-hosts> results/<4-hosts> --hosts 64",
        "results/<run> --hosts 64 --storage-limit 40GB/s --nic 25GB/s --html -o hosts.html",
    ),
    formats=DOCUMENTS,
)
@dataclass(frozen=True, kw_only=True)
class WhatIfRequest(VerbRequest):
    """Predict the ceilings and the verdict of a recorded run with changes, by documented models,
    and show the error of the models on the recorded run. A factor such as 2x multiplies what was
    recorded. With --hosts: samples/s and utilization on more hosts, with intervals, and the
    bottleneck there. Nothing is read or measured.
    """

    directories: tuple[str, ...] = word(
        "RUN_DIR", "directory of a run, or its run.json; with --hosts, of several", several=True
    )
    storage_bandwidth: str | None = flag(
        ValueKind("RATE"), "bandwidth of the storage, e.g. 2x or 5GB/s", of=OF_ONE_HOST
    )
    latency: str | None = flag(
        ValueKind("TIME"), "latency of one read, e.g. 5ms or 0.5x", of=OF_ONE_HOST
    )
    concurrency: str | None = flag(
        ValueKind("N"), "reads in flight in each worker, e.g. 16 or 2x", of=OF_ONE_HOST
    )
    cache: int | None = flag(
        SIZE, "memory for cached data in each host, used from the second epoch on, e.g. 512GiB"
    )
    cache_kind: str = flag(
        NAME,
        "kind of cache: a page cache with LRU, or pinned data that is never evicted (default: "
        "page)",
        default="page",
        more=True,
        choices=("page", "pinned"),
    )
    workers: str | None = flag(
        ValueKind("N"), "loader workers of each accelerator, e.g. 16 or 2x", of=OF_ONE_HOST
    )
    accelerators: str | None = flag(
        ValueKind("N"), "accelerators on this host, e.g. 8 or 2x", of=OF_ONE_HOST
    )
    step_time: str | None = flag(
        ValueKind("TIME"), "busy time of one batch, e.g. 100ms or 0.5x", of=OF_ONE_HOST
    )
    instance: str | None = flag(
        ValueKind("TYPE"),
        "instance type behind whose network the storage is (iobench list instances)",
        excludes=("--nic",),
    )
    hosts: int | None = flag(
        COUNT,
        "predict the job on N hosts; several runs with different numbers of hosts tell how it "
        "scales, and the error of the model",
        of=MORE_HOSTS,
    )
    accelerators_per_host: int | None = flag(
        COUNT,
        "accelerators of each host (default: as in the run with most hosts)",
        of=OF_HOSTS,
        more=True,
    )
    storage_limit: float | None = flag(
        BYTES_PER_S,
        "what the storage delivers to all hosts together, e.g. 40GB/s",
        of=OF_HOSTS,
    )
    nic: float | None = flag(
        BYTES_PER_S,
        "what the network of one host lets through, e.g. 25GB/s",
        of=OF_HOSTS,
        more=True,
    )
    barrier: str | None = flag(
        ValueKind("TIME,TIME"),
        "cost of a barrier of n accelerators as a,b of a + b ln(n), e.g. 0.7ms,0.2ms (default: "
        "as the runs tell)",
        of=OF_HOSTS,
        more=True,
    )
    checkpoint_bytes: float | None = flag(
        SIZE, "bytes of one checkpoint of the whole job", of=OF_HOSTS, more=True, above=0
    )
    host_write: float | None = flag(
        BYTES_PER_S, "durable writes of one host, e.g. 2GB/s", of=OF_HOSTS, more=True
    )
    storage_write_limit: float | None = flag(
        BYTES_PER_S,
        "durable writes of all hosts together that the storage sustains, e.g. 50GB/s",
        of=OF_HOSTS,
        more=True,
    )
    mtbf_s: float | None = flag(
        TIME,
        "mean time between interruptions of the whole job, e.g. 8h (default: by the rate that "
        "was published for Llama 3)",
        of=OF_HOSTS,
        more=True,
        above=0,
    )
    anyway: bool = switch("also more than 32 times what was measured", of=OF_HOSTS, more=True)


ONE_RUN = FlagGroup("advice of one run, with --confirm")
OF_CONFIRM = FlagGroup(ONE_RUN.title, requires=("--confirm",))


@verb(
    "advise",
    "recommended settings, reasons and predicted gains",
    examples=(
        "results/<sweep>",
        "results/<sweep> --default loader.workers=2 --dataset-size 20TiB",
        "results/<sweep> --workload resnet50-h100 --first-batch 1s --shuffle-window 256MiB --json",
        "results/<run> --confirm",
        "results/<run> --confirm --data s3://bucket/resnet50",
    ),
    formats=DOCUMENTS,
    keeps=True,
)
@dataclass(frozen=True, kw_only=True)
class AdviseRequest(VerbRequest):
    """Recommend settings from runs of one workload with different settings: the smallest settings
    within 5 % of the best, whether a codec is worth its cost, how large a shard should be, and the
    Pareto front of speed, CPU time and bytes. Each comes with its reason.
    """

    directory: str = word(
        "DIR",
        "directory of a sweep, with one directory below it for each run; with --confirm, of one "
        "run",
    )
    workload: str | None = flag(NAME, "use only the runs of this workload")
    default: tuple[str, ...] = many(
        SETTING,
        "setting in use today, against which gains are computed (default: as in the sweep, else "
        "as in the workload); repeatable",
    )
    dataset_size: int | None = flag(
        SIZE,
        "stored bytes of the real dataset if the sweep used a smaller one, e.g. 20TiB",
        above=0,
    )
    first_batch_s: float = flag(
        TIME, "longest acceptable wait for the first shard (default: 3s)", default=3.0, above=0
    )
    shuffle_window: int | None = flag(
        SIZE, "bytes among which each worker shuffles, e.g. 256MiB", above=0
    )
    confirm: bool = switch(
        "try the advice of a run: repeat it with the first changes that settings can apply, in "
        "turns with its own settings, in a new run directory; exit with status 4 unless every "
        "promise was kept",
        of=ONE_RUN,
    )
    data: str | None = flag(
        DIR, "directory or URL of the run's dataset, if it has moved", of=OF_CONFIRM
    )
    origin: str | None = flag(
        ValueKind("URL"),
        "directory or URL of the data of a scanned dataset; without it, only data in the "
        "manifest's own directory is read",
        of=OF_CONFIRM,
        more=True,
    )
    budget_s: float | None = flag(
        TIME,
        "time for the turns (default: as long as the run's repetitions took, and at least three "
        "turns)",
        of=OF_CONFIRM,
        above=0,
    )
    results: Path = flag(
        ValueKind("DIR", Path),
        "directory for the new run directory (default: results)",
        default=Path("results"),
        of=ONE_RUN,
        more=True,
    )
    tags: tuple[str, ...] = many(
        SETTING,
        "a label of the run for its record, its reports, CSV and OpenMetrics, e.g. box=nfs-b; "
        "repeatable",
        name="--tag",
        of=OF_CONFIRM,
        more=True,
    )
    overrides: tuple[str, ...] = many(
        SETTING,
        "override a key, e.g. storage.endpoint=http://127.0.0.1:9000, for data at a URL; or "
        "accelerator.model=MODULE:CLASS, where the run's record names code; repeatable",
        name="--set",
        of=OF_CONFIRM,
        more=True,
    )
    break_lock: bool = shared(BREAK_LOCK)


PRICES, HOSTS, JOB = FlagGroup("prices"), FlagGroup("hosts"), FlagGroup("job")
LOSSES = FlagGroup("saves and interruptions")
_STATED = ValueKind("[TYPE=]USD", prices_by_type)


@verb(
    "cost",
    "samples per dollar, dollars for a job and for waiting",
    examples=(
        "results/<run> --instance g5.2xlarge",
        "results/<run> --instance g5.2xlarge --host-spot-price-per-hour 0.45 "
        "--interruptions-per-hour 0.05 --interval 10m",
        "results/<run> --instance p5.48xlarge --hosts 4 --efficiency 0.9 --epochs 90 "
        "--samples 1281167 --deadline 24h --max-cost 5000",
        "results/<run> results/<run> --instance g5.xlarge --instance g5.2xlarge "
        "--host-spot-price-per-hour g5.xlarge=0.40,g5.2xlarge=0.45",
        "results/<run> results/<run> --instance 4xg5.2xlarge --instance p4d.24xlarge "
        "--efficiency 0.9 --deadline 24h --epochs 90",
        "results --instance 2xg5.2xlarge+1xg5.12xlarge --region us-east-1",
    ),
    formats=DOCUMENTS,
)
@dataclass(frozen=True, kw_only=True)
class CostRequest(VerbRequest):
    """Rank the ways to pay for the work of recorded runs: the cheapest first, and last what misses
    --deadline or --max-cost. Nothing is measured, and no price is looked up over a network: prices
    come from results/instances.yaml (iobench list instances), from --prices, or from the flags.
    Runs of the same settings, host and storage are one option, with the median of their rates.
    """

    results: tuple[Path, ...] = word(
        "RESULTS",
        "run directories, or directories of runs, e.g. results/<run>",
        kind=ValueKind("RESULTS", Path),
        several=True,
    )
    history: tuple[Path, ...] = shared(HISTORY)
    instance: tuple[str, ...] = many(
        ValueKind("[N x]TYPE"),
        "instance type whose price is used (default: as recorded); give one for all RESULTS, or "
        "one for each in their order. 4xTYPE means 4 hosts, 2xTYPE+4xTYPE hosts of several "
        "types in one job, whose rates are those of the runs on each type",
        of=PRICES,
    )
    price: dict[str, float] | None = flag(
        _STATED,
        "price of one host for one hour, on demand; with several types of instances: "
        "TYPE=USD,TYPE=USD",
        name="--host-price-per-hour",
        of=PRICES,
    )
    spot: dict[str, float] | None = flag(
        _STATED,
        "price of one host for one hour, as a spot instance; with several types of instances: "
        "TYPE=USD,TYPE=USD",
        name="--host-spot-price-per-hour",
        of=PRICES,
    )
    prices: Path | None = flag(
        ValueKind("FILE", Path),
        "price list: CSV with the columns type and usd_per_hour or spot_usd_per_hour, and "
        "region, priced (its date) and others if known; or JSON or YAML in the form of "
        "results/instances.yaml",
        of=PRICES,
    )
    region: str = flag(
        ValueKind("REGION"),
        "use prices of this region only, e.g. us-east-1",
        default="",
        of=PRICES,
        more=True,
    )
    hosts: int = flag(
        COUNT, "number of hosts that train together (default: 1)", default=1, of=HOSTS, least=1
    )
    efficiency: float = flag(
        ValueKind("E", NUMBER.parse),
        "scaling efficiency of several hosts, 0 to 1 (default: 1)",
        default=1.0,
        of=HOSTS,
        more=True,
        above=0,
        most=1,
    )
    storage_grows: bool = switch(
        "the storage delivers more with more hosts, as local disks do; without this flag, all "
        "hosts together get at most what it was measured to deliver",
        of=HOSTS,
        more=True,
    )
    epochs: int | None = flag(COUNT, "number of epochs of the job", of=JOB, least=1)
    samples: int | None = flag(
        COUNT, "samples in one epoch (default: those of the run's dataset)", of=JOB, least=1
    )
    deadline: str | None = flag(
        ValueKind("TIME"),
        "time limit for the job, e.g. 24h, or the date of its end, e.g. 2027-01-31T18:00 in "
        "this host's time zone",
        of=JOB,
    )
    max_cost: float | None = flag(USD, "largest cost of the job", of=JOB, above=0)
    interruptions: float | None = flag(
        ValueKind("RATE", NUMBER.parse),
        "interruptions of each spot instance in one hour, e.g. 0.05; an interruption stops all "
        "hosts. Without it, figures of spot instances hold only if they are never interrupted",
        name="--interruptions-per-hour",
        of=LOSSES,
        more=True,
    )
    checkpoint_every_s: float = flag(
        TIME,
        "training time between two checkpoints, e.g. 10m; half of it is lost in an "
        "interruption, on average (default: 1h)",
        name="--interval",
        default=3600.0,
        of=LOSSES,
        more=True,
        above=0,
    )
    checkpoints: Path | None = flag(
        ValueKind("RUN", Path),
        "run directory of iobench checkpoint: the time of its saves and restores counts "
        "(default: of saves that the runs themselves measured)",
        of=LOSSES,
        more=True,
    )
    restart_s: float = flag(
        TIME,
        "time to restart after an interruption, without the restore (default: 5m)",
        default=300.0,
        of=LOSSES,
        more=True,
    )
