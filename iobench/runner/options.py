"""What a run is asked for, besides its plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .budget import Budget
from .checkpoint import Mixed
from .confirm import Confirm


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run, besides its plan."""

    results: Path
    rules: str = "quick"
    command: tuple[str, ...] = ()
    calibration_s: float = 3.0  # for each ceiling; 0 leaves calibration out
    find_max: bool = False
    confirm: Confirm | None = None  # try advice in turns with today's settings
    ablations: bool = True
    # Seconds for all ablations together; None: see ``plan_turns``.
    ablations_s: float | None = None
    # The rest of the options, and the plan, are fitted to it.
    budget: Budget = field(default_factory=Budget)
    began_s: float | None = None  # when the process began, by ``time.monotonic()``
    mixed: Mixed | None = None  # save checkpoints while loading
    prove: bool = True  # for a library's loader: check what it delivers before it is measured
    break_lock: bool = False  # take over locks whose holders are on other hosts and dead

    @property
    def confirms(self) -> bool:
        return self.confirm is not None

    @property
    def later(self) -> int:
        """What comes after the repetitions, and shares the time that is left with ablations."""
        return self.confirms + self.find_max
