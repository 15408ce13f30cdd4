"""What iobench says: every help text, one-line errors of typical mistakes, and reports.

Wording is checked here and nowhere else: other tests assert exit codes, classes of errors, rule
ids, names and figures.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from iobench.base import extras
from iobench.cli.main import VERBS
from iobench.judge.promise import gain_of, shown
from iobench.record.ab import save_ab
from tests.processes import in_process
from tests.reports import of_changes
from tests.unit.conftest import build_run
from tests.unit.test_ab import FASTER, INCONCLUSIVE
from tests.unit.test_causes import LATENT, SLOW, curve, run_curve, without
from tests.unit.test_fed_agrees import with_tail
from tests.unit.test_submission import put, summary

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "0.1.0"
REFERENCE = HERE.parents[1] / "results" / "reference"
ODD = {"train_throughput_samples_per_second": [700.0, 700.0, 1400.0, 700.0, 701.0]}
"""An epoch that is twice as fast as the others."""


MISTAKES = (
    # names and keys
    "runn demo",
    "run resnet50-h10 --data data",
    "run ./nosuch.yaml --data data",
    "generate unet3 --to new",
    "generate demo --to new --set codec=ztsd",
    "generate demo --to new --set codec=zstd:fast",
    "generate demo --to new --set smaples=1",
    "generate demo --to new --set sample_size=3MB",
    "generate demo --to new --set 'sample_size={distribution: normal, mean: 5}'",
    "generate demo --to new --set 'sample_size={distribution: lognormal, mean: 5}'",
    "generate demo --to new --set 'sample_size={distribution: quantiles}'",
    "generate demo --to new --set 'sample_size={mean: 5, stdev: 2}'",
    "generate demo --to new --set 'sample_size={mean: 5, min: 9, max: 7}'",
    "generate demo --to new --set 'sample_size={mean: 5, max: 4}'",
    "generate demo --to new --set 'sample_size={distribution: quantiles, quantiles: [[0, 1]]}'",
    "generate demo --to new --set 'sample_size={distribution: zipf, mean: 5}'",
    "generate demo --to new --set sample_bytes.mean=3",
    "generate demo --to new --set 'sample_sizes={mean: 3, stdev: 1}'",
    "plan demo --set loader.wokers=8",
    "plan demo --set batch_size",
    "plan demo --set batch_size=many",
    "plan demo --set batch_size=[1",
    "plan demo --set loader.kind=torchh",
    "checkpoint llama3-9b --to new",
    "checkpoint llama3-8b --to new --writer torch-nocrc --async",
    "cost results/calibrated --instance g5.2xlrge",
    "compare results/calibrated results/throttled --metric samples",
    "plan demo --set cache=hot",
    "plan demo --set required_accelerator_utilization=90",
    "plan demo --set loader.workers=-1",
    "plan demo --set loader.workers=0 --set loader.transport=thread",
    "plan demo --set reader.crop=0",
    "plan demo --set name=../w",
    "plan demo --set accelerator={}",
    "plan demo --set accelerator.gradient_sync=ddp",
    "plan demo --set accelerator.kind=recorded --set accelerator.steps=none.json",
    "plan demo --set accelerator.model_parallel=2 --set accelerator.sync=epoch",
    "plan demo --set accelerator.model_parallel=2 --set accelerator.kind=model"
    " --set accelerator.model=resnet18 --set accelerator.step_time=null",
    "plan demo --set accelerator.model_parallel=0",
    "report submissions --rules mlperf",
    "report submissions --format trace",
    "list codecs --schema run",
    "plan demo --set workers=4",
    "plan demo --set loader.concurrency=4",
    "plan demo --format jsn",
    "run demo --data x --repaet 3",
    "compare results --by nosuch",
    "plan ./mine.yaml",
    "plan ./list.yaml",
    "plan demo --set loader.kind=webdataset",  # the package is not installed
    # numbers
    "generate demo --to new --size 20parsecs",
    "generate demo --to new --size 1kB",
    "generate demo --to new --samples many",
    "generate demo --to new --workers 0",
    "generate demo --to new --memory-multiple 0",
    "run demo --data data --calibration 3x",
    "serve resnet50-server --data data --limit 15",
    "plan llama3-405b --hosts-writing 64 --storage-write-limit 100",
    "plan llama3-405b --hosts-writing 64 --storage-write-limit 100Gb/s",
    "run demo --data data --calibration 2h",
    "run demo --data data --budget -5s",
    "run demo --data data --accelerators 0",
    "checkpoint llama3-8b --to new --scale 2",
    "checkpoint llama3-8b --to new --scale most",
    "checkpoint llama3-8b --to new --changed 0%",
    "checkpoint llama3-8b --to new --changed half",
    "checkpoint llama3-8b --to new --mtbf 0s",
    "checkpoint llama3-8b --to new --stall-budget 200%",
    "cost results/calibrated --instance g5.xlarge --efficiency 2",
    "cost results/calibrated --host-price-per-hour 0",
    "size demo --accelerators 0",
    "whatif results/calibrated --storage-bandwidth 0x",
    "whatif results/calibrated --latency long",
    "probe data --request 1",
    "probe data --max-in-flight 0",
    "report results/calibrated --fail-on 'samples_per_s'",
    "report results/calibrated --fail-on 'samples_per_sec<1'",
    # places
    "run demo --data nowhere",
    "run demo --data thesis",
    "run demo --data half",
    "run demo --data mine.yaml",
    "run demo --data s3:/bucket/data",
    "probe 's3://bucket/x?client=aws'",
    "probe 's3://bucket/x?endpoint=s3.example.com'",
    "probe 's3://bucket/x?endpoint=http://x:port'",
    "probe 's3://bucket/x?region=eu central'",
    "probe 's3://bucket/x?addressing=none'",
    "probe 's3://bucket/x?tls_verify=no'",
    "probe 's3://bucket/x?signing=v2'",
    "probe 's3://bucket/x?checksum=md5'",
    "probe 's3://bucket/x?part_size=1MiB'",
    "probe 's3://bucket/x?timeout=-1s'",
    "probe 's3://bucket/x?deadline=soon'",
    "probe 's3://bucket/x?timeout=30s&deadline=10s'",
    "probe 's3://bucket/x?retries=-1'",
    "probe s3://",
    "probe s3:///x",
    "probe s3://a/x",
    "probe s3://b..c/x",
    "probe s3://-b/x",
    "probe s3://b_/a//b",
    "probe s3://bucket/../x",
    "probe s3://bucket/./x",
    "run demo --data data",
    "run ./smallrun.yaml --data s3://key:secret@bucket/data",
    "run ./smallrun.yaml --data 'throttled+data?bandwith=1MB'",
    "run ./smallrun.yaml --data scanned.manifest",
    "verify thesis",
    "clean thesis",
    "clean nowhere",
    "generate demo --to thesis --samples 2",
    "generate demo --to data --samples 2",
    "generate demo --to /",
    "scan empty --save mine.yaml",
    "scan thesis --save thesis/mine.yaml",
    "scan thesis --save mine.txt",
    "doctor nowhere",
    "doctor throttled+nowhere?latency=5ms",
    "probe nowhere",
    "probe empty",
    "probe thesis",
    "probe half",
    "check nowhere",
    "check half",
    "check empty --budget 3s",
    "report nowhere",
    "report thesis",
    "advise thesis",
    "compare results --over-time resnet50-h100",
    "compare results/calibrated",
    "compare results/calibrated results/library",
    "report results/calibrated -o thesis",
    "load nowhere",
    "load empty",
    "run demo --data=",
    "run demo --data ''",
    "report ''",
    "run demo --data 'throttled+?latency=1ms'",
    # flags that do not go together
    "--quiet run demo",
    "report x --json --html",
    "report x --format=csv --json",
    "whatif x --nic 3GB/s",
    "run demo --data x --checkpoint-every 3",
    "run demo --data x --loader a:b --confirm",
    "train resnet18 --record x --data y",
    "load empty --copy-to s3://bucket/copy",
    "generate demo --to new --layers 2",
    "run demo --data data --checkpoint llama3-8b",
    "run demo --data data --checkpoint-to new",
    "plan demo --ranks 2",
    "plan demo --probe",
    "plan demo --origin data",
    "plan demo --set evaluation.share=0.7",
    "plan demo --set evaluation.share=0.1 --set accelerator.kind=model "
    "--set accelerator.model=resnet18",
    "plan demo --set evaluation.share=0.1 --set loader.kind=webdataset",
    "plan demo --set evaluation.share=0.1 --set 'local_cache={directory: /x, size: 1GB}'",
    "kv kv-chat-llama3-8b --to new --set model=llama9",
    "kv kv-chat-llama3-8b --to new --set 'model={layers: 3, heads: 2, parameters: 1e9}'",
    "kv kv-chat-llama3-8b --to new --set layers=33",
    "kv kv-chat-llama3-8b --to new --set capacity=1GB",
    "kv kv-chat-llama3-8b --to new --set prompts.new_tokens_p90=5",
    "kv kv-chat-llama3-8b --to new --set prompts.shared_tokens=200000",
    "kv kv-chat-llama3-8b --to new --set tiers.dram=3",
    "plan llama3-8b --interval 0s",
    "plan llama3-8b --accelerators 0",
    "plan llama3-8b --ranks 0",
    "plan llama3-405b --hosts-writing 0",
    "plan llama3-405b --storage-read-limit 0GB/s",
    "sweep demo --to new",
    "sweep demo --to new --sweep workers",
    "sweep demo --to new --sweep loader.workers=1,1",
    "sweep demo --to new --sweep loader.wokers=1,2",
    "sweep demo --to new --sweep loader.workers=1,2 --repeat 0",
    "sweep --resume nowhere",
    "sweep --resume sweep --confirm sweep",
    "sweep --resume sweep --samples 10",
    "sweep --resume sweep --one-at-a-time",
    "sweep --resume sweep --seed 42",
    "sweep --resume sweep --calibration 1s",
    "sweep --resume sweep --repeat 5",
    "sweep --confirm sweep --samples 10",
    "sweep --confirm sweep --seed 42",
    "cost results/calibrated --instance a --instance b",
    "cost results/calibrated --host-price-per-hour 1,g5.xlarge=1",
    "cost results/calibrated --host-price-per-hour a=1,a=2",
    "cost results/calibrated --host-price-per-hour a=",
    "cost results/calibrated --instance g5.xlarge --host-spot-price-per-hour g5.xlarge=2",
    "cost results/calibrated --instance g5.xlarge --region eu-west-1",
    "cost results/calibrated --instance g5.xlarge --deadline 2020-01-01",
    "cost results/calibrated --instance g5.xlarge --checkpoints results/calibrated",
    "cost results/calibrated results/throttled --instance g5.xlarge --instance g5.2xlarge "
    "--host-spot-price-per-hour 0.5",
    "size unet3d-h100",
    "size unet3d-h100 --accelerators 4 --hosts 5",
    "size unet3d-h100 --accelerators 4 --latency 100ms --latency-p99 50ms",
    "size demo --accelerators 1,2",
    "size unet3d-h100 demo --accelerators 1,2,3",
    "size unet3d-h100 demo --accelerators 1 --hosts 1,1,1",
    "size unet3d-h100 demo --accelerators 1 --parameters 3M",
    "size unet3d-h100 demo --accelerators 1 --from results/calibrated",
    "size unet3d-h100 --replicas 4 --ready 9s",
    "size llama3-70b-weights",
    "size llama3-70b-weights --replicas 4",
    "size llama3-70b-weights llama3-8b --replicas 4 --ready 9s",
    "size llama3-8b --replicas 4 --ready 9s --hosts 2",
    "size resnet50-server --rate 1000 --accelerators 8",
    "size resnet50-h100 --rate 1000",
    "size resnet50-server --limit 15ms",
    "size resnet50-server --rate 100 --limit 1ms",
    "size resnet50-server bert-server --rate 100",
    "serve resnet50-server --data data --rate 5 --set arrivals.path=x",
    "serve resnet50-server --data data --rate 5 --set quantile=1",
    "whatif results/model-load",
    "whatif results/model-load --storage-bandwidth 2x --cache 1GB",
    "whatif results/calibrated results/throttled",
    "whatif results/calibrated --hosts many",
    "whatif results/calibrated --hosts 8 --workers 4",
    "whatif results/calibrated --hosts 8 --cache-kind pinned",
    "whatif results/calibrated --hosts 8 --barrier 1ms,2ms,3ms",
    "whatif results/calibrated --hosts 8 --nic 1GB/s --instance c5n.18xlarge",
    "whatif results/calibrated --hosts 8 --host-write 1GB/s",
    "whatif results/calibrated --hosts 200",
    "generate llama3-8b-weights --to new --seed -1",
    "plan demo --print mlpstorage",
    "plan unet3d-h100 --print mlpstorage",
    "plan unet3d-b200 --hosts 3 --print mlpstorage",
    "plan unet3d-b200 --set batch_size=9 --print mlpstorage",
    "plan llama3-8b --scale 1/64 --print mlpstorage",
    "plan vit-b16 --print mlpstorage",
    "report results/calibrated results/throttled --format trace",
    "advise results/calibrated",
    "run ./smallrun.yaml --data 'throttled+data?latency=1ms' --set reader.engine=io_uring",
    "ab data",
    "ab data --workload ./smallrun.yaml --set-b loader.wokers=2",
    "ab data nowhere --workload ./smallrun.yaml",
    "ab data --workload ./smallrun.yaml --data data",
    "ab data --workload ./smallrun.yaml --max-rounds 3",
    "ab data --workload ./smallrun.yaml --threshold 5% --fail-on 2%",
    "ab results/calibrated --workload ./smallrun.yaml",
    "ab sweep data",
    "ab turns",
    "report turns --fail-on 'samples_per_s<1'",
)
"""Command lines of users who made one mistake each, in the folder that ``workplace`` makes."""

REPORTS = (
    *(f"report results/{run.name}" for run in sorted((GOLDEN / "runs").iterdir())),
    *(f"report results/{run.name} --details" for run in sorted((GOLDEN / "runs").iterdir())),
    "compare results/calibrated results/throttled",
    "compare sweep --by loader.workers",
    "cost results/calibrated --instance g5.xlarge --epochs 90 --deadline 24h",
    "plan llama3-405b --stall-budget 1% --interval 30min",
    "plan llama3-405b --stall-budget 1% --interval 30min --accelerators 16384 "
    "--hosts-writing 64 --hosts-restoring 128 --storage-write-limit 10GB/s "
    "--storage-read-limit 100GB/s",
    "plan llama3-405b --mtbf 3h",
    "compare sweep --over-time smallrun",
    "whatif results/calibrated --storage-bandwidth 2x",
    "whatif results/calibrated --hosts 4 --storage-limit 1GB/s",
    "size resnet50-h100 --accelerators 8 --hosts 2",
    "size unet3d-b200 --accelerators 8 --hosts 2 --checkpoint-bytes 105GB --checkpoint-budget 60s"
    " --checkpoint-every 30m --restore-budget 250ms --details",
    "size resnet50-h100 --accelerators 32 --hosts 4 --gradient-bytes 346MB --details",
    "size unet3d-h100 resnet50-h100 --accelerators 16,8 --hosts 2,1 --details",
    "size unet3d-h100 unet3d-b200 --accelerators 8 --details",
    "size unet3d-h100 resnet50-h100 --accelerators 8 --required-au 1 --details",
    "size unet3d-b200 --accelerators 2 --latency 1s --set loader.workers=1"
    " --set reader.concurrency=1 --details",
    "size resnet50-server --rate 1000 --from results/serving --details",
    "size llama3-70b-weights --replicas 64 --ready 10m --from results/model-load --details",
    "size llama3-70b-weights --replicas 64 --ready 60s --from results/model-load",
    "size llama3-8b-weights --replicas 8 --ready 20s --instance p5.48xlarge --details",
    "whatif results/calibrated --hosts 32 --storage-limit 20GB/s --checkpoint-bytes 1TB"
    " --host-write 1GB/s --storage-write-limit 10GB/s --details",
    "whatif results/serving --latency 0.5x --concurrency 8",
    "whatif results/serving --step-time 2x --accelerators 2 --details",
    "whatif results/model-load --storage-bandwidth 3x --details",
    "cost results/model-load results/throttled --host-price-per-hour 3.6",
    "plan retinanet-b200 --accelerators 4 --host-memory 1GiB --data s3://box/data"
    " --print mlpstorage",
    "plan unet3d-b200 --host-memory 24GiB --set loader.workers=16 --set reader.direct=true"
    " --print mlpstorage",
    "plan resnet50-h100 --host-memory 24GiB --print mlpstorage",
    "plan llama3-8b --hosts 1 --host-memory 512GiB --to /mnt/a --print mlpstorage",
    "plan llama3-8b --hosts 1 --host-memory 256GiB --to /mnt/a --print mlpstorage",
    "advise sweep",
    "report sweep --details",
    "report tried --details",
    "report submissions --details",
    "report results/calibrated results/failed --details",
    "report turns",
    "report inconclusive",
    "report changed --details",
)

NULL = {"accelerator": {"kind": "null", "name": "null", "step_time": None}}
UNMEASURED = dict.fromkeys(("storage_raw", "fetch", "prep", "loader"))
SMALL_HOST = {"cores": 1, "affinity_cores": 1, "effective_cores": 1.0}

SPENT = {"rates": {"storage_raw": 650, "fetch": 600}, "measured": 580, "au": 0.29}
FEW_READS = {"rates": {"storage_raw": 1500, "fetch": 600}, "measured": 590, "au": 0.3}
PREP = {"rates": {"prep": 1000}, "measured": 980, "au": 0.49}


def gzip(ratio: float) -> dict[str, Any]:
    """A dataset of images that gzip shrinks so far, and the codecs that are cheaper."""
    spec = {"content": "jpeg", "codec": "gzip", "compress_ratio": ratio}
    return {"spec": spec, "cheaper_codecs": ["zstd:1", "lz4", "none"]}


VERDICTS: dict[str, dict[str, Any]] = {
    "fed": {},
    "fed, but waiting": {"au": 0.75, "workload": {"required_accelerator_utilization": 0.7}},
    "one accelerator, fed": {
        "accelerators": 1,
        "rates": {"fetch": 1100},
        "measured": 960,
        "au": 0.96,
    },
    "storage is spent": SPENT,
    "too few reads in flight": FEW_READS,
    "storage, mildly": {"rates": {"fetch": 1700}, "measured": 1650, "au": 0.85},
    "storage feeds not even one": {
        "accelerators": 1,
        "rates": {"fetch": 500},
        "measured": 500,
        "au": 0.5,
    },
    "storage feeds one of four": {
        "accelerators": 4,
        "rates": {"fetch": 1000},
        "measured": 1000,
        "au": 0.5,
    },
    "a burst, then half": {
        "accelerators": 1,
        "rates": {"fetch": 8000, "storage_raw": 8000},
        "measured": 680,
        "au": 0.68,
        "curve": run_curve(curve(*[8000.0] * 8)),
        "ablations": without(storage=(1.44, 1.48)),
        "repetition": {
            "rates": {
                "bin_s": 1.0,
                "samples_per_s": [980.0] * 9 + [500.0] * 15,
                "stored_bytes_per_s": [9.8e7] * 9 + [5e7] * 15,
            }
        },
    },
    "stragglers": {
        "accelerators": 1,
        "rates": {"fetch": 520, "storage_raw": 1150},
        "measured": 500,
        "au": 0.5,
        "dataset": {"shards": 60_000},
        "curve": with_tail((160, 330, 400, 520, 700, 900, 1150, 1150), 0.002, 0.202),
        "ablations": without(storage=(1.95, 2.0)),
    },
    "just below what is required": {
        "accelerators": 1,
        "rates": {"fetch": 905},
        "measured": 899.7,
        "au": 0.8997,
    },
    "raw stands in for fetch": {
        "rates": {"fetch": None, "storage_raw": 600},
        "measured": 590,
        "au": 0.3,
    },
    "prep": PREP,
    "prep of a library": {
        "rates": {"fetch": 900, "prep": 500, "loader": None},
        "measured": 300,
        "au": 0.15,
        "loader": {"kind": "litdata"},
    },
    "loader": {
        "rates": {"loader": 800},
        "measured": 790,
        "au": 0.4,
        "loader": {"transport": "tensor"},
    },
    "turns of fetch and prep": {
        "rates": {"storage_raw": 2600, "fetch": 2500, "prep": 3000},
        "measured": 1350,
        "au": 0.67,
    },
    "undecided within noise": {"rates": {"fetch": 1000, "prep": 1030}, "measured": 900, "au": 0.45},
    "undecided: nothing explains the wait": {
        "rates": {"fetch": 9000, "prep": 9500},
        "measured": 1000,
        "au": 0.5,
    },
    "undecided: prep was not measured": {
        "rates": {"fetch": 600, "prep": None},
        "measured": 300,
        "au": 0.3,
    },
    "nothing was measured": {"rates": UNMEASURED, "repetitions": 0},
    "a null accelerator": {
        "workload": NULL,
        "rates": {"accelerator": None},
        "au": None,
        "measured": 3900,
    },
    "latency, tested": {
        **SLOW,
        "curve": run_curve(curve(*LATENT)),
        "ablations": without(storage=(4.9, 5.1), prep=(0.99, 1.01)),
    },
    "operations are spent, tested": {
        **SLOW,
        "curve": run_curve(
            curve(200, 400, 401, 400), curve(50, 51, 50, size=4_000_000, order="sequential")
        ),
        "ablations": without(storage=(4.8, 5.2)),
    },
    "not starved, and the storage is the bottleneck": {
        "rates": {"fetch": 1460, "storage_raw": 1500},
        "measured": 1440,
        "au": 0.72,
        "workload": {"required_accelerator_utilization": 0.7},
        "ablations": without(storage=(1.34, 1.40), prep=(0.98, 1.01), accelerator=(1.0, 1.02)),
    },
    "storage and prep can't be told apart": {
        "measured": 1000,
        "au": 0.5,
        "ablations": without(storage=(1.9, 2.2), prep=(1.8, 2.0)),
    },
    "saves": {
        "measured": 1000,
        "au": 0.995,
        "repetition": {
            "ranks": [{"rank": 0, "wall_s": 20.0, "busy_s": 10.0, "fill_s": 0.0, "saves_s": 10.0}]
        },
        "ablations": without(checkpoint=(1.95, 2.05), storage=(0.99, 1.01)),
    },
    "a warm cache": {
        **SPENT,
        "workload": {"cache": "warm"},
        "residency": 1.0,
        "ablations": without(prep=(1.4, 1.5)),
    },
    "a warm cache that holds a part": {
        **SPENT,
        "workload": {"cache": "warm"},
        "residency": 0.44,
        "ablations": without(prep=(1.4, 1.5)),
    },
    "a loader that reads nothing": {
        "measured": 580,
        "au": 0.29,
        "loader": {"kind": "user", "user": {"process_bytes": 0, "delivered_bytes": 1 << 30}},
        "ablations": without(prep=(1.4, 1.5)),
        "workload": {"loader": {"kind": "user", "factory": "mypkg:make", "workers": 1}},
        "repetition": {
            "epochs": [
                {"epoch": 0, "residency_before": 0.0, "sample_bytes": 1 << 30, "bytes_fetched": 0}
            ],
            "samples": 50_000,
        },
    },
    "too short": {"repetition": {"steps": 8}, "measured": 100, "au": 0.05},
    "a ceiling that the run refutes": {"rates": {"prep": 300}, "measured": 900, "au": 0.45},
    "storage that compression would relieve": {
        **SPENT,
        "dataset": {"spec": {"content": "raw", "codec": "none", "compress_ratio": 2.0}},
    },
    "no idle core, and a costly codec": {**PREP, "loader": {"workers": 4}, "dataset": gzip(4.0)},
    "a codec for which storage has room": {**PREP, "dataset": gzip(2.5)},
    "a library whose reads wait": {
        "rates": {"storage_raw": 1500, "fetch": 600, "loader": None},
        "measured": 590,
        "au": 0.3,
        "loader": {"kind": "webdataset", "direct": False, "workers": 2},
    },
    "a client that has no CPU for its reads": {
        **FEW_READS,
        "host": {"cores": 1, "affinity_cores": 1, "effective_cores": 0.031},
    },
    "a small host": {
        "rates": {"fetch": 700, "prep": 650},
        "measured": 600,
        "au": 0.3,
        "host": SMALL_HOST,
    },
}
"""Constructed runs (``tests/unit/conftest.py``), each with another verdict."""


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder with golden data and runs, and with what a user may point to by mistake."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="iobench-texts-") as folder:
        here = Path(folder).resolve()
        for name, source in {
            "data": "datasets/tar",
            "half": "datasets/half",
            "scanned.manifest": "datasets/scanned.manifest",
            "results": "runs",
            "sweep": "sweep",
        }.items():
            shutil.copytree(GOLDEN / source, here / name)
        shutil.copy(GOLDEN / "smallrun.yaml", here)
        shutil.copy(GOLDEN / "small.yaml", here)
        for name, found in {"turns": FASTER, "inconclusive": INCONCLUSIVE}.items():
            (here / name).mkdir()
            save_ab(here / name, found)
        shutil.copytree(REFERENCE / "storage-bound", here / "tried")
        results = here / "submissions/box/results"
        for number in (1, 2):
            put(results / f"unet3d/run_{number}", summary())
        put(results / "resnet50/run_1", summary(metric=ODD, data_size_per_host_GB=100.0), config={})
        put(results / "llama/run_1", summary(metric={"save_checkpoint_io_mean_GB_per_second": 2.0}))
        put(here / "submissions/box/code/dlio_benchmark/tests", summary())
        study = of_changes(GOLDEN / "runs" / "checkpoint-stream")
        (here / "changed").mkdir()
        (here / "changed" / "run.json").write_text(json.dumps(study))
        (here / "empty").mkdir()
        (here / "thesis").mkdir()
        (here / "thesis" / "chapter.txt").write_text("precious")
        (here / "mine.yaml").write_text("name: mine\ndataset: demo\nbatch_size: 8\n  epochs: 1\n")
        (here / "list.yaml").write_text("- name: mine\n")
        os.chdir(here)
        try:
            yield here
        finally:
            os.chdir(before)


@contextmanager
def _missing(package: str, plug_in: str) -> Iterator[None]:
    """Let imports of ``package`` by the module ``plug_in`` fail, as if it were not installed.

    Another test may have imported the plug-in before.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, package, None)
        patch.delitem(sys.modules, plug_in, raising=False)
        yield


def _shown(command: str, here: Path) -> str:
    """What a command prints, with its exit code if that is not 0."""
    code, out, err = in_process(*shlex.split(command))
    end = f"exit {code}\n" if code else ""
    return f"$ iobench {command}\n{out}{err}{end}".replace(str(here), "/here")


def helps() -> str:
    """``--help`` of iobench and of every verb."""
    with workplace() as here:
        return "\n".join(_shown(f"{verb} --help".lstrip(), here) for verb in ("", *VERBS))


def errors() -> str:
    """The one-line errors of MISTAKES."""
    with workplace() as here, _missing("webdataset", "iobench.load.libraries.wds"):
        return "\n".join(_shown(command, here) for command in MISTAKES)


def reports() -> str:
    """The text reports of the runs, the sweep and the dataset of version 0.1.0."""
    with workplace() as here:
        return "\n".join(_shown(command, here) for command in REPORTS)


FIGURES = ("headroom", "accelerators_fed", "fetch_stall", "prep_stall")


def verdicts() -> str:
    """The sentence, the explanation, the figures and the advice of each of VERDICTS."""
    texts = []
    for name, changes in VERDICTS.items():
        verdict = build_run(**changes).job.verdict
        lines = [f"{name}: {verdict.bottleneck}", *textwrap.wrap(verdict.sentence, 98)]
        lines += textwrap.wrap(
            verdict.explanation, 94, initial_indent="   ", subsequent_indent="   "
        )
        known = ((name, getattr(verdict, name)) for name in FIGURES)
        lines.append(
            "   "
            + ", ".join(
                f"{name} {value if value is None else round(value, 3)}" for name, value in known
            )
        )
        for advice in verdict.advice:
            promised = gain_of(advice)
            gain = "" if promised is None else f"{shown(promised)} "
            told = f"{gain}{advice.change} ({advice.basis})"
            lines += textwrap.wrap(told, 98, initial_indent="-> ", subsequent_indent="   ")
        lines += [f"not measured: {key}: {why}" for key, why in verdict.not_measured.items()]
        texts.append("\n".join(lines) + "\n")
    return "\n".join(texts)


SNAPSHOTS: dict[str, Callable[[], str]] = {
    "help.txt": helps,
    "errors.txt": errors,
    "reports.txt": reports,
    "verdicts.txt": verdicts,
}
"""File in this folder -> its text of today."""


def help_of(verb: str = "") -> str:
    """Return the help of a verb, or of iobench, as it was reviewed: today's is the same."""
    reviewed = (HERE / "help.txt").read_text(encoding="utf-8")
    command = f"{verb} --help".lstrip()
    return reviewed.partition(f"$ iobench {command}\n")[2].partition("\n$ iobench ")[0]


def texts(name: str) -> str:
    """Return what the file ``name`` should hold, for a terminal of 100 columns without colours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        patch.setattr(extras, "_recorded", lambda: None)  # as if iobench came from an index
        return SNAPSHOTS[name]()
