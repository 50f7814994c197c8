"""The files of ranks, and merging them: whichever rank saves last merges those that are there.

Nothing is exchanged but files, so that a rank that died before it saved keeps nobody waiting. Rank 0 keeps a summary
of its own in ``rank0``, from which ``summary.json`` is made with those of the others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from rooflight.inference.rank_data import MissingRank
from rooflight.inference.rank_results import Steps, ranks_data
from rooflight.inference.report import report_of
from rooflight.inference.summaries_compared import read_summary
from rooflight.inference.summary import REPORT, STEPS, SUMMARY, SummaryDocument
from rooflight.records.files import write_whole
from rooflight.reporting.renderers import find

_MOST_STEPS: Final = 8192
_TRIES: Final = 8

_log = logging.getLogger("rooflight")

_View = dict[int, tuple[int, int]]
"""By rank, when its summary was written and how long it is."""


def rank_folder(folder: Path, rank: int) -> Path:
    """Where a rank writes what is its own."""
    return folder / f"rank{rank}"


def merge_ranks(folder: str | Path) -> Path:
    """Merge the summaries of the ranks in ``folder``, each in ``rank<n>/summary.json``, into its ``summary.json`` and
    ``report.md``. Returns the folder.

    It is done when ranks save. Call it for folders that were brought together from several machines. Raises ValueError
    if no rank's summary can be read.
    """
    folder = Path(folder)
    for _ in range(_TRIES):
        view = _view(folder)
        if not view:
            raise ValueError(f"{folder} has no rank<n>/{SUMMARY}: give the folder of a run whose ranks all collected")
        _merge(folder, view)
        if _view(folder) == view:  # else another rank saved meanwhile: what it wrote may have been overwritten
            break
    return folder


def merge_once_rank_0_saved(folder: Path) -> None:
    """Merge the ranks if rank 0 is among them; otherwise it will, when it saves."""
    if (rank_folder(folder, 0) / SUMMARY).exists():
        merge_ranks(folder)


def _merge(folder: Path, view: _View) -> None:
    summaries: dict[int, SummaryDocument] = {}
    broken: dict[int, str] = {}
    for rank in view:
        try:
            summaries[rank] = read_summary(rank_folder(folder, rank) / SUMMARY)
        except ValueError as error:
            broken[rank] = str(error)
    if not summaries:
        raise ValueError(f"no summary of a rank can be read: {next(iter(broken.values()))}")
    first = summaries[min(summaries)]
    world = first.meta.world
    missing = []
    for rank in range(world):
        reason = broken.get(rank) or _reason_to_leave_out(summaries.get(rank), first)
        if reason:
            missing.append(MissingRank(rank=rank, reason=reason))
            summaries.pop(rank, None)
    ranks = {rank: summary for rank, summary in summaries.items() if rank < world}
    files = {rank: f"rank{rank}/{SUMMARY}" for rank in ranks}
    steps = [(rank, found) for rank, summary in ranks.items() if (found := _steps(folder, rank, summary)) is not None]
    merged = msgspec.structs.replace(first, ranks=ranks_data(ranks, files, missing, steps, world))
    report = report_of(merged)
    write_whole(folder / SUMMARY, find("json")(report))
    write_whole(folder / REPORT, find("markdown")(report))


def _reason_to_leave_out(summary: SummaryDocument | None, first: SummaryDocument) -> str | None:
    if summary is None:
        return "it saved nothing so far"
    meta = first.meta
    if summary.meta.world != meta.world:
        return f"its summary is of {summary.meta.world} ranks, not of {meta.world}"
    if _time(summary.meta.saved_at) < _time(meta.created_at):
        return f"its summary is of an earlier run, saved before rank {meta.rank} began"
    if _time(summary.meta.created_at) > _time(meta.saved_at):
        return f"its summary is of a later run, begun after rank {meta.rank} saved"
    return None


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


def _view(folder: Path) -> _View:
    found = {}
    for path in folder.glob(f"rank*/{SUMMARY}"):
        rank = path.parent.name.removeprefix("rank")
        if rank.isdecimal() and rank == str(int(rank)):
            status = path.stat()
            found[int(rank)] = (status.st_mtime_ns, status.st_size)
    return found


def _steps(folder: Path, rank: int, summary: SummaryDocument) -> Steps | None:
    """The first raw steps of a rank; None where only a random choice is there, or no file."""
    place = folder if rank == 0 else rank_folder(folder, rank)
    if not summary.samples.exact:
        return None
    try:
        with (place / STEPS).open() as lines:
            return dict(islice(_read(lines), _MOST_STEPS))
    except (OSError, ValueError):
        _log.debug("rooflight: steps of rank %d", rank, exc_info=True)
        return None


def _read(lines: Iterator[str]) -> Iterator[tuple[tuple[int, int], int]]:
    columns: Mapping[str, int] = {name: place for place, name in enumerate(next(lines, "").strip().split(","))}
    try:
        run, step, step_ns = (columns[name] for name in ("run", "step", "step_ns"))
    except KeyError as error:
        raise ValueError(f"no column {error}") from None
    for line in lines:
        cells = line.split(",")
        yield (int(cells[run]), int(cells[step])), int(cells[step_ns])
