"""``iobench advise``: recommend settings from a folder of runs, or try the advice of one run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ..ask.tuning.recommend import TuningTarget, recommend
from ..ask.tuning.sweepfolder import read_sweep
from ..base.errors import UsageError
from ..base.text import quoted
from ..judge.rebuild import conclude
from ..record.run import load_training
from ..record.sweep import SWEEP_FILE
from ..report.advise import by_hand, confirmed_sections, sections
from ..settings.base import apply_overrides
from ..settings.workload import check_given_again, code_in, code_of
from .hosts import trials
from .live import Live
from .printing import print_report
from .terminal import say, warn
from .verbs import AdviseRequest

if TYPE_CHECKING:
    from ..runner.hosts.hosts import Hosts


def run(request: AdviseRequest) -> int:
    if request.confirm:
        return trials(
            request,
            lambda hosts: _confirm(request, hosts),
            overrides=request.overrides,
            places=[request.data, request.origin],
        )
    return _recommend(request)


def _recommend(request: AdviseRequest) -> int:
    """Print what a folder of runs recommends."""
    target = request.made(
        TuningTarget,
        dataset_bytes=request.dataset_size,
        shuffle_window_bytes=request.shuffle_window,
    )
    sweep = read_sweep(
        Path(request.directory), workload=request.workload, default=_settings(request.default)
    )
    found = recommend(sweep, target)
    print_report(request, found, sections(found))
    if (
        request.format == "text"
        and sweep.default is not None
        and found.changes
        and (Path(request.directory) / "sweep.json").is_file()
    ):
        say()
        say(f"confirm: iobench sweep --confirm {quoted(str(request.directory))}")
    return 0


def _settings(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (key, equals, value) in zip(texts, pairs, strict=True):
        if not (key and equals and value):
            raise UsageError(
                f"--default '{text}' is not of the form KEY=VALUE",
                remedy="write it like --default loader.workers=2",
            )
    return {key.strip(): value.strip() for key, _, value in pairs}


def _confirm(request: AdviseRequest, hosts: Hosts) -> int:
    """Try the advice of one run, and print what was promised and found."""
    from ..runner.confirm import NOTHING, applicable
    from ..runner.experiment import run as run_plan
    from ..runner.options import Confirm, Options
    from ..runner.repeated import plan_again

    directory = Path(request.directory)
    if (directory / SWEEP_FILE).is_file():
        raise UsageError(
            f"{directory} is a sweep, not one run",
            remedy=f"confirm its advice with: iobench sweep --confirm {quoted(str(directory))}",
        )
    earlier = conclude(load_training(directory))
    advice = earlier.job.verdict.advice if earlier.job.verdict is not None else []
    if not applicable(advice):
        remedy = "; ".join(f"{item.text}: {item.basis}" for item in by_hand(earlier))
        raise UsageError(
            f"there is nothing to confirm: {NOTHING}",
            remedy=remedy or f"its advice is in: iobench report {quoted(str(directory))}",
        )
    given, code = apply_overrides({}, request.overrides), code_in(request.overrides)
    named = code_of(earlier.job.workload.model_dump(mode="json"))
    check_given_again(
        (text.partition("=")[0].strip() for text in request.overrides),
        {key: [value] for key, value in code.items()},
        {key: [value] for key, value in named.items()},
        what="the run",
        when="advice is confirmed",
        remedy="leave it out, or run the workload with that setting and --confirm",
    )
    storage = given.get("storage")
    plan = plan_again(
        earlier,
        data=request.data,
        origin=request.origin,
        storage=storage if isinstance(storage, dict) else None,
        code=code,
        repetitions=1,
    )
    repeated_s = earlier.timings.get("measure", 0.0)
    options = request.made(
        Options,
        began_s=None,
        calibration_s=0.0,
        ablations=False,
        prove=False,
        confirm=Confirm(
            advice=tuple(advice), by=earlier.run_id, usual_s=repeated_s, budget_s=request.budget_s
        ),
    )
    with ExitStack() as held:
        live = held.enter_context(Live(quiet=request.quiet))
        doc, new = run_plan(plan, options, live, hosts.of(plan, held))
    then, now = earlier.host.node, doc.host.node
    if then != now:
        warn(f"the gains were promised on host {then}, and tried on host {now}")
    print_report(request, doc, confirmed_sections(doc))
    if request.format == "text":
        say()
        say(f"results: {new}")
    return 0 if all(each.answer == "kept" for each in doc.job.confirmations) else 4
