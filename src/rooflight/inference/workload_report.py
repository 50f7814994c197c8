"""The generation loop of ``rooflight profile-decode`` as facts and notes of a report."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.inference.workload_data import WorkloadData
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell
from rooflight.records.session import BUSY_SHARE


def workload_facts(workload: WorkloadData) -> Iterable[tuple[str, Cell]]:
    """What ran where."""
    yield "model", _model(workload.target, workload.model_class, workload.parameters, workload.dtype)
    if workload.draft is not None:
        yield "draft", _model(workload.draft, None, workload.draft_parameters, f"gamma {workload.gamma}")
    yield (
        "workload",
        f"batch {workload.batch:,}, prompts of {count_of(workload.prompt_tokens, 'token')}, "
        f"{workload.new_tokens:,} new tokens each",
    )
    chosen = choice_of_tokens(workload)
    if chosen:
        yield "tokens", chosen
    yield "machine", machine_of(workload)


def machine_of(workload: WorkloadData) -> str:
    """The machine, its threads, and the libraries."""
    threads = "" if workload.threads is None else f", {count_of(workload.threads, 'thread')}"
    libraries = {"torch": workload.torch, "transformers": workload.transformers}
    return workload.machine + threads + "".join(f", {name} {found}" for name, found in libraries.items() if found)


def choice_of_tokens(workload: WorkloadData) -> str:
    """How tokens are chosen, and the cache that they see; empty where the engine is the user's."""
    if workload.temperature is None:
        return ""
    how = "the most probable" if not workload.temperature else f"drawn at temperature {workload.temperature:g}"
    return f"{how}, seed {workload.seed}, {workload.cache} KV cache"


def workload_notes(workload: WorkloadData) -> Iterable[str]:
    """What a reader of the figures has to know."""
    if workload.others_share is not None and workload.others_share >= BUSY_SHARE:
        yield (
            f"Other programs took at least {percent(workload.others_share)} of the CPU meanwhile: the times may be "
            "theirs. Measure again on an idle machine."
        )
    yield from workload.notes
    if workload.traced_steps:
        steps = "step is" if workload.traced_steps == 1 else f"{workload.traced_steps} steps are"
        yield f"The last {steps} in trace.json, for https://ui.perfetto.dev or chrome://tracing."


def _model(name: str, model_class: str | None, parameters: int | None, more: str | None) -> str:
    size = None if parameters is None else f"{Quantity(parameters, '')} parameters".replace("  ", " ")
    return ", ".join(part for part in (name, model_class, size, more) if part)
