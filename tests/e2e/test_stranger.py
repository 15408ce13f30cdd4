"""The way of a stranger: the site, an installation, a check, its page, and the action in a job.

Everything that they do happens in empty environments, with what the site tells them.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path

from tests.actions import run_action
from tests.environments import empty_environment, link_dependencies, run
from tools import site

ROOT = Path(__file__).resolve().parents[2]


def told(page: str) -> list[str]:
    """The lines of all code of a page of the site."""
    text = (ROOT / "build" / "site" / page).read_text(encoding="utf-8")
    found = re.findall(r"<code[^>]*>(.*?)</code>", text, flags=re.S)
    return [
        line.partition(" #")[0].strip()
        for code in found
        for line in html.unescape(re.sub("<[^>]+>", "", code)).splitlines()
    ]


def test_from_the_site_to_a_gate(tmp_path: Path) -> None:
    assert site.main() == 0
    lines = told("index.html")

    assert "pip install ." in lines
    commands = empty_environment(tmp_path / "env")
    run(commands / "pip", "wheel", "-q", "--no-deps", "-w", "wheels", ROOT, cwd=tmp_path)
    (wheel,) = (tmp_path / "wheels").iterdir()
    run(commands / "pip", "install", "-q", "--no-deps", wheel, cwd=tmp_path)
    run(commands / "pip", "check", cwd=tmp_path)

    (check,) = (line for line in lines if line.startswith("iobench check "))
    words = shlex.split(check.replace("/mnt/fast", str(tmp_path / "storage")))[1:]
    (tmp_path / "storage").mkdir()
    small = ("--workload", "demo", "--set", "batch_size=20", "--budget", "20s")
    small += ("--results", "results", "--json")
    record = json.loads(run(commands / "iobench", *words, *small, cwd=tmp_path))
    assert record["job"]["verdict"]["bottleneck"]
    assert list((tmp_path / "storage").iterdir()) == []

    (page,) = (tmp_path / "results").glob("*/report.html")
    directory = page.parent
    assert record["run_id"] in page.read_text(encoding="utf-8")
    answer = run(commands / "iobench", "report", directory, cwd=tmp_path)
    assert "accelerator" in answer

    inputs = [line for line in told("docs/ci.html") if re.match(r"(uses|command):|- uses:", line)]
    assert any("iobench@" in line for line in inputs)
    run(*(commands / "iobench", "generate", "demo", "--to", "d"), "--samples", "200", cwd=tmp_path)
    job = tmp_path / "job"
    job.mkdir()
    measure = "run demo --data ../d --repeat 4 --calibration 0s --no-ablations --quiet"
    inputs_of = {"command": measure, "fail-on": "99%", "if-inconclusive": "pass"}
    # What it needs is linked afterwards: an installer must never write through a link.
    offline = {"GITHUB_ACTION_PATH": str(wheel), "PIP_NO_DEPS": "1"}
    installed = run_action(job, inputs_of, only="Install iobench", variables=offline)
    assert installed.code == 0, installed.printed
    link_dependencies(job / "iobench")
    path = {"PATH": f"{job / 'iobench' / 'bin'}:/usr/bin:/bin"}
    first = run_action(job, inputs_of, skip=("Install iobench",), variables=path)
    assert first.code == 0, first.printed
    again = run_action(
        *(job, {**inputs_of, "baseline": first.outputs["run"]}),
        skip=("Install iobench",),
        variables=path,
    )
    assert again.code == 0, again.printed
    assert again.kept == [again.outputs["run"]]
    assert again.summary.count("### ") > first.summary.count("### ")
