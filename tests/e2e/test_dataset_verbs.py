"""``iobench generate``, ``verify`` and ``clean`` as a user calls them."""

from __future__ import annotations

from pathlib import Path

from tests.processes import completed, document, printed, refused

SPEC = """
name: little
samples: 50
sample_size: {distribution: normal, mean: 20kB, stdev: 4kB}
format: tar
shard_size: 300kB
"""


def test_from_a_spec_to_nothing_again(tmp_path: Path) -> None:
    spec, root = tmp_path / "little.yaml", tmp_path / "d"
    spec.write_text(SPEC)
    generate = f"generate {spec} --to {root} --seed 7 --set codec=zstd:1"
    made = document(generate)
    assert made["samples"] == made["written_samples"] == 50
    assert (made["dataset"]["seed"], made["dataset"]["codec"]) == (7, "zstd:1")
    assert made["stored_bytes"] == sum(p.stat().st_size for p in (root / "data").iterdir())
    assert printed(generate).startswith("nothing to do")
    refused(f"generate {spec} --to {root}")
    assert document(f"generate {spec} --to {tmp_path}/sized --size 400kB")["samples"] == 20

    printed(f"verify {root}")
    shard = min((root / "data").iterdir())
    shard.write_bytes(shard.read_bytes()[:-2000])
    damaged = completed("verify", root)
    assert damaged.returncode == 1
    assert shard.name in damaged.stdout
    report = document(f"verify {root}", code=1)
    assert not report["ok"]
    assert {d["shard"] for d in report["damages"]} == {f"data/{shard.name}"}

    printed(f"clean {root} --dry-run")
    assert root.exists()
    printed(f"clean {root}")
    assert not root.exists()
