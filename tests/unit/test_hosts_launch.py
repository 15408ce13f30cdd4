"""Who this process is in a job, by the variables of its launcher; the lines that start a job."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import kubernetes_validate
import pytest
import yaml

from iobench.base.errors import UsageError
from iobench.cli.hosts import manifest, parse_hosts, start_lines
from iobench.runner.hosts.launch import FIRST_PORT, Launch, find_launch, node_names
from tests.processes import in_process

DEPLOY = Path(__file__).parents[2] / "deploy"

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "h1",
    "MASTER_PORT": "41234",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[03-06]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "MASTER_ADDR": "h1",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "h1", "MASTER_PORT": "5000"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "IOBENCH_HOSTS": "3", "MASTER_ADDR": "iobench-0.iobench"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (TORCHRUN, ("torchrun", 1, 4, "h1", 41234, True, "none/0")),
        (SLURM, ("srun", 2, 4, "node03", FIRST_PORT + 234, False, "1234/0")),
        (OPEN_MPI, ("mpirun", 3, 4, "h1", FIRST_PORT, False, "")),
        (PMI, ("mpirun", 1, 2, "h1", 5000, False, "")),
        (KUBERNETES, ("Kubernetes", 1, 3, "iobench-0.iobench", FIRST_PORT, False, "")),
        # torchrun below srun: the inner launcher counts.
        (SLURM | TORCHRUN, ("torchrun", 1, 4, "h1", 41234, True, "none/0")),
    ],
)
def test_a_host_of_each_launcher(env: dict[str, str], expected: tuple[object, ...]) -> None:
    by, index, hosts, address, port, shared, attempt = expected
    assert find_launch(env | {"PATH": "/bin"}) == Launch(
        by=str(by),
        index=int(str(index)),
        hosts=int(str(hosts)),
        address=str(address),
        port=int(str(port)),
        shared=bool(shared),
        attempt=str(attempt),
        leaves=by == "torchrun",  # its processes outlive it, if they do not end themselves
    )


@pytest.mark.parametrize(
    "env",
    [
        {},
        # In the script of a batch job, and in an interactive shell: nothing was started for a host.
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"},
        SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"},
        {"JOB_COMPLETION_INDEX": "1"},
    ],
)
def test_a_process_that_was_started_alone(env: dict[str, str]) -> None:
    assert find_launch(env) is None


@pytest.mark.parametrize(
    "env",
    [
        TORCHRUN | {"LOCAL_RANK": "1"},
        TORCHRUN | {"RANK": "4"},
        TORCHRUN | {"WORLD_SIZE": "many"},
        TORCHRUN | {"WORLD_SIZE": "100000"},
        TORCHRUN | {"MASTER_PORT": "70000"},
        {**OPEN_MPI, "MASTER_ADDR": ""},
        {**SLURM, "SLURM_STEP_NODELIST": "[]"},
    ],
)
def test_variables_that_do_not_fit_are_refused_in_one_line(env: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        find_launch(env)


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What torch would read whenever a verb is imported, by a command that Open MPI has started."""
    seen: list[str | None] = []

    def verb(name: str) -> object:
        seen.append(os.environ.get("TORCH_CPP_LOG_LEVEL"))
        return SimpleNamespace(run=lambda request: 0)

    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "")
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL")  # in two steps, so that it is restored
    monkeypatch.setattr("iobench.cli.main.import_module", verb)
    return seen


@pytest.mark.parametrize("here", [(), ("--hosts", "here")])
def test_torch_says_nothing_of_how_hosts_meet(
    here: tuple[str, ...], imported: list[str | None]
) -> None:
    """It reads the variable when it is imported, which some verbs do at once."""
    assert in_process("probe", "/data", *here) == (0, "", "")
    assert imported == [None if here else "FATAL"]


def test_a_verb_of_one_host_says_that_each_is_alone(imported: list[str | None]) -> None:
    code, _, err = in_process("serve", "resnet50-server", "--data", "/data")
    assert code == len(imported) - 1 == 0
    assert err.startswith("serve is of one host: this is host ")
    assert in_process("report", "/data") == (0, "", "")


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("n1", "n1"),
        ("n[07,9-12],login", "n07 n9 n10 n11 n12 login"),
        ("rack[2-3]-n[09-10]", "rack2-n09 rack2-n10 rack3-n09 rack3-n10"),
    ],
)
def test_names_of_slurms_list(nodes: str, names: str) -> None:
    assert node_names(nodes) == names.split()
    assert parse_hosts(nodes) == names.split()


def test_each_line_starts_one_process_on_each_host() -> None:
    words = ["run", "demo", "--data", "/mnt/a b"]
    lines = start_lines(parse_hosts("h1, h2,h3"), words)
    assert [name.split()[0] for name in lines] == [
        "torchrun",
        "srun",
        "mpirun",
        "mpiexec",
        "Ray",
        "kubectl",
    ]
    torchrun, srun, mpirun, mpich = (shlex.split(line) for line in list(lines.values())[:4])
    assert torchrun[-4:] == srun[-4:] == mpirun[-4:] == mpich[-4:] == words
    assert torchrun[torchrun.index("--nnodes") + 1] == "3"
    assert torchrun[torchrun.index("--nproc-per-node") + 1] == "1"
    assert srun[srun.index("--nodelist") + 1] == "h1,h2,h3"
    assert srun[srun.index("--ntasks-per-node") + 1] == "1"
    assert srun[srun.index("--mem") + 1] == "0"
    assert "--kill-on-bad-exit=1" in srun
    assert "ppr:1:node" in mpirun
    assert mpich[mpich.index("-ppn") + 1] == "1"
    for line in (mpirun, mpich):
        # Shells on other hosts may not find what this one finds, and -x is Open MPI's alone.
        assert "-x" not in line
        env = dict(word.split("=", 1) for word in line[line.index("env") + 1 : -5])
        assert env == {"MASTER_ADDR": "h1", "MASTER_PORT": "29500"}
        assert line[-5].endswith("iobench")


def test_the_line_for_ray_starts_the_command_on_each_of_its_nodes(tmp_path: Path) -> None:
    """With a double of Ray, which runs its tasks at once, and a command that says what it was."""
    tool = tmp_path / "setpriv"
    tool.write_text(
        '#!/bin/sh\nshift 2\necho "$IOBENCH_HOST_INDEX $IOBENCH_HOSTS '
        '$MASTER_ADDR $MASTER_PORT $*" >> told; exit "$IOBENCH_HOST_INDEX"\n'
    )
    tool.chmod(0o755)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text(RAY)
    (tmp_path / "ray" / "util").mkdir()
    (tmp_path / "ray" / "util" / "scheduling_strategies.py").write_text(
        "def NodeAffinitySchedulingStrategy(node, soft): return node\n"
    )
    lines = start_lines(["h1", "h2"], ["run", "demo", "--data", "/a 'b\"\nEND"])
    (script,) = (line for name, line in lines.items() if name.startswith("Ray"))
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, check=False
    )
    assert ended.returncode == 1
    first, second = (tmp_path / "told").read_text().split("END\n")[:2]
    assert first.startswith("0 2 h1 29500 ")
    assert second.startswith("1 2 h1 29500 ")
    assert first.endswith("iobench run demo --data /a 'b\"\n")


RAY = """
def init(address): assert address == "auto"
def nodes():
    return [{"Alive": True, "NodeID": name * 2, "NodeManagerHostname": name, "NodeName": name,
             "NodeManagerAddress": name} for name in ("h0", "h1", "h2")]
def get(codes): return codes
def remote(**options):
    return lambda function: Task(function)
class Task:
    def __init__(self, function): self.function = function
    def options(self, scheduling_strategy):
        assert scheduling_strategy in ("h1h1", "h2h2")
        return self
    def remote(self, number): return self.function(number)
"""


WORDS = ["run", "unet3d-h100", "--data", "/data/unet3d", "--accelerators-per-host", "8"]


def test_the_objects_for_kubernetes_are_those_of_the_recipe() -> None:
    assert manifest(4, WORDS) == (DEPLOY / "kubernetes" / "job.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "data", "results"),
    [
        (["run", "demo", "--data", "/mnt/a b/c"], "/mnt/a b", "/results"),
        (["run", "demo", "--data=/mnt/d/", "--results", "/mnt/r"], "/mnt", "/mnt/r"),
        (["run", "demo", "--data", "s3://b/d"], "/data", "/results"),
        (["verify", "/a/d", "--origin", 'a=": [\'"\n# @HOSTS'], "/a", "/results"),
    ],
)
def test_the_objects_for_kubernetes_hold_what_was_asked_for(
    words: list[str], data: str, results: str
) -> None:
    found = {each["kind"]: each for each in yaml.safe_load_all(manifest(3, words))}
    for each in found.values():
        kubernetes_validate.validate(each, "1.30", strict=True)
    spec = found["Job"]["spec"]
    assert (spec["completions"], spec["parallelism"]) == (3, 3)
    (container,) = spec["template"]["spec"]["containers"]
    assert container["args"][: len(words)] == words
    if words[0] != "verify" and "--results" not in words:
        assert container["args"][len(words) :] == ["--results", results]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts == {"data": data, "results": results, "memory": "/dev/shm"}
    env = {each["name"]: each["value"] for each in container["env"]}
    assert find_launch(env | {"JOB_COMPLETION_INDEX": "2"}) is not None


@pytest.mark.parametrize(
    "text", ["", ",", "h1,h1", "h1;rm", "-h", "h[1-2],h2", "h[", "h[a]", "h[2-1]", "h[1-9999]"]
)
def test_names_of_hosts_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_hosts(text)


def test_the_lines_that_start_a_run_on_other_hosts() -> None:
    words = ("run", "demo", "--data", "/mnt/d", "--accelerators-per-host", "8")
    code, out, _ = in_process(*words, "--hosts", "h1,h2", "--print")
    assert code == 0
    assert out.count(" ".join(words)) == 4
    assert "--hosts" not in out
    assert in_process(*words, "--hosts", "h1,h2")[0] == 2
    assert in_process(*words, "--accelerators", "3")[0] == 2
