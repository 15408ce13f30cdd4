"""The recipes in deploy/: as far as one machine can try them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from iobench.runner.hosts.launch import find_launch
from tests.servers.slurm import NODES, slurm

__all__ = ["slurm"]

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = "1.30"


def manifests() -> dict[str, Any]:
    text = (DEPLOY / "kubernetes" / "job.yaml").read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


@pytest.mark.parametrize("kind", ["Service", "Job"])
def test_kubernetes_knows_every_key(kind: str) -> None:
    import kubernetes_validate  # with all schemas, in each process of the tests

    kubernetes_validate.validate(manifests()[kind], KUBERNETES, strict=True)


def test_the_pods_find_each_other() -> None:
    """By what Kubernetes tells each pod of an Indexed Job: its index, and its name."""
    found = manifests()
    job, service = found["Job"], found["Service"]
    pod = job["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    told = {variable["name"]: variable["value"] for variable in container["env"]}
    hosts = job["spec"]["completions"]
    assert job["spec"]["parallelism"] == hosts
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    for index in range(hosts):
        launch = find_launch({**told, "JOB_COMPLETION_INDEX": str(index)})
        assert (launch.index, launch.hosts) == (index, hosts)
        # Pods of an Indexed Job have the host name JOB-INDEX, in the domain of the service.
        first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
        assert launch.address == first
        assert pod["spec"]["subdomain"] == service["metadata"]["name"]


@pytest.mark.nightly
def test_slurm_starts_one_process_on_each_node(slurm: Mapping[str, str], tmp_path: Path) -> None:
    """The program that it starts here prints the host that iobench would take it for."""
    program = tmp_path / "bin" / "iobench"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "from iobench.runner.hosts.launch import find_launch\n"
        "host = find_launch(os.environ)\n"
        "print(host.index, host.hosts, host.address, *sys.argv[1:], flush=True)\n"
    )
    program.chmod(0o755)
    told = batch(slurm, program.parent, tmp_path, "run", "a b")
    # A cluster that binds no processes to cores says so.
    lines = [line for line in told.splitlines() if not line.startswith("srun: ")]
    assert sorted(lines) == [f"{index} 2 {NODES[0]} run a b" for index in (0, 1)]


def batch(slurm: Mapping[str, str], programs: Path, home: Path, *words: str) -> str:
    """Submit the batch script for two nodes, with ``programs`` first in PATH; return its output.

    The nodes have one machine, which srun must not take for one node.
    """
    output = home / "job.out"
    found = subprocess.run(
        [
            *("sbatch", "--wait", "--nodes", "2", "--output", str(output), "--overcommit"),
            *(str(DEPLOY / "slurm" / "iobench.sbatch"), *words),
        ],
        env={**slurm, "PATH": f"{programs}:{os.environ['PATH']}"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    told = output.read_text() if output.exists() else ""
    assert found.returncode == 0, (found.stderr, told)
    return told
