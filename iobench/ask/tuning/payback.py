"""After how many epochs the conversion of a dataset has paid for itself.

A sweep generates the dataset of each point, so it knows how long one took to write. A conversion
also reads the data that there is, for which an epoch of today's settings is the time at most: it
waits for no accelerator, and writes while it reads. So the sum of both is an upper bound, and so is
the number of epochs, which does not depend on the size of the dataset.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from ...base.units import format_duration
from ...record.sweep import Settings, Sweep, SweepPoint, describe

METRIC = "samples_per_s"
OF_DATA = "dataset."


@dataclass(frozen=True, kw_only=True, slots=True)
class Payback:
    """``what``: the settings of the data that differ from today's."""

    what: str
    convert_s: float
    saved_s: float  # of each epoch
    epochs: float

    @property
    def told(self) -> str:
        """``format=tar pays back after at most 0.7 epochs (41 s to convert, ...)``."""
        saved = f"{format_duration(self.saved_s)} saved in each epoch"
        return (
            f"{self.what} pays back after at most {self.epochs:.2g} epochs "
            f"({format_duration(self.convert_s)} to convert, {saved})"
        )


def payback(sweep: Sweep, point: SweepPoint) -> Payback | None:
    """When the data of a point has paid, against today's data with the point's other settings.

    None where the data is today's, where its generation was not timed, or where the slowest trial
    with it is not faster than the fastest one with today's data.
    """
    if sweep.default is None or sweep.metric != METRIC:
        return None
    today = _with_data(sweep, point, sweep.default)
    if today is None or point.generated_s is None or not point.samples:
        return None
    new, old = point.figures, today.figures
    if not new or not old or min(new) <= max(old):
        return None
    before, after = point.samples / median(old), point.samples / median(new)
    changed = [key for key, value in point.settings.items() if value != today.settings[key]]
    convert, saved = before + point.generated_s, before - after
    return Payback(
        what=describe(point.settings, changed),
        convert_s=convert,
        saved_s=saved,
        epochs=convert / saved,
    )


def _with_data(sweep: Sweep, point: SweepPoint, default: Settings) -> SweepPoint | None:
    """The point that differs from this one by today's data alone."""
    data = {key: default[key] for key in point.settings if key.startswith(OF_DATA)}
    wanted = {**point.settings, **data}
    if not data or wanted == point.settings:
        return None
    return next((each for each in sweep.points if each.settings == wanted), None)
