"""Writing the results: files that appear whole, in the profiler's folder or, where that fails, in a temporary one; and
merging those of several ranks.

Whichever rank saves last merges those that are there. Nothing is exchanged but files, so that a rank that died before
it saved keeps nobody waiting. Rank 0 keeps a summary of its own in ``rank0``, from which ``summary.json`` is made with
those of the others.
"""

from __future__ import annotations

import csv
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rooflight.capture.time.bucket_log import BucketLog
from rooflight.capture.time.marks import HostStamps
from rooflight.inference.bounds import with_bounds
from rooflight.inference.clocks import HOST_CLOCK
from rooflight.inference.comparison import read_summary
from rooflight.inference.config import Domain
from rooflight.inference.facts import DECODE, OTHER_PHASES
from rooflight.inference.report import report_of
from rooflight.inference.result import (
    REPORT,
    STEPS,
    SUMMARY,
    BucketTime,
    ConfigDocument,
    SampleData,
    SummaryDocument,
    SummaryMeta,
)
from rooflight.inference.runs import Results
from rooflight.inference.sections import MissingRank, RankRow, RanksData, RankSpread, SameSteps
from rooflight.inference.serving import DELIVERIES_FILE, REQUESTS_FILE, serving_data
from rooflight.records.document import encoded
from rooflight.records.files import write_whole
from rooflight.records.visible import visible
from rooflight.reporting.encoding import degrading
from rooflight.reporting.renderers import find

if TYPE_CHECKING:
    from rooflight.inference.generation.trace import StepSpans
    from rooflight.inference.profiler import Profiler


Steps = Mapping[tuple[int, int], int]
"""Nanoseconds of steps by run and step."""

COMMUNICATION: Final = "comm."
_MOST_STEPS: Final = 8192
_TRIES: Final = 8


# -- files ------------------------------------------------------------------------------------------------------------


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
        report = report_of(_merged(folder, view))
        write_whole(folder / SUMMARY, find("json")(report))
        write_whole(folder / REPORT, find("markdown")(report))
        if _view(folder) == view:  # else another rank saved meanwhile: what it wrote may have been overwritten
            break
    return folder


def merge_once_rank_0_saved(folder: Path) -> None:
    """Merge the ranks if rank 0 is among them; otherwise it will, when it saves."""
    if (rank_folder(folder, 0) / SUMMARY).exists():
        merge_ranks(folder)


def _view(folder: Path) -> dict[int, tuple[int, int]]:
    """By rank, when its summary was written and how long it is."""
    found = {}
    for path in folder.glob(f"rank*/{SUMMARY}"):
        rank = path.parent.name.removeprefix("rank")
        if rank.isdecimal() and rank == str(int(rank)):
            status = path.stat()
            found[int(rank)] = (status.st_mtime_ns, status.st_size)
    return found


def _merged(folder: Path, ranks: Mapping[int, object]) -> SummaryDocument:
    summaries: dict[int, SummaryDocument] = {}
    left_out: dict[int, str] = {}
    for rank in sorted(ranks):
        try:
            summaries[rank] = read_summary(rank_folder(folder, rank) / SUMMARY)
        except ValueError as error:
            left_out[rank] = str(error)
    if not summaries:
        raise ValueError(f"no summary of a rank can be read: {next(iter(left_out.values()))}")
    first = next(iter(summaries.values()))
    for rank in range(first.meta.world):
        reason = _reason_to_leave_out(summaries.get(rank), first)
        if reason:
            left_out.setdefault(rank, reason)
    used = {rank: each for rank, each in summaries.items() if rank < first.meta.world and rank not in left_out}
    missing = [MissingRank(rank=rank, reason=left_out[rank]) for rank in sorted(left_out) if rank < first.meta.world]
    steps = {rank: found for rank, summary in used.items() if (found := _steps(folder, rank, summary)) is not None}
    return msgspec.structs.replace(first, ranks=ranks_data(used, missing, steps, first.meta.world))


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


def _steps(folder: Path, rank: int, summary: SummaryDocument) -> Steps | None:
    """The first raw steps of a rank; None where only a random choice is there, or no file."""
    if not summary.samples.exact:
        return None
    try:
        with ((folder if rank == 0 else rank_folder(folder, rank)) / STEPS).open(newline="") as lines:
            rows = islice(csv.DictReader(lines), _MOST_STEPS)
            return {(int(row["run"]), int(row["step"])): int(row["step_ns"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        _log.debug("rooflight: steps of rank %d", rank, exc_info=True)
        return None


# -- results ----------------------------------------------------------------------------------------------------------


def ranks_data(
    summaries: Mapping[int, SummaryDocument], missing: Sequence[MissingRank], steps: Mapping[int, Steps], world: int
) -> RanksData:
    """The ranks side by side, from their summaries and, where all of them are known, their raw steps."""
    waits = {rank: _communication_ms(summary) for rank, summary in summaries.items()}
    return RanksData(
        world=world,
        ranks=tuple(_row(rank, summary, waits[rank]) for rank, summary in summaries.items()),
        missing=tuple(missing),
        latency=spread_of({rank: each.stats.mean_ms for rank, each in summaries.items()}),
        communication=spread_of(waits) if any(waits.values()) else None,
        same_steps=_same_steps(steps) if len(steps) == len(summaries) > 1 else None,
        buckets_model=_buckets({rank: summary.buckets.model for rank, summary in summaries.items()}),
        buckets_engine=_buckets({rank: summary.buckets.engine for rank, summary in summaries.items()}),
    )


def spread_of(values: Mapping[int, float | None]) -> RankSpread | None:
    """The spread of what is known, by rank; None if nothing is. Of equal values the lowest rank's counts."""
    known = {rank: value for rank, value in values.items() if value is not None}
    if not known:
        return None
    least, most = min(known, key=lambda rank: known[rank]), max(known, key=lambda rank: known[rank])
    mean = sum(known.values()) / len(known)
    return RankSpread(
        ranks=len(known),
        mean_ms=mean,
        least_ms=known[least],
        least_rank=least,
        most_ms=known[most],
        most_rank=most,
        spread_ms=known[most] - known[least],
        spread_share=(known[most] - known[least]) / mean if mean else None,
    )


def _row(rank: int, summary: SummaryDocument, communication_ms: float | None) -> RankRow:
    stats, speculative, serving = summary.stats, summary.speculative, summary.serving
    return RankRow(
        rank=rank,
        file=f"rank{rank}/{SUMMARY}",
        steps=stats.steps,
        mean_ms=stats.mean_ms,
        p50_ms=stats.p50_ms,
        p99_ms=stats.p99_ms,
        throughput_tok_s=stats.throughput_tok_s,
        communication_ms=communication_ms,
        acceptance_rate=speculative.acceptance_rate,
        mean_accepted_length=speculative.mean_accepted_length,
        speedup_measured=speculative.speedup_measured,
        requests=serving.requests,
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
    """The exclusive time of each bucket, over the ranks that have it."""
    by_name: dict[str, dict[int, float | None]] = {}
    for rank, of_rank in rows.items():
        for row in of_rank:
            by_name.setdefault(row.name, {})[rank] = row.exclusive_ms
    spreads = {name: spread_of(by_rank) for name, by_rank in by_name.items()}
    return {name: spread for name, spread in spreads.items() if spread is not None}


def _same_steps(steps: Mapping[int, Steps]) -> SameSteps | None:
    common = set.intersection(*(set(each) for each in steps.values()))
    if not common:
        return None
    slowest: Counter[int] = Counter()
    spreads_ms = []
    for step in common:
        by_rank = {rank: each[step] for rank, each in steps.items()}
        most_ns = max(by_rank.values())
        spreads_ms.append((most_ns - min(by_rank.values())) / 1e6)
        slowest[min(rank for rank, nanoseconds in by_rank.items() if nanoseconds == most_ns)] += 1
    return SameSteps(
        steps=len(common),
        spread_mean_ms=sum(spreads_ms) / len(common),
        spread_max_ms=max(spreads_ms),
        slowest={str(rank): slowest[rank] for rank in sorted(slowest)},
    )


CONFIG: Final = "config.json"
TRACE: Final = "trace.json"
_DEPTH: Final = 8

_log = logging.getLogger("rooflight")


def summary_of(profiler: Profiler) -> SummaryDocument:
    """All that a profiler's finished runs measured."""
    results, samples = profiler.results, profiler.results.samples
    clocks = results.clocks
    fields = results.bucket_fields()
    bounded = with_bounds(profiler, fields.pop("buckets"))
    for note in bounded.notes:
        profiler.problems.note(note)
    return SummaryDocument(
        meta=SummaryMeta(
            rank=profiler.rank,
            world=profiler.world,
            config=profiler.cfg,
            run_name=profiler.run_name,
            output_dir=str(profiler.out_dir),
            created_at=profiler.created_at,
            saved_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            started_at=results.runs[0].meta.started_at if results.runs else None,
            clock=next(iter(clocks)) if len(clocks) == 1 else None,
        ),
        workload=profiler.workload,
        stats=results.stats(),
        other_phases=results.other_phases(),
        wall=results.wall(results.runs_with_steps),
        runs=results.runs_data(),
        runs_left_out=results.runs_left_out,
        runs_aggregate=results.aggregate(),
        decode_length_buckets=results.by_length(),
        batch_sizes=results.by_batch(),
        speculative=results.speculation.data(),
        serving=serving_data(profiler.requests),
        bucket_splits=bounded.splits,
        buckets=bounded.buckets,
        bounds=bounded.data,
        memory=results.memory(),
        kv_cache=results.kv_cache.data(),
        warmup_runs_skipped=results.warmup_runs,
        samples=SampleData(kept=samples.kept, steps=samples.seen, exact=samples.exact, file=STEPS),
        profiler_cost=results.cost(bucket_cost_ns(), on_host=clocks <= {HOST_CLOCK}),
        graphs=profiler.graphs.data(),
        problems=profiler.problems.counts,
        **fields,
    )


def save_results(profiler: Profiler) -> Path | None:
    """Write summary, report and raw samples. Returns their folder, None where nothing could be written."""
    report = report_of(summary_of(profiler))
    texts = {
        SUMMARY: find("json")(report),
        REPORT: find("markdown")(report),
        STEPS: _steps_csv(profiler.results),
    }
    requests = profiler.requests
    with requests.lock:
        if requests.runs:
            texts |= {REQUESTS_FILE: requests.ended.csv(), DELIVERIES_FILE: requests.gaps.csv()}
    folder = _write(profiler, texts)
    if folder is not None:
        print_line(f"{folder / REPORT}: {report.conclusion}")
    if folder == profiler.out_dir and profiler.world > 1 and not profiler.cfg.collect_on_rank0_only:
        _merge(profiler, texts[SUMMARY])
    return folder


def _merge(profiler: Profiler, summary: str) -> None:
    """Put this rank's results beside those of the others that are there."""
    folder = profiler.out_dir if profiler.rank == 0 else profiler.out_dir.parent
    try:
        if profiler.rank == 0:
            _write_to(rank_folder(folder, 0), {SUMMARY: summary})
        merge_once_rank_0_saved(folder)
    except Exception as error:
        profiler.problems.error("merging the results of ranks", error)


def config_of(profiler: Profiler, extra: Mapping[str, Any]) -> ConfigDocument:
    """The settings and arguments of a profiler."""
    return ConfigDocument(
        profiler_cfg=profiler.cfg,
        runner_args=_plain_mapping(profiler.runner_args),
        extra=_plain_mapping(extra),
        rank=profiler.rank,
        world=profiler.world,
    )


def save_config_of(profiler: Profiler, extra: Mapping[str, Any] | None) -> Path | None:
    """Write the settings and arguments. Returns the file, None where it could not be written."""
    text = msgspec.json.format(encoded(config_of(profiler, extra or {})), indent=2).decode() + "\n"
    folder = _write(profiler, {CONFIG: text})
    return None if folder is None else folder / CONFIG


def save_trace(profiler: Profiler, spans: StepSpans) -> Path | None:
    """Write the Chrome trace of the steps that are kept. Returns the file, None where it could not be written."""
    folder = _write(profiler, {TRACE: spans.chrome_trace(profiler.run_name).decode()})
    return None if folder is None else folder / TRACE


def print_line(text: str) -> None:
    """Print a line, whatever it holds and wherever standard output leads: a closed pipe is no error here."""
    try:
        with degrading(sys.stdout):
            sys.stdout.write(f"rooflight: {visible(text)}\n")
            sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        _log.debug("rooflight: standard output is closed", exc_info=True)


def _write(profiler: Profiler, texts: Mapping[str, str]) -> Path | None:
    try:
        _write_to(profiler.out_dir, texts)
        return profiler.out_dir
    except (OSError, ValueError) as error:
        profiler.problems.error("writing results", error)
    try:
        folder = Path(tempfile.mkdtemp(prefix="rooflight-"))
        _write_to(folder, texts)
    except OSError as error:
        profiler.problems.error("writing results to a temporary folder", error)
        return None
    _log.warning("rooflight: results are in %s, since %s cannot be written", folder, profiler.out_dir)
    return folder


def _write_to(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text)


def _steps_csv(results: Results) -> str:
    """The raw samples: -1 where a count is not known, ``nan`` for a length, and the phase in the last column."""
    phases = (*[DECODE] * len(results.decode), *OTHER_PHASES)
    return results.samples.csv(phase=[phases[number] for number in results.samples.columns()["kv_bin"].tolist()])


def bucket_cost_ns() -> float:
    """Nanoseconds to open and close a bucket on the host's clock: the least of 20 rounds, about 1 ms in all."""
    log = BucketLog(HostStamps(), (Domain.MODEL,), _log.debug, _log.debug)
    bucket = log.bucket(Domain.MODEL, "cost")
    log.begin()

    def round_ns(calls: int = 50) -> float:
        start = perf_counter_ns()
        for _ in range(calls):
            with bucket:
                pass
        return (perf_counter_ns() - start) / calls

    return min(round_ns() for _ in range(20))


def _plain_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
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
