"""What can be measured: ``run``, ``train``, ``checkpoint``, ``sweep``, ``ab``, ``probe``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...report.media import DOCUMENTS
from .flags import (
    ACCELERATORS_PER_HOST,
    BREAK_LOCK,
    CHANGE,
    COUNT,
    DETAILS,
    DIR,
    FAIL_ON_CHANGE,
    FAIL_ON_CONDITION,
    FILE,
    IF_INCONCLUSIVE,
    NAME,
    ORIGIN,
    OVERRIDES,
    RATE_PER_S,
    RESULTS,
    RULES,
    SETTING,
    SHARE,
    SIZE,
    TAGS,
    TIME,
    URL,
    USD,
    FlagGroup,
    HostsRequest,
    ValueKind,
    VerbRequest,
    flag,
    many,
    must,
    names_of,
    shared,
    switch,
    verb,
    word,
)
from .hosts_sharing import SharedStorage

MAX_CALIBRATION_S = MAX_PROBE_S = 3600
SAVES = FlagGroup("checkpoints during the run")
LOADER_OF_YOURS = FlagGroup("your own loader")
OF_SAVES = FlagGroup(SAVES.title, requires=("--checkpoint",))
OF_OWN_LOADER = FlagGroup(LOADER_OF_YOURS.title, requires=("--loader",))


@dataclass(frozen=True, kw_only=True)
class MeasuringRequest(HostsRequest):
    """The flags of a run, whatever its workload; a subclass adds ``data``."""

    usual_repeat: ClassVar[int] = 6

    origin: str | None = shared(ORIGIN)
    accelerators: int = flag(
        COUNT, "number of ranks, each with its own loader (default: 1)", default=1, least=1
    )
    accelerators_per_host: int | None = shared(ACCELERATORS_PER_HOST)
    budget_s: float | None = flag(
        TIME,
        "time for the whole run, from the start of iobench to the verdict: a pilot tells how "
        "many steps, repetitions and ablations fit. What is given by --repeat, --calibration, "
        "--ablations, --set max_steps and --set epochs stays as it is",
    )
    repeat: int | None = flag(
        COUNT,
        "number of repetitions (default: 6, of train 3, or what --budget has time for; [min, "
        "max] of 6 covers the median with 97 %)",
        short="-n",
        least=1,
    )
    find_max: bool = switch("find the largest number of accelerators that this storage can feed")
    confirm: bool = switch(
        "try the advice of this run: run the first changes that settings can apply in turns "
        "with today's settings, and print the promised and the found gain",
    )
    fail_on: tuple[str, ...] = shared(FAIL_ON_CONDITION)
    details: bool = shared(DETAILS)
    rules: str = shared(RULES, "quick")
    results: Path = shared(RESULTS, Path("results"))
    tags: tuple[str, ...] = shared(TAGS)
    seed: int = flag(
        COUNT,
        "seed of the first repetition; each has its own (default: 42)",
        default=42,
        more=True,
        least=0,
    )
    calibration_s: float | None = flag(
        TIME,
        "time to measure each ceiling; 0s skips all ceilings (default: 3s)",
        more=True,
        most=MAX_CALIBRATION_S,
    )
    ablations_s: float | None = flag(
        TIME,
        "time for all ablations together, which measure what each stage costs by leaving it "
        "out, and as much again for --confirm (default: as long as the repetitions together, "
        "and at least three rounds)",
        more=True,
    )
    no_ablations: bool = switch(
        "leave no stage out; the verdict is then inferred from the ceilings, not tested", more=True
    )
    checkpoint: str | None = flag(
        ValueKind("MODEL"),
        "model whose state is saved during the run (iobench list models)",
        of=SAVES,
        requires=("--checkpoint-to",),
    )
    checkpoint_to: str | None = flag(DIR, "directory or URL for the checkpoints", of=OF_SAVES)
    checkpoint_every: int = flag(
        ValueKind("STEPS", COUNT.parse),
        "number of steps between two saves (default: 100)",
        default=100,
        of=OF_SAVES,
        more=True,
        least=1,
    )
    checkpoint_writer: str = flag(
        NAME,
        "checkpoint writer (iobench list writers; default: stream)",
        default="stream",
        of=OF_SAVES,
        more=True,
    )
    checkpoint_scale: str = flag(
        ValueKind("SHARE"),
        "share of the model's bytes to save, e.g. 1/64 (default: 1)",
        default="1",
        of=OF_SAVES,
        more=True,
    )
    break_lock: bool = shared(BREAK_LOCK)


@verb(
    "run",
    "each stage alone and all together: the bottleneck",
    examples=(
        "demo --data demo-data",
        "demo --data demo-data --budget 20s",
        "resnet50-h100 --data /mnt/fast/resnet50 --accelerators 2 --repeat 5",
        "resnet50-h100 --data /mnt/fast/resnet50 --find-max",
        "unet3d-h100 --data /mnt/fast/unet3d --set reader.concurrency=16 "
        "--fail-on 'samples_per_s<20'",
        "resnet50-h100 --data /mnt/fast/resnet50 --confirm",
        "resnet50-h100 --data /mnt/fast/resnet50 --checkpoint llama3-8b "
        "--checkpoint-scale 1/64 --checkpoint-to /mnt/ckpt",
        "resnet50-h100 --data /mnt/fast/resnet50 --loader mypkg.data:make_loader --headspace",
        "resnet50-h100 --data 'throttled+/mnt/fast/resnet50?bandwidth=2GB&latency=5ms'",
    ),
    formats=DOCUMENTS,
    keeps=True,
)
@dataclass(frozen=True, kw_only=True)
class RunRequest(MeasuringRequest):
    """Run a workload on a dataset: measure the ceiling of each stage alone, then all stages
    together, and print the verdict.
    """

    workload: str = word("WORKLOAD", "name of a workload (iobench list workloads) or YAML file")
    data: str = must(DIR, "directory or URL of the dataset")
    overrides: tuple[str, ...] = shared(OVERRIDES)
    loader: str | None = flag(
        ValueKind("MODULE:FUNCTION"),
        "measure the loader that this function of yours returns (a torch DataLoader, any "
        "iterable of batches, a Lightning DataModule), unchanged",
        of=LOADER_OF_YOURS,
        excludes=("--confirm", "--find-max"),
    )
    loader_args: tuple[str, ...] = many(
        SETTING,
        "an argument for that function; repeatable. The dataset's directory is passed as 'data' "
        "if the function has this parameter",
        of=OF_OWN_LOADER,
        more=True,
    )
    headspace: bool = switch(
        "only find how much faster any loader could make this run: repeat 10 of its batches "
        "that are kept in memory, in turns with the run itself",
        of=OF_OWN_LOADER,
        more=True,
        excludes=("--checkpoint", "--fail-on"),
    )


RECORDED = FlagGroup("step times, to replay them without the device")


@verb(
    "train",
    "train a real model: what limits it, or its step times",
    examples=(
        "resnet18 --data demo-data",
        "vit-b16 --data /mnt/fast/resnet50 --device cuda --batch-size 128 --precision bfloat16",
        "resnet50 --data demo-data --set accelerator.memory_format=channels_last "
        "--set accelerator.threads=4",
        "mypkg.models:make --data /mnt/fast/resnet50",
        "resnet18 --batch-size 16 --record resnet18.json",
        "vit-b16 --device cuda --batch-size 128 --precision bfloat16 --record vit-b16.json",
    ),
    formats=DOCUMENTS,
    keeps=True,
)
@dataclass(frozen=True, kw_only=True)
class TrainRequest(MeasuringRequest):
    """Train a real model on the batches that the storage delivers: on a GPU, or on the CPU beside
    its own loader. Measures the same ceilings as 'iobench run', and the training step alone. Needs
    no labels: the targets are computed from the data. With --record it reads no data, and writes
    down the step times, which a workload with accelerator.kind: recorded replays on any storage.
    """

    usual_repeat: ClassVar[int] = 3

    model: str = word(
        "MODEL", "name of a model (iobench list networks), or module:callable that returns one"
    )
    data: str | None = flag(DIR, "directory or URL of the dataset; needed without --record")
    device: str | None = flag(ValueKind("DEVICE"), "cuda, cuda:N or cpu (default: cpu)")
    batch_size: int = flag(COUNT, "samples in a batch (default: 32)", default=32)
    precision: str = flag(
        NAME,
        "float32, or one of the others by autocast (default: float32)",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
    )
    time_s: float | None = flag(
        TIME,
        "about how long a repetition should train (default: 10s, or what --budget has time for, "
        "and at least 10 steps); with --record the shortest time of all steps together "
        "(default: 30s)",
        more=True,
    )
    overrides: tuple[str, ...] = many(
        SETTING, "override a key, e.g. accelerator.compile=true; repeatable", name="--set"
    )
    record: str | None = flag(
        FILE,
        "train on batches that are in memory, and write down how long each step takes; an "
        "existing file is not replaced",
        of=RECORDED,
        excludes=("--data", *names_of(MeasuringRequest)),
    )
    steps: int | None = flag(
        COUNT,
        "smallest number of steps with --record (default: 300)",
        of=RECORDED,
        requires=("--record",),
        least=2,
    )


JOB = FlagGroup("the real training, to compute how often to save and what that costs")


@verb(
    "checkpoint",
    "cost of checkpoints: blocked, durable, restored",
    examples=(
        "llama3-8b --to /mnt/ckpt --scale 1/64",
        "llama3-8b --to /mnt/ckpt --ranks 8 --writer dcp",
        "llama3-8b --to /mnt/ckpt --scale 1/64 --writer dcp --async --set steps=50 "
        "--set step_time=200ms",
        "llama3-70b --to s3://bucket/ckpt --writer stream --repeat 10",
        "llama3-8b --to /mnt/ckpt --scale 1/64 --accelerators 1024 "
        "--accelerator-price-per-hour 2.5",
        "llama3-8b --to /mnt/ckpt --scale 1/64 --accelerators 1024 --hosts-writing 128 "
        "--storage-write-limit 40GB/s",
        "llama3-8b --to /mnt/fs/ckpt --ranks-per-host 8 --hosts h1,h2 --print",
    ),
    formats=DOCUMENTS,
    keeps=True,
)
@dataclass(frozen=True, kw_only=True)
class CheckpointRequest(SharedStorage, HostsRequest):
    """Save a model's state repeatedly, restore it from cold storage, verify it, and compute what
    that costs a training. The target must be new, empty, or hold checkpoints of iobench. The
    checkpoints of this study are removed at the end; --keep-data keeps the last one. Exit status: 0
    ok, 1 failed, 2 usage, 3 the study is invalid, 4 a --fail-on condition holds.
    """

    model: str = word("MODEL", "model to checkpoint (iobench list models)")
    to: str = must(DIR, "directory or URL for the checkpoints")
    writer: str = flag(
        NAME, "checkpoint writer (iobench list writers; default: stream)", default="stream"
    )
    asynchronous: bool = switch(
        "use the asynchronous version of the writer: training continues while it writes",
        name="--async",
    )
    ranks: int = flag(COUNT, "number of ranks that share the state (default: 1)", default=1)
    ranks_per_host: int | None = flag(
        COUNT,
        "number of ranks on each host, in place of --ranks, which counts those of all",
        more=True,
        least=1,
        excludes=("--ranks",),
    )
    scale: str = flag(
        ValueKind("SHARE"),
        "share of the model's bytes to save, e.g. 1/64 (default: 1)",
        default="1",
    )
    repeat: int = flag(
        COUNT, "number of saves, and of restores (default: 10)", default=10, short="-n"
    )
    budget_s: float | None = flag(
        TIME,
        "time for the whole study: at most --repeat saves and restores, as many of both as "
        "there is time for, and one of each at least",
    )
    keep_data: bool = switch("keep the last checkpoint in the target", more=True)
    overrides: tuple[str, ...] = many(
        SETTING, "override a key, e.g. fsync=false; repeatable", name="--set"
    )
    fail_on: tuple[str, ...] = many(
        ValueKind("CONDITION"), "exit with status 4 if this holds, e.g. 'blocked_s>5'; repeatable"
    )
    rules: str = shared(RULES, "quick")
    results: Path = shared(RESULTS, Path("results"))
    tags: tuple[str, ...] = shared(TAGS)
    break_lock: bool = shared(BREAK_LOCK)
    accelerators: int | None = flag(
        COUNT,
        "accelerators in the real training, for its failures and its cost (default: as published)",
        of=JOB,
        above=0,
    )
    mtbf_s: float | None = flag(
        TIME,
        "mean time between interruptions of the whole job, e.g. 3h (default: as published)",
        of=JOB,
        more=True,
        above=0,
    )
    restart_s: float = flag(
        TIME,
        "time to restart after an interruption, without the restore (default: 0s)",
        default=0.0,
        of=JOB,
        more=True,
    )
    interval_s: float | None = flag(
        TIME, "time between two checkpoints today, e.g. 30min", of=JOB, above=0
    )
    price: float | None = flag(
        USD,
        "price of one accelerator for one hour",
        name="--accelerator-price-per-hour",
        of=JOB,
        more=True,
        above=0,
    )
    samples_per_s: float | None = flag(
        RATE_PER_S,
        "samples/s of the whole training, to count lost samples",
        name="--samples-per-s",
        of=JOB,
        more=True,
        above=0,
    )
    stall_budget: float = flag(
        SHARE,
        "largest share of the time that saves may take (default: 1%)",
        default=0.01,
        of=JOB,
        more=True,
    )
    notice_s: float = flag(
        TIME,
        "time between the notice and the end of a spot instance (default: 2m)",
        default=120.0,
        of=JOB,
        more=True,
    )


OF_NEW_DATA = FlagGroup("datasets that the sweep generates", excludes=("--data",))
_FIXED = (
    *("--samples", "--size", "--one-at-a-time", "--accelerators", "--seed", "--calibration"),
    *("--instance", "--host-price-per-hour", "--time"),
)
"""What a sweep that is continued or confirmed has its own values of."""


@verb(
    "sweep",
    "run a workload with combinations of settings",
    examples=(
        "resnet50-h100 --to /mnt/fast/sweep --samples 2000 --sweep dataset.format=files,tar "
        "--sweep loader.workers=1,2,4",
        "resnet50-h100 --to /mnt/fast/sweep --samples 2000 --sweep dataset.codec=none,zstd:1 "
        "--one-at-a-time --budget 20m",
        "cpu-training --data /mnt/fast/images --host-price-per-hour 0.357",
        "cpu-training --data /mnt/fast/images --set accelerator.model=vit-s16 "
        "--set batch_size=32 --budget 20m",
        "--confirm results/<sweep>",
    ),
    formats=DOCUMENTS,
    keeps=True,
)
@dataclass(frozen=True, kw_only=True)
class SweepRequest(VerbRequest):
    """Generate the datasets that the combinations (points) need, run each point several times with
    the points taking turns, and remove the data again. Keys that begin with 'dataset.' change the
    data, all others the workload. A walk, such as cpu-training, varies one setting after the other,
    and keeps what is told to be faster. Ctrl-C keeps what was measured, and --resume continues; the
    URL of its data, and what it names as code, must then be given again.
    """

    workload: str | None = word(
        "WORKLOAD",
        "name of a workload (iobench list workloads) or YAML file; or of a walk, which has its "
        "own settings (iobench list sweeps)",
        default=None,
    )
    axes: tuple[str, ...] = many(
        ValueKind("KEY=A,B,C"), "key to vary, and its values; repeatable", name="--sweep"
    )
    one_at_a_time: bool = switch(
        "vary one key at a time, and keep the others as in the workload (default: all "
        "combinations)",
    )
    data: str | None = flag(
        DIR, "directory or URL of a dataset that exists, which all points read, instead of --to"
    )
    data_root: str | None = flag(
        DIR, "directory or URL below which the datasets are generated", name="--to", of=OF_NEW_DATA
    )
    samples: int | None = flag(COUNT, "number of samples in each dataset", of=OF_NEW_DATA)
    size: int | None = flag(
        SIZE, "total bytes of each dataset's samples, e.g. 2GiB", of=OF_NEW_DATA, more=True
    )
    data_budget: int | None = flag(
        SIZE, "largest number of bytes of data to keep at a time", of=OF_NEW_DATA, more=True
    )
    keep_data: bool = switch("keep the datasets for another sweep", of=OF_NEW_DATA, more=True)
    budget_s: float | None = flag(
        TIME, "time limit, e.g. 20m; points for which no time is left are listed"
    )
    repeat: int | None = flag(
        COUNT, "number of repetitions of each point (default: 5)", more=True, short="-n", least=1
    )
    time_s: float | None = flag(
        TIME,
        "in a walk: about how long each trial trains, at the pace of its beginning (default: 10s)",
        more=True,
    )
    accelerators: int = flag(
        COUNT, "number of ranks in each run (default: 1)", default=1, more=True, least=1
    )
    resume: Path | None = flag(
        ValueKind("SWEEP_DIR", Path),
        "continue an interrupted sweep",
        excludes=("--confirm", "--repeat", "--tag", *_FIXED),
    )
    confirm: Path | None = flag(
        ValueKind("SWEEP_DIR", Path),
        "compare the advised settings with those in use today, by new runs with other seeds; "
        "exit with status 4 if the advice is not confirmed",
        excludes=_FIXED,
    )
    instance: str | None = flag(
        ValueKind("TYPE"),
        "instance type of this host (iobench list instances): the points get the cost of their "
        "samples, by its price on demand",
        more=True,
    )
    host_price_per_hour: float | None = flag(
        USD,
        "price of this host for one hour, instead of that of --instance",
        more=True,
        above=0,
        most=10000,
    )
    seed: int = flag(
        COUNT,
        "seed of the first round; each round has its own (default: 42)",
        default=42,
        more=True,
        least=0,
    )
    calibration_s: float | None = flag(
        TIME,
        "time to measure each ceiling, once for each point (default: 1s)",
        more=True,
        most=MAX_CALIBRATION_S,
    )
    results: Path = shared(RESULTS, Path("results"))
    tags: tuple[str, ...] = shared(TAGS)
    break_lock: bool = shared(BREAK_LOCK)
    overrides: tuple[str, ...] = many(
        SETTING, "override a key, e.g. batch_size=64; repeatable", name="--set"
    )


@verb(
    "ab",
    "two configurations in turns, until it is clear",
    examples=(
        "/mnt/fast/resnet50 /mnt/slow/resnet50 --workload resnet50-h100 --budget 10m",
        "/mnt/fast/resnet50 --workload resnet50-h100 --set-b reader.concurrency=16",
        "results/<run> --set-b loader.workers=8",
        "results/<run> /mnt/slow/resnet50 --fail-on 5% --if-inconclusive warn",
    ),
    formats=DOCUMENTS,
    keeps=True,
)
@dataclass(frozen=True, kw_only=True)
class AbRequest(VerbRequest):
    """Measure two datasets, storages or settings in turns, until a sequential test with a
    controlled error rate tells whether they differ by more than a threshold, or the budget ends.
    Print the ratio with its interval. A is the baseline, B the candidate. Exit status: 0 ok, 1
    failed, 2 usage, 3 a side is INVALID; with --fail-on 4 if B is worse, and as --if-inconclusive
    says where nothing is told or a side is INVALID.
    """

    a: str = word(
        "A",
        "the baseline: directory or URL of a dataset, or the directory of a run, whose "
        "workload, data and settings are repeated",
    )
    b: str | None = word("B", "the candidate, likewise (default: the same as A)", default=None)
    workload: str | None = flag(
        NAME,
        "name of a workload (iobench list workloads) or YAML file; without it, that of the run "
        "that A or B names",
    )
    overrides: tuple[str, ...] = shared(OVERRIDES)
    set_a: tuple[str, ...] = many(SETTING, "override a key for A alone; repeatable", more=True)
    set_b: tuple[str, ...] = many(SETTING, "override a key for B alone; repeatable")
    data: str | None = flag(
        DIR,
        "directory or URL of the data of the runs that are repeated (default: where their "
        "records say, if that is a directory)",
        more=True,
    )
    origin: str | None = shared(ORIGIN)
    origin_a: str | None = flag(URL, "the same for A alone", more=True)
    origin_b: str | None = flag(URL, "the same for B alone", more=True)
    accelerators: int | None = flag(
        COUNT, "number of ranks (default: as in the run that is repeated, or 1)", least=1
    )
    metric: str = flag(
        NAME,
        "metric that decides (default: samples_per_s)",
        default="samples_per_s",
    )
    threshold: float | None = flag(CHANGE, "largest change that counts as equal (default: 5%)")
    max_turns: int = flag(
        COUNT, "most turns (default: 20)", default=20, more=True, least=4, most=200
    )
    budget_s: float | None = flag(
        TIME, "time limit for all of it, e.g. 10m; no turn begins that would end later", above=0
    )
    fail_on: float | None = shared(FAIL_ON_CHANGE)
    if_inconclusive: str = shared(IF_INCONCLUSIVE, "fail")
    rules: str = shared(RULES, "quick")
    seed: int | None = flag(
        COUNT,
        "seed of the first turn; each has its own (default: as in the run that is repeated, or 42)",
        more=True,
        least=0,
    )
    results: Path = shared(RESULTS, Path("results"))
    tags: tuple[str, ...] = shared(TAGS)
    break_lock: bool = shared(BREAK_LOCK)


@verb(
    "probe",
    "throughput and latency over reads in flight",
    examples=(
        "/mnt/fast/resnet50",
        "/mnt/fast --request 4KiB,128KiB,1MiB --budget 60s",
        "s3://bucket/resnet50 --max-in-flight 64",
        "/mnt/fast/resnet50 --format csv > curve.csv",
    ),
    formats=DOCUMENTS,
)
@dataclass(frozen=True, kw_only=True)
class ProbeRequest(HostsRequest):
    """Read with 1, 2, 4, ... requests in flight until more of them bring nothing, and show the
    plateau (the most that the storage delivers), the knee (the fewest reads in flight that reach
    it) and the latencies. Large sequential requests are measured as well, which tells whether
    operations/s or bytes/s are spent. No workload is needed. Existing data is only read.
    """

    url: str = word("DIR", "directory or URL of a dataset, or of any files or objects to read")
    origin: str | None = shared(ORIGIN)
    request: str | None = flag(
        ValueKind("SIZE,..."),
        "sizes of the requests, e.g. 4KiB,128KiB,1MiB (default: the samples of a dataset, else "
        "128KiB)",
    )
    max_in_flight: int = flag(
        COUNT,
        "largest number of reads in flight, on each host (default: 256)",
        default=256,
        least=1,
        most=256,
    )
    budget_s: float = flag(
        TIME,
        "how long to measure at most, all curves together (default: 30s)",
        default=30.0,
        most=MAX_PROBE_S,
    )
