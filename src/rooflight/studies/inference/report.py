"""The report of all measured runs: ``report.md``, and ``summary.json`` as its data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from rooflight.records.measurement import BUSY_SHARE
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Axis, Cell, Line, Mark, Report, Series, Table
from rooflight.roofline.time_by_place import UNATTRIBUTED
from rooflight.studies.inference.result import REPORT, BoundsData, RanksData, SummaryDocument, WholeStep, WorkloadData
from rooflight.studies.inference.serving import ServingData
from rooflight.studies.inference.speculation import SpeculativeData
from rooflight.studies.inference.tables import SHOWN, tables_of

_FIRST_FACTS: Final = (
    "model",
    "draft",
    "workload",
    "machine",
    "slowest rank",
    "wall time",
    "speculative decoding",
    "requests",
)
_FIRST_ROWS: Final = 9
_DRAWN: Final = 10
_FIRST_NOTES: Final = 5


def report_of(summary: SummaryDocument) -> Report:
    """The report of a summary; its ``brief`` fits a terminal's first screen."""
    whole = Report(
        title=f"Decode steps: {summary.meta.run_name}",
        data=summary,
        facts=tuple(_facts(summary)),
        tables=tuple(tables_of(summary)),
        series=tuple(_series(summary)),
        notes=tuple(_notes(summary)),
        conclusion=_conclusion(summary),
    )
    return replace(whole, brief=_brief(whole, summary))


def _brief(whole: Report, summary: SummaryDocument) -> Report:
    """Some facts, and where the time goes: the longest buckets of the model, and of an engine that drafts its own."""
    drafts, model = bool(summary.speculative.rounds), len(summary.buckets.model) > 1
    wanted = {"engine_buckets": 3 if model else _FIRST_ROWS} if drafts or not model else {}
    wanted |= {"model_buckets": _FIRST_ROWS - sum(wanted.values())} if model else {}
    note = f"Times without the buckets inside. More tables: --all, or {summary.meta.output_dir}/{REPORT}."
    found = ((whole.table(name), top) for name, top in wanted.items())
    tables = [replace(table, rows=_longest(table), top=top, see="--all", note="") for table, top in found if table]
    tables[-1:] = [replace(table, note=note) for table in tables[-1:]]
    left_out = len(whole.notes) - _FIRST_NOTES
    notes = (*whole.notes[:_FIRST_NOTES], *((f"{count_of(left_out, 'more note')}: --all.",) if left_out > 0 else ()))
    facts = tuple(fact for fact in whole.facts if fact[0] in _FIRST_FACTS)
    return replace(whole, facts=facts, tables=tuple(tables), series=(), notes=notes)


def _longest(table: Table) -> tuple[tuple[Cell, ...], ...]:
    average = table.values("avg")
    order = sorted(range(len(average)), key=lambda row: -(average[row] or 0.0))  # type: ignore[operator]
    return tuple(table.rows[row] for row in order)


Facts = Iterable[tuple[str, Cell]]


def _facts(summary: SummaryDocument) -> Facts:
    meta, config, samples = summary.meta, summary.meta.config, summary.samples
    if summary.workload is not None:
        yield from _workload_facts(summary.workload)
    yield "output folder", meta.output_dir
    yield "rank", f"{meta.rank} of {meta.world}"
    if summary.ranks is not None:
        yield from _rank_facts(summary.ranks)
    yield "started", meta.started_at
    yield (
        "runs",
        f"{len(summary.runs) + summary.runs_left_out:,} measured of {config.num_total_runs} planned, "
        f"{count_of(summary.warmup_runs_skipped, 'warm-up run')} skipped",
    )
    yield (
        "config",
        f"model_profiling={config.model_profiling} engine_profiling={config.engine_profiling} "
        f"strict_sync={config.strict_sync} dist_barrier={config.dist_barrier} "
        f"kv_len_reduce={config.kv_len_reduce} kv_bins={config.kv_bins}",
    )
    yield "clock of steps", meta.clock
    if summary.bounds.recorded:
        yield from _bound_facts(summary.bounds)
    yield from _memory_facts(summary)
    if summary.stats.steps or summary.other_phases:
        wall = summary.wall
        share = wall.gaps_total_ms / wall.wall_total_ms if wall.wall_total_ms else 0.0
        yield (
            "wall time",
            f"{_ms(wall.wall_total_ms)}{_speed(wall.throughput_tok_s)}; "
            f"between steps {_ms(wall.gaps_total_ms)}, {percent(share)}",
        )
    yield from _speculation_facts(summary.speculative)
    yield from _serving_facts(summary.serving)
    of_what = "all steps" if samples.exact else f"{samples.kept:,} steps chosen at random of {samples.steps:,}"
    yield "percentiles", f"of {of_what}, by {meta.percentiles}"


def _ms(value: float | None) -> Quantity:
    return Quantity((value or 0.0) / 1e3, "s")


def _speed(tok_s: float | None) -> str:
    return "" if tok_s is None else f", {tok_s:,.1f} tok/s"


def _workload_facts(workload: WorkloadData) -> Facts:
    yield "model", _model(workload.target, workload.model_class, workload.parameters, workload.dtype)
    if workload.draft is not None:
        yield "draft", _model(workload.draft, None, workload.draft_parameters, f"gamma {workload.gamma}")
    yield (
        "workload",
        f"batch {workload.batch:,}, prompts of {count_of(workload.prompt_tokens, 'token')}, "
        f"{workload.new_tokens:,} new tokens each",
    )
    if workload.temperature is not None:  # else the engine is the user's
        drawn = f"drawn at temperature {workload.temperature:g}" if workload.temperature else "the most probable"
        yield "tokens", f"{drawn}, seed {workload.seed}, {workload.cache} KV cache"
    threads = "" if workload.threads is None else f", {count_of(workload.threads, 'thread')}"
    libraries = {"torch": workload.torch, "transformers": workload.transformers}
    versions = "".join(f", {name} {found}" for name, found in libraries.items() if found)
    yield "machine", workload.machine + threads + versions
    if workload.traced_steps:
        steps = count_of(workload.traced_steps, "step")
        yield "trace.json", f"the last {steps}, for https://ui.perfetto.dev or chrome://tracing"


def _model(name: str, model_class: str | None, parameters: int | None, more: str | None) -> str:
    size = None if parameters is None else f"{Quantity(parameters, '')} parameters".replace("  ", " ")
    return ", ".join(part for part in (name, model_class, size, more) if part)


def _rank_facts(ranks: RanksData) -> Facts:
    yield "ranks", f"{len(ranks.ranks)} of {ranks.world} merged"
    latency, waits = ranks.latency, ranks.communication
    if latency is not None and latency.ranks > 1:
        share = "" if latency.spread_share is None else f", {percent(latency.spread_share)}"
        yield (
            "slowest rank",
            f"{latency.most_rank}: {_ms(latency.most_ms)} per step on average, {_ms(latency.spread_ms)} more than rank "
            f"{latency.least_rank}{share}",
        )
    if waits is not None and waits.ranks > 1:
        yield (
            "communication",
            f"{_ms(waits.least_ms)} per step on rank {waits.least_rank} (waits least), {_ms(waits.most_ms)} on rank "
            f"{waits.most_rank} (waits most)",
        )


def _bound_facts(bounds: BoundsData) -> Facts:
    roofs = (bounds.roofs or "").replace(f" on {bounds.device}", "")  # a calibration names its device itself
    yield "bounds", f"{bounds.device} ({roofs}), {count_of(len(bounds.recorded), 'step')} recorded"
    if bounds.step is not None:
        efficiency = bounds.step.efficiency
        share = "" if efficiency is None else f", {percent(efficiency)} efficiency (op bound / mean step)"
        yield "op bound of a step", f"{_ms(bounds.step.op_bound_ms)} ({bounds.step.limiter}){share}"


def _memory_facts(summary: SummaryDocument) -> Facts:
    memory, cache = summary.memory, summary.kv_cache
    if memory is not None:
        kind = "resident" if memory.place == "host" else "in tensors on the device"
        before, after, peak = (
            Quantity(each, "B") for each in (memory.before_bytes, memory.after_bytes, memory.peak_bytes)
        )
        when = "reached in a run" if memory.peak_in_run else "reached before the runs"
        yield "memory", f"{before} {kind} when runs began, {after} when they ended; peak of the process {peak}, {when}"
    if cache is not None:
        mean, most = Quantity(cache.mean_bytes, "B"), Quantity(cache.max_bytes, "B")
        yield "KV cache", f"{mean} on average, at most {most}, of {count_of(cache.steps, 'step')}"


def _speculation_facts(data: SpeculativeData) -> Facts:
    if data.acceptance_rate is not None and data.mean_accepted_length is not None:
        speed = "" if data.speedup_measured is None else f", {data.speedup_measured:.2f}× the speed of plain steps"
        predicted = (
            f" ({data.speedup_predicted:.2f}× predicted)" if speed and data.speedup_predicted is not None else ""
        )
        accepted = f"{percent(data.acceptance_rate)} accepted, {data.mean_accepted_length:.2f} tokens a round"
        yield "speculative decoding", f"{accepted}{speed}{predicted}"


def _serving_facts(data: ServingData) -> Facts:
    if data.requests:
        share = data.goodput.share
        met = "" if share is None else f", {percent(share)} of them within the objectives"
        yield "requests", f"{count_of(data.requests, 'request')} of {count_of(data.tokens, 'token')}{met}"


def _notes(summary: SummaryDocument) -> Iterable[str]:
    stats, speculative, serving = summary.stats, summary.speculative, summary.serving
    if stats.steps_without_tokens and stats.throughput_tok_s is not None:
        yield (
            f"{count_of(stats.steps_without_tokens, 'step has', 'steps have')} no token count: "
            "throughput is over the others."
        )
    if summary.runs_left_out:
        yield (
            f"The first {len(summary.runs):,} runs are shown one by one; {summary.runs_left_out:,} more are in all "
            "other figures but those across runs."
        )
    without = summary.decode_length_buckets.steps_without_length
    if without:
        yield (
            f"{count_of(without, 'step has', 'steps have')} no KV length, since set_step_seq_len() gave none: they are "
            "unbinned, and have no bound."
        )
    if summary.workload is not None:
        yield from _workload_notes(summary.workload)
    for name in ("speedup_measured", "overhead_ms"):
        if speculative.rounds and name in speculative.reasons:
            yield f"speculative.{name} is not known: {speculative.reasons[name]}."
    if serving.unfinished:
        yield f"{count_of(serving.unfinished, 'request')} did not end: in no latency but ITL."
    samples = serving.request_samples
    if serving.requests and not samples.exact:
        yield f"Percentiles of requests are of {samples.kept:,} chosen at random of {samples.seen:,}."
    if summary.bounds.recorded:
        yield from _bound_notes(summary.bounds)
    for each in summary.ranks.missing if summary.ranks else ():
        yield f"Rank {each.rank} is not in these results: {each.reason}."
    for text, count in summary.problems.items():
        yield text if count == 1 else f"{text} ({count:,} times)"


def _workload_notes(workload: WorkloadData) -> Iterable[str]:
    if workload.others_share is not None and workload.others_share >= BUSY_SHARE:
        yield (
            f"Other programs took at least {percent(workload.others_share)} of the CPU: the times may be "
            "theirs. Measure again on an idle machine."
        )
    yield from workload.notes


def _bound_notes(bounds: BoundsData) -> Iterable[str]:
    for domain, reason in bounds.none_because.items():
        yield f"Bounds of {domain} buckets: {reason}."
    without = max(step.ops_without_cost for step in bounds.recorded)
    if without:
        yield (
            f"{count_of(without, 'op')} of a recorded step (of {max(step.ops for step in bounds.recorded):,}) have no "
            "formula: the bounds leave them out."
        )


def _conclusion(summary: SummaryDocument) -> str:
    stats = summary.stats
    if stats.mean_ms is None:
        return _nothing_measured(summary)
    models = len(summary.buckets.model) > 1  # not what holds the model
    rows = summary.buckets.model if models else summary.buckets.engine
    largest = max(
        (row for row in rows if row.name != UNATTRIBUTED and row.share),
        key=lambda row: row.exclusive_ms,
        default=None,
    )
    most = "" if largest is None else f"; the largest bucket is {largest.name} with {percent(largest.share or 0.0)}"
    speed = f"{_speed(stats.throughput_tok_s)} in steps" if stats.throughput_tok_s is not None else ""
    return f"{count_of(stats.steps, 'step')} of {_ms(stats.mean_ms)} on average{speed}{_light(summary.bounds)}{most}."


def _light(bounds: BoundsData) -> str:
    if bounds.step is None or not bounds.step.efficiency or (bounds.step.op_bound_ms or 0.0) < 1e-6:
        return ""  # what does no work has no speed
    times, bound = 1 / bounds.step.efficiency, _ms(bounds.step.op_bound_ms)
    share = percent(bounds.step.efficiency)
    return f", {times:,.{1 if times < 100 else 0}f} times the op bound of {bound} (efficiency {share})"


def _nothing_measured(summary: SummaryDocument) -> str:
    skipped = summary.warmup_runs_skipped
    if skipped and not summary.runs:
        runs = "only run was a warm-up run" if skipped == 1 else f"{skipped:,} runs were warm-up runs"
        return (
            f"No step was measured: the {runs} (warmup_runs={summary.meta.config.warmup_runs}). "
            "Make more runs, or set warmup_runs=0."
        )
    if summary.other_phases:
        phases = " and ".join(count_of(each.steps, f"{phase} step") for phase, each in summary.other_phases.items())
        return f"No decode step was measured, but {phases}."
    return "No step was measured: put each step in step_timing_ctx(), between begin_run() and end_run()."


def _series(summary: SummaryDocument) -> Iterable[Series]:
    yield from _longest_buckets(summary)
    yield from _bounds_over_length(summary.bounds)
    if summary.speculative.rounds:
        yield from _accepted(summary.speculative)


def _longest_buckets(summary: SummaryDocument) -> Iterable[Series]:
    rows = summary.buckets.model if len(summary.buckets.model) > 1 else summary.buckets.engine
    longest = sorted(rows, key=lambda row: -row.exclusive_ms)[:_DRAWN]
    measured, bounds = [row.exclusive_ms for row in longest], [row.op_bound_ms for row in longest]
    if len(longest) > 1 and longest[0].exclusive_ms:
        yield Series(
            id="buckets",
            title="Where the time of a step goes",
            x=Axis(name="bucket"),
            y=Axis(name="time of a step", unit="s"),
            lines=tuple(
                Line(
                    name=name,
                    x=tuple(row.name for row in longest),
                    y=tuple((ms or 0.0) / 1e3 for ms in each),
                    mark=Mark.BARS,
                )
                for name, each in (("measured", measured), ("op bound", bounds))
                if any(each)
            ),
        )


def _accepted(data: SpeculativeData) -> Iterable[Series]:
    lengths = data.rounds_by_accepted[:SHOWN]
    names = tuple(f"{number} accepted" for number in range(len(lengths)))
    yield Series(
        id="accepted_lengths",
        title="Accepted lengths",
        x=Axis(name="draft tokens accepted"),
        y=Axis(name="rounds"),
        lines=(Line(name="rounds", x=names, y=tuple(map(float, lengths)), mark=Mark.BARS),),
    )
    shares = (data.acceptance_by_position or ())[:SHOWN]
    names = tuple(f"position {number}" for number in range(1, len(shares) + 1))
    yield Series(
        id="acceptance_by_position",
        title="Acceptance by position of the draft",
        x=Axis(name="position"),
        y=Axis(name="accepted", unit="%"),
        lines=(Line(name="of rounds that proposed the position", x=names, y=shares, mark=Mark.BARS),),
    )


def _bounds_over_length(bounds: BoundsData) -> Iterable[Series]:
    by_batch: dict[int | None, list[tuple[float, WholeStep]]] = {}
    for each in bounds.steps:
        if each.kv_length is not None:
            by_batch.setdefault(each.batch, []).append((each.kv_length, each))
    several = {size: steps for size, steps in by_batch.items() if len({length for length, _ in steps}) > 1}
    if not several:
        return
    size = max(several, key=lambda size: sum(each.steps for _, each in several[size]))
    chosen = sorted(several[size], key=lambda pair: pair[0])
    x = tuple(length for length, _ in chosen)
    yield Series(
        id="step_bounds",
        title=f"Steps of {'unknown batch' if size is None else f'batch {size:,}'} beside their bounds",
        x=Axis(name="KV length"),
        y=Axis(name="time of a step", unit="s", logarithmic=True),
        lines=(
            Line(name="measured", x=x, y=tuple(each.mean_ms / 1e3 for _, each in chosen)),
            Line(name="op bound", x=x, y=tuple(each.op_bound_ms / 1e3 for _, each in chosen)),
            Line(name="program bound", x=x, y=tuple(each.program_bound_ms / 1e3 for _, each in chosen)),
        ),
        note="Times are means of KV bins; bounds are of a step recorded at the mean KV length of each.",
    )
