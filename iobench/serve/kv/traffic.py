"""The prompts of requests, and by which chunks of KV cache each is found.

A chunk is ``chunk_tokens`` tokens together with all tokens before them. So two prompts share as
many chunks as their beginnings are equal, and the number of a chunk says all that came before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...settings.kv_cache import KvScenario, PromptSpec
from ..arrivals import Arrivals, Calls, Seconds

Tokens = npt.NDArray[np.int64]

_Z90 = 1.2815515655446004  # the 90th percentile of the standard normal distribution

_OF_SESSION = 24
"""Bits of the place of a chunk in its session: more tokens than any prompt has."""


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Requests in the order of arrival; those before the window are at times below 0.

    ``chunks(i)``: the numbers of the whole chunks of prompt ``i``, in their order.
    """

    times_s: Seconds
    tokens: Tokens
    chunks: Callable[[int], Sequence[int]]


def draw_prompts(
    spec: KvScenario, arrivals: Arrivals, rate: float, seconds: float, seed: int, history_s: float
) -> Prompts:
    """The prompts of a window and of the time before it. Raises UsageError if they are too many."""
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

    return Prompts(times_s=calls.times_s[inside], tokens=tokens[inside], chunks=chunks)


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
