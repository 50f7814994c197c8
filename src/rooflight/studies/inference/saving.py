"""Writing the results: files that appear whole, in the profiler's folder or, where that fails, in a temporary one; and
merging those of several ranks.

Each rank that saves merges those that are there. Nothing is exchanged but files, so that a rank that died before it
saved keeps nobody waiting. Rank 0 keeps a summary of its own in ``rank0``, from which ``summary.json`` is made with
those of the others.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rooflight.records.document import encoded
from rooflight.records.files import write_all
from rooflight.records.measurement import Spread
from rooflight.records.report import Report, share
from rooflight.records.visible import visible
from rooflight.reporting.encoding import degrading
from rooflight.reporting.renderers import find
from rooflight.studies.inference.bounds import RecordedBounds, with_bounds
from rooflight.studies.inference.problems import Problems
from rooflight.studies.inference.report import report_of
from rooflight.studies.inference.result import (
    REPORT,
    STEPS,
    SUMMARY,
    ConfigDocument,
    MissingRank,
    RankRow,
    RanksData,
    RankSpread,
    SampleData,
    SummaryDocument,
    SummaryMeta,
    WorkloadData,
)
from rooflight.studies.inference.runs import Results
from rooflight.studies.inference.serving import Requests
from rooflight.studies.inference.sums import BucketTime
from rooflight.studies.inference.timers import Graphs

CONFIG: Final = "config.json"
TRACE: Final = "trace.json"
COMMUNICATION: Final = "comm."
_DEPTH: Final = 8
_MOST_BYTES: Final = 1 << 28

_log = logging.getLogger("rooflight")


def summary_of(
    meta: SummaryMeta,
    workload: WorkloadData | None,
    results: Results,
    book: RecordedBounds,
    requests: Requests,
    graphs: Graphs,
) -> SummaryDocument:
    """All that finished runs measured."""
    figures = results.figures(results.runs_with_steps)
    figures |= with_bounds(results, book, figures["buckets"], strict=meta.config.strict_sync)
    return SummaryDocument(
        meta=meta,
        workload=workload,
        runs=results.runs_data(),
        runs_left_out=results.runs_left_out,
        runs_aggregate=results.aggregate(),
        batch_sizes=results.by_batch(),
        speculative=results.speculation.data(),
        serving=requests.data(),
        memory=results.memory(),
        warmup_runs_skipped=results.warmup_runs,
        samples=SampleData.view(results.samples, steps=results.samples.seen, file=STEPS),
        graphs=tuple(msgspec.structs.replace(kind) for kind in graphs.kinds.values() if kind.replays or kind.buckets),
        problems=results.problems.counts,
        **figures,
    )


# -- files ------------------------------------------------------------------------------------------------------------


def save_results(report: Report, files: Mapping[str, str], folder: Path, problems: Problems) -> Path | None:
    """Write a summary, its report and other files. Returns their folder, None where nothing could be written."""
    texts = {SUMMARY: find("json")(report), REPORT: find("markdown")(report), **files}
    written = write(texts, folder, problems)
    if written is not None:
        print_line(f"{written / REPORT}: {report.conclusion}")
    return written


def save_config(document: ConfigDocument, folder: Path, problems: Problems) -> Path | None:
    """Write the settings and arguments. Returns the file, None where it could not be written."""
    text = msgspec.json.format(encoded(document), indent=2).decode() + "\n"
    written = write({CONFIG: text}, folder, problems)
    return None if written is None else written / CONFIG


def write(texts: Mapping[str, str], folder: Path, problems: Problems) -> Path | None:
    """Write files into a folder, or into a new temporary one. Returns where they are, None if nowhere."""
    try:
        write_all(folder, texts)
        return folder
    except (OSError, ValueError) as error:
        problems.error("writing results", error)
    try:
        other = Path(tempfile.mkdtemp(prefix="rooflight-"))
        write_all(other, texts)
    except OSError as error:
        problems.error("writing results to a temporary folder", error)
        return None
    _log.warning("rooflight: results are in %s, since %s cannot be written", other, folder)
    return other


def read_summary(path: Path) -> SummaryDocument:
    """The ``summary.json`` of a run. Raises ValueError for a file that is none."""
    if path.is_dir():
        path = path / SUMMARY
    if not path.is_file():
        raise ValueError(f"no file {path}: name a run's summary.json, or its folder")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is too large to be a summary.json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=SummaryDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no summary.json of this version of Rooflight: {error}") from error


def print_line(text: str) -> None:
    """Print a line, whatever it holds and wherever standard output leads: a closed pipe is no error here."""
    try:
        with degrading(sys.stdout):
            sys.stdout.write(f"rooflight: {visible(text)}\n")
            sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        _log.debug("rooflight: standard output is closed", exc_info=True)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON can have them: what is neither number, text nor a collection is its ``repr``, cut short."""
    found = _plain(dict(values), 0)
    return found if isinstance(found, dict) else {}


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int | str):
        return value if isinstance(value, int) and abs(value) < 1 << 63 else str(value)
    if depth < _DEPTH and isinstance(value, Mapping):
        return {str(name): _plain(each, depth + 1) for name, each in value.items()}
    if depth < _DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [_plain(each, depth + 1) for each in value]
    try:
        return repr(value)[:200]
    except Exception:
        return f"<{type(value).__name__}>"


# -- ranks ------------------------------------------------------------------------------------------------------------


def merge_ranks(folder: str | Path) -> Path:
    """Merge the summaries of the ranks in ``folder``, each in ``rank<n>/summary.json``, into its ``summary.json`` and
    ``report.md``. Returns the folder.

    It is done when ranks save. Call it for folders that were brought together from several machines. Raises ValueError
    if no rank's summary can be read.
    """
    folder = Path(folder)
    saved: dict[int, tuple[int, int]] = {}
    while saved != (found := _saved(folder)):  # a rank that saves meanwhile may have merged before this one writes
        saved = found
        report = report_of(_merged(folder, sorted(saved)))
        write_all(folder, {SUMMARY: find("json")(report), REPORT: find("markdown")(report)})
    if not saved:
        raise ValueError(f"{folder} has no rank<n>/{SUMMARY}: give the folder of a run whose ranks all collected")
    return folder


def _saved(folder: Path) -> dict[int, tuple[int, int]]:
    """The inode and time of each rank's summary, by rank: a file that takes its place has others."""
    found = {path.parent.name[4:]: path.stat() for path in folder.glob(f"rank*/{SUMMARY}")}
    ranks = {int(name): name for name in found if name.isdecimal() and name == str(int(name))}
    return {rank: (found[name].st_ino, found[name].st_mtime_ns) for rank, name in ranks.items()}


def merge_saved(report: Report, folder: Path, rank: int, problems: Problems) -> None:
    """Put what a rank saved in its ``folder`` beside the results of others, once rank 0 is among them."""
    try:
        whole = folder if rank == 0 else folder.parent
        first = whole / "rank0"
        if rank == 0:
            write_all(first, {SUMMARY: find("json")(report)})
        if (first / SUMMARY).exists():
            merge_ranks(whole)
    except Exception as error:
        problems.error("merging the results of ranks", error)


def _merged(folder: Path, ranks: Sequence[int]) -> SummaryDocument:
    summaries: dict[int, SummaryDocument] = {}
    missing: dict[int, str] = {}
    for rank in ranks:
        try:
            summaries[rank] = read_summary(folder / f"rank{rank}")
        except ValueError as error:
            missing[rank] = str(error)
    if not summaries:
        raise ValueError(f"no summary of a rank can be read: {next(iter(missing.values()))}")
    first = next(iter(summaries.values()))
    world = first.meta.world
    for rank in range(world):
        summary = summaries.get(rank)
        if summary is None:
            missing.setdefault(rank, "it saved nothing so far")
        elif summary.meta.world != world:
            missing[rank] = f"its summary is of {summary.meta.world} ranks, not of {world}"
    used = {rank: each for rank, each in summaries.items() if rank < world and rank not in missing}
    left_out = [MissingRank(rank=rank, reason=missing[rank]) for rank in sorted(missing) if rank < world]
    return msgspec.structs.replace(first, ranks=ranks_data(used, left_out, world))


def ranks_data(summaries: Mapping[int, SummaryDocument], missing: Sequence[MissingRank], world: int) -> RanksData:
    """The ranks side by side, from their summaries."""
    waits = {rank: _communication_ms(summary) for rank, summary in summaries.items()}
    return RanksData(
        world=world,
        ranks=tuple(_row(rank, summary, waits[rank]) for rank, summary in summaries.items()),
        missing=tuple(missing),
        latency=spread_of({rank: each.stats.mean_ms for rank, each in summaries.items()}),
        communication=spread_of(waits) if any(waits.values()) else None,
        buckets_model=_buckets({rank: summary.buckets.model for rank, summary in summaries.items()}),
        buckets_engine=_buckets({rank: summary.buckets.engine for rank, summary in summaries.items()}),
    )


def spread_of(values: Mapping[int, float | None]) -> RankSpread | None:
    """The spread of what is known, by rank; None if nothing is. Of equal values the lowest rank's counts."""
    known = Spread[int].known(values)
    if not known.count:
        return None
    return RankSpread.view(
        ranks=known.count,
        mean_ms=known.mean,
        least_ms=known.least,
        least_rank=known.least_name,
        most_ms=known.most,
        most_rank=known.most_name,
        spread_ms=known.width,
        spread_share=share(known.width, known.mean),
    )


def _row(rank: int, summary: SummaryDocument, communication_ms: float | None) -> RankRow:
    serving = summary.serving
    return RankRow.view(
        summary.stats,
        summary.speculative,
        serving,
        rank=rank,
        file=f"rank{rank}/{SUMMARY}",
        communication_ms=communication_ms,
        ttft_p50_ms=serving.ttft_ms.p50,
        tpot_p50_ms=serving.tpot_ms.p50,
        steps_lost=sum(run.meta.steps_lost for run in summary.runs),
        problems=sum(summary.problems.values()),
    )


def _communication_ms(summary: SummaryDocument) -> float | None:
    if not summary.buckets.model:
        return None
    return sum(row.exclusive_ms for row in summary.buckets.model if row.name.startswith(COMMUNICATION))


def _buckets(rows: Mapping[int, Sequence[BucketTime]]) -> dict[str, RankSpread]:
    by_name: dict[str, dict[int, float | None]] = {}
    for rank, of_rank in rows.items():
        for row in of_rank:
            by_name.setdefault(row.name, {})[rank] = row.exclusive_ms
    spreads = {name: spread_of(by_rank) for name, by_rank in by_name.items()}
    return {name: spread for name, spread in spreads.items() if spread is not None}
