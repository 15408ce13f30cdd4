"""The scripts of ``make bench`` can be imported: nobody else runs them between two measurements."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.bench import dlio

BENCH = Path(__file__).parents[1] / "bench"
SCRIPTS = sorted(path.stem for path in BENCH.glob("*.py") if not path.stem.startswith("test_"))


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "__init__"])
def test_a_script_of_the_bench_can_be_imported(name: str) -> None:
    importlib.import_module(f"tests.bench.{name}")


def test_without_dlio_its_row_is_left_out_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dlio.py", "--dlio", ""])  # as make calls it
    assert dlio.main() == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "DLIO is left out" in out
    assert "make bench DLIO=" in out


PLANTED = """#!{python}
import json, pathlib, sys
chosen = dict(word.removeprefix("++workload.").split("=") for word in sys.argv[1:])
found = sorted(pathlib.Path(chosen["dataset.data_folder"]).glob("train/*/*.npz"))
if len(found) != int(chosen["dataset.num_files_train"]):
    sys.exit("no files")
epochs = {{}}
for epoch in range(1, 1 + int(chosen["train.epochs"])):
    seconds = 0.25 if epoch > 1 else 9
    begin, end = (f"2026-01-01T00:00:{{10 + part:09.6f}}" for part in (0, seconds))
    epochs[epoch] = {{"start": begin, "block1": {{"start": begin, "end": end, "duration": "1"}}}}
stats = pathlib.Path(chosen["output.folder"], "0_per_epoch_stats.json")
stats.write_text(json.dumps(epochs))
"""


def test_the_rate_of_dlio_is_that_of_its_epochs_after_the_first(tmp_path: Path) -> None:
    program = tmp_path / "dlio_benchmark"
    program.write_text(PLANTED.format(python=sys.executable))
    program.chmod(0o755)
    files = [tmp_path / "npz" / "data" / folder / "a.npz" for folder in ("0", "1")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    figure = dlio.through_dlio(program, files, size=1000, workers=2, epochs=3)
    assert figure.bytes_per_s == pytest.approx(4000)
    with pytest.raises(SystemExit, match="no files"):
        dlio.through_dlio(program, [*files, files[0]], size=1000, workers=2, epochs=3)
