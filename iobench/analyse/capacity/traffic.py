"""What a job moves besides its samples: checkpoints, restores, and gradients on the network."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UsageError

PRECISIONS = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of one gradient."""


def ring_bytes(gradient_bytes: float, hosts: int) -> float:
    """Bytes that each host sends, and receives, in one ring all-reduce of gradients.

    Each host sends 2 (N - 1) / N times the gradients: reduce-scatter, then all-gather (Patarasu
    and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009).
    ViT-B/16 in fp32 has 346 MB of gradients; each of 4 hosts sends 519 MB in each step.
    """
    return 2 * (hosts - 1) / hosts * gradient_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Saves:
    """Checkpoints of the whole job. Rates in bytes/s over all hosts; None: not asked for."""

    checkpoint_bytes: int | None = None
    budget_s: float | None = None  # how long one may take until it is durable
    every_s: float | None = None  # from one to the next
    restore_budget_s: float | None = None  # how long all ranks may read after an interruption
    restore_copies: int = 1  # how often a restore reads the checkpoint: 1 if each rank reads a part

    @property
    def write_bytes_per_s(self) -> float | None:
        """While a checkpoint is being saved: the peak."""
        if self.checkpoint_bytes is None or self.budget_s is None:
            return None
        return self.checkpoint_bytes / self.budget_s

    @property
    def mean_write_bytes_per_s(self) -> float | None:
        """Over a whole interval between two checkpoints."""
        if self.checkpoint_bytes is None or self.every_s is None:
            return None
        return self.checkpoint_bytes / self.every_s

    @property
    def restore_bytes_per_s(self) -> float | None:
        """All ranks read at the same time."""
        if self.checkpoint_bytes is None or self.restore_budget_s is None:
            return None
        return self.restore_copies * self.checkpoint_bytes / self.restore_budget_s

    def check(self) -> None:
        """Raise UsageError for figures that do not belong together, or are not above 0."""
        if self.checkpoint_bytes is None and (
            self.budget_s is not None
            or self.every_s is not None
            or self.restore_budget_s is not None
        ):
            raise UsageError(
                "the time of a checkpoint was given, but not its bytes",
                remedy="give e.g. --checkpoint-bytes 105GB",
            )
        if self.checkpoint_bytes is not None and self.budget_s is None is self.restore_budget_s:
            raise UsageError(
                "a checkpoint needs both its bytes and the time for which it may stop the training "
                "(--checkpoint-budget), or the time of a restore (--restore-budget)",
                remedy="give e.g. --checkpoint-bytes 105GB --checkpoint-budget 1m",
            )
        if self.every_s is not None and self.budget_s is None:
            raise UsageError(
                "--checkpoint-every needs the time that each checkpoint may take",
                remedy="give e.g. --checkpoint-budget 1m",
            )
        if self.restore_copies != 1 and self.restore_budget_s is None:
            raise UsageError(
                "--restore-copies needs the time that a restore may take",
                remedy="give e.g. --restore-budget 2m",
            )
        for name, value in (
            ("--checkpoint-bytes", self.checkpoint_bytes),
            ("--checkpoint-budget", self.budget_s),
            ("--checkpoint-every", self.every_s),
            ("--restore-budget", self.restore_budget_s),
            ("--restore-copies", self.restore_copies),
        ):
            if value is not None and value <= 0:
                raise UsageError(f"{name} must be more than 0, but is {value:g}")
        if self.every_s is not None and self.budget_s is not None and self.every_s < self.budget_s:
            raise UsageError(
                f"a checkpoint every {self.every_s:g} s can't take {self.budget_s:g} s each",
                remedy="raise --checkpoint-every, or lower --checkpoint-budget",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """The traffic of one host in bytes/s of payload, in each direction at the same time.

    ``gradients``: of the ring all-reduce between the hosts, as a mean over the steps; None: not
    given. A restore has the network for itself.
    """

    samples_in: float
    gradients: float | None
    saves_out: float
    restore_in: float
    gradient_bytes: float | None  # of one step, that each host sends, and receives

    @property
    def training_in(self) -> float:
        return self.samples_in + (self.gradients or 0.0)

    @property
    def training_out(self) -> float:
        return self.saves_out + (self.gradients or 0.0)

    @property
    def needed(self) -> float:
        """What the busier direction of a full-duplex network has to sustain."""
        return max(self.training_in, self.training_out, self.restore_in)


def network(
    *,
    hosts: int,
    read_bytes_per_s: float,
    gradient_bytes: float | None,
    steps_per_s: float,
    saves: Saves,
) -> Network:
    """The traffic of one of ``hosts`` hosts that share the reads and saves evenly.

    ``read_bytes_per_s``: of all hosts. ``gradient_bytes``: of the model. Within a host gradients
    take no network.
    """
    each = None if gradient_bytes is None else ring_bytes(gradient_bytes, hosts)
    return Network(
        samples_in=read_bytes_per_s / hosts,
        gradients=None if each is None else each * steps_per_s,
        saves_out=(saves.write_bytes_per_s or 0.0) / hosts,
        restore_in=(saves.restore_bytes_per_s or 0.0) / hosts,
        gradient_bytes=each,
    )
