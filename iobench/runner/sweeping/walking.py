"""The beginning of a walk: what each trial trains on, and how long it takes.

It is announced before anything is measured, since a walk may take hours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...base.units import counted, format_duration
from ...data.dataset import find_dataset
from ...record.sweep import Sweep, setting_text
from ...settings.walk import WalkSpec
from ...settings.workload import Workload, load_workload
from ..plan import make_plan
from .plan import expected_trials, samples_within, training_of

TRIAL_S = 10.0
"""About how long each trial trains where ``--time`` says nothing."""

_TRIAL_S = 3.0
_START_S = 2.0
"""The process of a trial begins, and opens the dataset and the model in about this time."""

_WARM_UP_STEPS = 7
"""A warm-up takes about so many steps of the baseline."""


def overrides_of(spec: WalkSpec, data: str | None, overrides: Sequence[str]) -> list[str]:
    """The settings of the walk's workload: its own, what data and model need, and the user's.

    Raises what ``find_dataset`` and ``sample_bytes_of`` raise.
    """
    found = [f"{key}={setting_text(value)}" for key, value in spec.set.items()]
    asked = load_workload(spec.workload, [*found, *overrides])
    given = {text.partition("=")[0].strip() for text in overrides}
    if data and "dataset" not in given:
        manifest, _ = find_dataset(data, asked.storage_options())
        found.append(f"dataset={manifest.spec.name}")
    accelerator = asked.accelerator
    if accelerator.kind == "model" and accelerator.model is not None:
        if "accelerator.name" not in given:
            found.append(f"accelerator.name={accelerator.model}")
        if "reader.crop" not in given:
            from ...accelerate.model import sample_bytes_of

            found.append(f"reader.crop={sample_bytes_of(accelerator.model)}")
    return [*found, *overrides]


def sized(
    sweep: Sweep,
    overrides: Sequence[str],
    trial_s: float | None,
    tell: Callable[[str], None],
) -> Sweep:
    """The walk with the samples of each trial, after its model was tried; tell how long it takes.

    ``--set max_steps=N`` says it in steps, which are then the same whatever the batch size is.
    Raises what ``make_plan`` and ``mean_step`` raise.
    """
    workload = training_of(sweep, {})
    if workload.accelerator.kind != "model":
        return sweep
    from ...accelerate.recording import mean_step

    if sweep.data:  # refuses data that the beginning can't read, before the model is tried
        ranks = sweep.accelerators
        make_plan(workload, sweep.data, accelerators=ranks, repetitions=1, seed=sweep.seed)
    tell(f"trying {workload.accelerator.model} with batches of {workload.batch_size} ...")
    step_s = mean_step(workload.accelerator, workload.batch_size, seconds=_TRIAL_S)
    if not any(text.partition("=")[0].strip() == "max_steps" for text in overrides):
        seconds = TRIAL_S if trial_s is None else trial_s
        samples = samples_within(seconds, step_s, workload.batch_size * sweep.accelerators)
        sweep = sweep.model_copy(update={"samples_per_trial": samples})
    tell(_announced(sweep, training_of(sweep, {}), step_s, expected_trials(sweep)))
    return sweep


def _announced(sweep: Sweep, workload: Workload, step_s: float, trials: int) -> str:
    steps = workload.max_steps or 1
    warm_up_s = min(_WARM_UP_STEPS * step_s, max(workload.accelerator.warm_up, 3 * step_s))
    trial_s = steps * step_s + warm_up_s + _START_S
    trained = steps * workload.batch_size * sweep.accelerators
    return (
        f"a step takes {format_duration(step_s)} with batches of {workload.batch_size}; each trial "
        f"trains on {counted(trained, 'sample')} and takes {format_duration(trial_s)}, and there "
        f"are at most {counted(trials, 'trial')}: up to {format_duration(trials * trial_s)}, and "
        "less where the settings are faster (--budget ends it earlier, --resume continues)"
    )
