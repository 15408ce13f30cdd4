"""A loader that is not iobench's own: of a library, or of the user."""

from __future__ import annotations

from ..base.units import counted, format_bytes, format_count, format_duration, format_percent
from ..record.job import Delivery, LayoutFacts, Shuffle, UserFacts
from ..record.run import TrainingRecord
from ..record.training import Ceiling
from .figures import facts
from .sections import Facts
from .time import cpu_s_per_gb


def library_section(doc: TrainingRecord) -> Facts | None:
    """Facts on the library; None if the loader is iobench's own."""
    loader = doc.job.loader
    if loader.delivery is None or loader.shuffle is None:
        return None
    told = (
        ("delivered", _delivered(loader.delivery)),
        ("shuffle (1 is uniform)", _shuffle(loader.shuffle)),
        ("CPU s/GB", _cost(doc)),
        ("layout", _layout(loader.layout)),
    )
    return facts("loader", f"Loader {loader.kind} ({loader.library})", told)


def _delivered(proof: Delivery) -> str:
    if proof.not_measured is not None:
        return f"not measured: {proof.not_measured}"
    wrong = [
        f"{format_count(count)} {key}"
        for key in ("missing", "repeated", "unknown")
        if (count := getattr(proof, key))
    ]
    part = ""
    if not proof.whole_epoch:
        part = f" (a part of {format_count(proof.of)}; which ones are missing is not known)"
    told = ", ".join(wrong) or "each once, with the contents that the manifest says"
    return f"{format_count(proof.delivered)} samples of an epoch{part}, {told}"


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
    taken = cpu_s_per_gb(doc)
    plain = doc.job.ceilings.get("fetch", Ceiling()).cpu_s_per_gb
    if taken is None:
        return ""
    own = doc.job.ceilings.get("prep", Ceiling()).details.own_cpu_s_per_gb
    text = f"{taken:.2f}"
    if plain is not None:
        text += f", a plain read of the same bytes {plain:.2f}: {taken - plain:.2f} above it"
    if own is not None:
        text += f" (iobench's own loader over files in memory: {own:.2f})"
    return text


def _layout(layout: LayoutFacts | None) -> str:
    if layout is None:
        return ""
    kept = ", made by an earlier run" if layout.made_earlier else ""
    files, took = format_bytes(layout.bytes), format_duration(layout.seconds)
    return f"{files} of its own files, written in {took} before the run{kept}"


_MIN_QUEUED = 0.05
"""Share of a batch's time in waits for a core, from which on it is worth a word."""


def user_section(doc: TrainingRecord) -> Facts | None:
    """Facts on the user's loader; None if the loader is another one."""
    user = doc.job.loader.user
    if user is None:
        return None
    watched, ready_s = doc.job.subject.watched, user.usual_start_s
    ranks = _shared(user.shared_samples, user.compared_samples)
    of_workers = (user.worker_shared_samples, user.worker_compared_samples)
    starting = "end and start of workers" if watched and (user.worker_starts or 0) > 1 else ""
    told = (
        ("loader", _what(user)),
        ("batches", _batches(user, "in all" if watched else "in the last repetition")),
        (f"{'making' if _is_made_here(user) else 'waiting for'} a batch", _fetch(user)),
        ("waits for batches", _waits(user)),
        ("bytes", _bytes(user)),
        ("files opened", _files(user, doc)),
        (starting or "start of workers", "" if ready_s is None else format_duration(ready_s)),
        ("samples of several ranks", "" if watched else ranks or _unknown(user, "shared_samples")),
        # Nothing is told where a sampler hands the samples out.
        ("samples of several workers", _shared(*of_workers)),
    )
    return facts("loader", f"Your loader {user.factory or ''}".rstrip(), told)


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
    samples, size = user.samples / user.batches, format_bytes(user.delivered_bytes / user.batches)
    return f"{format_count(user.batches)} {when}, {samples:.4g} samples and {size} each"


def _fetch(user: UserFacts) -> str:
    share = user.cpu_share
    if share is None or not user.fetches or user.fetch_wall_s is None:
        return _unknown(user, "fetch_wall_s")
    each = format_duration(user.fetch_wall_s / user.fetches)
    text = f"{each}: {format_percent(share)} computing, {format_percent(1 - share)} waiting"
    queued = (user.fetch_queued_s or 0.0) / user.fetch_wall_s if user.fetch_wall_s else 0.0
    if queued > _MIN_QUEUED:
        text += f", apart from {format_percent(queued)} of it in which all cores were taken"
    if user.collating is not None:
        text += f"; collate_fn takes {format_percent(user.collating)} of it"
    return text


def _waits(user: UserFacts) -> str:
    """How the waits divide; nothing where that is not known."""
    if not user.wait_s or user.out_of_order_s is None or user.hand_over_s is None:
        return ""
    held_back = format_percent(min(1.0, user.out_of_order_s / user.wait_s))
    handed_over = format_percent(min(1.0, user.hand_over_s / user.wait_s))
    waited = f"{format_duration(user.wait_s)} of all ranks"
    if user.sampling is not None:
        waited += f", {format_percent(user.sampling)} in the sampler"
    made = f"in {handed_over} the batch was made, but not handed over yet"
    return f"{waited}: in {held_back} of it a later batch was ready, and {made}"


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
        else f"{label}: {_unknown(user, name)}"
        for label, name in figures
    )


def _files(user: UserFacts, doc: TrainingRecord) -> str:
    inside, outside = user.files_inside, user.files_outside
    if inside is None or outside is None:
        return ""
    files = f"{format_count(inside)} of the dataset, {format_count(outside)} others"
    if doc.job.subject.watched and doc.job.dataset.location is None:
        files = format_count(inside + outside)
    seen = "by Python's open; those inside of compiled libraries are not seen"
    return f"{files}, in each process anew ({seen})"


def _unknown(user: UserFacts, name: str) -> str:
    return f"not measured: {user.not_measured.get(name, 'not recorded')}"


def _shared(shared: int | None, compared: int | None) -> str:
    if shared is None or compared is None:
        return ""
    return f"{format_count(shared)} of {format_count(compared)} that the first batches have"
