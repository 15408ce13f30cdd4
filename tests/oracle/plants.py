"""What the oracles of causes plant: stages of known cost, storages of known speed, the kernel's own
throttle, and servers that delay each request.

A stage that sleeps has the same cost on a busy machine; a stage that computes is for the oracle
about the CPU alone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from iobench.base.buffers import Buffer
from iobench.base.processes import rank
from iobench.base.units import parse_duration, parse_size
from iobench.data.codecs import CODECS
from iobench.data.codecs.base import Codec
from iobench.plugins import PlugIn
from iobench.record.checkpoint import CheckpointSpec, Training
from iobench.record.run import TrainingRecord
from iobench.record.verdict import Advice, Estimate, Verdict
from iobench.runner.checkpoint_plan import make_study_plan
from iobench.runner.experiment import Options, run
from iobench.runner.options import Confirm, Mixed
from iobench.runner.plan import make_plan
from iobench.settings.base import build
from iobench.settings.workload import Workload, with_recording
from iobench.storage import STORAGE
from iobench.storage.base import Storage
from iobench.storage.simulated.throttled import SharedLink
from iobench.storage.wrapper import Wrapper
from tests.oracle.places import wrapped
from tests.processes import wait_until
from tests.servers.faultproxy import Fault, FaultProxy

MB = 1_000_000


def ran(
    results: Path,
    url: object,
    *,
    accelerators: int = 1,
    repetitions: int = 1,
    seed: int = 7,
    calibration_s: float = 0.0,
    ablations: bool = False,
    ablations_s: float | None = None,
    find_max: bool = False,
    confirm: Confirm | None = None,
    mixed: Mixed | None = None,
    **workload: object,
) -> tuple[TrainingRecord, Path]:
    """The record and the directory of a run in this process, which only repeats if inconclusive
    more.

    ``workload``: keys of a Workload. ``ablations_s``: of the ablations together.
    """
    spec = {"name": "oracle", "dataset": "demo", "batch_size": 10, **workload}
    plan = make_plan(
        with_recording(build(Workload, spec, where="oracle")),
        str(url),
        accelerators=accelerators,
        repetitions=repetitions,
        seed=seed,
    )
    options = Options(
        results=results,
        calibration_s=calibration_s,
        ablations=ablations,
        ablations_s=ablations_s,
        find_max=find_max,
        confirm=confirm,
        mixed=mixed,
    )
    doc, directory = run(plan, options)
    assert (doc.status, doc.error) == ("ok", "")
    return doc, directory


def measured(results: Path, url: object, **more: Any) -> TrainingRecord:
    """A run with ceilings, three repetitions, and rounds in which each stage is left out."""
    whole = {"repetitions": 3, "calibration_s": 0.6, "ablations": True}
    return ran(results, url, **{**whole, **more})[0]


def rate_with(results: Path, url: object, **more: Any) -> float:
    """Samples/s of a run that only repeats, twice: for what a promise is compared with."""
    return rate_of(ran(results, url, **{"repetitions": 2, **more})[0])


def saving(url: str, *, bandwidth: str, every: int) -> Mixed:
    """Saves of a 64th of ResNet-50's state, some 3 MB."""
    asked = {"model": "resnet50", "writer": "stream", "scale": "1/64", "ranks": 1, "restores": 0}
    spec = build(CheckpointSpec, asked, where="oracle")
    target = wrapped("throttled", url, write_bandwidth=bandwidth)
    return Mixed(plan=make_study_plan(spec, target, Training()), every=every)


def verdict_of(doc: TrainingRecord) -> Verdict:
    assert doc.job.verdict is not None
    return doc.job.verdict


def rate_of(doc: TrainingRecord) -> float:
    """Samples/s of the run's repetitions, start-up left out."""
    return float(doc.metrics["samples_per_s"].median)


def gain_of(doc: TrainingRecord, stage: str) -> float:
    """The gain that the run found for a stage; 1 for a stage that was not measured."""
    found = verdict_of(doc).gains.get(stage)
    return found.value if found else 1.0


def first_advice(doc: TrainingRecord) -> Advice:
    advice = verdict_of(doc).advice
    assert advice, verdict_of(doc).sentence
    return advice[0]


def promise_of(advice: Advice) -> Estimate:
    assert advice.predicted_gain is not None
    return Estimate(value=advice.predicted_gain, low=advice.low, high=advice.high)


def judged(
    doc: TrainingRecord,
    bottleneck: str,
    *,
    bound: str = "",
    gain: float | None = None,
    rel: float = 0.15,
    starved: bool | None = True,
    advised: str = "",
    never: Sequence[str] = (),
) -> None:
    """Assert what a run says of a planted cause.

    ``bound``: what of the storage is spent. ``gain``: without the binding stage, within ``rel``.
    ``advised``: the first advice. ``never``: advice that would bring nothing.
    """
    verdict = verdict_of(doc)
    found = (verdict.bottleneck, verdict.starved)
    assert found == (bottleneck, starved), (verdict.sentence, verdict.gains)
    assert not bound or verdict.storage_bound == bound, verdict.sentence
    assert gain is None or gain_of(doc, bottleneck) == pytest.approx(gain, rel=rel), verdict.gains
    assert not advised or first_advice(doc).id == advised, verdict.advice
    assert not {advice.id for advice in verdict.advice} & set(never), verdict.advice


def followed(
    doc: TrainingRecord, rate: float, case: str, *, slack: float = 0.15, advice: str = ""
) -> None:
    """Assert that an advice has promised the rate that was found when it was followed.

    ``advice``: its name, where it need not be the first one.
    """
    named = [each for each in verdict_of(doc).advice if advice in ("", each.id)]
    assert named, verdict_of(doc).advice
    promise, found = promise_of(named[0]), rate / rate_of(doc)
    note_promise(case, promise, found)
    low = promise.value if promise.low is None else promise.low
    high = promise.value if promise.high is None else promise.high
    assert low * (1 - slack) <= found <= high * (1 + slack), (named[0], found)


def note_promise(case: str, promise: Estimate, found: float) -> None:
    """Append a row to the file that IOBENCH_PROMISES names, for the table in docs/verdict.md."""
    if place := os.environ.get("IOBENCH_PROMISES"):
        ends = "" if promise.low is None else f" [{promise.low:.2f}, {promise.high or 0:.2f}]"
        with open(place, "a", encoding="utf-8") as table:
            table.write(f"| {case} | {promise.value:.2f}{ends} | {found:.2f} |\n")


def findings(doc: TrainingRecord) -> set[str]:
    return {finding.rule for finding in doc.findings}


# Stages of known cost


class Sleeping(Codec):
    """Decompression takes ``level`` tenths of a millisecond, in which no CPU is used."""

    name: ClassVar[str] = "sleeping"
    suffix: ClassVar[str] = ".sleeping"
    levels: ClassVar[range] = range(1, 10_000)
    default_level: ClassVar[int | None] = 10

    def compress(self, content: Buffer) -> bytes | Buffer:
        return bytes(content)

    def decompress(self, stored: Buffer, out: Buffer) -> int:
        until = time.monotonic() + (self.used_level or 0) / 10_000
        if len(stored) > len(out):
            raise self.too_long(out)
        out[: len(stored)] = stored
        time.sleep(max(0.0, until - time.monotonic()))
        return len(stored)


class Burning(Sleeping):
    """Decompression takes ``level`` tenths of a millisecond of CPU."""

    name: ClassVar[str] = "burning"
    suffix: ClassVar[str] = ".burning"

    def decompress(self, stored: Buffer, out: Buffer) -> int:
        began = time.thread_time()
        out[: len(stored)] = stored
        burn_until(began + (self.used_level or 0) / 10_000)
        return len(stored)


def burn_until(cpu_s: float) -> None:
    """Compute until the CPU clock of this thread says so many seconds."""
    while time.thread_time() < cpu_s:
        pass


class BurningStorage(Wrapper):
    """``burning+URL?cpu=2``: each read takes so many milliseconds of this host's CPU."""

    scheme = "burning"
    OPTIONS: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def __init__(self, inner: Storage, cpu_s: float) -> None:
        super().__init__(inner)
        self.cpu_s = cpu_s

    @classmethod
    def wrap(cls, inner: Storage, options: Mapping[str, str]) -> BurningStorage:
        return cls(inner, float(options["cpu"]) / 1000)

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        began = time.thread_time()
        count = self.inner.read_into(key, offset, buffer, once=once)
        burn_until(began + self.cpu_s)
        return count


class CreditedStorage(Wrapper):
    """``credited+URL?bandwidth=40MB&credits=400MB``: half of the bandwidth from the moment on at
    which so many bytes were read, as volumes with burst credits do it.
    """

    scheme = "credited"
    OPTIONS: ClassVar[frozenset[str]] = frozenset({"bandwidth", "credits"})

    def __init__(self, inner: Storage, bandwidth: float, credits: float) -> None:
        super().__init__(inner)
        self.bandwidth = bandwidth
        self.credits = credits
        self._link = SharedLink()
        self._read = multiprocessing.get_context("fork").Value("d", 0.0)

    @classmethod
    def wrap(cls, inner: Storage, options: Mapping[str, str]) -> CreditedStorage:
        return cls(inner, parse_size(options["bandwidth"]), parse_size(options["credits"]))

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        arrived = time.monotonic()
        count = self.inner.read_into(key, offset, buffer, once=once)
        with self._read.get_lock():
            self._read.value += count
            spent = self._read.value > self.credits
        service = count / self.bandwidth * (2 if spent else 1)
        time.sleep(max(0.0, self._link.served_at(arrived, service) - time.monotonic()))
        return count


class UnevenStorage(Wrapper):
    """``uneven+URL?rank=2&latency=100ms``: each read of one rank takes so long, or longer."""

    scheme = "uneven"
    OPTIONS: ClassVar[frozenset[str]] = frozenset({"rank", "latency"})

    def __init__(self, inner: Storage, slow: int, latency_s: float) -> None:
        super().__init__(inner)
        self.slow, self.latency_s = slow, latency_s

    @classmethod
    def wrap(cls, inner: Storage, options: Mapping[str, str]) -> UnevenStorage:
        return cls(inner, int(options["rank"]), parse_duration(options["latency"]))

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        until = time.monotonic() + (self.latency_s if rank() == self.slow else 0.0)
        count = self.inner.read_into(key, offset, buffer, once=once)
        time.sleep(max(0.0, until - time.monotonic()))
        return count


@contextmanager
def planted() -> Iterator[None]:
    """In this block, the codecs and storages of this module can be named like built-in ones."""
    with pytest.MonkeyPatch.context() as patch:
        for registry, names in (
            (CODECS, {"sleeping": Sleeping, "burning": Burning}),
            (
                STORAGE,
                {"burning": BurningStorage, "credited": CreditedStorage, "uneven": UnevenStorage},
            ),
        ):
            known = dict(registry._entries)
            for name, kind in names.items():
                known[name] = PlugIn(f"{__name__}:{kind.__name__}", "planted")
            patch.setattr(registry, "_entries", known)
        yield


# The kernel's own throttle

BLKIO = Path("/sys/fs/cgroup/blkio")


@dataclass(frozen=True)
class Throttle:
    """A cgroup, in which reads of one disk are held to a rate by the kernel (cgroup v1 blkio)."""

    group: Path
    disk: str

    def hold(self, *, reads_per_s: int = 0, bytes_per_s: int = 0) -> None:
        """From now on; 0: as fast as the disk."""
        for name, limit in (("read_iops_device", reads_per_s), ("read_bps_device", bytes_per_s)):
            (self.group / f"blkio.throttle.{name}").write_text(f"{self.disk} {limit}\n")

    def run(self, work: Callable[[Path], None], scratch: Path) -> None:
        """Do ``work`` in a forked process inside the group; its children inherit the limits.

        It gets a directory for what it wants to hand over. Its output is shown if it fails.
        """
        child = os.fork()
        if not child:
            code = 1
            try:
                (self.group / "cgroup.procs").write_text(str(os.getpid()))
                work(scratch)
                code = 0
            except BaseException as error:
                (scratch / "failure").write_text(repr(error))
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        failure = scratch / "failure"
        assert status == 0, failure.read_text() if failure.exists() else status

    def measured(self, folder: Path, url: object, **more: Any) -> TrainingRecord:
        """What the function of this name does, inside the group."""
        folder.mkdir()

        def work(scratch: Path) -> None:
            doc = measured(scratch / "results", url, **more)
            (scratch / "record.json").write_text(doc.model_dump_json())

        self.run(work, folder)
        return TrainingRecord.model_validate_json((folder / "record.json").read_text())


def disk_of(path: Path) -> str:
    """major:minor of the whole disk behind ``path``; the throttle knows no partitions. Empty where
    there is none.
    """
    number = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not block.exists():
        return ""
    real = block.resolve()
    disk = real.parent if (real / "partition").exists() else real
    return (disk / "dev").read_text().strip()


def removed(group: Path) -> bool:
    """Remove a cgroup; False while a process of the run is still leaving."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


@contextmanager
def throttle_for(path: Path) -> Iterator[Throttle]:
    """A throttle of the disk behind ``path``; skips the test where the kernel offers none."""
    disk = disk_of(path)
    reason = ""
    group = BLKIO / f"iobench-causes-{os.getpid()}"
    if not disk:
        reason = f"{path} lies on no block device"
    elif not (BLKIO / "blkio.throttle.read_bps_device").exists():
        reason = f"{BLKIO} is no cgroup v1 blkio hierarchy"
    else:
        try:
            group.mkdir()
        except OSError as error:
            reason = f"{BLKIO} is not writable ({error.strerror})"
    if reason:
        pytest.skip(f"{reason}: the oracle against the kernel's throttle did NOT run")
    try:
        yield Throttle(group, disk)
    finally:
        wait_until(lambda: removed(group), f"{group} is still in use")


# Servers that answer late


@contextmanager
def late(port: int, latency_s: float) -> Iterator[FaultProxy]:
    """A proxy in front of the server at ``port``, in which each GET waits; connections do not wait
    for each other.
    """

    class Late(FaultProxy):
        def fault(self, line: str = "") -> Fault:
            if line.startswith("GET"):
                time.sleep(latency_s)
            return super().fault(line)

    with Late(port) as proxy:
        yield proxy


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """This process and its children run on the first ``count`` cores alone."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < count:
        pytest.skip(f"{count} cores are needed: the oracle about the CPU did NOT run")
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, allowed)
