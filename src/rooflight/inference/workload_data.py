"""What ``rooflight profile-decode`` ran, and where: the part of ``summary.json`` that names it."""

from __future__ import annotations

from rooflight.records.document import Fields


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
