"""Continuous batching of transformers: its manager, whose own thread runs the steps, and the parts that it makes.

A pass of the manager's loop schedules requests, runs the model once over all of them, and updates them: a step, of
prompts (prefill), of sequences that have theirs in the cache (decode), or of both (mixed).
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Final

from rooflight.inference.engine_mapping import (
    Bucket,
    Call,
    Does,
    EngineMapping,
    Makes,
    Reads,
    Role,
    Step,
    bucket_of_phase,
)

if TYPE_CHECKING:
    from rooflight.inference.engine_steps import EngineSteps

_LABEL: Final = "continuous batching"


def _starts(steps: EngineSteps, call: Call) -> None:
    """``start`` starts the thread: the run begins before it, so that requests that are added next belong to it."""
    if not call.owner.is_running():
        steps.begin_run(None, _LABEL, in_this_thread=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop(Role):
    """The thread's function: the run ends with it."""

    def enter(self, steps: EngineSteps, call: Call) -> None:  # noqa: ARG002
        if not steps.in_run:
            steps.begin_run(None, _LABEL)
        steps.thread = get_ident()

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:  # noqa: ARG002
        steps.end_step(raised=raised)
        steps.end_run()


def _arrives(steps: EngineSteps, call: Call) -> None:
    """A request is put into the queue, from any thread."""
    request = call.argument(0, "item")
    steps.profiler.begin_request(request.request_id, len(request.initial_tokens))


def _delivered(steps: EngineSteps, call: Call) -> None:
    """Tokens of a batch are on the host: one for each request whose prompt is done."""
    tokens = 0
    for each in call.result[0]:
        if each.has_new_token and each.state.status.name not in ("FINISHED", "PENDING"):
            tokens += 1
            steps.profiler.request_tokens(each.state.request_id)
    if steps.measures:
        steps.profiler.set_step_tokens(tokens)


def _ended(steps: EngineSteps, call: Call) -> None:
    """A request is done, has failed, or was cancelled."""
    done = [call.argument(0, "request_id")] if call.result is None else [each.request_id for each in call.result]
    for request in done:
        steps.profiler.end_request(request)


def _phase(call: Call) -> str:
    """By the requests of the batch: whether their prompt is in the cache."""
    states = [each.state for each in call.argument(0, "requests_in_batch")]
    decoding = [state.position_offset >= len(state.initial_tokens) for state in states]
    phase = call.notes["phase"] = "decode" if all(decoding) else "mixed" if any(decoding) else "prefill"
    return phase


def _kv_lengths(call: Call) -> list[int]:
    return [each.state.position_offset for each in call.argument(0, "requests_in_batch")]


def _sequences(call: Call) -> int:
    return len(call.argument(0, "requests_in_batch"))


def _cached(call: Call) -> int | None:
    """Bytes of the paged cache that requests hold."""
    cache = call.owner.cache
    if not hasattr(cache, "compute_free_capacity"):
        return None
    return int(cache.num_sectors * cache.bytes_per_sector - cache.compute_free_capacity(relative=False))


def _idle(call: Call) -> str | None:
    return None if call.result else "idle"


_PROCESSOR: Final = EngineMapping(
    name="transformers batch processor",
    methods={
        "prepare_next_batch": Bucket("schedule", after=Reads(phase=_idle, kv_cache=_cached)),
        "inputs_and_outputs.prepare_batch_tensors": Bucket(
            "inputs", before=Reads(phase=_phase, kv_lengths=_kv_lengths, tokens=lambda _call: 0, batch=_sequences)
        ),
        "model_runner.compute_batch": Bucket(bucket_of_phase),
        "model_runner._sample": Bucket("sampler", optional=True),
        "inputs_and_outputs.retrieve_device_outputs": Bucket("wait", optional=True),
        "update_batch": Bucket("postproc"),
        "inputs_and_outputs.prepare_batch_update": Does(returned=_delivered),
        "offloading_manager.offload_requests": Bucket("kv.swap", optional=True),
        "offloading_manager.restore_scheduled_requests": Bucket("kv.swap", optional=True),
        "scheduler.finish_request": Does(returned=_ended, optional=True),
        "scheduler.clear_cancelled_requests": Does(returned=_ended, optional=True),
    },
)

CONTINUOUS_BATCHING: Final = EngineMapping(
    name="transformers continuous batching",
    methods={
        "start": Does(called=_starts),
        "_run_generation_loop": _Loop(),
        "_generation_loop_body": Step(),
        "_create_batch_processor": Makes(_PROCESSOR, now="batch_processor"),
        "input_queue.put": Does(called=_arrives, in_any_thread=True),
    },
    classes=("transformers.generation.continuous_batching.continuous_api.ContinuousBatchingManager",),
    about="transformers' ContinuousBatchingManager",
)
