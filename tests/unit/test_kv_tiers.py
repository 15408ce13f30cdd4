"""The KV cache in virtual time: sizes, prompts, and what each request finds in both tiers."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from iobench.base.errors import UsageError
from iobench.runner import kv_cache
from iobench.runner.budget import Budget
from iobench.runner.kv_cache import make_kv_plan
from iobench.serve.arrivals import Arrivals
from iobench.serve.kv.layouts import layout_of
from iobench.serve.kv.tiers import Tiers, WindowPlan, plan_window
from iobench.serve.kv.traffic import Prompts, draw_prompts
from iobench.serve.models import SERVED_MODELS
from iobench.settings.kv_cache import KV_MODELS, KvScenario, load_kv_scenario
from iobench.storage.local.storage import LocalStorage


def spec(**keys: Any) -> KvScenario:
    known = {"name": "x", "model": "llama3-8b", "limit": 2, "capacity": "2TB"}
    return KvScenario.model_validate(known | keys)


@pytest.mark.parametrize(
    ("model", "token_bytes"),
    [
        ("llama3-8b", 131_072),
        ("llama3-70b", 327_680),
        ("llama3-405b", 516_096),
        ("qwen3-8b", 147_456),
        ("qwen3-32b", 262_144),
        ("qwen3-235b-a22b", 192_512),
        ("qwen3-30b-a3b", 98_304),
        ("deepseek-v3", 70_272),
    ],
)
def test_a_token_has_the_bytes_that_the_models_documents_state(
    model: str, token_bytes: int
) -> None:
    whole = spec(model=model)
    assert whole.token_bytes * whole.model.layers == token_bytes
    assert whole.chunk_bytes == 256 * token_bytes
    half = spec(model=model, dtype="fp8")
    assert half.chunk_bytes == whole.chunk_bytes // 2


@pytest.mark.parametrize("name", sorted(KV_MODELS.keys() & SERVED_MODELS.keys()))
def test_the_dimensions_are_those_of_the_released_tensors(name: str) -> None:
    model = KV_MODELS[name]
    shapes = {tensor.name: tensor.shape for tensor in SERVED_MODELS[name].tensors()}
    at = "model.layers.0.self_attn"
    assert f"model.layers.{model.layers - 1}.self_attn.o_proj.weight" in shapes
    if model.latent:
        assert shapes[f"{at}.kv_a_proj_with_mqa.weight"][0] == model.latent
        return
    assert shapes[f"{at}.k_proj.weight"][0] == model.kv_heads * model.head_dim
    assert shapes[f"{at}.q_proj.weight"][0] == model.heads * model.head_dim
    if "mlp.gate.weight" not in " ".join(shapes):  # no experts
        whole = sum(np.prod(shape) for shape in shapes.values())
        assert model.parameters == pytest.approx(float(whole), rel=0.01)


def test_ranks_store_heads_of_their_own_and_copies_where_there_are_more_of_them() -> None:
    alone, four, sixteen = (spec(tensor_parallel=ranks) for ranks in (1, 4, 16))
    assert (four.pieces, four.piece_bytes) == (4, alone.chunk_bytes // 4)
    assert (sixteen.pieces, sixteen.chunk_bytes) == (16, 2 * alone.chunk_bytes)
    compressed = spec(model="deepseek-v3", tensor_parallel=8)
    assert (compressed.pieces, compressed.chunk_bytes) == (1, 256 * 70_272)


def test_fewer_layers_change_sizes_and_prefill_alike() -> None:
    whole, part = spec(dram="64GB"), spec(dram="64GB", layers=4)
    assert part.chunk_bytes * 8 == whole.chunk_bytes
    assert part.prefill_s(8192) * 8 == pytest.approx(whole.prefill_s(8192))
    assert part.limit_s * 8 == whole.limit_s
    assert (part.dram_chunks, part.capacity_chunks) == (whole.dram_chunks, whole.capacity_chunks)


def test_a_prefill_takes_as_long_as_was_measured() -> None:
    """dynamo#6101: 0.9 s for 20,000 tokens of Llama 3.1 8B on one H100."""
    assert spec().prefill_s(20_000) == pytest.approx(0.9, rel=0.1)
    assert spec().prefill_s(8192, 4096) + spec().prefill_s(4096) == pytest.approx(
        spec().prefill_s(8192)
    )
    assert spec(prefill={"tokens_per_s": 1000}).prefill_s(500, 200) == pytest.approx(0.3)


def simulated(
    prompts: list[list[int]], dram: int, capacity: int, *, twice: bool
) -> list[tuple[int, list[int], list[int], list[int]]]:
    """Both tiers again, by times of last use and nothing else."""
    used: list[dict[int, tuple[int, int]]] = [{}, {}]
    seen: set[int] = set()
    told = []
    for now, prompt in enumerate(prompts):
        memory, disk = used
        known = [chunk in memory or chunk in disk for chunk in prompt]
        hits = known.index(False) if False in known else len(prompt)
        load = [chunk for chunk in prompt[:hits] if chunk not in memory]
        new = [chunk for chunk in (prompt if twice else prompt[hits:]) if chunk not in disk]
        write = [chunk for chunk in new if chunk in seen] if twice else new
        seen.update(new)
        disk.update({chunk: (now, -prompt.index(chunk)) for chunk in load})
        # What is written counts as used after what is loaded.
        disk.update({chunk: (now, 10**6 - prompt.index(chunk)) for chunk in write})
        memory.update({chunk: (now, -prompt.index(chunk)) for chunk in prompt})
        gone: list[list[int]] = []
        for tier, room in ((memory, dram), (disk, capacity)):
            oldest = sorted(tier, key=tier.__getitem__)[: max(0, len(tier) - room)]
            gone.append([chunk for chunk in oldest if tier.pop(chunk)])
        told.append((hits - len(load), load, write, gone[1]))
    return told


@given(st.lists(st.integers(0, 9), max_size=60))
def test_no_two_chunks_of_a_file_share_an_extent(uses: list[int]) -> None:
    """Each use of a number writes its chunk, or deletes it where it is there."""
    small = {"layers": 1, "heads": 2, "kv_heads": 2, "head_dim": 8, "parameters": 1e6}
    known = spec(model=small, chunk_tokens=65, tensor_parallel=2, layout="extents")
    size = known.piece_bytes
    with TemporaryDirectory() as place:
        layout = layout_of(known, LocalStorage(place), 0, lambda: None)
        layout.reserve(3)
        live: set[int] = set()
        most = 3
        for chunk in uses:
            (layout.delete if chunk in live else layout.put)(chunk)
            live ^= {chunk}
            most = max(most, len(live))
            begins = sorted(each.offset for one in live for each in layout.extents(one))
            assert all(after - before >= size for before, after in pairwise(begins))
            (file,) = Path(place).iterdir()
            assert file.stat().st_size <= most * 2 * 8192
        layout.remove()
        assert not list(Path(place).iterdir())


def test_no_storage_can_compress_extents_or_store_equal_ones_once(tmp_path: Path) -> None:
    known = spec(chunk_tokens=1, layers=1, layout="extents")
    assert known.piece_bytes == 4096
    layout = layout_of(known, LocalStorage(tmp_path), 0, lambda: None)
    layout.reserve(1100)
    for chunk in range(1100):
        layout.put(chunk)
    (file,) = tmp_path.iterdir()
    written = file.read_bytes()
    assert len(zstandard.ZstdCompressor(level=3).compress(written[: 1 << 20])) > 0.95 * (1 << 20)
    assert len({written[at : at + 4096] for at in range(0, len(written), 4096)}) == 1100
    layout.remove()


@st.composite
def traffic(draw: st.DrawFn) -> list[list[int]]:
    """Prompts that go on from earlier ones, or from their beginnings."""
    prompts: list[list[int]] = [[]]
    number = 0
    for _ in range(draw(st.integers(1, 40))):
        before = prompts[draw(st.integers(0, len(prompts) - 1))]
        more = draw(st.integers(1, 6))
        prompts.append(
            before[: draw(st.integers(0, len(before)))] + list(range(number, number + more))
        )
        number += more
    return prompts[1:]


@given(traffic(), st.integers(0, 12), st.integers(1, 40), st.booleans())
def test_the_tiers_are_those_of_an_independent_simulator(
    prompts: list[list[int]], dram: int, capacity: int, twice: bool
) -> None:
    tiers = Tiers(dram, capacity, "seen-twice" if twice else "always")
    found = [tiers.prompt(prompt) for prompt in prompts]
    assert [(each.dram, each.load, each.write, each.delete) for each in found] == simulated(
        prompts, dram, capacity, twice=twice
    )


def plan_of(scenario: KvScenario, seed: int = 1, seconds: float = 60.0) -> WindowPlan:
    arrivals = Arrivals(scenario.arrivals)
    return plan_window(scenario, draw_prompts(scenario, arrivals, 2.0, seconds, seed, 900.0))


def test_the_same_seed_has_the_same_requests_and_hits() -> None:
    scenario = load_kv_scenario("kv-chat-llama3-8b")
    one, same, other = (plan_of(scenario, seed) for seed in (1, 1, 2))
    assert (one.requests, one.before) == (same.requests, same.before)
    assert one.instants.tolist() == same.instants.tolist()
    assert one.requests != other.requests


def test_a_chunk_is_there_before_it_is_loaded_or_deleted_and_each_number_is_written_once() -> None:
    """Deletions are of what lies there, and nothing is used after it was deleted."""
    plan = plan_of(spec(capacity="30GB", dram="10GB", prompts={"max_tokens": 30_000}))
    there, most = set(plan.before), len(plan.before)
    for request in plan.requests:
        assert there.issuperset(request.loads)
        assert there.isdisjoint(request.writes)
        there.update(request.writes)
        assert there.issuperset(request.deletes)
        there.difference_update(request.deletes)
        most = max(most, len(there))
    assert any(request.deletes for request in plan.requests)
    assert max(there) < plan.chunks
    assert most <= plan.most


def test_the_traffic_is_what_the_last_quarter_before_the_window_and_the_window_find() -> None:
    """A prompt of five chunks a second, each used again 100 s later: memory has forgotten it."""
    known = spec(dram=20 * spec().whole_chunk_bytes)
    size, times = known.chunk_tokens, np.arange(-400.0, 60.0)
    plan = plan_window(
        known,
        Prompts(
            seconds=60.0,
            times_s=times,
            tokens=np.full(len(times), 6 * size),
            chunks=lambda request: [request % 100 * 5 + place for place in range(5)],
        ),
    )
    assert plan.earlier_s == 100.0
    assert plan.earlier[:, 0].tolist() == [second * 10**9 for second in range(-100, 0)]
    assert plan.earlier[:, 1:].tolist() == [[6 * size, 0, 5 * size]] * 100


PUBLISHED = {"chat": (0.366, 0.640), "agent": (0.857, 0.958)}
"""Shares of the prompts that an endless cache holds: Mooncake's traces conversation and synthetic;
GitHub Copilot's and TraceLab's sessions."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kv-chat-llama3-8b", "chat"),
        pytest.param("kv-agent-llama3-70b", "agent", marks=pytest.mark.nightly),
        pytest.param("kv-deepseek-v3", "chat", marks=pytest.mark.nightly),
    ],
)
def test_the_presets_reuse_as_much_as_published_traffic(name: str, kind: str) -> None:
    scenario = load_kv_scenario(name, ["capacity=1PB"])
    low, high = PUBLISHED[kind]
    requests = plan_of(scenario, seconds=600.0).requests
    tokens = sum(each.tokens for each in requests)
    reused = sum(each.in_memory + each.loaded for each in requests)
    assert low < reused / tokens < high


def test_requests_of_no_session_share_their_prefix_alone() -> None:
    scenario = spec(
        arrivals={"kind": "poisson"}, prompts={"shared_tokens": 1024, "new_tokens": 2000}
    )
    plan = plan_of(scenario)
    assert {(each.in_memory, each.loaded) for each in plan.requests} == {(0, 1024)}
    with_memory = plan_of(scenario.model_copy(update={"dram": 1 << 36}))
    assert {(each.in_memory, each.loaded) for each in with_memory.requests} == {(1024, 0)}


def trace_of(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def replayed(path: Path, form: str, **keys: Any) -> WindowPlan:
    arrivals = {"kind": "trace", "path": str(path), "format": form}
    scenario = spec(arrivals=arrivals, prompts={"max_tokens": 1000}, **keys)
    found = Arrivals(scenario.arrivals)
    rate = found.usual_rate()
    return plan_window(scenario, draw_prompts(scenario, found, rate, 1000.0, 1, 0.0))


def test_a_trace_of_mooncake_is_replayed_with_its_blocks(tmp_path: Path) -> None:
    """A block of 512 tokens is two chunks; a part of a chunk is not kept."""
    rows = [
        {"timestamp": 0, "input_length": 1400, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 1100, "hash_ids": [0, 1, 9]},
        {"timestamp": 6000, "input_length": 1400, "hash_ids": [0, 1, 2]},
    ]
    plan = replayed(trace_of(tmp_path / "trace.jsonl", rows), "mooncake")
    assert plan.instants.tolist() == [0, 3_000_000_000, 6_000_000_000]
    assert [each.loaded for each in plan.requests] == [0, 1024, 1280]
    assert [len(each.writes) for each in plan.requests] == [5, 0, 0]
    assert plan.before == []


def test_a_trace_needs_the_capacity_of_its_own_prompts(tmp_path: Path) -> None:
    path = trace_of(
        tmp_path / "trace.jsonl",
        [{"timestamp": 1000 * each, "input_length": 600, "hash_ids": [1, 2]} for each in range(2)],
    )
    arrivals = {"kind": "trace", "path": str(path), "format": "mooncake"}
    chunk = spec().whole_chunk_bytes
    for room, fits in ((2, True), (1, False)):
        scenario = spec(arrivals=arrivals, capacity=room * chunk)
        found = Arrivals(scenario.arrivals)
        with nullcontext() if fits else pytest.raises(UsageError, match="longest prompt"):
            draw_prompts(scenario, found, found.usual_rate(), 1.0, 1, 0.0)
    with pytest.raises(ValueError, match="longest prompt"):
        spec(capacity=2 * chunk)


def test_a_trace_of_bailian_has_many_blocks_in_a_chunk(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 520, "hash_ids": list(range(33))},
        {"timestamp": 1, "input_length": 520, "hash_ids": [*range(20), *range(100, 113)]},
    ]
    plan = replayed(trace_of(tmp_path / "trace.jsonl", rows), "bailian")
    assert [each.loaded for each in plan.requests] == [0, 256]


def called(style: str, session: str, second: int, prompt: int, cached: int) -> dict[str, Any]:
    time = f"2026-06-01T00:00:{second:02}Z"
    if style == "copilot":
        call = {"timestamp": time, "tokens": {"prompt": prompt, "cached": cached}}
        return {"session_id": session, "turns": [{"llm_calls": [call]}]}
    return {
        "session_id": session,
        "input_tokens_total": prompt,
        "prefix_tokens": cached,
        "timing_events": [{"event_type": "user_message", "timestamp": time}],
    }


@pytest.mark.parametrize("style", ["copilot", "tracelab"])
def test_the_prompts_of_a_session_begin_with_the_one_before(tmp_path: Path, style: str) -> None:
    """The fourth one is shorter, so all but what was cached is new."""
    rows = [
        called(style, "a", 3, 1100, 0),
        called(style, "a", 1, 600, 0),  # in any order
        called(style, "b", 2, 600, 512),  # of another session
        called(style, "a", 5, 800, 300),
        called(style, "a", 7, 1100, 0),
    ]
    plan = replayed(trace_of(tmp_path / "trace.jsonl", rows), "sessions")
    assert plan.instants.tolist() == [0, 1e9, 2e9, 4e9, 6e9]
    assert [each.tokens for each in plan.requests] == [600, 600, 1100, 800, 1100]
    assert [each.loaded for each in plan.requests] == [0, 0, 512, 256, 768]
    assert [len(each.writes) for each in plan.requests] == [2, 2, 2, 2, 1]


def test_what_came_before_the_window_of_a_trace_is_its_history(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 1000 * number, "input_length": 512, "hash_ids": [number % 50]}
        for number in range(4000)
    ]
    plan = replayed(trace_of(tmp_path / "trace.jsonl", rows), "mooncake")
    assert 0 < len(plan.requests) <= 1001
    assert {len(each.writes) for each in plan.requests[100:]} == {0}


@pytest.mark.parametrize(
    ("row", "form", "keys"),
    [
        ({"timestamp": 5, "input_length": "100", "hash_ids": [1]}, "mooncake", {}),
        ({"timestamp": 5, "input_length": 600, "hash_ids": [1]}, "mooncake", {}),
        ({"timestamp": 5, "input_length": 0, "hash_ids": []}, "bailian", {}),
        ({"timestamp": 5, "input_length": 100, "hash_ids": [1]}, "plain", {}),
        ({"timestamp": 5, "input_length": 100, "hash_ids": [1]}, "mooncake", {"chunk_tokens": 300}),
        ({"turns": [{"llm_calls": [{"timestamp": "2026-06-01"}]}]}, "sessions", {}),
        (called("copilot", "a", 5, math.inf, 0), "sessions", {}),
    ],
)
def test_a_trace_that_is_none_is_refused_in_a_line(
    tmp_path: Path, row: dict[str, Any], form: str, keys: dict[str, Any]
) -> None:
    first: dict[str, Any] = {"timestamp": 0, "input_length": 100, "hash_ids": [1]}
    if form == "sessions":
        first = called("copilot", "a", 0, 100, 0)
    path = trace_of(tmp_path / "trace.jsonl", [first, row])
    with pytest.raises(UsageError):
        replayed(path, form, **keys)


@given(traffic(), st.integers(0, 12), st.integers(0, 10))
def test_what_is_found_in_memory_has_stayed_in_a_slot_of_its_own(
    prompts: list[list[int]], dram: int, before: int
) -> None:
    known, before = spec(dram=dram * spec().whole_chunk_bytes), min(before, len(prompts))
    tokens = np.array([known.chunk_tokens * len(prompt) + 1 for prompt in prompts])
    times = np.arange(len(prompts)) - float(before)
    seconds = float(len(prompts) - before)
    plan = plan_window(
        known,
        Prompts(seconds=seconds, times_s=times, tokens=tokens, chunks=prompts.__getitem__),
    )
    tiers = Tiers(dram, 10**6, "always")
    since: dict[int, int] = {}  # the prompt that brought a chunk
    stays: dict[tuple[int, int], tuple[int, int]] = {}  # slot and last use of each that is found
    for at, prompt in enumerate(prompts, -before):
        held = {*tiers.dram}
        since |= {chunk: max(-1, at) for chunk in prompt if chunk not in held}
        found = tiers.prompt(prompt)
        if at < 0:
            continue
        hits = [chunk for chunk in prompt[: found.dram + len(found.load)] if chunk in held]
        each = plan.requests[at]
        for chunk, slot in zip(hits, each.copies, strict=True):
            stay = chunk, since[chunk]
            assert stays.get(stay, (slot, 0))[0] == slot
            stays[stay] = slot, at
    assert {slot for slot, _ in stays.values()} == {*range(plan.slots)}
    assert plan.slots <= dram
    for (chunk, begin), (slot, end) in stays.items():
        if begin >= 0 and chunk in (loads := tiers_loads(prompts, dram)[begin + before]):
            assert plan.requests[begin].into[loads.index(chunk)] == slot
        others = [(one[1], last) for one, (at, last) in stays.items() if at == slot]
        assert all(
            last < begin or first > end or (first, last) == (begin, end) for first, last in others
        )


def tiers_loads(prompts: list[list[int]], dram: int) -> list[list[int]]:
    tiers = Tiers(dram, 10**6, "always")
    return [tiers.prompt(prompt).load for prompt in prompts]


def test_room_is_needed_for_what_a_budget_has_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[float] = []
    monkeypatch.setattr(kv_cache, "check_room", lambda to, each, *words: needed.append(each))
    scenario = load_kv_scenario("kv-chat-llama3-8b", ["layers=1"])
    for seconds in (None, 60.0):
        make_kv_plan(scenario, "kv", budget=Budget(seconds=seconds))
    assert needed[1] < 0.9 * needed[0]


def test_memory_that_is_not_there_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["layers=1", "dram=2GB", "capacity=20GB"]  # fewer prompts fill these tiers
    real = load_kv_scenario("kv-chat-llama3-8b", [*small, "memory=real"])
    make_kv_plan(real, "kv")
    monkeypatch.setattr("iobench.base.buffers.available", lambda: 10_000_000)
    make_kv_plan(real.model_copy(update={"memory": "modelled"}), "kv")
    with pytest.raises(UsageError, match="finds in memory"):
        make_kv_plan(real, "kv")
