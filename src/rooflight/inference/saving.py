"""Writing the results: files that appear whole, in the profiler's folder or, where that fails, in a temporary one."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rooflight.capture.bucket_log import BucketLog
from rooflight.capture.stamps import HostStamps
from rooflight.inference.bounds import with_bounds
from rooflight.inference.config import Domain
from rooflight.inference.merged_ranks import merge_once_rank_0_saved, rank_folder
from rooflight.inference.meter import HOST_CLOCK
from rooflight.inference.report import report_of
from rooflight.inference.results import Results
from rooflight.inference.serving import DELIVERIES_FILE, REQUESTS_FILE, serving_data
from rooflight.inference.summary import (
    REPORT,
    STEPS,
    SUMMARY,
    ConfigDocument,
    SampleData,
    SummaryDocument,
    SummaryMeta,
)
from rooflight.inference.told import DECODE, OTHER_PHASES
from rooflight.records.document import encoded
from rooflight.records.files import write_whole
from rooflight.records.visible import visible
from rooflight.reporting.encoding import degrading
from rooflight.reporting.renderers import find

if TYPE_CHECKING:
    from rooflight.inference.profiler import Profiler
    from rooflight.inference.step_spans import StepSpans

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
