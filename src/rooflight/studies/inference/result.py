"""What ``summary.json`` and ``config.json`` hold. Times are in ms, as the names say; null is what is not known."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rooflight.records.document import Document, Fields
from rooflight.studies.inference.config import ProfilerConfig
from rooflight.studies.inference.serving import ServingData
from rooflight.studies.inference.speculation import SpeculativeData
from rooflight.studies.inference.sums import BucketTime

SUMMARY: Final = "summary.json"
REPORT: Final = "report.md"
STEPS: Final = "steps.csv"

PERCENTILES: Final = "linear interpolation between order statistics"  # type 7 of Hyndman and Fan, as NumPy does


class BucketBound(Fields, frozen=True, kw_only=True):
    """A bucket, ms per step, by its own ops alone: ``limiter`` is what limits most of their op bound, ``efficiency`` op
    bound / exclusive time. More than 1 is a contradiction, or a cache's doing.
    """

    name: str
    op_bound_ms: float
    limiter: str
    efficiency: float | None


class StepBound(Fields, frozen=True, kw_only=True):
    """The bounds of a domain's buckets and of ``(unattributed)``, summed: the op bound of a step. ``kv_length`` is that
    of the step that was recorded, at most the mean of those measured.
    """

    kv_length: float | None
    op_bound_ms: float
    limiter: str
    efficiency: float | None


class WholeStep(Fields, frozen=True, kw_only=True):
    """The decode steps of a batch size and KV bin as wholes, beside the bounds of a step recorded at ``kv_length``. In
    the mean over all, ``batch``, ``kv_bin`` and ``kv_length`` are null.

    ``program_bound_ms`` ≤ ``fused_bound_ms`` ≤ ``op_bound_ms`` are those of ``rooflight analyze``.
    ``compulsory_bytes`` are weights and KV cache read once, results written once. ``compulsory_bound_ms`` is the
    program bound, of which older files have less; ``limiter`` is what limits most of the op bound,
    ``efficiency`` op bound / mean. It is null where the times are not those of the bounds'
    device.
    """

    batch: int | None
    kv_bin: str | None
    kv_length: float | None
    steps: int
    mean_ms: float
    program_bound_ms: float
    fused_bound_ms: float
    op_bound_ms: float
    compulsory_bound_ms: float
    compulsory_bytes: float
    limiter: str
    efficiency: float | None


class RecordedStepData(Fields, frozen=True, kw_only=True):
    """A step that was recorded: the engine's (``whole``), or the call of a model alone. ``ops_without_cost`` are not in
    its bound, so that it is below what it could be. ``kv_cache_bytes`` is the cache before the step, as the model made
    or the engine gave it.
    """

    batch: int | None
    kv_length: float | None
    whole: bool
    ops: int
    ops_without_cost: int
    op_bound_ms: float
    kv_cache_bytes: int | None


class BoundsData(Fields, frozen=True, kw_only=True):
    """What steps were bounded by. ``steps`` has them by batch size and KV bin, ``step`` their mean, null where one has
    no bound. ``none_because`` has by domain why (part of) it has no bounds.
    """

    device: str | None
    roofs: str | None
    recorded: tuple[RecordedStepData, ...]
    steps: tuple[WholeStep, ...]
    step: WholeStep | None
    none_because: dict[str, str]


class GraphKind(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """CUDA graphs that hold the same: their number, replays in measured steps, and how often each bucket of the model
    was opened when one was captured; null for graphs that were captured before the model was attached. Those that are
    neither replayed nor hold a bucket are of others, as of a calibration.
    """

    graphs: int
    replays: int
    buckets: dict[str, int] | None


class RankSpread(Fields, frozen=True, kw_only=True):
    """One value by rank, ms per step: mean over ``ranks`` ranks, the least and the most with their ranks. ``spread_ms``
    is the most less the least, ``spread_share`` its share of the mean; null if that is 0.
    """

    ranks: int
    mean_ms: float
    least_ms: float
    least_rank: int
    most_ms: float
    most_rank: int
    spread_ms: float
    spread_share: float | None


class RankRow(Fields, frozen=True, kw_only=True):
    """What one rank measured; the rest is in its own ``file``. ``communication_ms`` is the exclusive time of its
    ``comm.`` buckets of the model, null if the model was not profiled. Acceptance and speed-up are those of
    ``speculative``, the latencies medians of ``serving``, both of that rank's own steps and requests.
    """

    rank: int
    file: str
    steps: int
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None
    throughput_tok_s: float | None
    communication_ms: float | None
    acceptance_rate: float | None
    mean_accepted_length: float | None
    speedup_measured: float | None
    requests: int
    ttft_p50_ms: float | None
    tpot_p50_ms: float | None
    steps_lost: int
    problems: int


class MissingRank(Fields, frozen=True, kw_only=True):
    """A rank whose results are not here, and why."""

    rank: int
    reason: str


class RanksData(Fields, frozen=True, kw_only=True):
    """All ranks of a program. ``latency`` is of the mean step of each; null where no rank has steps."""

    world: int
    ranks: tuple[RankRow, ...]
    missing: tuple[MissingRank, ...]
    latency: RankSpread | None
    communication: RankSpread | None
    buckets_model: dict[str, RankSpread]
    buckets_engine: dict[str, RankSpread]


class WorkloadData(Fields, frozen=True, kw_only=True):
    """A generation loop and the machine it ran on. ``gamma`` is null without a draft, ``assumed_acceptance`` where the
    draft's tokens were tested by rejection sampling. ``others_share`` is the least share of the CPU that other programs
    took during the measured runs; ``traced_steps`` are in ``trace.json``, the last ones.
    """

    target: str
    model_class: str | None
    parameters: int | None
    draft: str | None
    draft_parameters: int | None
    dtype: str | None
    batch: int
    prompt_tokens: int
    new_tokens: int
    gamma: int | None
    assumed_acceptance: float | None
    temperature: float | None
    cache: str | None
    seed: int | None
    machine: str
    threads: int | None
    torch: str | None
    transformers: str | None
    others_share: float | None
    traced_steps: int
    notes: tuple[str, ...]


class MemoryData(Fields, frozen=True, kw_only=True):
    """Memory of the process, on the ``host`` (resident) or the ``device`` (torch's tensors), when runs began and ended.
    ``peak_bytes`` is the process's until then; ``peak_in_run``: it rose while they ran, else it is older.
    """

    place: str
    before_bytes: int
    after_bytes: int
    peak_bytes: int
    peak_in_run: bool


class KvCacheData(Fields, frozen=True, kw_only=True):
    """Bytes of the KV cache over the steps that gave them (``set_step_kv_cache``): their number, mean, most, last."""

    steps: int
    mean_bytes: float
    max_bytes: int
    last_bytes: int


class ConfigDocument(Document, frozen=True, kw_only=True, tag="rooflight.inference_config/1"):
    """``config.json``: the profiler's settings, and the arguments it was made of, as JSON can have them."""

    profiler_cfg: ProfilerConfig
    runner_args: dict[str, Any]
    extra: dict[str, Any]
    rank: int
    world: int


class SummaryMeta(Fields, frozen=True, kw_only=True):
    """What was measured where. The profiler was made at ``created_at``; ``started_at`` is null before the first
    measured run; ``clock`` is ``host`` or ``device events``, null if there was none or several.
    """

    rank: int
    world: int
    config: ProfilerConfig
    run_name: str
    output_dir: str
    created_at: str
    saved_at: str
    started_at: str | None
    clock: str | None
    percentiles: str = PERCENTILES


class StepStats(Fields, frozen=True, kw_only=True):
    """Latencies and throughput of steps. Throughput is in the steps, without what is between them, and over those whose
    tokens are known: ``steps_without_tokens`` are not in it.
    """

    steps: int
    mean_ms: float | None
    min_ms: float | None
    max_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    throughput_tok_s: float | None
    tokens_total: int | None
    time_total_ms: float
    steps_without_tokens: int


class WallStats(Fields, frozen=True, kw_only=True):
    """Runs by the host's clock, from the begin of the first step to the end of the last: steps, and gaps between them.
    ``step_gaps_ms`` are the gaps on the clock of the steps.
    """

    wall_total_ms: float
    host_steps_ms: float
    gaps_total_ms: float
    gap_mean_ms: float | None
    step_gaps_ms: float
    throughput_tok_s: float | None


class Buckets(Fields, frozen=True, kw_only=True):
    """The rows of each domain, unknown names one by one, ``(unattributed)`` last; none where it was not profiled."""

    model: tuple[BucketTime, ...]
    engine: tuple[BucketTime, ...]


class BucketSplit(Fields, frozen=True, kw_only=True):
    """The buckets of the steps of one batch size and KV-length bin, exclusive ms per step by name. ``kv_bin`` is
    ``prefill`` or ``mixed`` for the steps of that phase, of any length. ``bounds`` are
    of all buckets that a recorded step has, ``(unattributed)`` among them; without any, ``no_bound`` is the reason.
    """

    domain: str
    batch: int | None
    kv_bin: str
    steps: int
    mean_ms: float
    buckets_avg_ms: dict[str, float]
    unattributed_ms: float
    kv_length_mean: float | None = None
    step_bound: StepBound | None = None
    bounds: tuple[BucketBound, ...] = ()
    no_bound: str | None = None


class BatchStats(Fields, frozen=True, kw_only=True):
    """The decode steps of one batch size; null: it is not known."""

    batch: int | None
    stats: StepStats


class LengthBin(Fields, frozen=True, kw_only=True):
    """A KV-length bin: from the first length on, below the second, which is null for an open end."""

    key: str
    range: tuple[int | None, int | None]


class LengthStats(Fields, frozen=True, kw_only=True):
    """Steps by KV-length bin, by the bins' keys. ``steps_without_length`` are in ``unbinned``."""

    bins: tuple[LengthBin, ...]
    stats: dict[str, StepStats]
    steps_without_length: int


class RunMeta(Fields, frozen=True, kw_only=True):
    """A measured run; warm-up runs are numbered too. ``bsz`` is what the run began with, ``batch_mean`` the mean over
    the decode steps whose batch is known. ``steps_raised`` were left by an exception: they are in the statistics.
    ``steps_lost`` could not be read: they are not. A ``baseline`` is in no statistics but those of speed-ups.
    """

    number: int
    label: str
    bsz: int | None
    batch_mean: float | None
    baseline: bool
    started_at: str
    clock: str
    steps_raised: int
    steps_lost: int


class BucketFields(Fields, frozen=True, kw_only=True):
    """Buckets: exclusive ms per step in canonical order; ``others`` is the sum of all names that are not canonical."""

    buckets_model_avg_ms: dict[str, float]
    buckets_engine_avg_ms: dict[str, float]
    unattributed_model_ms: float | None
    unattributed_engine_ms: float | None
    others_detail: dict[str, dict[str, float]]
    buckets: Buckets


class RunData(BucketFields, frozen=True, kw_only=True):
    """One measured run. ``speculative`` is null for a run without drafts; its speed-ups are relative to the plain runs
    among all. ``other_phases`` has the steps that are no decode steps, by phase (``prefill``, ``mixed``): they are not
    in ``stats``, buckets and KV bins, but in ``wall``. ``memory`` is null where the system does not count it,
    ``kv_cache`` where no step gave it.
    """

    memory: MemoryData | None
    kv_cache: KvCacheData | None
    meta: RunMeta
    stats: StepStats
    wall: WallStats
    other_phases: dict[str, StepStats]
    decode_length_buckets: LengthStats
    speculative: SpeculativeData | None = None


class RunSpread(Fields, frozen=True, kw_only=True):
    """Mean and sample standard deviation (n - 1) of one value a run; the deviation of one run is null."""

    mean: float | None
    std: float | None
    n_runs: int


class RunsAggregate(Fields, frozen=True, kw_only=True):
    """Across runs, each run counting the same."""

    latency_ms: RunSpread
    throughput_tok_s: RunSpread
    tokens_total: RunSpread
    buckets_model_avg_ms: dict[str, RunSpread]
    buckets_engine_avg_ms: dict[str, RunSpread]


class SampleData(Fields, frozen=True, kw_only=True):
    """Raw samples: those kept, of how many steps. Percentiles are of all steps if ``exact``, else of the sample."""

    kept: int
    steps: int
    exact: bool
    file: str


class SummaryDocument(BucketFields, Document, frozen=True, kw_only=True, tag="rooflight.inference/1"):
    """``summary.json``: all measured runs, of which ``runs`` has the first 1,024 one by one; ``runs_left_out`` are in
    all else but ``runs_aggregate``. ``other_phases`` as in ``RunData``. ``problems`` says what could not be measured as
    meant, with counts. ``workload`` is what ``rooflight profile-decode`` ran; null for a program's own profiler.
    ``ranks`` is in rank 0's where every rank of several collects; the rest is of that rank alone.
    """

    meta: SummaryMeta
    workload: WorkloadData | None
    stats: StepStats
    wall: WallStats
    other_phases: dict[str, StepStats]
    runs: tuple[RunData, ...]
    runs_left_out: int
    runs_aggregate: RunsAggregate
    decode_length_buckets: LengthStats
    batch_sizes: tuple[BatchStats, ...]
    bucket_splits: tuple[BucketSplit, ...]
    speculative: SpeculativeData
    serving: ServingData
    warmup_runs_skipped: int
    bounds: BoundsData
    memory: MemoryData | None
    kv_cache: KvCacheData | None
    samples: SampleData
    problems: dict[str, int]
    graphs: tuple[GraphKind, ...] = ()
    ranks: RanksData | None = None
