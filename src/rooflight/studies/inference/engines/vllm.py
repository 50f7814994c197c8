"""vLLM (V1): its engine core, by the names of its published source; see the guide for what was and was not run.

``EngineCore.step`` schedules, runs the model, samples, and updates the scheduler from the output; so it is a step.
"""

from __future__ import annotations

from ast import literal_eval
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from rooflight.studies.inference.engines.mapping import (
    Bucket,
    Call,
    Does,
    EngineMapping,
    EngineSteps,
    Reads,
    Role,
    Step,
    bucket_of_phase,
    tell_requests,
)

_RUNNER: Final = "model_executor.driver_worker.worker.model_runner"


def _is_prefill(scheduled: Any, request: str) -> bool:
    """New requests are, those with more tokens than the last one and its draft, and those without an output yet."""
    drafted = scheduled.scheduled_spec_decode_tokens.get(request, ())
    if scheduled.num_scheduled_tokens[request] > 1 + len(drafted):
        return True
    cached = scheduled.scheduled_cached_reqs
    if request not in cached.req_ids:
        return True
    is_context_phase = getattr(cached, "is_context_phase", None)
    return bool(is_context_phase(request)) if is_context_phase is not None else False


def _scheduled(call: Call) -> str:
    prefills = [_is_prefill(call.result, request) for request in call.result.num_scheduled_tokens]
    phase = "mixed" if any(prefills) else "decode"
    if all(prefills):
        phase = "prefill" if prefills else "idle"
    call.notes["phase"] = phase
    return phase


def _kv_lengths(call: Call) -> list[int] | None:
    scheduled = call.result
    lengths = [each.num_computed_tokens for each in scheduled.scheduled_new_reqs]
    return [*lengths, *scheduled.scheduled_cached_reqs.num_computed_tokens] or None


def _sequences(call: Call) -> int | None:
    return len(call.result.num_scheduled_tokens) or None


def _idle(call: Call) -> str | None:
    """A step that found no request at all schedules nothing: it returns no outputs."""
    return None if "phase" in call.notes or (call.result and call.result[0]) else "idle"


def _tokens(call: Call) -> int:
    """Those that are delivered: without what came after a stop."""
    return sum(len(each.new_token_ids) for outputs in call.result.values() for each in outputs.outputs)


def _drafts(call: Call) -> tuple[Any, ...] | None:
    """Per request with a draft: its tokens (of a tree all nodes), and those sampled without the target's own."""
    scheduled, output = call.argument(0, "scheduler_output"), call.argument(1, "model_runner_output")
    proposed, accepted = [], []
    for request, draft in scheduled.scheduled_spec_decode_tokens.items():
        place = output.req_id_to_index.get(request)
        sampled = output.sampled_token_ids[place] if place is not None and output.sampled_token_ids else ()
        if len(sampled) and draft:
            proposed.append(len(draft))
            accepted.append(len(sampled) - 1)
    return (proposed, accepted, _depths(call.owner, proposed)) if proposed else None


def _depths(scheduler: Any, proposed: list[int]) -> list[int] | None:
    """Levels of the drafts, where they are trees; None for chains."""
    speculative = getattr(getattr(scheduler, "vllm_config", None), "speculative_config", None)
    tree = getattr(speculative, "speculative_token_tree", None)
    return [min(_levels(tree), nodes) for nodes in proposed] if isinstance(tree, str) else None


@cache
def _levels(tree: str) -> int:
    """Of a tree in the form of vLLM's setting: the paths of its nodes, as ``"[(0,), (1,), (0, 0)]"``."""
    return max(len(path) for path in literal_eval(tree))


def _arrives(steps: EngineSteps, call: Call) -> None:
    request = call.argument(0, "request")
    steps.profiler.begin_request(request.request_id, request.num_prompt_tokens)


@dataclass(frozen=True, slots=True)
class _Updates(Bucket):
    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        Bucket.leave(self, steps, call, raised=raised)
        for outputs in () if raised else call.result.values():
            for each in outputs.outputs:
                tell_requests(
                    steps, each.request_id, len(each.new_token_ids or ()), done=each.finish_reason is not None
                )


def _aborted(steps: EngineSteps, call: Call) -> None:
    requests = call.argument(0, "request_ids") or ()
    for request in [requests] if isinstance(requests, str) else requests:
        tell_requests(steps, request, 0, done=True)


_METHODS: Final[dict[str, Role]] = {
    "step_fn|step": Step(after=Reads(phase=_idle)),
    "scheduler.schedule": Bucket("schedule", after=Reads(phase=_scheduled, kv_lengths=_kv_lengths, batch=_sequences)),
    "scheduler.get_grammar_bitmask": Bucket("grammar", optional=True),
    "scheduler.add_request": Does(called=_arrives, in_any_thread=True, optional=True),
    "scheduler.finish_requests": Does(returned=_aborted, in_any_thread=True, optional=True),
    "scheduler.update_from_output": _Updates("postproc", before=Reads(drafts=_drafts), after=Reads(tokens=_tokens)),
    "model_executor.execute_model": Bucket(bucket_of_phase),
    "model_executor.sample_tokens": Bucket("sampler", optional=True),
    f"{_RUNNER}._prepare_inputs": Bucket("inputs", optional=True),
    f"{_RUNNER}._sample": Bucket("sampler", optional=True),
    f"{_RUNNER}.propose_draft_token_ids": Bucket("draft", optional=True),
    f"{_RUNNER}._bookkeeping_sync": Bucket("postproc", optional=True),
}
_ABOUT: Final = (
    "vLLM's engine core runs in another process unless VLLM_ENABLE_V1_MULTIPROCESSING=0 is set before vllm is imported"
)


def _mapping(name: str, kind: str, at: str, about: str = _ABOUT) -> EngineMapping:
    return EngineMapping(name=name, methods=_METHODS, classes=(kind,), at=at, about=about)


VLLM_CORE: Final = _mapping("vllm core", "vllm.v1.engine.core.EngineCore", "", "vLLM's EngineCore")
VLLM: Final = _mapping("vllm engine", "vllm.v1.engine.llm_engine.LLMEngine", "engine_core.engine_core")
VLLM_LLM: Final = _mapping("vllm", "vllm.entrypoints.llm.LLM", "llm_engine.engine_core.engine_core")
