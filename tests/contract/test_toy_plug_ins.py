"""Plug-ins of a third party, which are found by their entry points and used like those of iobench.

An installed package is a module and a dist-info folder on the path, so that is what is made here,
of the example and of what it does not have.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import UsageError
from iobench.cli.main import main
from iobench.data.codecs import CODECS
from iobench.data.dataset import cheaper_codecs, load_dataset_spec, open_dataset, with_shards_stated
from iobench.data.generator.engine import generate
from iobench.data.verify import verify
from iobench.load.build import make_loader
from iobench.plugins import third_parties
from iobench.settings.dataset import expected_samples_per_shard
from iobench.storage.local.storage import LocalStorage
from tests.processes import document, printed

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/plug-in"

MODULE = '''
"""What the example does not have; and a class that is no plug-in."""

from iobench.accelerate.base import StepTime
from iobench.data.codecs.base import Codec
from iobench.data.formats.base import Framed
from iobench_example.data import Bz2


class Quick(Bz2):
    name = "quick"
    decode_cost = 0.1


class Alone(Framed):
    """One file for each sample, as the format files has it."""

    name = "alone"
    one_sample_per_shard = True


class Counting:
    """An accelerator that needs no time, and sees each sample."""

    seen = 0

    def __init__(self, spec):
        self.name = spec.name

    def start(self): ...

    def step(self, batch, ready_ns, share=1.0):
        Counting.seen += sum(len(sample) for sample in batch)
        return StepTime(0, 0)


class Unfinished(Codec):
    """It has no decompress."""

    name = "unfinished"

    def compress(self, content):
        return content
'''

MORE = {
    "iobench.data.codecs": {
        "quick": "toy_plug_ins:Quick",
        "unfinished": "toy_plug_ins:Unfinished",
        "gone": "toy_plug_ins:Gone",
        "refusing": "toy_refusing:Refusing",
        "zstd": "toy_plug_ins:Quick",
    },
    "iobench.accelerators": {"counting": "toy_plug_ins:Counting"},
    "iobench.data.formats": {"alone": "toy_plug_ins:Alone"},
}
"""Entry points beside those of the example."""


@pytest.fixture
def _toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package is installed; the registries have not looked for third parties yet."""
    site = tmp_path / "site"
    info = site / "iobench_example-1.0.dist-info"
    info.mkdir(parents=True)
    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = []
    for group in points.keys() | MORE.keys():
        both = points.get(group, {}) | MORE.get(group, {})
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in both.items())]
    (site / "toy_plug_ins.py").write_text(MODULE)
    (site / "toy_refusing.py").write_text('raise ImportError("libtoy.so is missing")')
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: iobench-example\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(site))
    third_parties.cache_clear()
    yield
    third_parties.cache_clear()
    for name in [each for each in sys.modules if each.startswith(("toy_", "iobench_example"))]:
        del sys.modules[name]


def made(tmp_path: Path, **keys: object) -> Path:
    """A dataset of 12 samples, by the command line."""
    spec = tmp_path / "toy.yaml"
    data = {
        "name": "toy",
        "description": "a toy",
        "source": "this test",
        "samples": 12,
        "sample_size": "{mean: 1000}",
        **keys,
    }
    spec.write_text("".join(f"{key}: {value}\n" for key, value in data.items()))
    root = tmp_path / "d"
    generate(load_dataset_spec(str(spec)), LocalStorage(root), workers=0)
    return root


@pytest.mark.usefixtures("_toys")
class TestToys:
    def test_they_are_listed(self) -> None:
        assert "iobench-example" in printed("list codecs")

    def test_a_built_in_name_is_not_taken_over(self) -> None:
        assert type(CODECS.open("zstd")).__module__ == "iobench.data.codecs.zstd"

    def test_generated_verified_and_loaded(self, tmp_path: Path) -> None:
        root = made(
            tmp_path, format="lengths", content="stamped", codec="bz2:2", samples_per_shard=5
        )
        found = open_dataset(root)
        assert verify(LocalStorage(root), found.manifest, workers=0).ok
        assert (found.format.name, found.content.name, found.suffix) == (
            "lengths",
            "stamped",
            ".stamped.bz2",
        )
        assert (found.codec.name, found.codec.level) == ("bz2", 2)
        assert [found.manifest.key(shard) for shard in (0, 2)] == [
            "data/toy-000000.lengths",
            "data/toy-000002.lengths",
        ]
        shard = (root / found.manifest.key(1)).read_bytes()
        loader = make_loader(
            found, batch_size=4, reader={"shuffle": False, "direct": False}, loader={"workers": 0}
        )
        samples = [bytes(np.asarray(sample)) for batch in loader for sample in batch]
        loader.shutdown()
        built = [bytearray(1000) for _ in range(12)]
        for index, out in enumerate(built):
            asked = {"index": index, "compress_ratio": found.spec.compress_ratio}
            found.content.build(memoryview(out), seed=found.spec.seed, **asked)
        assert samples == [bytes(out[-len(samples[0]) :]) for out in built]
        (root / found.manifest.key(1)).write_bytes(shard[:-1] + b"?")
        report = verify(LocalStorage(root), found.manifest, workers=0)
        assert [damage.shard for damage in report.damages] == ["data/toy-000001.lengths"]

    def test_a_format_of_one_file_each(self, tmp_path: Path) -> None:
        root = made(tmp_path, format="alone", content="stamped")
        found = open_dataset(root)
        assert (root / "data/000000/000000011.stamped").stat().st_size == 1000
        assert expected_samples_per_shard(with_shards_stated(found.spec)) == 1
        assert main(["clean", str(root), "--quiet"]) == 0
        assert not root.exists() or not list(root.iterdir())

    def test_a_run_with_a_loader_and_an_accelerator_of_others(self, tmp_path: Path) -> None:
        root = made(tmp_path, format="lengths", content="raw", samples_per_shard=5)
        workload = tmp_path / "w.yaml"
        workload.write_text(
            "{name: w, description: w, source: w, dataset: toy, batch_size: 5,"
            " accelerator: {kind: counting}, loader: {kind: onebyone, workers: 0}}"
        )
        run = f"run {workload} --data {root} --calibration 0s --repeat 1 --results {tmp_path}/r"
        job = document(run)["job"]
        assert job["repetitions"][0]["samples"] == 12
        assert (job["loader"]["kind"], job["loader"]["delivery"]["missing"]) == ("onebyone", 0)
        assert job["workload"]["accelerator"]["kind"] == "counting"

    def test_advice_knows_what_it_costs_to_undo(self, tmp_path: Path) -> None:
        root = made(tmp_path, format="lengths", content="raw", codec="zstd", samples_per_shard=5)
        assert cheaper_codecs(open_dataset(root)) == ["lz4", "quick", "none"]

    @pytest.mark.parametrize("name", ["unfinished", "gone"])
    def test_what_is_no_plug_in_is_refused_in_one_line(self, name: str) -> None:
        with pytest.raises(UsageError, match=f"codec '{name}'"):
            CODECS.open(name)

    def test_a_plug_in_that_refuses_to_be_imported_is_named_with_its_reason(self) -> None:
        with pytest.raises(UsageError) as caught:
            CODECS.open("refusing")
        assert "toy_refusing" in str(caught.value)
        assert "libtoy.so is missing" in str(caught.value)
        assert "None" not in str(caught.value)
