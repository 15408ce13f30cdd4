"""Who this process is in a job, by the variables of its launcher; the lines that start a job."""

from __future__ import annotations

import json
import shlex

import pytest

from iobench.errors import UsageError
from iobench.runner.hosts.launch import FIRST_PORT, Launch, find_launch, first_node
from iobench.runner.hosts.lines import parse_hosts, start_lines

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
KUBERNETES = {
    "JOB_COMPLETION_INDEX": "1",
    "IOBENCH_HOSTS": "3",
    "MASTER_ADDR": "iobench-0.iobench",
}


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
        {"PATH": "/bin"},
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
        TORCHRUN | {"RANK": "-1"},
        TORCHRUN | {"WORLD_SIZE": "many"},
        TORCHRUN | {"WORLD_SIZE": "0"},
        TORCHRUN | {"WORLD_SIZE": "100000"},
        TORCHRUN | {"MASTER_PORT": "70000"},
        {**OPEN_MPI, "MASTER_ADDR": ""},
        {**SLURM, "SLURM_STEP_NODELIST": "[]"},
    ],
)
def test_variables_that_do_not_fit_are_refused_in_one_line(env: dict[str, str]) -> None:
    with pytest.raises(UsageError) as refused:
        find_launch(env)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-3]", "n1"),
        ("n[07,9-12],login", "n07"),
        ("rack[2-3]-n", "rack2-n"),
    ],
)
def test_the_first_node_of_slurms_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_each_line_starts_one_process_on_each_host() -> None:
    words = ["run", "demo", "--data", "/mnt/a b"]
    lines = start_lines(parse_hosts("h1, h2,h3"), words)
    assert set(lines) == {"torchrun", "srun", "mpirun", "kubectl"}
    torchrun, srun, mpirun = (shlex.split(lines[name]) for name in ("torchrun", "srun", "mpirun"))
    assert torchrun[-4:] == srun[-4:] == mpirun[-4:] == words
    assert torchrun[torchrun.index("--nnodes") + 1] == "3"
    assert torchrun[torchrun.index("--nproc-per-node") + 1] == "1"
    assert srun[srun.index("--nodelist") + 1] == "h1,h2,h3"
    assert srun[srun.index("--ntasks-per-node") + 1] == "1"
    assert "ppr:1:node" in mpirun
    assert "MASTER_ADDR=h1" in mpirun
    kubectl = shlex.split(lines["kubectl"])
    patch = json.loads(kubectl[kubectl.index("-p") + 1])
    assert patch["spec"]["completionMode"] == "Indexed"
    assert patch["spec"]["completions"] == patch["spec"]["parallelism"] == 3
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert find_launch(env | {"JOB_COMPLETION_INDEX": "2"}) is not None


@pytest.mark.parametrize("text", ["", ",", "h1,h1", "h1;rm", "-h", "h 1"])
def test_names_of_hosts_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_hosts(text)
