"""The results of several ranks side by side: the section ``ranks`` of ``summary.json``."""

from __future__ import annotations

from rooflight.records.document import Fields


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
