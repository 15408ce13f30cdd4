"""A training of somebody else's under ``iobench.watch``, and every verb on what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import iobench
from iobench.cli.main import main
from iobench.record.run import load_training
from tests.processes import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore")

SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import iobench

dist.init_process_group("gloo")
torch.set_num_threads(1)
data = TensorDataset(torch.randn(192, 8), torch.randint(0, 2, (192,)))
loader = DataLoader(data, batch_size=8, num_workers=1, sampler=DistributedSampler(data))
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with iobench.watch(loader, results=sys.argv[1], name="ddp") as batches:
    for epoch in range(2):
        batches.sampler.set_epoch(epoch)
        for x, y in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two watched trainings, which differ in the number of workers."""
    results = tmp_path_factory.mktemp("watched")
    data = TensorDataset(torch.randn(64, 8))
    for workers in (0, 1):
        loader = DataLoader(data, batch_size=4, num_workers=workers)
        with iobench.watch(loader, results=results, name="mine") as batches:
            for _ in range(2):
                list(batches)
    return results


@pytest.mark.parametrize(
    ("verb", "code"),
    [
        *[
            (["report", "{0}", "--format", form], 0)
            for form in ("text", "json", "csv", "markdown", "html", "github", "openmetrics")
        ],
        (["report", "{0}", "--format", "trace"], 0),
        (["report", "{0}", "{1}"], 0),
        (["report", "{0}", "--rules", "mlperf"], 3),
        (["report", "{0}", "--fail-on", "samples_per_s<1"], 0),
        (["report", "{0}", "--fail-on", "headroom<1.2"], 4),  # it was not measured
        (["compare", "{0}", "{1}"], 0),
        (["compare", "{results}", "--over-time", "mine"], 0),
        (["cost", "{0}", "--host-price-per-hour", "3"], 0),
        (["cost", "{0}"], 2),
        (["whatif", "{0}", "--workers", "4"], 2),
        (["advise", "{results}"], 0),
        (["advise", "{0}"], 2),
        (["advise", "{0}", "--confirm"], 2),
        (["ab", "{0}", "{1}"], 2),
        (["size", "{0}", "--accelerators", "8"], 2),
        (["verify", "{0}"], 1),
        (["clean", "{0}"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_verb_answers_or_says_why_not(
    verb: list[str], code: int, runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    each = sorted(runs.iterdir())
    found = main([word.format(*each, results=runs) for word in verb])
    out, err = capfd.readouterr()
    assert found == code, err
    assert "Traceback" not in out + err
    if code in (1, 2):
        assert (len(err.splitlines()), out) == (1, "")
    else:
        assert out


THREADS = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset
import iobench

class Products(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, number):
        return (torch.rand(300, 300) @ torch.rand(300, 300))[:4, :4]

def several_threads(number):
    torch.set_num_threads(4)

loader = DataLoader(Products(), batch_size=4, num_workers=1, worker_init_fn=several_threads)
with iobench.watch(loader, results=sys.argv[1]) as batches:
    print(sum(len(batch) for batch in batches))
"""


@pytest.mark.slow
def test_workers_whose_torch_has_several_threads_do_not_hang(tmp_path: Path) -> None:
    """They do if torch has had several threads in this process before they were forked."""
    words = [sys.executable, "-c", THREADS, str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.communicate(timeout=PATIENCE_S)[0] == "8\n"
    finally:
        with suppress(ProcessLookupError):  # its worker, if that hangs
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.nightly
def test_two_ranks_of_torchrun(tmp_path: Path) -> None:
    script, results = tmp_path / "train.py", tmp_path / "results"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(script), str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (directory,) = results.iterdir()
    doc = load_training(directory)
    facts = doc.job.watched
    assert (facts.ranks, facts.world, doc.job.accelerators) == ([0, 1], 2, 2)
    assert doc.job.repetitions[0].steps == 2 * 2 * 12
    assert [rank.rank for rank in doc.job.repetitions[0].ranks] == [0, 1]
    assert doc.job.loader.user.samples == 2 * 192
    assert main(["report", str(directory)]) == 0
