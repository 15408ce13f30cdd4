"""Report on a loader library: what it delivered, how well it shuffled, and its CPU cost."""

from __future__ import annotations

from statistics import median

from ..schema.job import Delivery, LayoutFacts, Shuffle
from ..schema.record import TrainingRecord
from ..schema.training import Ceiling
from ..units import format_bytes, format_count, format_duration
from .sections import Fact, Facts, Section


def library_sections(doc: TrainingRecord) -> list[Section]:
    """Facts on the library; none if the loader is iobench's own."""
    loader = doc.job.loader
    if loader.delivery is None or loader.shuffle is None:
        return []
    facts = (
        ("delivered", _delivered(loader.delivery)),
        ("shuffle (1 is uniform)", _shuffle(loader.shuffle)),
        ("CPU s/GB", _cost(doc)),
        ("layout", _layout(loader.layout)),
    )
    found = tuple(Fact(label=label, text=text) for label, text in facts if text)
    return [Facts(id="loader", title=f"Loader {loader.kind} ({loader.library})", facts=found)]


def _delivered(proof: Delivery) -> str:
    if proof.not_measured is not None:
        return f"not measured: {proof.not_measured}"
    wrong = [
        f"{format_count(count)} {key}"
        for key in ("missing", "repeated", "unknown")
        if (count := getattr(proof, key))
    ]
    part = (
        ""
        if proof.whole_epoch
        else f" (a part: there are {format_count(proof.of)}; which ones are missing is not known)"
    )
    return f"{format_count(proof.delivered)} samples of an epoch{part}, " + (
        ", ".join(wrong) if wrong else "each once, with the contents that the manifest says"
    )


def _shuffle(quality: Shuffle) -> str:
    if quality.not_measured is not None:
        return f"not measured: {quality.not_measured}"
    named = (
        ("distance from storage order", quality.distance),
        ("shards in a batch", quality.shards_per_batch),
        ("between epochs", quality.epoch_distance),
    )
    return ", ".join(f"{label} {value:.2f}" for label, value in named if value is not None)


def _cost(doc: TrainingRecord) -> str:
    """CPU cost of the repetitions, in which the loader did all of its work.

    It is compared with the fetch ceiling, which is the cost of reading alone.
    """
    done = [
        each
        for each in doc.job.repetitions
        if each.complete and each.cpu_s is not None and each.sample_bytes
    ]
    plain = doc.job.ceilings.get("fetch", Ceiling()).cpu_s_per_gb
    if not done:
        return ""
    taken = median(each.cpu_s / each.sample_bytes * 1e9 for each in done if each.cpu_s is not None)
    own = doc.job.ceilings.get("prep", Ceiling()).details.own_cpu_s_per_gb
    text = f"{taken:.2f}"
    if plain is not None:
        text += f", a plain read of the same bytes {plain:.2f}: {taken - plain:.2f} above it"
    return text + (
        f" (iobench's own loader over files in memory: {own:.2f})" if own is not None else ""
    )


def _layout(layout: LayoutFacts | None) -> str:
    if layout is None:
        return ""
    kept = ", made by an earlier run" if layout.made_earlier else ""
    return (
        f"{format_bytes(layout.bytes)} of its own files, written in "
        f"{format_duration(layout.seconds)} before the run{kept}"
    )
