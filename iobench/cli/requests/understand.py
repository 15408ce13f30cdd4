"""What can be asked about what was recorded: ``report``, ``compare``, ``whatif``, ..."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from ...base.errors import UsageError
from .flags import (
    MORE,
    BreakLock,
    BytesPerS,
    Count,
    Details,
    Dir,
    Documents,
    FailOnChange,
    FailOnCondition,
    History,
    IfInconclusive,
    Name,
    Number,
    Records,
    Settings,
    Size,
    Time,
    Url,
    Usd,
    VerbRequest,
    above,
    at_least,
    group,
    needs,
    number,
    value,
    without,
)

MORE_HOSTS = group("more hosts", needs("hosts"))
ONE_RUN = group("advice of one run, with --confirm", needs("confirm"))
PRICES, HOSTS, JOB = group("prices"), group("hosts"), group("job")
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


UsdByType = Annotated[dict[str, float], value("[TYPE=]USD", prices_by_type)]


@dataclass(frozen=True, kw_only=True)
class ReportRequest(VerbRequest):
    """Compute every figure of a run again from its recorded events, and print it. Neither torch nor
    the storage is needed. Exit status: 0 ok, 1 failed, 2 usage, 3 the run is invalid, 4 a --fail-on
    condition holds.

    For example:

      iobench report results/<run>
      iobench report results/<run> --format csv
      iobench report results/<run> --format github >> "$GITHUB_STEP_SUMMARY"
      iobench report results/<run> --format trace -o trace.json # for ui.perfetto.dev
      iobench report results/<run> results/<run> --html -o report.html
      iobench report results --format csv -o runs.csv # all runs below results
      iobench report results/<run> \\
          --fail-on 'accelerator_utilization_sustained<0.9' \\
          --fail-on 'headroom<1.2'
      iobench report results/<run> --rules mlperf
    """

    format: Records = "text"
    directories: tuple[str, ...] = field(kw_only=False)
    """directory of a run, or its run.json; of a sweep; of a comparison in turns (iobench ab);
    or of runs. Several runs become one document"""
    details: Details = False
    fail_on: FailOnCondition = ()
    rules: Literal["quick", "mlperf"] | None = None
    """rule set by which to judge (default: the one of the run)"""


@dataclass(frozen=True, kw_only=True)
class CompareRequest(VerbRequest):
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

    format: Documents = "text"
    results: Annotated[tuple[Path, ...], Parameter(metavar="RESULTS")] = field(kw_only=False)
    """run directories, or directories of runs, e.g. results/<run>"""
    by: Annotated[str | None, Parameter(metavar="KEY")] = None
    """group all runs by this key of run.json or setting; the first value is the baseline"""
    across: Annotated[str, Parameter(metavar="KEYS")] = ""
    """keys that may differ between the runs, e.g. dataset.shard_size,dataset.format"""
    metric: Annotated[tuple[str, ...], Parameter(metavar="NAME")] = ()
    """compare only this metric; repeatable: the intervals are then corrected (Holm)"""
    over_time: Annotated[
        str | None,
        Parameter(metavar="WORKLOAD"),
        without(*("by", "across", "history", "fail_on", "if_inconclusive"), "include_invalid"),
    ] = None
    """show the runs of this workload (of checkpoint studies: of this model) in one directory
    over time: trend, when it changed, and what else changed then (of samples_per_s, or of
    checkpoints blocked_s, or of --metric)"""
    history: History = ()
    fail_on: FailOnChange = None
    if_inconclusive: IfInconclusive = "fail"
    include_invalid: Annotated[bool, MORE] = False
    """also use INVALID runs"""


@dataclass(frozen=True, kw_only=True)
class WhatifRequest(VerbRequest):
    """Predict the ceilings and the verdict of a recorded run with changes, by documented models,
    and show the error of the models on the recorded run. A factor such as 2x multiplies what was
    recorded. With --hosts: samples/s and utilization on more hosts, with intervals, and the
    bottleneck there. Nothing is read or measured.

    For example:

      iobench whatif results/<run> --storage-bandwidth 2x
      iobench whatif results/<run> --storage-bandwidth 5GB/s --latency 2ms \\
          --workers 16
      iobench whatif results/<run> --cache 512GiB --json
      iobench whatif results/<run> --accelerators 8 --step-time 0.5x
      iobench whatif results/<1-host> results/<2-hosts> results/<4-hosts> \\
          --hosts 64
      iobench whatif results/<run> --hosts 64 --storage-limit 40GB/s --html -o hosts.html
    """

    format: Documents = "text"
    directories: tuple[str, ...] = field(kw_only=False)
    """directory of a run, or its run.json; with --hosts, of several"""
    storage_bandwidth: Annotated[str | None, Parameter(metavar="RATE"), without("hosts")] = None
    """bandwidth of the storage, e.g. 2x or 5GB/s"""
    latency: Annotated[str | None, Parameter(metavar="TIME"), without("hosts")] = None
    """latency of one read, e.g. 5ms or 0.5x"""
    concurrency: Annotated[str | None, Parameter(metavar="N"), without("hosts")] = None
    """reads in flight in each worker, e.g. 16 or 2x"""
    cache: Size | None = None
    """memory for cached data in each host, used from the second epoch on, e.g. 512GiB"""
    cache_kind: Annotated[Literal["page", "pinned"], MORE] = "page"
    """kind of cache: a page cache with LRU, or pinned data that is never evicted (default: page)"""
    workers: Annotated[str | None, Parameter(metavar="N"), without("hosts")] = None
    """loader workers of each accelerator, e.g. 16 or 2x"""
    accelerators: Annotated[str | None, Parameter(metavar="N"), without("hosts")] = None
    """accelerators on this host, e.g. 8 or 2x"""
    step_time: Annotated[str | None, Parameter(metavar="TIME"), without("hosts")] = None
    """busy time of one batch, e.g. 100ms or 0.5x"""
    instance: Annotated[str | None, Parameter(metavar="TYPE"), without("nic")] = None
    """instance type behind whose network the storage is (iobench list instances)"""
    hosts: Annotated[Count | None, MORE_HOSTS] = None
    """predict the job on N hosts; several runs with different numbers of hosts tell how it
    scales, and the error of the model"""
    accelerators_per_host: Annotated[Count | None, MORE_HOSTS, MORE] = None
    """accelerators of each host (default: as in the run with most hosts)"""
    storage_limit: Annotated[BytesPerS | None, MORE_HOSTS] = None
    """what the storage delivers to all hosts together, e.g. 40GB/s"""
    nic: Annotated[BytesPerS | None, MORE_HOSTS, MORE] = None
    """what the network of one host lets through, e.g. 25GB/s"""
    barrier: Annotated[str | None, Parameter(metavar="TIME,TIME"), MORE_HOSTS, MORE] = None
    """cost of a barrier of n accelerators as a,b of a + b ln(n), e.g. 0.7ms,0.2ms (default: as
    the runs tell)"""
    checkpoint_bytes: Annotated[Size | None, MORE_HOSTS, MORE, above(0)] = None
    """bytes of one checkpoint of the whole job"""
    host_write: Annotated[BytesPerS | None, MORE_HOSTS, MORE] = None
    """durable writes of one host, e.g. 2GB/s"""
    storage_write_limit: Annotated[BytesPerS | None, MORE_HOSTS, MORE] = None
    """durable writes of all hosts together that the storage sustains, e.g. 50GB/s"""
    mtbf_s: Annotated[Time | None, MORE_HOSTS, MORE, above(0)] = None
    """mean time between interruptions of the whole job, e.g. 8h (default: by the rate that was
    published for Llama 3)"""
    anyway: Annotated[bool, MORE_HOSTS, MORE] = False
    """also more than 32 times what was measured"""


@dataclass(frozen=True, kw_only=True)
class AdviseRequest(VerbRequest):
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

    keeps: ClassVar[bool] = True

    format: Documents = "text"
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
    """time for the turns (default: as long as the run's repetitions took, and at least three
    turns)"""
    results: Annotated[Path, Parameter(metavar="DIR"), ONE_RUN, MORE] = Path("results")
    """directory for the new run directory (default: results)"""
    tags: Annotated[Settings, ONE_RUN, MORE] = ()
    """a label of the run for its record, its reports, CSV and OpenMetrics, e.g. box=nfs-b;
    repeatable"""
    overrides: Annotated[Settings, ONE_RUN, MORE] = ()
    """override a key, e.g. storage.endpoint=http://127.0.0.1:9000, for data at a URL; or
    accelerator.model=MODULE:CLASS, where the run's record names code; repeatable"""
    break_lock: BreakLock = False


@dataclass(frozen=True, kw_only=True)
class CostRequest(VerbRequest):
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

    format: Documents = "text"
    results: Annotated[tuple[Path, ...], Parameter(metavar="RESULTS")] = field(kw_only=False)
    """run directories, or directories of runs, e.g. results/<run>"""
    history: History = ()
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
    hosts: Annotated[Count, HOSTS, at_least(1)] = 1
    """number of hosts that train together (default: 1)"""
    efficiency: Annotated[Number, HOSTS, MORE, above(0, 1)] = 1.0
    """scaling efficiency of several hosts, 0 to 1 (default: 1)"""
    storage_grows: Annotated[bool, HOSTS, MORE] = False
    """the storage delivers more with more hosts, as local disks do; without this flag, all
    hosts together get at most what it was measured to deliver"""
    epochs: Annotated[Count | None, JOB, at_least(1)] = None
    """number of epochs of the job"""
    samples: Annotated[Count | None, JOB, at_least(1)] = None
    """samples in one epoch (default: those of the run's dataset)"""
    deadline: Annotated[str | None, Parameter(metavar="TIME"), JOB] = None
    """time limit for the job, e.g. 24h, or the date of its end, e.g. 2027-01-31T18:00 in this
    host's time zone"""
    max_cost: Annotated[Usd | None, JOB, above(0)] = None
    """largest cost of the job"""
    interruptions_per_hour: Annotated[Number | None, LOSSES, MORE] = None
    """interruptions of each spot instance in one hour, e.g. 0.05; an interruption stops all
    hosts. Without it, figures of spot instances hold only if they are never interrupted"""
    interval_s: Annotated[Time, LOSSES, MORE, above(0)] = 3600.0
    """training time between two checkpoints, e.g. 10m; half of it is lost in an interruption,
    on average (default: 1h)"""
    checkpoints: Annotated[Path | None, Parameter(metavar="RUN"), LOSSES, MORE] = None
    """run directory of iobench checkpoint: the time of its saves and restores counts (default:
    of saves that the runs themselves measured)"""
    restart_s: Annotated[Time, LOSSES, MORE] = 300.0
    """time to restart after an interruption, without the restore (default: 5m)"""
