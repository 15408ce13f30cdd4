"""What can be measured: ``run``, ``train``, ``checkpoint``, ``sweep``, ``ab``, ``probe``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from .flags import (
    MORE,
    AcceleratorsPerHost,
    BreakLock,
    Change,
    Count,
    Details,
    Dir,
    Documents,
    FailOnChange,
    FailOnCondition,
    File,
    HostsRequest,
    IfInconclusive,
    Name,
    Origin,
    Overrides,
    Rate,
    Results,
    Rules,
    Settings,
    Share,
    SharedStorage,
    Size,
    Tags,
    Time,
    Url,
    Usd,
    VerbRequest,
    above,
    at_least,
    at_most,
    group,
    named,
    names_of,
    needs,
    without,
)

MAX_CALIBRATION_S = MAX_PROBE_S = 3600
SAVES = group("checkpoints during the run", needs("checkpoint"))
LOADER_OF_YOURS = group("your own loader", needs("loader"))
RECORDED = group("step times, to replay them without the device")
JOB = group("the real training, to compute how often to save and what that costs")
OF_NEW_DATA = group("datasets that the sweep generates", without("data"))
_FIXED = (
    *("samples", "size", "one_at_a_time", "accelerators", "seed", "calibration_s"),
    *("instance", "host_price_per_hour", "time_s"),
)
"""What a sweep that is continued or confirmed has its own values of."""


@dataclass(frozen=True, kw_only=True)
class MeasuringRequest(HostsRequest):
    """The flags of a run, whatever its workload; a subclass adds ``data``."""

    usual_repeat: ClassVar[int] = 6
    origin: Origin = None
    accelerators: Annotated[Count, at_least(1)] = 1
    """number of ranks, each with its own loader (default: 1)"""
    accelerators_per_host: AcceleratorsPerHost = None
    budget_s: Time | None = None
    """time for the whole run, from the start of iobench to the verdict: a pilot tells how many
    steps, repetitions and ablations fit. What is given by --repeat, --calibration, --ablations,
    --set max_steps and --set epochs stays as it is"""
    repeat: Annotated[Count | None, Parameter(alias="-n"), at_least(1)] = None
    """number of repetitions (default: 6, of train 3, or what --budget has time for; [min, max]
    of 6 covers the median with 97 %)"""
    find_max: bool = False
    """find the largest number of accelerators that this storage can feed"""
    confirm: bool = False
    """try the advice of this run: run the first changes that settings can apply in turns with
    today's settings, and print the promised and the found gain"""
    fail_on: FailOnCondition = ()
    details: Details = False
    rules: Rules = "quick"
    results: Results = Path("results")
    tags: Tags = ()
    seed: Annotated[Count, MORE, at_least(0)] = 42
    """seed of the first repetition; each has its own (default: 42)"""
    calibration_s: Annotated[Time | None, MORE, at_most(MAX_CALIBRATION_S)] = None
    """time to measure each ceiling; 0s skips all ceilings (default: 3s)"""
    ablations_s: Annotated[Time | None, MORE] = None
    """time for all ablations together, which measure what each stage costs by leaving it out,
    and as much again for --confirm (default: as long as the repetitions together, and at least
    three rounds)"""
    no_ablations: Annotated[bool, MORE] = False
    """leave no stage out; the verdict is then inferred from the ceilings, not tested"""
    checkpoint: Annotated[str | None, Parameter(metavar="MODEL"), SAVES, needs("checkpoint_to")] = (
        None
    )
    """model whose state is saved during the run (iobench list models)"""
    checkpoint_to: Annotated[Dir | None, SAVES] = None
    """directory or URL for the checkpoints"""
    checkpoint_every: Annotated[Count, Parameter(metavar="STEPS"), SAVES, MORE, at_least(1)] = 100
    """number of steps between two saves (default: 100)"""
    checkpoint_writer: Annotated[Name, SAVES, MORE] = "stream"
    """checkpoint writer (iobench list writers; default: stream)"""
    checkpoint_scale: Annotated[str, Parameter(metavar="SHARE"), SAVES, MORE] = "1"
    """share of the model's bytes to save, e.g. 1/64 (default: 1)"""
    break_lock: BreakLock = False


@dataclass(frozen=True, kw_only=True)
class RunRequest(MeasuringRequest):
    """Run a workload on a dataset: measure the ceiling of each stage alone, then all stages
    together, and print the verdict.

    For example:

      iobench run demo --data demo-data
      iobench run demo --data demo-data --budget 20s
      iobench run resnet50-h100 --data /mnt/fast/resnet50 --accelerators 2 \\
          --repeat 5
      iobench run resnet50-h100 --data /mnt/fast/resnet50 --find-max
      iobench run unet3d-h100 --data /mnt/fast/unet3d \\
          --set reader.concurrency=16 --fail-on 'samples_per_s<20'
      iobench run resnet50-h100 --data /mnt/fast/resnet50 --confirm
      iobench run resnet50-h100 --data /mnt/fast/resnet50 \\
          --checkpoint llama3-8b --checkpoint-scale 1/64 \\
          --checkpoint-to /mnt/ckpt
      iobench run resnet50-h100 --data /mnt/fast/resnet50 \\
          --loader mypkg.data:make_loader --headspace
      iobench run resnet50-h100 \\
          --data 'throttled+/mnt/fast/resnet50?bandwidth=2GB&latency=5ms'
    """

    keeps: ClassVar[bool] = True

    format: Documents = "text"
    workload: Annotated[str, named("workload")] = field(kw_only=False)
    """name of a workload (iobench list workloads) or YAML file"""
    data: Dir
    """directory or URL of the dataset"""
    overrides: Overrides = ()
    loader: Annotated[
        str | None,
        Parameter(metavar="MODULE:FUNCTION"),
        LOADER_OF_YOURS,
        without("confirm", "find_max"),
    ] = None
    """measure the loader that this function of yours returns (a torch DataLoader, any iterable
    of batches, a Lightning DataModule), unchanged"""
    loader_args: Annotated[Settings, LOADER_OF_YOURS, MORE] = ()
    """an argument for that function; repeatable. The dataset's directory is passed as 'data' if
    the function has this parameter"""
    headspace: Annotated[bool, LOADER_OF_YOURS, MORE, without("checkpoint", "fail_on")] = False
    """only find how much faster any loader could make this run: repeat 10 of its batches that
    are kept in memory, in turns with the run itself"""


@dataclass(frozen=True, kw_only=True)
class TrainRequest(MeasuringRequest):
    """Train a real model on the batches that the storage delivers: on a GPU, or on the CPU beside
    its own loader. Measures the same ceilings as 'iobench run', and the training step alone. Needs
    no labels: the targets are computed from the data. With --record it reads no data, and writes
    down the step times, which a workload with accelerator.kind: recorded replays on any storage.

    For example:

      iobench train resnet18 --data demo-data
      iobench train vit-b16 --data /mnt/fast/resnet50 --device cuda \\
          --batch-size 128 --precision bfloat16
      iobench train resnet50 --data demo-data \\
          --set accelerator.memory_format=channels_last \\
          --set accelerator.threads=4
      iobench train mypkg.models:make --data /mnt/fast/resnet50
      iobench train resnet18 --batch-size 16 --record resnet18.json
      iobench train vit-b16 --device cuda --batch-size 128 --record vit-b16.json
    """

    keeps: ClassVar[bool] = True

    format: Documents = "text"
    usual_repeat: ClassVar[int] = 3
    model: str = field(kw_only=False)
    """name of a model (iobench list networks), or module:callable that returns one"""
    data: Dir | None = None
    """directory or URL of the dataset; needed without --record"""
    device: Annotated[str | None, Parameter(metavar="DEVICE")] = None
    """cuda, cuda:N or cpu (default: cpu)"""
    batch_size: Count = 32
    """samples in a batch (default: 32)"""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """float32, or one of the others by autocast (default: float32)"""
    time_s: Annotated[Time | None, MORE] = None
    """about how long a repetition should train (default: 10s, or what --budget has time for,
    and at least 10 steps); with --record the shortest time of all steps together (default: 30s)"""
    overrides: Settings = ()
    """override a key, e.g. accelerator.compile=true; repeatable"""
    record: Annotated[File | None, RECORDED, without("data", *names_of(MeasuringRequest))] = None
    """train on batches that are in memory, and write down how long each step takes; an existing
    file is not replaced"""
    steps: Annotated[Count | None, RECORDED, at_least(2), needs("record")] = None
    """smallest number of steps with --record (default: 300)"""


@dataclass(frozen=True, kw_only=True)
class CheckpointRequest(SharedStorage, HostsRequest):
    """Save a model's state repeatedly, restore it from cold storage, verify it, and compute what
    that costs a training. The target must be new, empty, or hold checkpoints of iobench. The
    checkpoints of this study are removed at the end; --keep-data keeps the last one. Exit status: 0
    ok, 1 failed, 2 usage, 3 the study is invalid, 4 a --fail-on condition holds.

    For example:

      iobench checkpoint llama3-8b --to /mnt/ckpt --scale 1/64
      iobench checkpoint llama3-8b --to /mnt/ckpt --ranks 8 --writer dcp
      iobench checkpoint llama3-8b --to /mnt/ckpt --scale 1/64 --writer dcp \\
          --async --set steps=50 --set step_time=200ms
      iobench checkpoint llama3-70b --to s3://bucket/ckpt --writer stream \\
          --repeat 10
      iobench checkpoint llama3-8b --to /mnt/ckpt --scale 1/64 \\
          --accelerators 1024 --accelerator-price-per-hour 2.5
      iobench checkpoint llama3-8b --to /mnt/ckpt --scale 1/64 \\
          --accelerators 1024 --hosts-writing 128 --storage-write-limit 40GB/s
      iobench checkpoint llama3-8b --to /mnt/fs/ckpt --ranks-per-host 8 \\
          --hosts h1,h2 --print
    """

    keeps: ClassVar[bool] = True

    format: Documents = "text"
    model: Annotated[str, named("model")] = field(kw_only=False)
    """model to checkpoint (iobench list models)"""
    to: Dir
    """directory or URL for the checkpoints"""
    writer: Name = "stream"
    """checkpoint writer (iobench list writers; default: stream)"""
    asynchronous: bool = False
    """use the asynchronous version of the writer: training continues while it writes"""
    ranks: Count = 1
    """number of ranks that share the state (default: 1)"""
    ranks_per_host: Annotated[Count | None, MORE, at_least(1), without("ranks")] = None
    """number of ranks on each host, in place of --ranks, which counts those of all"""
    scale: Annotated[str, Parameter(metavar="SHARE")] = "1"
    """share of the model's bytes to save, e.g. 1/64 (default: 1)"""
    repeat: Annotated[Count, Parameter(alias="-n")] = 10
    """number of saves, and of restores (default: 10)"""
    budget_s: Time | None = None
    """time for the whole study: at most --repeat saves and restores, as many of both as there
    is time for, and one of each at least"""
    keep_data: Annotated[bool, MORE] = False
    """keep the last checkpoint in the target"""
    overrides: Settings = ()
    """override a key, e.g. fsync=false; repeatable"""
    fail_on: Annotated[tuple[str, ...], Parameter(metavar="CONDITION")] = ()
    """exit with status 4 if this holds, e.g. 'blocked_s>5'; repeatable"""
    rules: Rules = "quick"
    results: Results = Path("results")
    tags: Tags = ()
    break_lock: BreakLock = False
    accelerators: Annotated[Count | None, JOB, above(0)] = None
    """accelerators in the real training, for its failures and its cost (default: as published)"""
    mtbf_s: Annotated[Time | None, JOB, MORE, above(0)] = None
    """mean time between interruptions of the whole job, e.g. 3h (default: as published)"""
    restart_s: Annotated[Time, JOB, MORE] = 0.0
    """time to restart after an interruption, without the restore (default: 0s)"""
    interval_s: Annotated[Time | None, JOB, above(0)] = None
    """time between two checkpoints today, e.g. 30min"""
    accelerator_price_per_hour: Annotated[Usd | None, JOB, MORE, above(0)] = None
    """price of one accelerator for one hour"""
    samples_per_s: Annotated[Rate | None, JOB, MORE, above(0)] = None
    """samples/s of the whole training, to count lost samples"""
    stall_budget: Annotated[Share, JOB, MORE] = 0.01
    """largest share of the time that saves may take (default: 1%)"""
    notice_s: Annotated[Time, JOB, MORE] = 120.0
    """time between the notice and the end of a spot instance (default: 2m)"""


@dataclass(frozen=True, kw_only=True)
class SweepRequest(VerbRequest):
    """Generate the datasets that the combinations (points) need, run each point several times with
    the points taking turns, and remove the data again. Keys that begin with 'dataset.' change the
    data, all others the workload. A walk, such as cpu-training, varies one setting after the other,
    and keeps what is told to be faster. Ctrl-C keeps what was measured, and --resume continues; the
    URL of its data, and what it names as code, must then be given again.

    For example:

      iobench sweep resnet50-h100 --to /mnt/fast/sweep --samples 2000 \\
          --sweep dataset.format=files,tar --sweep loader.workers=1,2,4
      iobench sweep resnet50-h100 --to /mnt/fast/sweep --samples 2000 \\
          --sweep dataset.codec=none,zstd:1 --one-at-a-time --budget 20m
      iobench sweep cpu-training --data /mnt/fast/images \\
          --host-price-per-hour 0.357
      iobench sweep cpu-training --data /mnt/fast/images \\
          --set accelerator.model=vit-s16 --set batch_size=32 --budget 20m
      iobench sweep --confirm results/<sweep>
    """

    keeps: ClassVar[bool] = True

    format: Documents = "text"
    workload: Annotated[str | None, named("workload", "sweep")] = field(kw_only=False, default=None)
    """name of a workload (iobench list workloads) or YAML file; or of a walk, which has its own
    settings (iobench list sweeps)"""
    sweep: Annotated[tuple[str, ...], Parameter(metavar="KEY=A,B,C")] = ()
    """key to vary, and its values; repeatable"""
    one_at_a_time: bool = False
    """vary one key at a time, and keep the others as in the workload (default: all combinations)"""
    data: Dir | None = None
    """directory or URL of a dataset that exists, which all points read, instead of --to"""
    to: Annotated[Dir | None, OF_NEW_DATA] = None
    """directory or URL below which the datasets are generated"""
    samples: Annotated[Count | None, OF_NEW_DATA] = None
    """number of samples in each dataset"""
    size: Annotated[Size | None, OF_NEW_DATA, MORE] = None
    """total bytes of each dataset's samples, e.g. 2GiB"""
    data_budget: Annotated[Size | None, OF_NEW_DATA, MORE] = None
    """largest number of bytes of data to keep at a time"""
    keep_data: Annotated[bool, OF_NEW_DATA, MORE] = False
    """keep the datasets for another sweep"""
    budget_s: Time | None = None
    """time limit, e.g. 20m; points for which no time is left are listed"""
    repeat: Annotated[Count | None, MORE, Parameter(alias="-n"), at_least(1)] = None
    """number of repetitions of each point (default: 5)"""
    time_s: Annotated[Time | None, MORE] = None
    """in a walk: about how long each trial trains, at the pace of its beginning (default: 10s)"""
    accelerators: Annotated[Count | None, MORE, at_least(1)] = None
    """number of ranks in each run (default: 1)"""
    resume: Annotated[
        Path | None, Parameter(metavar="SWEEP_DIR"), without("confirm", "repeat", "tags", *_FIXED)
    ] = None
    """continue an interrupted sweep"""
    confirm: Annotated[Path | None, Parameter(metavar="SWEEP_DIR"), without(*_FIXED)] = None
    """compare the advised settings with those in use today, by new runs with other seeds; exit
    with status 4 if the advice is not confirmed"""
    instance: Annotated[str | None, Parameter(metavar="TYPE"), MORE] = None
    """instance type of this host (iobench list instances): the points get the cost of their
    samples, by its price on demand"""
    host_price_per_hour: Annotated[Usd | None, MORE, above(0, 10000)] = None
    """price of this host for one hour, instead of that of --instance"""
    seed: Annotated[Count | None, MORE, at_least(0)] = None
    """seed of the first round; each round has its own (default: 42)"""
    calibration_s: Annotated[Time | None, MORE, at_most(MAX_CALIBRATION_S)] = None
    """time to measure each ceiling, once for each point (default: 1s)"""
    results: Results = Path("results")
    tags: Tags = ()
    break_lock: BreakLock = False
    overrides: Settings = ()
    """override a key, e.g. batch_size=64; repeatable"""


@dataclass(frozen=True, kw_only=True)
class AbRequest(VerbRequest):
    """Measure two datasets, storages or settings in turns, until a sequential test with a
    controlled error rate tells whether they differ by more than a threshold, or the budget ends.
    Print the ratio with its interval. A is the baseline, B the candidate. Exit status: 0 ok, 1
    failed, 2 usage, 3 a side is INVALID; with --fail-on 4 if B is worse, and as --if-inconclusive
    says where nothing is told or a side is INVALID.

    For example:

      iobench ab /mnt/fast/resnet50 /mnt/slow/resnet50 --workload resnet50-h100 \\
          --budget 10m
      iobench ab /mnt/fast/resnet50 --workload resnet50-h100 \\
          --set-b reader.concurrency=16
      iobench ab results/<run> --set-b loader.workers=8
      iobench ab results/<run> /mnt/slow/resnet50 --fail-on 5% \\
          --if-inconclusive warn
    """

    keeps: ClassVar[bool] = True

    format: Documents = "text"
    a: str = field(kw_only=False)
    """the baseline: directory or URL of a dataset, or the directory of a run, whose workload,
    data and settings are repeated"""
    b: str | None = field(kw_only=False, default=None)
    """the candidate, likewise (default: the same as A)"""
    workload: Name | None = None
    """name of a workload (iobench list workloads) or YAML file; without it, that of the run
    that A or B names"""
    overrides: Overrides = ()
    set_a: Annotated[Settings, MORE] = ()
    """override a key for A alone; repeatable"""
    set_b: Settings = ()
    """override a key for B alone; repeatable"""
    data: Annotated[Dir | None, MORE] = None
    """directory or URL of the data of the runs that are repeated (default: where their records
    say, if that is a directory)"""
    origin: Origin = None
    origin_a: Annotated[Url | None, MORE] = None
    """the same for A alone"""
    origin_b: Annotated[Url | None, MORE] = None
    """the same for B alone"""
    accelerators: Annotated[Count | None, at_least(1)] = None
    """number of ranks (default: as in the run that is repeated, or 1)"""
    metric: Name = "samples_per_s"
    """metric that decides (default: samples_per_s)"""
    threshold: Change | None = None
    """largest change that counts as equal (default: 5%)"""
    max_turns: Annotated[Count, MORE, at_least(4, 200)] = 20
    """most turns (default: 20)"""
    budget_s: Annotated[Time | None, above(0)] = None
    """time limit for all of it, e.g. 10m; no turn begins that would end later"""
    fail_on: FailOnChange = None
    if_inconclusive: IfInconclusive = "fail"
    rules: Rules = "quick"
    seed: Annotated[Count | None, MORE, at_least(0)] = None
    """seed of the first turn; each has its own (default: as in the run that is repeated, or 42)"""
    results: Results = Path("results")
    tags: Tags = ()
    break_lock: BreakLock = False


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(HostsRequest):
    """Read with 1, 2, 4, ... requests in flight until more of them bring nothing, and show the
    plateau (the most that the storage delivers), the knee (the fewest reads in flight that reach
    it) and the latencies. Large sequential requests are measured as well, which tells whether
    operations/s or bytes/s are spent. No workload is needed. Existing data is only read.

    For example:

      iobench probe /mnt/fast/resnet50
      iobench probe /mnt/fast --request 4KiB,128KiB,1MiB --budget 60s
      iobench probe s3://bucket/resnet50 --max-in-flight 64
      iobench probe /mnt/fast/resnet50 --format csv > curve.csv
    """

    format: Documents = "text"
    url: str = field(kw_only=False)
    """directory or URL of a dataset, or of any files or objects to read"""
    origin: Origin = None
    request: Annotated[str | None, Parameter(metavar="SIZE,...")] = None
    """sizes of the requests, e.g. 4KiB,128KiB,1MiB (default: the samples of a dataset, else
    128KiB)"""
    max_in_flight: Annotated[Count, at_least(1, 256)] = 256
    """largest number of reads in flight, on each host (default: 256)"""
    budget_s: Annotated[Time, at_most(MAX_PROBE_S)] = 30.0
    """how long to measure at most, all curves together (default: 30s)"""
