"""Sections of ``summary.json``: speculation, serving, bounds, CUDA graphs, ranks, what ran, memory. Times are in ms, as
the names say; null is what is not known.
"""

from __future__ import annotations

from rooflight.records.document import Fields


class BatchSpeculation(Fields, frozen=True, kw_only=True):
    """Speculative and plain steps of one batch size; null where the batch was not given. Times are per step."""

    batch: int | None
    steps: int
    step_ms: float | None
    mean_kv_length: float | None
    throughput_tok_s: float | None
    plain_steps: int
    plain_step_ms: float | None
    plain_mean_kv_length: float | None
    plain_throughput_tok_s: float | None
    speedup_measured: float | None
    speedup_predicted: float | None


class SpeculativeData(Fields, frozen=True, kw_only=True):
    """Speculative decoding in all measured runs. ``reasons`` has, by field, why it is null.

    A round is a draft of one sequence and its verification; ``rounds`` are those that proposed something.
    ``mean_accepted_length`` includes the token that the target adds, ``mean_accepted_draft_tokens`` does not.
    ``acceptance_rate`` is accepted over proposed, ``alpha`` accepted over tested: tokens after the first rejection of a
    round are not tested. Lists by position begin with the first draft token (of a tree: the first level):
    ``acceptance_by_position`` is over all rounds that proposed that position, ``..._if_tested`` over those that
    accepted all before it. ``rounds_by_accepted`` and ``rounds_by_depth`` count rounds by draft tokens accepted and by
    depth of the draft, from 0 on. Times are averages of a speculative step.
    """

    proposed: int | None
    accepted: int | None
    acceptance_rate: float | None
    alpha: float | None
    acceptance_by_position: tuple[float, ...] | None
    acceptance_by_position_if_tested: tuple[float | None, ...] | None
    mean_accepted_length: float | None
    mean_accepted_draft_tokens: float | None
    tokens_per_target_forward: float | None
    steps: int
    rounds: int
    rounds_without_draft: int
    rounds_by_accepted: tuple[int, ...]
    rounds_by_depth: tuple[int, ...]
    step_ms: float | None
    draft_ms: float | None
    verify_ms: float | None
    overhead_ms: float | None
    speedup_measured: float | None
    speedup_predicted: float | None
    speedup_theorem_3_8: float | None
    by_batch: tuple[BatchSpeculation, ...]
    reasons: dict[str, str]


class Latency(Fields, frozen=True, kw_only=True):
    """A latency in ms, of ``n`` requests (ITL: deliveries). The mean is of all, percentiles are of the samples kept."""

    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None
    n: int


class Goodput(Fields, frozen=True, kw_only=True):
    """Requests that met every objective that is given; null if none is."""

    slo_ttft_ms: float | None
    slo_tpot_ms: float | None
    slo_e2e_ms: float | None
    requests_met: int | None
    share: float | None
    requests_per_s: float | None


class ServingStats(Fields, frozen=True, kw_only=True):
    """Requests that ended. ``duration_s``: from the begin of a run's first request to the end of its last, all runs
    summed. ``ttft_ms``: begin to first delivery; ``tpot_ms``: first to last delivery, over tokens but one; ``itl_ms``:
    between two deliveries, which may be of several tokens each (``tokens_per_delivery``); ``e2e_ms``: begin to end.
    """

    requests: int
    tokens: int
    tokens_per_delivery: float | None
    duration_s: float
    requests_per_s: float | None
    output_tok_s: float | None
    ttft_ms: Latency
    tpot_ms: Latency
    itl_ms: Latency
    e2e_ms: Latency
    goodput: Goodput


class RequestSamples(Fields, frozen=True, kw_only=True):
    """Raw samples: those kept, of how many. Percentiles are of all if ``exact``, else of a random choice."""

    kept: int
    seen: int
    exact: bool
    file: str


class ServingData(ServingStats, frozen=True, kw_only=True):
    """All measured runs, and each label where there are several. ``reason`` explains why nothing is known."""

    unfinished: int
    by_label: dict[str, ServingStats]
    request_samples: RequestSamples
    delivery_samples: RequestSamples
    reason: str | None


class BucketBound(Fields, frozen=True, kw_only=True):
    """A bucket, ms per step, by its own ops alone: ``bound_ms`` is their op bound, ``limiter`` what limits most of it,
    ``efficiency`` bound / exclusive time: 1 is the speed of light. More than 1 is a contradiction, or a cache's doing.
    """

    name: str
    bound_ms: float
    limiter: str
    efficiency: float | None


class StepBound(Fields, frozen=True, kw_only=True):
    """The bounds of a domain's buckets and of ``(unattributed)``, summed: the op bound of a step. ``kv_length`` is that
    of the step that was recorded, at most the mean of those measured.
    """

    kv_length: float | None
    bound_ms: float
    limiter: str
    efficiency: float | None


class WholeStep(Fields, frozen=True, kw_only=True):
    """The decode steps of a batch size and KV bin as wholes, beside the bounds of a step recorded at ``kv_length``. In
    the mean over all, ``batch``, ``kv_bin`` and ``kv_length`` are null.

    ``program_bound_ms`` ≤ ``fused_bound_ms`` ≤ ``op_bound_ms`` are those of ``rooflight analyze``.
    ``compulsory_bound_ms`` is the time that ``compulsory_bytes`` (weights and KV cache read once, results written
    once) and all arithmetic need at least; it is above the program bound where a calibration measured a cache that can
    hold the data of each op, but not of all. ``bound_ms`` is the larger of the op bound and that, ``limiter`` what
    limits most of it, ``efficiency`` bound / mean: 1 is the speed of light. It is null where the times are not those of
    the bounds' device.
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
    bound_ms: float
    limiter: str
    efficiency: float | None


class RecordedStepData(Fields, frozen=True, kw_only=True):
    """A step that was recorded: the engine's (``whole``), or the call of a model alone. ``ops_without_cost`` are not in
    its bound, so that it is below what it could be. ``kv_cache_bytes`` is the cache before the step, as the model made
    or the engine told it.
    """

    batch: int | None
    kv_length: float | None
    whole: bool
    ops: int
    ops_without_cost: int
    bound_ms: float
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


class GraphData(Fields, frozen=True, kw_only=True):
    """CUDA graphs that hold the same: their number, replays in measured steps, and how often each bucket of the model
    was opened when one was captured; null for graphs that were captured before the model was attached.
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


class SameSteps(Fields, frozen=True, kw_only=True):
    """Steps that all ranks have, compared one by one: ``spread_mean_ms`` and ``spread_max_ms`` of the slowest rank less
    the fastest; ``slowest`` counts by rank the steps in which it was the slowest.
    """

    steps: int
    spread_mean_ms: float
    spread_max_ms: float
    slowest: dict[str, int]


class RanksData(Fields, frozen=True, kw_only=True):
    """All ranks of a program. ``latency`` is of the mean step of each; null where no rank has steps."""

    world: int
    ranks: tuple[RankRow, ...]
    missing: tuple[MissingRank, ...]
    latency: RankSpread | None
    communication: RankSpread | None
    same_steps: SameSteps | None
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
    """Bytes of the KV cache over the steps that told them (``set_step_kv_cache``): their number, mean, most, last."""

    steps: int
    mean_bytes: float
    max_bytes: int
    last_bytes: int
