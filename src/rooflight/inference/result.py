"""What ``summary.json`` and ``config.json`` hold. Times are in ms, as the names say; null is what is not known."""

from __future__ import annotations

from typing import Any, Final

from rooflight.inference.config import ProfilerConfig
from rooflight.inference.sections import (
    BoundsData,
    BucketBound,
    GraphData,
    KvCacheData,
    MemoryData,
    RanksData,
    ServingData,
    SpeculativeData,
    StepBound,
    WorkloadData,
)
from rooflight.records.document import Document, Fields

SUMMARY: Final = "summary.json"
REPORT: Final = "report.md"
STEPS: Final = "steps.csv"
OTHERS: Final = "others"  # the sum of all buckets whose names are not canonical

PERCENTILES: Final = "linear interpolation between order statistics (Hyndman and Fan's type 7)"


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


class BucketTime(Fields, frozen=True, kw_only=True):
    """A bucket, ms per step: ``exclusive_ms`` without buckets inside it, ``inclusive_ms`` with them. Shares of a
    domain's rows, that of the unattributed time among them, sum to 1. ``bound_ms``, ``limiter`` and ``efficiency`` are
    those of ``BucketBound``, null in runs, and where steps of a batch and KV bin have none (``BoundsData``).
    """

    name: str
    exclusive_ms: float
    inclusive_ms: float
    share: float | None
    calls_per_step: float | None
    bound_ms: float | None = None
    limiter: str | None = None
    efficiency: float | None = None


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
    the decode steps whose batch is known. ``steps_raised`` were left by an exception: they are in the
    statistics. ``steps_lost`` could not be read: they are not. A ``baseline`` is in no statistics but those of
    speed-ups.
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
    among all. ``other_phases`` has the steps that are no decode steps, by phase (``prefill``, ``mixed``):
    they are not in ``stats``, buckets and KV bins, but in ``wall``. ``memory`` is null where the system
    does not count it, ``kv_cache`` where no step told it.
    """

    memory: MemoryData | None
    kv_cache: KvCacheData | None

    meta: RunMeta
    stats: StepStats
    wall: WallStats
    other_phases: dict[str, StepStats]
    decode_length_buckets: LengthStats
    speculative: SpeculativeData | None = None


class Spread(Fields, frozen=True, kw_only=True):
    """Mean and sample standard deviation (n - 1) of one value a run; the deviation of one run is null."""

    mean: float | None
    std: float | None
    n_runs: int


class RunsAggregate(Fields, frozen=True, kw_only=True):
    """Across runs, each run counting the same."""

    latency_ms: Spread
    throughput_tok_s: Spread
    tokens_total: Spread
    buckets_model_avg_ms: dict[str, Spread]
    buckets_engine_avg_ms: dict[str, Spread]


class ProfilerCost(Fields, frozen=True, kw_only=True):
    """What the profiler itself cost: ``bucket_ns`` to open and close a bucket, on the host, measured when the results
    were written; ``in_step_ms`` for those of a step, which are in its time; ``between_steps_ms`` after it, in the gaps.
    ``in_step_share`` is of the steps' time, null where a device's clock measured them.
    """

    bucket_ns: float
    buckets_per_step: float | None
    in_step_ms: float | None
    in_step_share: float | None
    between_steps_ms: float | None


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
    profiler_cost: ProfilerCost
    problems: dict[str, int]
    graphs: tuple[GraphData, ...] = ()
    ranks: RanksData | None = None
