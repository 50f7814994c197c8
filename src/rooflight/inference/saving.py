"""Writing the results: files that appear whole, in the profiler's folder or, where that fails, in a temporary one."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rooflight.inference.bounds_summary import with_bounds
from rooflight.inference.config import ProfilerConfig
from rooflight.inference.meter import HOST_CLOCK
from rooflight.inference.own_cost import bucket_cost_ns
from rooflight.inference.rank_files import merge_once_rank_0_saved, rank_folder
from rooflight.inference.report import report_of
from rooflight.inference.reservoir import Reservoir
from rooflight.inference.results import (
    batch_stats,
    bucket_fields,
    decode_ns,
    length_stats,
    phase_stats,
    profiler_cost,
    step_stats,
    wall_stats,
)
from rooflight.inference.serving_results import DELIVERIES_FILE, REQUESTS_FILE, serving_data
from rooflight.inference.steps import COLUMNS
from rooflight.inference.summary import (
    REPORT,
    STEPS,
    SUMMARY,
    ConfigData,
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
    results = profiler.results
    columns = results.samples.columns()
    fields = bucket_fields(results.sums)
    bounded = with_bounds(profiler, fields.pop("buckets"), results.split_data())
    for note in bounded.notes:
        profiler.problems.note(note)
    clocks = results.clocks
    everything = results.cells.totals()
    return SummaryDocument(
        meta=SummaryMeta(
            rank=profiler.rank,
            world=profiler.world,
            config=_config_data(profiler.cfg),
            run_name=profiler.run_name,
            output_dir=str(profiler.out_dir),
            created_at=profiler.created_at,
            saved_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            started_at=results.runs[0].meta.started_at if results.runs else None,
            clock=next(iter(clocks)) if len(clocks) == 1 else None,
        ),
        workload=profiler.workload,
        stats=step_stats(results.totals, decode_ns(results.bins, columns)),
        other_phases=phase_stats(results.bins, results.cells, columns),
        wall=wall_stats(everything, results.host_ns, results.host_gap_ns, results.gap_ns, results.runs_with_steps),
        runs=results.runs_data(),
        runs_left_out=results.runs_left_out,
        runs_aggregate=results.aggregate(),
        decode_length_buckets=length_stats(results.bins, results.cells, columns),
        batch_sizes=batch_stats(results.bins, results.cells, columns),
        speculative=results.speculation.data(),
        serving=serving_data(profiler.requests),
        bucket_splits=bounded.splits,
        buckets=bounded.buckets,
        bounds=bounded.data,
        memory=results.memory(),
        kv_cache=results.kv_cache.data(),
        warmup_runs_skipped=results.warmup_runs,
        samples=SampleData(
            kept=results.samples.kept,
            steps=results.samples.steps,
            exact=results.samples.kept == results.samples.steps,
            file=STEPS,
        ),
        profiler_cost=profiler_cost(results, bucket_cost_ns(), on_host=clocks <= {HOST_CLOCK}),
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
        STEPS: _steps_csv(profiler),
    }
    requests = profiler.requests
    with requests.lock:
        if requests.runs:
            texts |= {REQUESTS_FILE: _csv(requests.ended), DELIVERIES_FILE: _csv(requests.gaps)}
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
        profiler_cfg=_config_data(profiler.cfg),
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


def _steps_csv(profiler: Profiler) -> str:
    """The raw samples: -1 where a count is not known, ``nan`` for a length, and the phase in the last column."""
    samples, decode_bins = profiler.results.samples, len(profiler.results.bins.keys)
    columns = samples.columns()
    phases = [
        DECODE if number < decode_bins else OTHER_PHASES[number - decode_bins] for number in columns["kv_bin"].tolist()
    ]
    out = StringIO()
    out.write(",".join(chain(COLUMNS, ("kv_length", "phase"))) + "\n")
    counts = (column.tolist() for column in columns.values())
    for row in zip(*counts, samples.lengths().tolist(), phases, strict=True):
        out.write(",".join(map(str, row)) + "\n")
    return out.getvalue()


def _csv(rows: Reservoir) -> str:
    """Raw samples of whole numbers, -1 where one is not known."""
    columns = [column.tolist() for column in rows.columns().values()]
    lines = (",".join(map(str, row)) for row in zip(*columns, strict=True))
    return "\n".join((",".join(rows.names), *lines, ""))


def _config_data(config: ProfilerConfig) -> ConfigData:
    return ConfigData(**asdict(config))


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
