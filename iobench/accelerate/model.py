"""An accelerator that computes: a model is trained on each batch that the loader delivers."""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..base.errors import IobenchError, NoMemoryError, UsageError, first_line
from ..settings.accelerator import StepFacts
from ..settings.workload import AcceleratorSpec
from .base import RankPlace, Samples, StepTime, device_of_rank
from .bind import loaded_allocator, rank_cpus
from .exchange import GradientExchange
from .models import NETWORKS
from .models.networks import Model

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_SEED = 20_170_417


class ModelAccelerator:
    """Trains ``spec.model``. A step's busy time ends when the device has finished it.

    With CUDA it is measured by events on the device, on the CPU by the clock. Raises UsageError
    where the model, the device or the precision can't be had.
    """

    def __init__(self, spec: AcceleratorSpec) -> None:
        assert spec.model is not None  # AcceleratorSpec ensures it
        self.name = spec.name
        self._spec = spec
        self._steps = 0  # on batches that were delivered
        self._trained = 0  # the warm-up and the ceilings included
        self._exchange: GradientExchange | None = None
        self._facts = StepFacts(model=spec.model, precision=spec.precision)

    @staticmethod
    def import_early() -> None:
        """Make torch import its compiler, which it needs for an optimizer: 2 s of CPU.

        Each forked rank, and the process that counts operations, would import it again.
        """
        torch.optim.SGD([torch.nn.Parameter(torch.empty(0))])

    def prepare(self, place: RankPlace, *, warm: bool = True) -> None:
        """Build the model and train it on made-up bytes until its steps take a constant time.

        Called once in the rank's own process, before its loader begins, so that neither the
        compilation nor the first allocations are in any epoch. Without ``warm`` it is only built.
        """
        spec = self._spec
        local, on_host = place.share
        cpus = rank_cpus(spec.bind, local, on_host)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
        cores = len(cpus or os.sched_getaffinity(0))
        share = cores if cpus is not None else max(1, cores // on_host)
        environment = told_by()
        self._threads = set_threads(spec.threads or share)
        if (loaded := loaded_allocator()) != spec.allocator and spec.allocator != "system":
            raise UsageError(
                f"accelerator.allocator={spec.allocator} needs a process that was started with it, "
                f"but this one has {loaded}",
                remedy="start it with LD_PRELOAD, or use iobench run or train for each allocator",
            )
        self._device = device_of_rank(spec.device or "cpu", local)
        if self._device.type == "cuda":  # that of its events, which time the steps
            torch.cuda.set_device(self._device)
        check_precision(spec.precision, self._device)
        torch.manual_seed(_SEED)
        model = open_model(spec.model or "")
        self.sample_bytes = model.sample_bytes
        with self._told():
            model.to(self._device)
            if spec.memory_format == "channels_last" and model.channels_last is not None:
                model.to(memory_format=model.channels_last)  # type: ignore[call-overload]
            self._optimizer = _optimizer(spec, model)
        whole: torch.nn.Module = model
        if spec.gradient_sync == "ddp" and place.world > 1:
            whole = self._in_exchange(model, place)
        with self._told():
            self._model: Any = torch.compile(whole) if spec.compile else whole
        scaled = spec.precision == "float16"
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=scaled)
        self._own = self._made_up(place.batch_size)
        warm_up = self._warm_up() if warm else []
        exchanged = [each.nbytes for each in model.parameters() if each.requires_grad]
        self._facts = StepFacts(
            model=spec.model or "",
            precision=spec.precision,
            device=self._device_name(),
            parameters=sum(p.numel() for p in model.parameters()),
            threads=self._threads,
            interop_threads=torch.get_num_interop_threads(),
            environment=environment,
            cpus=len(os.sched_getaffinity(0)),
            allocator=loaded_allocator(),
            warm_up_steps=len(warm_up),
            warm_up_s=sum(warm_up),
            gradient_bytes=sum(exchanged) if self._exchange is not None else None,
        )
        if self._exchange is not None:
            self._exchange.forget()

    def _in_exchange(self, model: Model, place: RankPlace) -> torch.nn.Module:
        assert place.meeting is not None, "ranks that exchange gradients have a meeting place"
        self._exchange = GradientExchange(
            place.meeting,
            rank=place.rank,
            world=place.world,
            on_host=place.share[1],
            device=self._device,
        )
        with self._told():
            return self._exchange.wrap(model)

    def start(self) -> None:
        return

    def step(self, batch: Samples | None, ready_ns: int, share: float = 1.0) -> StepTime:
        """Train on the batch; without one, on made-up bytes that are in place already.

        Raises UsageError for samples that are too small for the model, and IobenchError if the
        loss is no number, or memory is not enough.
        """
        busy_ns, loss = self._train(self._own if batch is None else self._data(batch))
        if batch is not None:
            if self._steps == 0:
                self._facts.first_loss = loss
            self._facts.last_loss = loss
            self._steps += 1
        return StepTime(busy_ns, 0)

    def facts(self) -> StepFacts:
        """What was trained, on what, and how its loss changed."""
        if self._exchange is not None:
            self._facts.exchange_s = self._exchange.mean_s
        return self._facts

    def close(self) -> None:
        """Leave the exchange of gradients. No rank makes another step."""
        if self._exchange is not None:
            self._exchange.close()

    def _data(self, batch: Samples) -> torch.Tensor:
        data = batch.stacked()
        if data.shape[1] < self.sample_bytes:
            raise UsageError(
                f"the model '{self._spec.model}' takes {self.sample_bytes} bytes of each sample, "
                f"but the samples have {data.shape[1]}",
                remedy="take a dataset with larger samples, or reader.decode=true where they are "
                "encoded",
            )
        data = data[:, : self.sample_bytes]
        return data.to(self._device).contiguous()

    def _train(self, data: torch.Tensor) -> tuple[int, float]:
        """Make one step. Returns its busy time in nanoseconds, and the loss."""
        cuda = self._device.type == "cuda"
        began = time.monotonic_ns()
        if cuda:
            first, last = _event(), _event()
            first.record()
        dtype = _DTYPES[self._spec.precision]
        cast = nullcontext() if dtype == torch.float32 else torch.autocast(self._device.type, dtype)
        with self._told():
            with cast:
                loss = self._model(data)
            self._optimizer.zero_grad(set_to_none=True)
            self._scaler.scale(loss).backward()
            self._scaler.step(self._optimizer)
            self._scaler.update()
            if cuda:
                last.record()
                last.synchronize()
            value = float(loss.detach())
        self._trained += 1
        if self._exchange is not None:
            self._exchange.step_is_over()
        if not math.isfinite(value):
            raise IobenchError(
                f"the loss of the model '{self._spec.model}' is {value} in step {self._trained}",
                remedy="lower accelerator.learning_rate, or use accelerator.precision=float32",
            )
        if cuda:
            return round(first.elapsed_time(last) * 1e6), value
        return time.monotonic_ns() - began, value

    def _warm_up(self) -> list[float]:
        """Train until the steps take a constant time. Returns their seconds."""
        times: list[float] = []
        began = time.monotonic()
        while True:
            late = len(times) >= MIN_WARM_UP_STEPS and time.monotonic() - began > self._spec.warm_up
            enough = late or len(times) >= MAX_WARM_UP_STEPS or settled(times)
            if self._exchange is not None:
                enough = self._exchange.agreed(enough)
            if enough:
                return times
            times.append(self._train(self._own)[0] / 1e9)

    def _made_up(self, batch_size: int) -> torch.Tensor:
        made = torch.Generator().manual_seed(_SEED)
        shape = (batch_size, self.sample_bytes)
        data = torch.randint(0, 256, shape, dtype=torch.uint8, generator=made)
        return data.to(self._device)

    def _device_name(self) -> str:
        if self._device.type == "cuda":
            return torch.cuda.get_device_name(self._device)
        return str(torch.cpu.get_capabilities().get("cpu_name", "CPU"))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn torch's failures into errors of one line."""
        try:
            with self._exchange.told() if self._exchange is not None else nullcontext():
                yield
        except (RuntimeError, TypeError, ValueError, MemoryError) as error:
            if is_out_of_memory(error):
                where = "this host" if self._device.type == "cpu" else str(self._device)
                raise NoMemoryError(
                    f"the memory of {where} is not enough to train the model '{self._spec.model}'",
                    remedy="use a smaller batch_size, accelerator.precision=bfloat16, or another "
                    "model: iobench list networks",
                ) from error
            what = first_line(error)
            if self._spec.compile:
                raise IobenchError(
                    f"the model '{self._spec.model}' can't be compiled or trained: {what}",
                    remedy="try accelerator.compile=false",
                ) from error
            raise IobenchError(
                f"the model '{self._spec.model}' can't be trained: {what}",
                remedy="see its last lines with --debug, or choose another one: "
                "iobench list networks",
            ) from error


def open_model(name: str) -> Model:
    """Create a model by its name, or by ``module:callable``, which returns one.

    Raises UnknownNameError for an unknown name, UsageError for a module that can't be imported,
    for a callable that fails, and for a result that is no model.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        return NETWORKS.open(name)
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # the user's code may raise anything
        if is_out_of_memory(error):
            raise NoMemoryError(
                f"the memory of this host is not enough to make the model '{name}'",
                remedy="make a smaller one",
            ) from error
        raise UsageError(
            f"the model '{name}' can't be made: {type(error).__name__}: {error}",
            remedy="give module:callable, where the module can be imported (PYTHONPATH) and the "
            "callable takes no argument",
        ) from error
    size = getattr(made, "sample_bytes", None)
    if not isinstance(made, torch.nn.Module) or not isinstance(size, int) or size < 1:
        raise UsageError(
            f"the model '{name}' is not one that iobench can train",
            remedy="return a torch.nn.Module with an attribute sample_bytes, whose forward takes "
            "uint8 [batch, sample_bytes] and returns the loss",
        )
    if not hasattr(made, "channels_last"):
        made.channels_last = None  # type: ignore[assignment]
    return made  # type: ignore[return-value]


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device or the host had too little memory; for the host torch has no class."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "can't allocate memory" in str(error)


def sample_bytes_of(name: str) -> int:
    """The bytes of each sample that a model takes. Raises what ``open_model`` raises."""
    return _traits_of(name)[0]


def has_channels_last(name: str) -> bool:
    """Whether a model has a format with its channels last. Raises what ``open_model`` raises."""
    return _traits_of(name)[1]


@lru_cache(maxsize=8)
def _traits_of(name: str) -> tuple[int, bool]:
    """The bytes of a sample that a model takes, and whether it has a format with channels last.

    No thread of torch begins for it: a process that is forked later has none of them, and would
    wait for ever where OpenMP expects them.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = open_model(name)
        return int(model.sample_bytes), model.channels_last is not None
    finally:
        torch.set_num_threads(threads)


def check_precision(precision: str, device: torch.device) -> None:
    """Raises UsageError where the device would only imitate the precision, slowly."""
    if precision == "float32":
        return
    if device.type == "cuda":
        there = precision == "float16" or torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        able = torch.cpu.get_capabilities()
        has = {"bfloat16": ("avx512_bf16", "amx_bf16", "bf16"), "float16": ("avx512_fp16", "fp16")}
        there = any(able.get(flag) for flag in has[precision])
    if not there:
        raise UsageError(
            f"{device.type} of this host has no instructions for {precision}",
            remedy="use --set accelerator.precision=float32",
        )


def _optimizer(spec: AcceleratorSpec, model: torch.nn.Module) -> torch.optim.Optimizer:
    if spec.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=spec.learning_rate)
    return torch.optim.SGD(model.parameters(), lr=spec.learning_rate, momentum=0.9)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
)
"""Variables that change how many threads compute, and where they run.

Launchers set some of them without a word: torchrun sets OMP_NUM_THREADS=1 where there are several
ranks and the variable is not set (https://pytorch.org/docs/stable/elastic/run.html)."""


def set_threads(threads: int) -> int:
    """Let OpenMP and MKL compute with so many threads, and return how many torch then has.

    It replaces what OMP_NUM_THREADS and MKL_NUM_THREADS have said when the process started.
    """
    torch.set_num_threads(threads)
    return torch.get_num_threads()


def told_by() -> dict[str, str]:
    """Those of ``VARIABLES`` that are set, with their values."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


MIN_WARM_UP_STEPS, MAX_WARM_UP_STEPS = 3, 200

SETTLED_STEPS = 5
"""Steps of about the same time that must follow the change."""

_SPREAD = 0.1
"""Relative deviation of these steps from their median that still counts as constant."""


def change_point(times: Sequence[float]) -> int:
    """Return where the level of ``times`` changes: the first index of the later level.

    It is the split with the least sum of squares of the logarithms around the means of the two
    parts (a single change in the mean; Hinkley, Biometrika 57, 1970). 0 for fewer than two times.
    """
    if len(times) < 2:
        return 0
    logs = np.log(np.maximum(np.asarray(times, dtype=np.float64), 1e-9))
    splits = range(1, len(logs))
    costs = [logs[:at].var() * at + logs[at:].var() * (len(logs) - at) for at in splits]
    best = int(np.argmin(costs))
    # A split must explain clearly more than none does; noise always allows a little.
    return splits[best] if costs[best] < 0.5 * logs.var() * len(logs) else 0


def settled(times: Sequence[float]) -> bool:
    """Whether enough steps of about the same time follow the last change of their level."""
    after = np.asarray(times[change_point(times) :], dtype=np.float64)[-SETTLED_STEPS:]
    if len(after) < SETTLED_STEPS:
        return False
    level = float(np.median(after))
    return bool((np.abs(after / level - 1) <= _SPREAD).all())
