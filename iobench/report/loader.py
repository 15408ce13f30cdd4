"""A loader that is not iobench's own: of a library, or of the user."""

from __future__ import annotations

from statistics import median

from ..base.units import counted, format_bytes, format_count, format_duration, format_percent
from ..record.job import Delivery, LayoutFacts, Shuffle, UserFacts
from ..record.run import TrainingRecord
from ..record.training import Ceiling
from .figures import facts_of
from .sections import Facts, Section


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
    return [
        Facts(id="loader", title=f"Loader {loader.kind} ({loader.library})", facts=facts_of(facts))
    ]


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


_MIN_QUEUED = 0.05
"""Share of a batch's time in waits for a core, from which on it is worth a word."""


def user_sections(doc: TrainingRecord) -> list[Section]:
    """Facts on the user's loader; none if the loader is another one."""
    user = doc.job.loader.user
    if user is None:
        return []
    when = "in the last repetition" if not doc.job.subject.watched else "in all"
    facts = (
        ("loader", _what(user)),
        ("batches", _batches(user, when)),
        (_MADE if _is_made_here(user) else _CAME, _fetch(user)),
        ("waits for batches", _waits(user)),
        ("bytes", _bytes(user)),
        ("files opened", _files(user, doc)),
        ("start of workers", _start(user)),
        ("samples of several ranks", _overlap(user) if not doc.job.subject.watched else ""),
        ("samples of several workers", _of_workers(user)),
    )
    return [
        Facts(
            id="loader", title=f"Your loader {user.factory or ''}".rstrip(), facts=facts_of(facts)
        )
    ]


_MADE, _CAME = "making a batch", "waiting for a batch"


def _is_made_here(user: UserFacts) -> bool:
    """Whether a batch is made while it is timed: a thread may have begun it long before."""
    return bool(user.workers) or user.type == _DATALOADER


_DATALOADER = "torch.utils.data.dataloader.DataLoader"


def _what(user: UserFacts) -> str:
    given = ", ".join(f"{key}={value}" for key, value in user.arguments.items())
    workers = counted(user.workers, "worker")
    by = f" by {user.start_method}" if user.start_method else ""
    return f"{user.type or '?'}, {workers}{by}" + (f", arguments {given}" if given else "")


def _batches(user: UserFacts, when: str) -> str:
    if not user.batches:
        return ""
    samples, size = user.samples / user.batches, user.delivered_bytes / user.batches
    return (
        f"{format_count(user.batches)} {when}, {samples:.4g} samples and {format_bytes(size)} each"
    )


def _fetch(user: UserFacts) -> str:
    share = user.cpu_share
    if share is None or not user.fetches or user.fetch_wall_s is None:
        return f"not measured: {user.not_measured.get('fetch_wall_s', 'not recorded')}"
    each = format_duration(user.fetch_wall_s / user.fetches)
    text = f"{each}: {format_percent(share)} computing, {format_percent(1 - share)} waiting"
    queued = (user.fetch_queued_s or 0.0) / user.fetch_wall_s if user.fetch_wall_s else 0.0
    if queued > _MIN_QUEUED:
        text += f", apart from {format_percent(queued)} of it in which all cores were taken"
    if user.collate_s is not None:
        collate = min(1.0, user.collate_s / user.fetch_wall_s)
        text += f"; collate_fn takes {format_percent(collate)} of it"
    return text


def _waits(user: UserFacts) -> str:
    """How the waits divide; nothing where that is not known."""
    if not user.wait_s or user.out_of_order_s is None or user.hand_over_s is None:
        return ""
    held_back, handed_over = (
        format_percent(min(1.0, part / user.wait_s))
        for part in (user.out_of_order_s, user.hand_over_s)
    )
    return (
        f"{format_duration(user.wait_s)} of all ranks: in {held_back} of it a later batch was "
        f"ready, and in {handed_over} the batch was made, but not handed over yet"
    )


def _bytes(user: UserFacts) -> str:
    """Three figures, none of which says the same."""
    figures = (
        ("by read calls (not through memory maps or of sockets)", "process_bytes"),
        ("by devices", "device_bytes"),
        ("in the batches", "delivered_bytes"),
    )
    return "; ".join(
        f"{format_bytes(value)} {label}"
        if (value := getattr(user, name)) is not None
        else f"{label}: not measured: {user.not_measured.get(name, 'not recorded')}"
        for label, name in figures
    )


def _files(user: UserFacts, doc: TrainingRecord) -> str:
    if user.files_inside is None or user.files_outside is None:
        return ""
    if doc.job.subject.watched and doc.job.dataset.location is None:
        return (
            f"{format_count(user.files_inside + user.files_outside)}, in each process anew (by "
            "Python's open; those inside of compiled libraries are not seen)"
        )
    return (
        f"{format_count(user.files_inside)} of the dataset, {format_count(user.files_outside)} "
        "others, in each process anew (by Python's open; those inside of compiled "
        "libraries are not seen)"
    )


def _start(user: UserFacts) -> str:
    return format_duration(user.worker_ready_s) if user.worker_ready_s is not None else ""


def _overlap(user: UserFacts) -> str:
    if user.shared_samples is None or user.compared_samples is None:
        return f"not measured: {user.not_measured.get('shared_samples', 'not recorded')}"
    return (
        f"{format_count(user.shared_samples)} of {format_count(user.compared_samples)} that the "
        "first batches have"
    )


def _of_workers(user: UserFacts) -> str:
    """Nothing where a sampler hands the samples out."""
    if user.worker_shared_samples is None or user.worker_compared_samples is None:
        return ""
    return (
        f"{format_count(user.worker_shared_samples)} of "
        f"{format_count(user.worker_compared_samples)} that the first batches have"
    )
