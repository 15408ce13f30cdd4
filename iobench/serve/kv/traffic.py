"""The prompts of requests, and by which chunks of KV cache each is found.

A chunk is ``chunk_tokens`` tokens together with all tokens before them. So two prompts share as
many chunks as their beginnings are equal, and the number of a chunk says all that came before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import numpy as np
import numpy.typing as npt

from ...base.errors import UsageError
from ...settings.kv_cache import KvScenario, PromptSpec
from ...settings.scenario import TraceFormat
from ..arrivals import (
    Arrivals,
    Calls,
    Seconds,
    Trace,
    calls_of,
    seconds_of,
    trace_lines,
    trace_rows,
)

Tokens = npt.NDArray[np.int64]

_Z90 = 1.2815515655446004  # the 90th percentile of the standard normal distribution

MAX_PROMPT = 10_000_000
"""Tokens of a prompt of a trace."""

_OF_SESSION = 24
"""Bits of the place of a chunk in its session: more tokens than any prompt has."""


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Requests in the order of arrival; those before the window are at times below 0.

    ``seconds``: of the window. ``chunks(i)``: the numbers of the whole chunks of prompt ``i``, in
    their order.
    """

    seconds: float
    times_s: Seconds
    tokens: Tokens
    chunks: Callable[[int], Sequence[int]]


def draw_prompts(
    spec: KvScenario, arrivals: Arrivals, rate: float, seconds: float, seed: int, history_s: float
) -> Prompts:
    """The prompts of a window and of the time before it. Raises UsageError if they are too many."""
    if arrivals.trace is not None:
        return _replayed(spec, arrivals.trace, rate, seconds, seed)
    calls = arrivals.calls(rate, seconds, seed, history_s)
    inside = calls.times_s < seconds
    generator = np.random.default_rng((seed, 1))
    sessions = int(calls.session.max(initial=-1)) + 1
    tokens = _lengths(spec.prompts, generator, calls)
    prefix = _prefixes(spec.prompts, generator, sessions)[calls.session[inside]].tolist()
    session, number = calls.session[inside].tolist(), tokens[inside] // spec.chunk_tokens
    shared = spec.prompts.shared_tokens // spec.chunk_tokens
    whole = number.tolist()

    def chunks(request: int) -> Sequence[int]:
        # Prefixes come before sessions in the numbers.
        common = min(shared, whole[request])
        of_prefix = prefix[request] << _OF_SESSION
        own = spec.prompts.prefixes + session[request] << _OF_SESSION
        return [
            *range(of_prefix, of_prefix + common),
            *range(own + common, own + whole[request]),
        ]

    return Prompts(
        seconds=seconds, times_s=calls.times_s[inside], tokens=tokens[inside], chunks=chunks
    )


BLOCK_TOKENS: dict[TraceFormat, int] = {"mooncake": 512, "bailian": 16}
"""Tokens of a block in traces that number them; a number stands for all blocks before it, too."""


def _replayed(spec: KvScenario, trace: Trace, rate: float, seconds: float, seed: int) -> Prompts:
    """The prompts of a trace, from a place that the seed draws; all before it are its history."""
    path, form = spec.arrivals.path, spec.arrivals.format
    assert path is not None
    chunk, sessions = spec.chunk_tokens, form == "sessions"
    known, parts = list[list[int]](), list[Parts]()
    if sessions:
        tokens, parts = session_prompts(path)
    else:
        tokens, known = trace_prompts(path, form)
    block = BLOCK_TOKENS.get(form, chunk)
    if block % chunk and chunk % block:
        raise UsageError(
            f"chunks of {chunk} tokens do not fit the trace's blocks of {block}",
            remedy=f"set chunk_tokens to {block}, or to a multiple or a part of it",
        )
    longest, room = int(tokens.max()) // chunk, spec.capacity_chunks
    if longest > room:
        raise UsageError(
            f"the longest prompt of {path} has {longest:,} chunks, and the capacity is {room:,}",
            remedy="raise capacity",
        )
    times = trace.times_s * (trace.per_s / rate)
    begin = np.random.default_rng(seed).uniform(0, max(0.0, float(times[-1]) - seconds))
    until = int(np.searchsorted(times, begin + seconds))
    whole, of_block = (tokens // chunk).tolist(), max(1, block // chunk)

    def chunks(request: int) -> Sequence[int]:
        ends = range(chunk - 1, whole[request] * chunk, chunk)
        blocks = known[request]
        return [blocks[end // block] * of_block + end % block // chunk for end in ends]

    def chunks_of_call(request: int) -> Sequence[int]:
        found, begin = list[int](), 0
        for origin, until in parts[request]:
            end = min(until // chunk, whole[request])
            found += range((origin << _OF_SESSION) + begin, (origin << _OF_SESSION) + end)
            begin = max(begin, end)
        return found

    return Prompts(
        seconds=seconds,
        times_s=times[:until] - begin,
        tokens=tokens[:until],
        chunks=chunks_of_call if sessions else chunks,
    )


@lru_cache(1)
def trace_prompts(path: str, form: TraceFormat) -> tuple[Tokens, list[list[int]]]:
    """The length of each prompt of a trace, and the numbers of its blocks.

    Raises UsageError with the line, and for a format that does not number blocks.
    """
    if form not in BLOCK_TOKENS:
        raise UsageError(
            f"a trace of format '{form}' does not tell which prompts begin alike",
            remedy=f"use one of format {', '.join(BLOCK_TOKENS)} or sessions",
        )
    tokens, blocks = list[int](), list[list[int]]()
    for number, row in trace_rows(trace_lines(path), path):
        length = row.get("input_length") if isinstance(row, dict) else None
        known = row.get("hash_ids") if isinstance(row, dict) else None
        if (
            not isinstance(length, int)
            or not isinstance(known, list)
            or not all(isinstance(block, int) for block in known)
            or not 0 < length <= min(MAX_PROMPT, len(known) * BLOCK_TOKENS[form])
        ):
            raise UsageError(
                f"line {number} of {path} lacks 'input_length' or the 'hash_ids' of its blocks of "
                f"{BLOCK_TOKENS[form]} tokens, so it is no trace of format '{form}'"
            )
        tokens.append(length)
        blocks.append(known)
    return np.array(tokens, np.int64), blocks


Parts = list[tuple[int, int]]
"""Of which texts a prompt is made: the number of each, and the token before which it ends."""


@lru_cache(1)
def session_prompts(path: str) -> tuple[Tokens, list[Parts]]:
    """The length of each prompt of the calls of sessions, in the order of arrival, and its parts.

    A session only grows: each prompt begins with the one before. One that is shorter than that was
    written anew, after the tokens that were cached. Raises UsageError with the line.
    """
    calls = list[tuple[float, str, int, int]]()
    for number, row in trace_rows(trace_lines(path), path):
        try:
            for time, call in calls_of(row):
                counts, names = call, ("input_tokens_total", "prefix_tokens")  # TraceLab
                if "tokens" in call:  # GitHub Copilot
                    counts, names = call["tokens"], ("prompt", "cached")
                prompt, cached = (int(counts[name]) for name in names)
                if not 0 <= cached <= prompt <= MAX_PROMPT:
                    raise ValueError
                session = str(row["session_id"])  # type: ignore[index]
                calls.append((seconds_of(time, "sessions"), session, max(1, prompt), cached))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise UsageError(
                f"line {number} of {path} lacks its 'session_id' or the tokens of a prompt and of "
                "its cached part, so it is no trace of sessions with prompts",
                remedy="name a trace of GitHub Copilot or of TraceLab",
            ) from None
    calls.sort(key=lambda call: call[0])
    last, found, texts = dict[str, Parts](), list[Parts](), count()
    for _, session, prompt, cached in calls:
        parts = last.get(session, [])
        if parts and prompt >= parts[-1][1]:
            parts = [*parts[:-1], (parts[-1][0], prompt)]
        else:
            begins = [0, *(until for _, until in parts)]
            kept = zip(begins, parts, strict=False)
            parts = [(text, min(until, cached)) for begin, (text, until) in kept if begin < cached]
            parts.append((next(texts), prompt))
        last[session] = parts
        found.append(parts)
    return np.array([call[2] for call in calls], np.int64), found


def _lengths(spec: PromptSpec, generator: np.random.Generator, calls: Calls) -> Tokens:
    """Tokens of each prompt: all that was said in its session before, and new ones."""
    sigma = math.log(spec.new_tokens_p90 / spec.new_tokens) / _Z90
    new = np.exp(generator.normal(math.log(spec.new_tokens), sigma, len(calls.turn)))
    new = np.maximum(1, new.astype(np.int64))
    order = np.lexsort((calls.turn, calls.session))
    turn, added = calls.turn[order], new[order]
    said = np.cumsum(added)
    first = np.maximum.accumulate(np.where(turn == 0, np.arange(len(turn)), 0))
    said -= (said - added)[first]
    tokens = np.empty_like(new)
    tokens[order] = spec.shared_tokens + said + spec.output_tokens * turn
    return np.minimum(tokens, spec.max_tokens)


def _prefixes(spec: PromptSpec, generator: np.random.Generator, sessions: int) -> Tokens:
    """The shared prefix of each session."""
    weights = 1 / np.arange(1, spec.prefixes + 1)
    edges = np.cumsum(weights / weights.sum())
    return np.minimum(np.searchsorted(edges, generator.random(sessions)), spec.prefixes - 1)
