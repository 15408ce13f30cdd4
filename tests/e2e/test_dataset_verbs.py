"""``iobench generate``, ``verify`` and ``clean`` as a user calls them: exit codes, one line, pure
JSON.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.processes import completed

SPEC = """
name: little
samples: 50
sample_size: {distribution: normal, mean: 20kB, stdev: 4kB}
format: tar
shard_size: 300kB
"""


def test_from_a_spec_to_nothing_again(tmp_path: Path) -> None:
    spec = tmp_path / "little.yaml"
    spec.write_text(SPEC)
    root = tmp_path / "d"

    made = completed(
        "generate", spec, "--to", root, "--seed", "7", "--set", "codec=zstd:1", "--json"
    )
    assert (made.returncode, made.stderr) == (0, "")
    document = json.loads(made.stdout)
    assert document["samples"] == document["written_samples"] == 50
    assert document["dataset"]["seed"] == 7
    assert document["dataset"]["codec"] == "zstd:1"
    assert document["stored_bytes"] == sum(p.stat().st_size for p in (root / "data").iterdir())

    again = completed("generate", spec, "--to", root, "--seed", "7", "--set", "codec=zstd:1")
    assert (again.returncode, again.stdout.startswith("nothing to do")) == (0, True)
    other = completed("generate", spec, "--to", root)
    assert (other.returncode, other.stdout, other.stderr.count("\n")) == (2, "", 1)

    assert completed("verify", root).returncode == 0
    shard = min((root / "data").iterdir())
    shard.write_bytes(shard.read_bytes()[:-2000])
    damaged = completed("verify", root)
    assert damaged.returncode == 1
    assert shard.name in damaged.stdout
    report = json.loads(completed("verify", root, "--json").stdout)
    assert not report["ok"]
    assert {d["shard"] for d in report["damages"]} == {f"data/{shard.name}"}

    would = completed("clean", root, "--dry-run")
    assert (would.returncode, root.exists()) == (0, True)
    gone = completed("clean", root)
    assert (gone.returncode, root.exists()) == (0, False)


def test_sizes_and_refusals(tmp_path: Path) -> None:
    spec = tmp_path / "little.yaml"
    spec.write_text(SPEC)
    sized = completed("generate", spec, "--to", tmp_path / "d", "--size", "400kB", "--json")
    assert json.loads(sized.stdout)["samples"] == 20
    for arguments in (
        ("generate", spec, "--to", "/"),
        ("generate", spec, "--to", tmp_path),
        ("generate", spec, "--to", tmp_path / "e", "--size", "1kB"),
        ("generate", spec, "--to", tmp_path / "e", "--memory-multiple", "-1"),
        ("generate", spec, "--to", tmp_path / "e", "--workers", "0"),
        ("generate", spec, "--to", tmp_path / "e", "--set", "format=tarr"),
        ("generate", "no-such-dataset", "--to", tmp_path / "e"),
        ("clean", tmp_path),
    ):
        refused = completed(*arguments)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), (
            arguments,
            refused,
        )
        assert not (tmp_path / "e").exists()
    assert completed("verify", tmp_path / "missing").returncode == 1


def test_one_is_not_many(tmp_path: Path) -> None:
    spec = tmp_path / "one.yaml"
    spec.write_text("{name: one, samples: 1, sample_size: {mean: 2kB}}")
    said = completed("generate", spec, "--to", tmp_path / "d").stdout
    assert "in 1 sample and 1 shard at" in said
