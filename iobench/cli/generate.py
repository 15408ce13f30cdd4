"""``iobench generate``: generate shards and a manifest from a dataset spec."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..units import counted
from .common import add_break_lock, number, whole_number
from .hosts import add_hosts, hosts_document, launched, on_all_hosts, printed_lines, say_hosts
from .terminal import say, show_json
from .verbs import Verb

if TYPE_CHECKING:
    from ..generator import GenerateReport
    from ..runner.hosts.control import Control
    from ..runner.hosts.launch import Launch
    from ..runner.hosts.meeting import Meeting
    from ..runner.hosts.serving import Serving
    from ..runner.hosts.sharing import HostShare
    from ..schema.dataset import DatasetSpec
    from ..storage.base import Storage

EXAMPLES = """examples:
  iobench generate demo --to /tmp/iobench-demo
  iobench generate resnet50 --to /mnt/fast/resnet50 --size 20GiB
  iobench generate unet3d --to /mnt/fast/unet3d --memory-multiple 5
  iobench generate resnet50 --to /mnt/fast/resnet50-tar --samples 10000 --set format=tar \
--set shard_size=64MiB --set codec=zstd:1
  iobench generate resnet50 --to s3://bucket/resnet50 --samples 10000 --set format=tar
  iobench generate ./mine.yaml --to /mnt/fast/mine --seed 7 --workers 4
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", help="name of a dataset (iobench list datasets) or YAML file")
    parser.add_argument(
        "--to",
        required=True,
        metavar="DIR",
        help="directory or URL for the dataset; must be new, empty, or hold this same dataset",
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--size", metavar="SIZE", help="total bytes of the samples, e.g. 20GiB")
    amount.add_argument("--samples", type=whole_number, metavar="N", help="number of samples")
    amount.add_argument(
        "--memory-multiple",
        type=number,
        metavar="X",
        help="total bytes as a multiple of the memory of this host (or of its cgroup), e.g. 5",
    )
    parser.add_argument(
        "--seed", type=whole_number, metavar="N", help="seed for sizes and contents"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a key of the spec, e.g. format=tar; repeatable",
    )
    parser.add_argument(
        "--workers",
        type=whole_number,
        metavar="N",
        help="number of processes on each host (default: one for each core)",
    )
    add_break_lock(parser)
    add_hosts(parser, ranks=False)


def run(args: argparse.Namespace) -> int:
    from ..errors import UsageError
    from ..storage import open_storage
    from ..storage.base import Guarded

    if args.workers is not None and args.workers < 1:
        raise UsageError(f"--workers must be at least 1, but is {args.workers}")
    if printed_lines(args):
        return 0
    launch = launched(args)

    def prepared() -> tuple[DatasetSpec, Storage]:
        spec, storage = _spec(args), open_storage(args.to)
        if isinstance(storage, Guarded):
            storage.check_target()
        return spec, storage

    if launch is not None:
        return _on_all_hosts(launch, args, prepared)
    spec, storage = prepared()
    _print(args, _generated(args, spec, storage), storage.url)
    return 0


def _generated(
    args: argparse.Namespace, spec: DatasetSpec, storage: Storage, **more: Any
) -> GenerateReport:
    from ..generator import generate
    from .live import progress_bar

    # Batch schedulers stop jobs with SIGTERM. As after Ctrl-C, finished shards are kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with progress_bar("generating", quiet=getattr(args, "quiet", False)) as tell:
        return generate(
            spec,
            storage,
            workers=args.workers,
            progress=tell,
            break_lock=args.break_lock,
            **more,
        )


def _on_all_hosts(
    launch: Launch,
    args: argparse.Namespace,
    prepared: Callable[[], tuple[DatasetSpec, Storage]],
) -> int:
    """Each host writes a share of the units; the first one claims the place, and completes it."""
    from ..generator.engine import marker_hash, write_share
    from ..generator.target import dataset_id
    from ..generator.writer import UnitResult
    from ..runner.hosts.sharing import SharedTasks, Sharing

    def same(plan: tuple[DatasetSpec, Storage]) -> dict[str, str]:
        spec, storage = plan
        return {"to": storage.url, "spec": dataset_id(spec)}

    def lead(control: Control, plan: tuple[DatasetSpec, Storage]) -> int:
        spec, storage = plan
        shared = SharedTasks(
            control,
            UnitResult,
            weigh=lambda result: int(result.shard_size.sum()),
            seen=lambda: marker_hash(storage),
        )
        _print(args, _generated(args, spec, storage, run=shared), storage.url, shared.hosts)
        return 0

    def join(meeting: Meeting, plan: tuple[DatasetSpec, Storage]) -> Serving:
        spec, storage = plan
        return Sharing(
            meeting,
            lambda order, check: write_share(
                spec,
                storage,
                order.tasks,
                marker=order.seen,
                workers=args.workers,
                check=check,
            ),
        )

    return on_all_hosts(launch, args, lambda _: prepared(), same, lead=lead, join=join)


def _print(
    args: argparse.Namespace,
    report: GenerateReport,
    target: str,
    hosts: Sequence[HostShare] = (),
) -> None:
    """``hosts``: what each of them wrote, where there are several."""
    from ..units import format_bytes, format_duration, format_rate

    header = report.manifest.header
    rate = report.written_bytes / report.wall_s if report.wall_s > 0 else 0.0
    if args.json:
        document = {
            "path": target,
            "dataset": header.spec.model_dump(mode="json"),
            "id": header.id,
            "samples": header.samples,
            "shards": header.shards,
            "stored_bytes": header.stored_bytes,
            "sample_bytes": header.sample_bytes,
            "written_samples": report.written_samples,
            "written_bytes": report.written_bytes,
            "wall_s": report.wall_s,
            "write_bytes_per_s": rate if report.written_bytes else None,
            "workers": report.workers,
            **hosts_document(hosts),
        }
        show_json(document)
        return
    counts = f"{counted(header.samples, 'sample')} and {counted(header.shards, 'shard')}"
    what = f"{format_bytes(header.stored_bytes)} in {counts}"
    if not report.written_samples:
        say(f"nothing to do: {target} already holds this dataset, {what}")
        return
    resumed = (
        ""
        if report.written_samples == header.samples
        else f" ({format_bytes(report.written_bytes)} of it now)"
    )
    speed = f"at {format_rate(rate)}, durable, in {format_duration(report.wall_s)}"
    say(f"generated {what}{resumed} {speed}: {target}")
    say_hosts(hosts)


def _spec(args: argparse.Namespace) -> DatasetSpec:
    from ..dataset import load_dataset_spec
    from ..errors import UsageError
    from ..schema.dataset import resized
    from ..units import parse_size

    overrides = [*args.overrides, *([f"seed={args.seed}"] if args.seed is not None else [])]
    spec = load_dataset_spec(args.dataset, overrides)
    size = parse_size(args.size) if args.size is not None else None
    if args.memory_multiple is not None:
        if not 0 < args.memory_multiple < 1e6:
            raise UsageError(
                f"--memory-multiple must be more than 0 and less than 1e6, but is "
                f"{args.memory_multiple:g}"
            )
        size = round(args.memory_multiple * _memory())
    return resized(spec, samples=args.samples, size_bytes=size)


def _memory() -> int:
    from ..errors import UsageError
    from ..memory import total_bytes

    memory = total_bytes()
    if memory is None:
        raise UsageError(
            "--memory-multiple can't be used: the size of this host's memory is not known",
            remedy="use --size",
        )
    return memory


VERB = Verb(
    help="generate a dataset",
    description=(
        "Generate a dataset from its spec. Bytes are unique and incompressible unless the spec "
        "says otherwise. The same spec gives the same bytes with any number of workers. To "
        "continue an interrupted generation, give the same command again."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
