"""What every verb can be asked: one typed request for each, whose fields are its words and flags.

This imports nothing that a verb works with, so that a help is printed at once. The text of a class
is the help of its verb, and the text below a field that of its flag.
"""

import re
from collections.abc import Callable
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from cyclopts import Parameter

from ..base.errors import UsageError
from ..base.units import RESTART_S
from .flags import (
    CHECKPOINT,
    MAX_HOSTS,
    MORE,
    OVERRIDES,
    AcceleratorsPerHost,
    BytesPerS,
    Change,
    Conditions,
    ConditionsOnMetrics,
    Count,
    Counts,
    Dir,
    File,
    GateRequest,
    HistoryRequest,
    HostsRequest,
    KeysAndValues,
    LockingRequest,
    Name,
    Names,
    NewCount,
    NewRate,
    NewTime,
    Number,
    Overrides,
    Pages,
    Parameters,
    Place,
    Rate,
    RecordingRequest,
    Records,
    ReportedRequest,
    RuledRequest,
    ScannedRequest,
    Settings,
    Share,
    SharedStorage,
    Size,
    StallBudgets,
    Time,
    Times,
    TrialsRequest,
    Url,
    Usd,
    VerbRequest,
    Workers,
    above,
    at_least,
    at_most,
    duration,
    group,
    named,
    names_of,
    needs,
    number,
    value,
    without,
)

if TYPE_CHECKING:
    from ..runner.options import Observer
else:  # a report is made without what measures, and cyclopts needs a type only
    Observer = object

OF_A_RUN = group("of a run")
SUBMISSION = group("of a submission to MLPerf Storage")
ONE_CHECKPOINT = group("checkpoints, of one workload")
GRADIENTS = group("gradients, of one workload")
STORAGE = group("storage")
WEIGHTS = group("weights of a model")
REQUESTS = group("requests that arrive")


class CheckRequest(TrialsRequest):
    """Generate a dataset below URL that fits the time and the space, measure the storage and run
    the workload on it, print the verdict, and remove the data. A dataset that lies at URL already
    is read as it is, and never removed. Nothing else there is touched. Ctrl-C removes what was
    generated, and keeps what was measured.

    For example:

      iobench check /mnt/fast
      iobench check /mnt/fast --workload cosmoflow-h100 --accelerators 4 \\
          --budget 15min
      iobench check s3://bucket/prefix --budget 10min --keep-data
      iobench check /mnt/fast/resnet50 # a dataset: it is read, and stays
    """

    url: str = field(kw_only=False)
    """directory or URL: of a dataset, or one below which data may be generated"""
    workload: Name | None = None
    """name of a workload (iobench list workloads) or YAML file. Default: one that trains on the
    dataset that lies there, otherwise resnet50-h100, which reads many small images and is the
    best known"""
    accelerators: Annotated[Count, at_least(1)] = 1
    """number of ranks, each with its own loader (default: 1)"""
    budget_s: Time = 300.0
    """time for everything: generating data, measuring, and removing the data (default: 5min)"""
    size: Size | None = None
    """total bytes of the data to generate, e.g. 20GiB (default: what the time allows, and at
    most 20 % of the free space)"""
    keep_data: bool = False
    """keep the generated data, and print where it is"""
    overrides: Overrides = ()


class DemoRequest(RecordingRequest, ReportedRequest):
    """Generate the dataset 'demo' (270 MiB) and run the workload 'demo' on it. On local disk the
    dataset stays in ./demo-data. With --s3, a real S3 server (rclone) is started on loopback over a
    temporary directory, and everything is removed at the end.

    For example:

      iobench demo
      iobench demo --s3
    """

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
      iobench plan unet3d-b200 --data /mnt/fast --accelerators 8 --print mlpstorage
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
    weights_only: Annotated[bool, CHECKPOINT] = False
    """the parameters alone, without the optimizer's state"""
    changed: Annotated[str | None, Parameter(metavar="SHARE"), CHECKPOINT, MORE] = None
    """share of the state's bytes that changes, e.g. 5%: each checkpoint after the first has only
    the tensors that changed (default: 1)"""
    ranks: Annotated[Count | None, CHECKPOINT] = None
    """number of ranks that share the state (default: as published)"""
    stall_budgets: StallBudgets = ()
    mtbf_s: Annotated[Time | None, CHECKPOINT, MORE, above(0)] = None
    """mean time between interruptions of the whole job, e.g. 3h (default: from the published
    rate and the number of accelerators)"""
    interval_s: Annotated[Time | None, CHECKPOINT, MORE, above(0)] = None
    """time between two checkpoints, e.g. 30min (default: the best for each stall budget)"""
    print_tool: Annotated[Literal["mlpstorage"] | None, SUBMISSION, without("probe")] = None
    """print the commands of MLPerf Storage's own tool for this, and what its validation asks"""
    hosts: Annotated[Count, SUBMISSION, at_least(1, MAX_HOSTS), needs("print_tool")] = 1
    """with --print: hosts with these accelerators (default: 1)"""
    host_memory: Annotated[Size | None, SUBMISSION, above(0), needs("print_tool")] = None
    """with --print: memory of each host, e.g. 512GiB (default: that of this host)"""


OF_ONE_TRAINING = (
    *("dataset_size", "checkpoint_bytes", "checkpoint_budget_s", "checkpoint_every_s"),
    *("restore_budget_s", "gradient_bytes", "parameters", "gradient_precision"),
)
OF_TRAININGS = ("accelerators", "hosts", "alignment", "cache", "steps", *OF_ONE_TRAINING)
"""What means nothing for weights and for requests, and of it what is about one training alone."""


class SizeRequest(ReportedRequest):
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
      iobench size llama3-70b-weights --replicas 64 --ready 60s
      iobench size resnet50-server --rate 2000 --limit 15ms
    """

    format: Pages = "text"
    workload: Annotated[tuple[str, ...], named("workload")] = field(kw_only=False)
    """name of a workload (iobench list workloads) or YAML file; several are trained on one
    storage at the same time, and what they need is added up"""
    accelerators: Counts = ()
    """number of accelerators on all hosts together; of several workloads, that of each, or one
    for each: 16,8"""
    replicas: Annotated[
        Count | None, WEIGHTS, at_least(1), needs("ready_s"), without(*OF_TRAININGS, "overrides")
    ] = None
    """replicas of a model that start at one instant, each on a host of its own: then the model is
    named instead of a workload, e.g. llama3-70b-weights (iobench list served-models)"""
    ready_s: Annotated[Time | None, WEIGHTS, above(0), needs("replicas")] = None
    """time in which all replicas are to be ready, e.g. 60s"""
    engine_start_s: Annotated[Time | None, WEIGHTS, above(0), needs("replicas")] = None
    """what the engine needs of that beside the weights, e.g. 45s"""
    rate: Annotated[
        Rate | None, REQUESTS, above(0), without("replicas", "instance", *OF_TRAININGS)
    ] = None
    """requests of a scenario that arrive in a second: then the scenario is named instead of a
    workload, e.g. resnet50-server (iobench list scenarios)"""
    limit_s: Annotated[Time | None, REQUESTS, above(0), needs("rate")] = None
    """longest latency of the share of requests that the scenario names, e.g. 15ms (default: as in
    the scenario)"""
    hosts: Counts = (1,)
    """number of hosts with these accelerators, or one for each workload (default: 1)"""
    run_directory: Annotated[str | None, Parameter(metavar="RUN_DIR")] = None
    """recorded run, whose storage is compared with the demand, of one workload"""
    required_au: Annotated[Number | None, above(0, 1)] = None
    """required accelerator utilization, 0 to 1 (default: as in the workload)"""
    latency_s: Annotated[Time | None, STORAGE, above(0)] = None
    """latency of one read, the median, e.g. 5ms (default: as measured by the run of --from)"""
    latency_p99_s: Annotated[Time | None, STORAGE, MORE, above(0), needs("latency_s")] = None
    """99th percentile of that latency, e.g. 40ms: the margin covers how it differs (default: as
    measured by the run of --from, or all reads alike)"""
    steps: Annotated[Count | None, MORE, at_least(1)] = None
    """steps of an epoch, over which the utilization counts (default: those of the dataset, at
    least 500)"""
    dataset_size: Size | None = None
    """bytes of the real dataset, if it differs from the workload's, e.g. 20TiB"""
    alignment: Annotated[Size | None, STORAGE, MORE, above(0)] = None
    """the storage reads whole blocks of this size: 1 for object stores (default: 4KiB, as file
    systems and O_DIRECT do, or as in the run of --from)"""
    cache: Annotated[Size | None, STORAGE] = None
    """memory for cached data in each host, e.g. 512GiB"""
    instance: Annotated[str | None, Parameter(metavar="TYPE")] = None
    """instance type of the hosts, to check its network (iobench list instances)"""
    checkpoint_bytes: Annotated[
        Size | None, ONE_CHECKPOINT, above(0), needs("checkpoint_budget_s", "restore_budget_s")
    ] = None
    """bytes of one checkpoint of the whole job, e.g. 105GB"""
    checkpoint_budget_s: Annotated[
        Time | None, ONE_CHECKPOINT, MORE, above(0), needs("checkpoint_bytes")
    ] = None
    """longest time for which one checkpoint may stop the training, e.g. 1m"""
    checkpoint_every_s: Annotated[
        Time | None, ONE_CHECKPOINT, MORE, above(0), needs("checkpoint_budget_s")
    ] = None
    """time from one checkpoint to the next, e.g. 30m, for the mean rate of writes"""
    restore_budget_s: Annotated[
        Time | None, ONE_CHECKPOINT, MORE, above(0), needs("checkpoint_bytes")
    ] = None
    """longest time in which all ranks together may read the checkpoint after an interruption,
    e.g. 2m"""
    restore_copies: Annotated[
        Count, ONE_CHECKPOINT, MORE, at_least(1), needs("restore_budget_s")
    ] = 1
    """how often a restore reads the checkpoint: 1 where each rank reads its own part, the
    number of ranks where each reads all of it (default: 1)"""
    gradient_bytes: Annotated[Size | None, GRADIENTS, MORE, above(0), without("parameters")] = None
    """bytes of the gradients that the hosts exchange in each step of data-parallel training,
    e.g. 346MB"""
    parameters: Annotated[Parameters | None, GRADIENTS, MORE] = None
    """parameters of the model, e.g. 86.6M, instead of --gradient-bytes"""
    gradient_precision: Annotated[
        Literal["fp32", "tf32", "bf16", "fp16", "fp8"] | None, GRADIENTS, MORE, needs("parameters")
    ] = None
    """of each gradient, with --parameters (default: fp32)"""
    overrides: Overrides = ()


class GenerateQuestion(LockingRequest):
    """What ``iobench generate`` and ``iobench.generate`` can be asked of a dataset.

    ``progress`` is called with (bytes done, bytes in all) from time to time.
    """

    dataset: Annotated[str, named("dataset")] = field(kw_only=False)
    """name of a dataset (iobench list datasets) or YAML file; or NAME-weights, the safetensors
    files of a model (iobench list served-models)"""
    to: Place
    """directory or URL for the dataset; must be new, empty, or hold this same dataset"""
    size: Annotated[Size | None, without("samples", "memory_multiple")] = None
    """total bytes of the samples, e.g. 20GiB"""
    samples: Annotated[Count | None, without("memory_multiple")] = None
    """number of samples"""
    memory_multiple: Annotated[Number | None, above(0, 1000000.0)] = None
    """total bytes as a multiple of the memory of this host (or of its cgroup), e.g. 5"""
    seed: Count | None = None
    """seed for sizes and contents"""
    overrides: Annotated[KeysAndValues, OVERRIDES] = ()
    workers: Workers = None
    progress: Annotated[Callable[[int, int], None] | None, Parameter(parse=False)] = None


class GenerateRequest(GenerateQuestion, HostsRequest):
    """Generate a dataset from its spec. Bytes are unique and incompressible unless the spec says
    otherwise. The same spec gives the same bytes with any number of workers. To continue an
    interrupted generation, give the same command again.

    For example:

      iobench generate demo --to /tmp/iobench-demo
      iobench generate resnet50 --to /mnt/fast/resnet50 --size 20GiB
      iobench generate unet3d --to /mnt/fast/unet3d --memory-multiple 5
      iobench generate resnet50 --to /mnt/fast/resnet50-tar --samples 10000 \\
          --set format=tar --set shard_size=64MiB --set codec=zstd:1
      iobench generate resnet50 --to s3://bucket/resnet50 --samples 10000 \\
          --set format=tar
      iobench generate ./mine.yaml --to /mnt/fast/mine --seed 7 --workers 4
      iobench generate llama3-8b-weights --to /mnt/fast/llama3-8b --layers 4
    """

    keeps: ClassVar[bool] = True
    layers: Annotated[Count | None, WEIGHTS, at_least(1)] = None
    """layers to generate (default: all); each keeps its tensors and their sizes"""
    vocabulary: Annotated[Count | None, WEIGHTS, at_least(1)] = None
    """entries of the vocabulary (default: all); only the embeddings become smaller"""


class ScanRequest(VerbRequest):
    """Read the headers of files, WebDataset tars, TFRecords, Parquet or HDF5 below a directory or
    URL, and write nothing there. Parquet does not record the sizes of samples, so the column that
    holds them is read. Two things are saved elsewhere: NAME.yaml, a dataset spec with the sizes
    that were found, from which generate makes a dataset of the same shape; and NAME.manifest, by
    which run reads the data itself. Symbolic links are not followed.

    For example:

      iobench scan /mnt/fast/imagenet/train --save imagenet.yaml
      iobench scan s3://bucket/shards --save shards.yaml
      iobench scan /mnt/fast/imagenet/train --save checked.yaml --name imagenet \\
          --checksums
    """

    url: str = field(kw_only=False)
    """directory or URL that holds the data"""
    save: Annotated[Path, Parameter(metavar="NAME.yaml")]
    """file for the spec; the manifest is written next to it, as NAME.manifest"""
    name: Name | None = None
    """name of the dataset (default: the last part of the URL)"""
    checksums: bool = False
    """read every sample once and record its checksum, for verify and reader.check=content"""


class VerifyRequest(ScannedRequest, LockingRequest, HostsRequest):
    """Read a whole dataset and compare every sample, and everything around the samples, with the
    manifest. Damage is listed with its shard and sample. What could not be read (permissions, a
    failing device, a server that does not answer) is listed separately, because it may be
    undamaged. Exit status: 0 no damage, 1 something is damaged, 5 something could not be read, and
    there is no damage in the rest.

    For example:

      iobench verify /mnt/fast/resnet50
      iobench verify /mnt/fast/resnet50 --json
      iobench verify s3://bucket/resnet50
      iobench verify imagenet.manifest --origin /mnt/fast/imagenet/train
    """

    dir: str = field(kw_only=False)
    """directory or URL of the dataset"""
    workers: Workers = None


MAX_CALIBRATION_S = MAX_PROBE_S = 3600
SAVES = group("checkpoints during the run", needs("checkpoint"))
LOADER_OF_YOURS = group("your own loader", needs("loader"))
RECORDED = group("step times, to replay them without the device")
TRAINING = group("the real training, to compute how often to save and what that costs")
OF_NEW_DATA = group("datasets that the sweep generates", without("data"))
_FIXED = (
    *("samples", "size", "one_at_a_time", "accelerators", "seed", "calibration_s"),
    *("instance", "host_price_per_hour", "time_s"),
)
"""What a sweep that is continued or confirmed has its own values of."""


class MeasuringQuestion(ScannedRequest, RuledRequest, RecordingRequest, LockingRequest):
    """What a run can be asked, whatever its workload; a subclass adds ``data``.

    ``observer`` hears how far the run is, if Python asks.
    """

    usual_repeat: ClassVar[int] = 6
    observer: Annotated[Observer | None, Parameter(parse=False)] = None
    accelerators: Annotated[Count, at_least(1)] = 1
    """number of ranks, each with its own loader (default: 1)"""
    budget_s: Time | None = None
    """time for the whole run, from the start of iobench to the verdict: a pilot tells how many
    steps, repetitions and ablations fit. What is given by --repeat, --calibration, --ablations,
    --set max_steps and --set epochs stays as it is (default of run, without any of these: at
    most 5 minutes)"""
    repeat: Annotated[Count | None, Parameter(alias="-n"), at_least(1)] = None
    """number of repetitions (default: 6, of train 3, or what --budget has time for; [min, max]
    of 6 covers the median with 97 %)"""
    find_max: bool = False
    """find the largest number of accelerators that this storage can feed"""
    confirm: bool = False
    """try the advice of this run: run the first changes that settings can apply in turns with
    today's settings, and print the promised and the found gain"""
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
    checkpoint_changed: Annotated[str, Parameter(metavar="SHARE"), SAVES, MORE] = "1"
    """share of the state's bytes that changes, e.g. 5%: the whole state is saved once, and each
    later save has only the tensors that changed (default: 1)"""


class MeasuringRequest(MeasuringQuestion, HostsRequest, ReportedRequest):
    """The flags of a run beside the question itself."""

    accelerators_per_host: AcceleratorsPerHost = None
    fail_on: ConditionsOnMetrics = ()


class RunQuestion(MeasuringQuestion):
    """What ``iobench run`` and ``iobench.run`` can be asked."""

    workload: Annotated[str, named("workload")] = field(kw_only=False)
    """name of a workload (iobench list workloads) or YAML file"""
    data: Place
    """directory or URL of the dataset"""
    overrides: Annotated[KeysAndValues, OVERRIDES] = ()
    log: Annotated[Dir | None, MORE] = None
    """write a record of each sample to this new or empty directory or URL, as inference offline
    does, and tell what that costs (keys: log.commit, log.record ...); nothing of it stays"""
    loader: Annotated[
        str | None,
        Parameter(metavar="MODULE:FUNCTION"),
        LOADER_OF_YOURS,
        without("confirm", "find_max"),
    ] = None
    """measure the loader that this function of yours returns (a torch DataLoader, any iterable
    of batches, a Lightning DataModule), unchanged; FILE.py:FUNCTION names it by its file"""
    loader_args: Annotated[KeysAndValues, LOADER_OF_YOURS, MORE] = ()
    """an argument for that function; repeatable. The dataset's directory is passed as 'data' if
    the function has this parameter"""
    cache_dir: Annotated[Dir | None, MORE, needs("cache_size"), without("loader")] = None
    """directory on a local disk that caches what was read, in front of the data's storage; the
    copies are removed at the end"""
    cache_size: Annotated[Size | None, MORE, above(0), needs("cache_dir")] = None
    """the most bytes that the cache holds, e.g. 20GB"""


class RunRequest(RunQuestion, MeasuringRequest):
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

    headspace: Annotated[bool, LOADER_OF_YOURS, MORE, without("checkpoint", "fail_on")] = False
    """only find how much faster any loader could make this run: repeat 10 of its batches that
    are kept in memory, in turns with the run itself"""


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
    """smallest number of steps with --record (default: 300, or 10 if --time is given)"""


class ArrivingRequest(RuledRequest, RecordingRequest, LockingRequest, ReportedRequest):
    """The flags of requests that arrive by themselves."""

    rate: Annotated[Rate | None, above(0), without("find_max")] = None
    """requests that arrive in a second, on average (default: those of --trace, or as in the
    scenario)"""
    find_max: bool = False
    """find the largest rate that holds the limit, and measure at that rate"""
    limit_s: Annotated[Time | None, above(0)] = None
    """longest latency of the share of requests that the scenario names, e.g. 15ms (default: as in
    the scenario)"""
    duration_s: Annotated[Time | None, above(0), at_most(24 * 3600)] = None
    """for how long requests arrive in a repetition, and in each try of --find-max (default: as in
    the scenario)"""
    budget_s: Time | None = None
    """time for the whole run: requests arrive for a shorter time, and in fewer repetitions, so that
    it ends in time"""
    fail_on: Conditions = ()
    """exit with status 4 if this holds, e.g. 'latency_p99_s>0.015'; repeatable"""
    seed: Annotated[Count, MORE, at_least(0)] = 42
    """seed of the arrivals, and of the samples or prompts: the same seed has the same hits of a
    cache (default: 42)"""
    overrides: Settings = ()
    """override a key, e.g. reader.concurrency=128; repeatable"""


class ServeRequest(ScannedRequest, ArrivingRequest):
    """Let requests arrive by themselves, each for one sample that is read from storage, and tell
    how long they take from their arrival to the end of the accelerator's step. Prints whether
    this storage holds the limit at this rate, where the time goes, and the bottleneck. Inference
    offline, without arrivals, is a run: iobench run resnet50-offline.

    For example:

      iobench serve resnet50-server --data /mnt/fast/resnet50 --rate 400
      iobench serve resnet50-server --data /mnt/fast/resnet50 --find-max
      iobench serve bert-server --data s3://bucket/bert --rate 2000 --limit 50ms
      iobench serve resnet50-server --data /mnt/fast/resnet50 --rate 400 \\
          --set arrivals.kind=gamma --set arrivals.cv=3
      iobench serve bert-server --data /mnt/fast/bert --trace mooncake.jsonl \\
          --trace-format mooncake
      iobench serve resnet50-server --data /mnt/fast/resnet50 --rate 400 \\
          --log /mnt/fast/log --set log.commit=group
    """

    scenario: Annotated[str, named("scenario")] = field(kw_only=False)
    """name of a scenario (iobench list scenarios) or YAML file"""
    data: Dir
    """directory or URL of the dataset"""
    trace: File | None = None
    """requests arrive as in this file: CSV with a header, or JSON lines; --rate stretches the
    time between them"""
    trace_format: Annotated[
        Literal["plain", "mooncake", "bailian", "azure", "sessions"], MORE, needs("trace")
    ] = "plain"
    """plain and bailian: a column 'timestamp' in seconds; mooncake: in milliseconds; azure: a
    column 'TIMESTAMP' with dates; sessions: calls of agents (default: plain)"""
    log: Dir | None = None
    """write a record of each request to this new or empty directory or URL, and tell what that adds
    (keys: log.commit, log.record ...); nothing of it stays"""
    repeat: Annotated[Count, Parameter(alias="-n"), at_least(1, 1000)] = 5
    """number of repetitions, each in turns with one without storage (default: 5)"""


class KvRequest(ArrivingRequest):
    """Keep the KV cache of a language model on a storage, and tell whether that is worth it:
    whether loading a prefix is faster than computing it again, from which context length on, and
    how many accelerators it frees. Requests arrive by themselves; what each of them finds in memory
    and on the storage follows from an exact model of both. Chunks are really written, looked up,
    loaded and deleted; the prefill is computed from the model's dimensions.

    For example:

      iobench kv kv-chat-llama3-8b --to /mnt/fast/kv
      iobench kv kv-chat-llama3-8b --to /mnt/fast/kv --find-max
      iobench kv kv-chat-llama3-8b --to s3://bucket/kv --set layers=4 \\
          --accelerator-price-per-hour 2.5
      iobench kv kv-chat-llama3-8b --to /mnt/fast/kv --rate 4 \\
          --set dram=512GB --set admission=seen-twice
      iobench kv kv-chat-llama3-8b --to /mnt/fast/kv \\
          --trace conversation_trace.jsonl
    """

    scenario: Annotated[str, named("scenario")] = field(kw_only=False)
    """name of a scenario of a KV cache (iobench list scenarios) or YAML file"""
    to: Dir
    """new or empty directory or URL for the chunks; nothing of them stays"""
    limit_s: Annotated[Time | None, above(0)] = None
    """longest time to the first token of the share of requests that the scenario names, of all
    layers of the model (default: as in the scenario)"""
    trace: File | None = None
    """requests and their prompts are those of this file of JSON lines; --rate stretches the time
    between them"""
    trace_format: Annotated[Literal["mooncake", "bailian", "sessions"], MORE, needs("trace")] = (
        "mooncake"
    )
    """mooncake: blocks of 512 tokens; bailian: of 16; sessions: the calls of agents, whose prompts
    begin with the one before (default: mooncake)"""
    accelerator_price_per_hour: Annotated[Usd | None, above(0)] = None
    """price of one accelerator for one hour, for what those are worth that are freed"""
    repeat: Annotated[Count, Parameter(alias="-n"), at_least(1, 1000)] = 3
    """number of repetitions, each in turns with one without loads, one without writes and one
    without look-ups (default: 3)"""


class CheckpointRequest(
    SharedStorage, RuledRequest, RecordingRequest, LockingRequest, HostsRequest
):
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
      iobench checkpoint llama3-8b --to /mnt/ckpt --scale 1/64 --changed 5%
      iobench checkpoint llama3-8b --to /mnt/ckpt --scale 1/64 \\
          --accelerators 1024 --accelerator-price-per-hour 2.5
      iobench checkpoint llama3-8b --to /mnt/ckpt --scale 1/64 \\
          --accelerators 1024 --hosts-writing 128 --storage-write-limit 40GB/s
      iobench checkpoint llama3-8b --to /mnt/fs/ckpt --ranks-per-host 8 \\
          --hosts h1,h2 --print
    """

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
    weights_only: Annotated[bool, MORE] = False
    """save the parameters alone, without the optimizer's state: a training can't continue from
    them"""
    changed: Annotated[str, Parameter(metavar="SHARE"), MORE] = "1"
    """share of the state's bytes that changes, e.g. 5%: the whole state is saved once, and each
    later save has only the tensors that changed (default: 1)"""
    repeat: Annotated[Count, Parameter(alias="-n")] = 10
    """number of saves, and of restores (default: 10)"""
    budget_s: Time | None = None
    """time for the whole study: at most --repeat saves and restores, as many of both as there is
    time for, and one save at least; it is refused if not even that fits"""
    keep_data: Annotated[bool, MORE] = False
    """keep the last checkpoint in the target"""
    overrides: Settings = ()
    """override a key, e.g. fsync=false; repeatable"""
    fail_on: Conditions = ()
    """exit with status 4 if this holds, e.g. 'blocked_s>5'; repeatable"""
    accelerators: Annotated[Count | None, TRAINING, above(0)] = None
    """accelerators in the real training, for its failures and its cost (default: as published)"""
    mtbf_s: Annotated[Time | None, TRAINING, MORE, above(0)] = None
    """mean time between interruptions of the whole job, e.g. 3h (default: as published)"""
    restart_s: Annotated[Time, TRAINING, MORE] = RESTART_S
    """time to restart after an interruption, without the restore (default: 5m)"""
    interval_s: Annotated[Time | None, TRAINING, above(0)] = None
    """time between two checkpoints today, e.g. 30min"""
    accelerator_price_per_hour: Annotated[Usd | None, TRAINING, MORE, above(0)] = None
    """price of one accelerator for one hour"""
    samples_per_s: Annotated[Rate | None, TRAINING, MORE, above(0)] = None
    """samples/s of the whole training, to count lost samples"""
    stall_budget: Annotated[Share, TRAINING, MORE] = 0.01
    """largest share of the time that saves may take (default: 1%)"""
    notice_s: Annotated[Time, TRAINING, MORE] = 120.0
    """time between the notice and the end of a spot instance (default: 2m)"""


ENGINE = group("the engine that will serve the model")


class LoadRequest(RuledRequest, RecordingRequest, HostsRequest, ReportedRequest):
    """Load a model's weights from storage into memory, with each loader and each number of
    replicas in turns, and tell how long that takes, what limits it, and which loader is fastest.
    Any directory or URL with safetensors files is taken as it is; nothing is written there. Before
    each cold load the files are evicted from the page cache, and every tensor is checked. Exit
    status: 0 ok, 1 failed, 2 usage, 3 the run is invalid, 4 a --fail-on condition holds.

    For example:

      iobench load /mnt/fs/models/llama3-8b
      iobench load /mnt/fs/models/llama3-8b --loader direct,mmap,eager \\
          --replicas 1,2,4
      iobench load s3://bucket/llama3-8b --engine-start 45s --budget 10m
      iobench load s3://bucket/llama3-8b --copy-to /mnt/nvme/models
      iobench load /mnt/fs/models/llama3-70b --tensor-parallel 8 --share sliced
    """

    url: str = field(kw_only=False)
    """directory or URL of safetensors files (iobench generate llama3-8b-weights makes some)"""
    loader: Annotated[Names, Parameter(metavar="NAME,NAME")] = ()
    """loaders to compare (iobench list model-loaders; default: direct, and mmap on local files
    or eager elsewhere)"""
    replicas: Counts = (1,)
    """numbers of replicas that start at one instant on each host, e.g. 1,2,4 (default: 1)"""
    tensor_parallel: Annotated[Count, at_least(1, 1024)] = 1
    """processes of each replica, which hold the model together (default: 1)"""
    share: Literal["all", "sliced", "exchange"] = "all"
    """what each process of a replica reads: all files, its slices of the tensors, or an equal
    part that all exchange (default: all)"""
    state: Literal["cold", "warm"] = "cold"
    """of the page cache before a load: without the files, or with all of them (default: cold)"""
    repeat: Annotated[Count, Parameter(alias="-n"), at_least(1)] = 3
    """number of rounds, each with one load of every kind (default: 3)"""
    budget_s: Annotated[Time | None, above(0)] = None
    """time for everything; no load begins that would end later, except the first one"""
    device: Literal["cpu", "cuda"] = "cpu"
    """where the tensors have to be (default: cpu)"""
    copy_to: Dir | None = None
    """directory on local disk, to which the files are copied in each round and loaded from, to
    tell after how many starts such a copy has paid; the copy is removed"""
    fail_on: Conditions = ()
    """exit with status 4 if this holds, e.g. 'ready_s>60'; repeatable"""
    engine_start_s: Annotated[Time | None, ENGINE, above(0)] = None
    """what the engine needs beside the weights until it answers, e.g. 45s; it is not measured"""
    block_size: Annotated[Size | None, MORE, at_least(4096, 1 << 30)] = None
    """bytes of each read, of loaders that have such an option, e.g. 4MiB"""
    concurrency: Annotated[Count | None, MORE, at_least(1, 1024)] = None
    """reads in flight in each process, of loaders that have such an option"""


class SweepRequest(TrialsRequest, LockingRequest):
    """Generate the datasets that the combinations (points) need, run each point several times with
    the points taking turns, and remove the data again. Keys that begin with 'dataset.' change the
    data, all others the workload. A walk, such as cpu-training, varies one setting after the other,
    and keeps what is significantly faster. Ctrl-C keeps what was measured, and --resume continues;
    the URL of its data, and what it names as code, must then be given again.

    For example:

      iobench sweep resnet50-h100 --to /mnt/fast/sweep --samples 2000 \\
          --sweep dataset.format=files,tar --sweep loader.workers=1,2,4
      iobench sweep resnet50-h100 --to /mnt/fast/sweep --samples 2000 \\
          --sweep dataset.codec=none,zstd:1 --one-at-a-time --budget 20m
      iobench sweep resnet50-server --data /mnt/fast/resnet50 \\
          --sweep arrivals.rate=200,400,800
      iobench sweep model-load --data /mnt/fast/llama3-8b \\
          --sweep loaders=direct,mmap,eager
      iobench sweep cpu-training --data /mnt/fast/images \\
          --host-price-per-hour 0.357
      iobench sweep cpu-training --data /mnt/fast/images \\
          --set accelerator.model=vit-s16 --set batch_size=32 --budget 20m
      iobench sweep --confirm results/<sweep>
    """

    workload: Annotated[str | None, named("workload", "sweep")] = field(kw_only=False, default=None)
    """name of a workload (iobench list workloads), of a scenario (iobench list scenarios) or YAML
    file; or model-load; or of a walk, which has its own settings (iobench list sweeps)"""
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
    overrides: Settings = ()
    """override a key, e.g. batch_size=64; repeatable"""


class AbRequest(GateRequest, ScannedRequest, RuledRequest, TrialsRequest, LockingRequest):
    """Measure two datasets, storages or settings in turns, until a sequential test with a
    controlled error rate tells whether they differ by more than a threshold, or the budget ends.
    Print the ratio with its interval. A is the baseline, B the candidate. Exit status: 0 ok, 1
    failed, 2 usage, 3 a variant is INVALID; with --fail-on 4 if B is worse, and as
    --if-inconclusive says where the answer is inconclusive or a variant is INVALID.

    For example:

      iobench ab /mnt/fast/resnet50 /mnt/slow/resnet50 --workload resnet50-h100 \\
          --budget 10m
      iobench ab /mnt/fast/resnet50 --workload resnet50-h100 \\
          --set-b reader.concurrency=16
      iobench ab /mnt/fast/resnet50 /mnt/slow/resnet50 --workload resnet50-server \\
          --set arrivals.rate=400
      iobench ab /mnt/fast/llama3-8b --workload model-load --set-a loaders=mmap \\
          --set-b loaders=direct
      iobench ab results/<run> --set-b loader.workers=8
      iobench ab results/<run> /mnt/slow/resnet50 --fail-on 5% \\
          --if-inconclusive warn
    """

    a: str = field(kw_only=False)
    """the baseline: directory or URL of a dataset or of weights, or the directory of a run, whose
    workload, data and settings are repeated"""
    b: str | None = field(kw_only=False, default=None)
    """the candidate, likewise (default: the same as A)"""
    workload: Name | None = None
    """name of a workload (iobench list workloads), of a scenario (iobench list scenarios) or YAML
    file; or model-load; without it, that of the run that A or B names"""
    overrides: Overrides = ()
    set_a: Annotated[Settings, MORE] = ()
    """override a key for A alone; repeatable"""
    set_b: Settings = ()
    """override a key for B alone; repeatable"""
    data: Annotated[Dir | None, MORE] = None
    """directory or URL of the data of the runs that are repeated (default: where their records
    say, if that is a directory)"""
    origin_a: Annotated[Url | None, MORE] = None
    """the same for A alone"""
    origin_b: Annotated[Url | None, MORE] = None
    """the same for B alone"""
    accelerators: Annotated[Count | None, at_least(1)] = None
    """number of ranks (default: as in the run that is repeated, or 1)"""
    metric: Name | None = None
    """metric that decides (default: samples_per_s; of requests latency_p99_s, of loads ready_s)"""
    threshold: Change | None = None
    """largest change that counts as equal (default: 5%)"""
    max_rounds: Annotated[Count, MORE, at_least(4, 200)] = 20
    """most rounds of one repetition each (default: 20)"""
    budget_s: Annotated[Time | None, above(0)] = None
    """time limit for all of it, e.g. 10m; no round begins that would end later"""
    seed: Annotated[Count | None, MORE, at_least(0)] = None
    """seed of the first round; each has its own (default: as in the run that is repeated, or 42)"""


class ProbeRequest(ScannedRequest, HostsRequest, ReportedRequest):
    """Read with 1, 2, 4, ... requests in flight until more of them bring nothing, and show the
    plateau (the most that the storage delivers), the knee (the fewest reads in flight that reach
    it) and the latencies. Large sequential requests are measured as well, which tells whether
    operations/s or bytes/s are spent. No workload is needed. Existing data is only read.

    For example:

      iobench probe /mnt/fast/resnet50
      iobench probe /mnt/fast --request 4KiB,128KiB,1MiB --budget 60s
      iobench probe s3://bucket/resnet50 --max-in-flight 64
      iobench probe /mnt/fast/resnet50 --metadata
      iobench probe /mnt/fast/resnet50 --format csv > curve.csv
    """

    url: str = field(kw_only=False)
    """directory or URL of a dataset, or of any files or objects to read"""
    request: Annotated[str | None, Parameter(metavar="SIZE,...")] = None
    """sizes of the requests, e.g. 4KiB,128KiB,1MiB (default: the samples of a dataset, else
    128KiB)"""
    max_in_flight: Annotated[Count, at_least(1, 256)] = 256
    """largest number of reads in flight, on each host (default: 256)"""
    metadata: bool = False
    """measure opens, stats and listings, too: what many small files cost beside their bytes"""
    budget_s: Annotated[Time, at_most(MAX_PROBE_S)] = 30.0
    """time for the whole probe, from the start of iobench on (default: 30s)"""


MORE_HOSTS = group("more hosts", needs("hosts"))
ONE_RUN = group("advice of one run, with --confirm", needs("confirm"))
PRICES, HOSTS, OF_A_JOB = group("prices"), group("hosts"), group("job")
LOSSES = group("saves and interruptions")


def prices_by_type(text: str) -> dict[str, float]:
    """Parse ``1.2``, or ``g5.xlarge=1.0,g5.2xlarge=1.2``; without a type the key is ''.

    Raises UsageError.
    """
    found: dict[str, float] = {}
    for each in text.split(","):
        name, _, usd = each.rpartition("=")
        if name.strip() in found:
            raise UsageError(f"{text[:40]!r} has two prices of the same type")
        found[name.strip()] = number(usd.strip())
    if len(found) > 1 and "" in found:
        raise UsageError(f"{text[:40]!r} has a price without a type: write TYPE=USD,TYPE=USD")
    return found


def time_until(text: str) -> float:
    """Seconds of ``24h``, or until ``2027-01-31T18:00`` in the time zone of this host.

    Raises UsageError.
    """
    example = "write it like 24h, or 2027-01-31T18:00"
    try:
        if re.match(r"\s*\d{4}-\d", text):
            end = datetime.fromisoformat(text.strip()).astimezone()
            seconds = (end - datetime.now(UTC)).total_seconds()
        else:
            seconds = duration(text)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"'{text}' is no date", remedy=example) from None
    except UsageError as error:
        raise UsageError(error.what, remedy=example) from None
    if seconds <= 0:
        raise UsageError(f"'{text}' is not in the future", remedy=example)
    return seconds


UsdByType = Annotated[dict[str, float], value("[TYPE=]USD", prices_by_type)]


class ReportRequest(ReportedRequest):
    """Compute every figure of a run again from its recorded events, and print it. Neither torch nor
    the storage is needed. Exit status: 0 ok, 1 failed, 2 usage, 3 the run is invalid, 4 a --fail-on
    condition holds.

    For example:

      iobench report results/<run>
      iobench report results/<run> --format csv
      iobench report results/<run> --format github >> "$GITHUB_STEP_SUMMARY"
      iobench report results/<run> --format trace -o trace.json
      iobench report results/<run> results/<run> --html -o report.html
      iobench report results --format csv -o runs.csv # all runs below results
      iobench report results/<run> \\
          --fail-on 'accelerator_utilization_sustained<0.9' \\
          --fail-on 'headroom<1.2'
      iobench report results/<run> --rules mlperf
      iobench report storage_results_v1.0/Closed # results of MLPerf Storage
    """

    format: Records = "text"
    directories: tuple[str, ...] = field(kw_only=False)
    """directory of a run, or its run.json; of a sweep; of a comparison in turns (iobench ab);
    or of runs, which become one document; or of results of MLPerf Storage"""
    fail_on: ConditionsOnMetrics = ()
    rules: Literal["quick", "mlperf"] | None = None
    """rule set by which to judge (default: the one of the run)"""


class CompareRequest(GateRequest, HistoryRequest):
    """Compare recorded runs: the first place is the baseline, each other one a candidate, and
    several candidates are listed best first. The runs of a directory are compared separately for
    each workload, and for each kind of host, storage, version and settings. With --over-time: one
    workload over time. Exit status: 2 if nothing could be compared, 4 if --fail-on holds.

    For example:

      iobench compare results/<run> results/<run>
      iobench compare results/<run> results/<run> --fail-on 2% \\
          --if-inconclusive warn
      iobench compare results/<run> results/<run> \\
          --across dataset.shard_size,dataset.codec --format markdown
      iobench compare results --by loader.workers --metric samples_per_s
      iobench compare results --over-time resnet50-h100
    """

    results: Annotated[tuple[Path, ...], Parameter(metavar="RESULTS")] = field(kw_only=False)
    """run directories, or directories of runs, e.g. results/<run>"""
    by: Annotated[str | None, Parameter(metavar="KEY")] = None
    """group all runs by this key of run.json or setting; the first value is the baseline"""
    across: Annotated[Names, Parameter(metavar="KEYS")] = ()
    """keys that may differ between the runs, e.g. dataset.shard_size,dataset.format"""
    metric: Annotated[tuple[str, ...], Parameter(metavar="NAME")] = ()
    """compare only this metric; repeatable: the intervals are then corrected (Holm)"""
    over_time: Annotated[
        str | None,
        Parameter(metavar="WORKLOAD"),
        without(*("by", "across", "history", "fail_on", "if_inconclusive"), "include_invalid"),
    ] = None
    """show the runs of this workload (of checkpoint studies: of this model) in one directory
    over time: trend, when it changed, and what else changed then (of samples_per_s, of
    checkpoints blocked_s, of loads ready_s, or of --metric)"""
    include_invalid: Annotated[bool, MORE] = False
    """also use runs that are INVALID, or that failed"""


class WhatifRequest(ReportedRequest):
    """Predict the ceilings and the verdict of a recorded run with changes, by documented models,
    and show the error of the models on the recorded run. A factor such as 2x multiplies what was
    recorded. With --hosts: samples/s and utilization on more hosts, with intervals, and the
    bottleneck there. A run that served requests is predicted from these, with --latency,
    --concurrency, --accelerators and --step-time. Nothing is read or measured.

    For example:

      iobench whatif results/<run> --storage-bandwidth 2x
      iobench whatif results/<run> --storage-bandwidth 5GB/s --latency 2ms \\
          --workers 16
      iobench whatif results/<run> --cache 512GiB --json
      iobench whatif results/<run> --accelerators 8 --step-time 0.5x
      iobench whatif results/<1-host> results/<2-hosts> results/<4-hosts> \\
          --hosts 64
      iobench whatif results/<run> --hosts 64 --storage-limit 40GB/s \\
          --html -o hosts.html
    """

    directories: tuple[str, ...] = field(kw_only=False)
    """directory of a run, or its run.json; with --hosts, of several"""
    storage_bandwidth: Annotated[NewRate | None, without("hosts")] = None
    """bandwidth of the storage, e.g. 2x or 5GB/s"""
    latency: Annotated[NewTime | None, without("hosts")] = None
    """latency of one read, e.g. 5ms or 0.5x"""
    concurrency: Annotated[NewCount | None, without("hosts")] = None
    """reads in flight in each worker, e.g. 16 or 2x"""
    cache: Size | None = None
    """memory for cached data in each host, used from the second epoch on, e.g. 512GiB"""
    cache_kind: Annotated[Literal["page", "pinned"], MORE, without("hosts")] = "page"
    """kind of cache: a page cache with LRU, or pinned data that is never evicted (default: page)"""
    workers: Annotated[NewCount | None, without("hosts")] = None
    """loader workers of each accelerator, e.g. 16 or 2x"""
    accelerators: Annotated[NewCount | None, without("hosts")] = None
    """accelerators on the hosts of the run together, e.g. 8 or 2x"""
    step_time: Annotated[NewTime | None, without("hosts")] = None
    """busy time of one batch, e.g. 100ms or 0.5x"""
    instance: Annotated[str | None, Parameter(metavar="TYPE"), without("nic")] = None
    """instance type behind whose network the storage is (iobench list instances)"""
    hosts: Annotated[Count | None, MORE_HOSTS, at_least(1, MAX_HOSTS)] = None
    """predict the job on N hosts; several runs with different numbers of hosts tell how it
    scales, and the error of the model"""
    per_host: Annotated[Count | None, MORE_HOSTS, MORE, at_least(1, MAX_HOSTS)] = None
    """accelerators of each host (default: as in the run with most hosts)"""
    storage_bytes_per_s: Annotated[BytesPerS | None, MORE_HOSTS] = None
    """what the storage delivers to all hosts together, e.g. 40GB/s"""
    nic: Annotated[BytesPerS | None, MORE_HOSTS, MORE] = None
    """what the network of one host lets through, e.g. 25GB/s"""
    barrier: Annotated[Times | None, MORE_HOSTS, MORE] = None
    """cost of a barrier of n accelerators as a,b of a + b ln(n), e.g. 0.7ms,0.2ms (default: as
    the runs tell)"""
    checkpoint_bytes: Annotated[Size | None, MORE_HOSTS, MORE, above(0)] = None
    """bytes of one checkpoint of the whole job"""
    host_write_bytes_per_s: Annotated[
        BytesPerS | None, MORE_HOSTS, MORE, needs("checkpoint_bytes")
    ] = None
    """durable writes of one host, e.g. 2GB/s"""
    storage_write_bytes_per_s: Annotated[
        BytesPerS | None, MORE_HOSTS, MORE, needs("checkpoint_bytes")
    ] = None
    """durable writes of all hosts together that the storage sustains, e.g. 50GB/s"""
    mtbf_s: Annotated[Time | None, MORE_HOSTS, MORE, above(0)] = None
    """mean time between interruptions of the whole job, e.g. 8h (default: by the rate that was
    published for Llama 3)"""
    anyway: Annotated[bool, MORE_HOSTS, MORE] = False
    """also more than 32 times what was measured"""


class AdviseRequest(TrialsRequest, LockingRequest):
    """Recommend settings from runs of one workload with different settings: the smallest settings
    within 5 % of the best, whether a codec is worth its cost, how large a shard should be, and the
    Pareto front of speed, CPU time and bytes. Each comes with its reason.

    For example:

      iobench advise results/<sweep>
      iobench advise results/<sweep> --default loader.workers=2 \\
          --dataset-size 20TiB
      iobench advise results/<sweep> --workload resnet50-h100 --first-batch 1s \\
          --shuffle-window 256MiB --json
      iobench advise results/<run> --confirm
      iobench advise results/<run> --confirm --data s3://bucket/resnet50
    """

    directory: str = field(kw_only=False)
    """directory of a sweep, with one directory below it for each run; with --confirm, of one run"""
    workload: Name | None = None
    """use only the runs of this workload"""
    default: Settings = ()
    """setting in use today, against which gains are computed (default: as in the sweep, else as
    in the workload); repeatable"""
    dataset_size: Annotated[Size | None, above(0)] = None
    """stored bytes of the real dataset if the sweep used a smaller one, e.g. 20TiB"""
    first_batch_s: Annotated[Time, above(0)] = 3.0
    """longest acceptable wait for the first shard (default: 3s)"""
    shuffle_window: Annotated[Size | None, above(0)] = None
    """bytes among which each worker shuffles, e.g. 256MiB"""
    confirm: Annotated[bool, ONE_RUN] = False
    """try the advice of a run: repeat it with the first changes that settings can apply, in
    turns with its own settings, in a new run directory; exit with status 4 unless every promise
    was kept"""
    data: Annotated[Dir | None, ONE_RUN] = None
    """directory or URL of the run's dataset, if it has moved"""
    origin: Annotated[Url | None, ONE_RUN, MORE] = None
    """directory or URL of the data of a scanned dataset; without it, only data in the
    manifest's own directory is read"""
    budget_s: Annotated[Time | None, ONE_RUN, above(0)] = None
    """time for the rounds (default: as long as the run's repetitions took, and at least three
    rounds)"""
    results: Annotated[Path, Parameter(metavar="DIR"), ONE_RUN, MORE] = Path("results")
    """directory for the new run directory (default: results)"""
    tags: Annotated[Settings, ONE_RUN, MORE] = ()
    """a label of the run for its record, its reports, CSV and OpenMetrics, e.g. box=nfs-b;
    repeatable"""
    overrides: Annotated[Settings, ONE_RUN, MORE] = ()
    """override a key, e.g. storage.endpoint=http://127.0.0.1:9000, for data at a URL; or
    accelerator.model=MODULE:CLASS, where the run's record names code; repeatable"""


class CostRequest(HistoryRequest):
    """Rank the ways to pay for the work of recorded runs: the cheapest first, and last what misses
    --deadline or --max-cost. Nothing is measured, and no price is looked up over a network: prices
    come from results/instances.yaml (iobench list instances), from --prices, or from the flags.
    Runs of the same settings, host and storage are one option, with the median of their rates.

    For example:

      iobench cost results/<run> --instance g5.2xlarge
      iobench cost results/<run> --instance g5.2xlarge \\
          --host-spot-price-per-hour 0.45 --interruptions-per-hour 0.05 \\
          --interval 10m
      iobench cost results/<run> --instance p5.48xlarge --hosts 4 \\
          --efficiency 0.9 --epochs 90 --samples 1281167 --deadline 24h \\
          --max-cost 5000
      iobench cost results/<run> results/<run> --instance g5.xlarge \\
          --instance g5.2xlarge \\
          --host-spot-price-per-hour g5.xlarge=0.40,g5.2xlarge=0.45
      iobench cost results/<run> results/<run> --instance 4xg5.2xlarge \\
          --instance p4d.24xlarge --efficiency 0.9 --deadline 24h --epochs 90
      iobench cost results --instance 2xg5.2xlarge+1xg5.12xlarge \\
          --region us-east-1
    """

    results: Annotated[tuple[Path, ...], Parameter(metavar="RESULTS")] = field(kw_only=False)
    """run directories, or directories of runs, e.g. results/<run>"""
    instance: Annotated[tuple[str, ...], Parameter(metavar="[N x]TYPE"), PRICES] = ()
    """instance type whose price is used (default: as recorded); give one for all RESULTS, or
    one for each in their order. 4xTYPE means 4 hosts, 2xTYPE+4xTYPE hosts of several types in
    one job, whose rates are those of the runs on each type"""
    host_price_per_hour: Annotated[UsdByType | None, PRICES] = None
    """price of one host for one hour, on demand; with several types of instances:
    TYPE=USD,TYPE=USD"""
    host_spot_price_per_hour: Annotated[UsdByType | None, PRICES] = None
    """price of one host for one hour, as a spot instance; with several types of instances:
    TYPE=USD,TYPE=USD"""
    prices: Annotated[Path | None, Parameter(metavar="FILE"), PRICES] = None
    """price list: CSV with the columns type and usd_per_hour or spot_usd_per_hour, and region,
    priced (its date) and others if known; or JSON or YAML in the form of results/instances.yaml"""
    region: Annotated[str, Parameter(metavar="REGION"), PRICES, MORE] = ""
    """use prices of this region only, e.g. us-east-1"""
    hosts: Annotated[Count | None, HOSTS, at_least(1)] = None
    """number of hosts that train together (default: those of the run)"""
    efficiency: Annotated[Number, HOSTS, MORE, above(0, 1)] = 1.0
    """scaling efficiency of more hosts than were measured together, 0 to 1 (default: 1)"""
    storage_grows: Annotated[bool, HOSTS, MORE] = False
    """the storage delivers more with more hosts, as local disks do; without this flag, all
    hosts together get at most what it was measured to deliver"""
    epochs: Annotated[Count | None, OF_A_JOB, at_least(1)] = None
    """number of epochs of the job"""
    samples: Annotated[Count | None, OF_A_JOB, at_least(1)] = None
    """samples in one epoch (default: those of the run's dataset)"""
    deadline_s: Annotated[float | None, value("TIME", time_until), OF_A_JOB, needs("epochs")] = None
    """time limit for the job, e.g. 24h, or the date of its end, e.g. 2027-01-31T18:00 in this
    host's time zone"""
    budget_usd: Annotated[Usd | None, OF_A_JOB, above(0)] = None
    """largest cost of the job"""
    interruptions_per_hour: Annotated[Number | None, LOSSES, MORE, at_least(0, 60)] = None
    """interruptions of each spot instance in one hour, e.g. 0.05; an interruption stops all
    hosts. Without it, figures of spot instances hold only if they are never interrupted"""
    interval_s: Annotated[Time, LOSSES, MORE, above(0)] = 3600.0
    """training time between two checkpoints, e.g. 10m; half of it is lost in an interruption,
    on average (default: 1h)"""
    checkpoints: Annotated[Path | None, Parameter(metavar="RUN"), LOSSES, MORE] = None
    """run directory of iobench checkpoint: the time of its saves and restores counts (default:
    of saves that the runs themselves measured)"""
    restart_s: Annotated[Time, LOSSES, MORE] = RESTART_S
    """time to restart after an interruption, without the restore (default: 5m)"""


KINDS = (
    *("workloads", "scenarios", "datasets", "sweeps", "formats", "contents", "codecs", "storage"),
    *("accelerators", "networks", "loaders", "writers", "models", "model-loaders"),
    *("served-models", "instances"),
)

SCHEMAS = ("run", "ab", "sweep")
"""The documents of ``record.published``, which is imported only if one is asked for."""


class ListRequest(VerbRequest):
    """List everything that iobench knows by name, with one line about each.

    For example:

      iobench list
      iobench list workloads
      iobench list codecs --json
      iobench list --schema run
    """

    kind: Annotated[str | None, Parameter(choices=KINDS)] = field(kw_only=False, default=None)
    """list only this kind of names"""
    schema: Annotated[str | None, Parameter(choices=SCHEMAS)] = None
    """print the JSON schema (draft 2020-12) of run.json, ab.json or sweep.json instead"""


class DoctorRequest(VerbRequest):
    """Show cores, limits, memory, huge pages, file system, device, O_DIRECT, page cache, fio and
    GPU, and what to change.

    For example:

      iobench doctor
      iobench doctor /mnt/fast
      iobench doctor /mnt/fast --json
    """

    path: str = field(kw_only=False, default=".")
    """directory on the storage to examine (default: the current directory)"""


class CleanRequest(LockingRequest, VerbRequest):
    """Remove a dataset or checkpoints, complete or partial: exactly the files that iobench made.
    Other files are kept and listed. A directory that iobench did not make is refused.

    For example:

      iobench clean /mnt/fast/resnet50 --dry-run
      iobench clean /mnt/fast/resnet50
      iobench clean s3://bucket/resnet50
      iobench clean /mnt/ckpt
    """

    dir: str = field(kw_only=False)
    """directory or URL of a dataset or of checkpoints"""
    dry_run: bool = False
    """show what would be removed, but remove nothing"""
