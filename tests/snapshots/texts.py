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


def _commands(name: str) -> tuple[str, ...]:
    """The command lines in a file of this folder: whoever adds one there writes its words anew."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return tuple(line.removeprefix(SHOWN) for line in lines if line.startswith(SHOWN))


SHOWN = "$ iobench "
MISTAKES = _commands("errors.txt")
"""Command lines of users who made one mistake each, in the folder that ``workplace`` makes."""

REPORTS = _commands("reports.txt")

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
    "too few reads in flight": FEW_READS,
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
    return f"{SHOWN}{command}\n{out}{err}{end}".replace(str(here), "/here")


def helps() -> str:
    """``--help`` of iobench and of every verb."""
    with workplace() as here:
        return "\n".join(_shown(f"{verb} --help".lstrip(), here) for verb in ("", *VERBS))


def errors() -> str:
    """The one-line errors of MISTAKES, which leave nothing."""
    with workplace() as here, _missing("webdataset", "iobench.load.libraries.wds"):
        before = sorted(here.rglob("*"))
        told = "\n".join(_shown(command, here) for command in MISTAKES)
        assert sorted(here.rglob("*")) == before
    return told


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
    return reviewed.partition(f"{SHOWN}{command}\n")[2].partition(f"\n{SHOWN}")[0]


def texts(name: str) -> str:
    """Return what the file ``name`` should hold, for a terminal of 100 columns without colours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        patch.setattr(extras, "_recorded", lambda: None)  # as if iobench came from an index
        return SNAPSHOTS[name]()
