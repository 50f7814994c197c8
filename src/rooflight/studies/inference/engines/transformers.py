"""transformers: ``generate`` (greedy search, sampling, assisted generation) and continuous batching.

A call of ``generate`` is a run. Its first step is a prefill step: the pass over the prompt and the choice of the first
token; in assisted generation the first round of draft and verification, in which both models see the prompt. Each step
after it is one pass of the loop: one token for each sequence that is not finished, or one round. Every step ends where
the loop asks whether sequences are unfinished. What a draft model does in ``get_candidates`` is its bucket, even where
the draft is a part of the model itself.

Continuous batching: the manager's own thread runs the steps. A pass of its loop schedules requests, runs the model once
over all of them, and updates them: a step, of prompts (prefill), of sequences that have theirs in the cache (decode),
or of both (mixed).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from threading import get_ident
from typing import Any, Final

from rooflight.studies.inference.engines.mapping import (
    Bucket,
    Call,
    Does,
    EngineMapping,
    EngineSteps,
    Makes,
    Reads,
    Role,
    Run,
    Step,
    bucket_of_phase,
)

_LABEL: Final = "continuous batching"


def _starts(steps: EngineSteps, call: Call) -> None:
    """``start`` starts the thread: the run begins before it, so that requests that are added next belong to it."""
    if not call.owner.is_running():
        steps.begin_run(None, _LABEL, in_this_thread=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop(Role):
    def enter(self, steps: EngineSteps, call: Call) -> None:  # noqa: ARG002
        if not steps.in_run:
            steps.begin_run(None, _LABEL)
        steps.thread = get_ident()

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:  # noqa: ARG002
        steps.end_step(raised=raised)
        steps.end_run()


def _arrives(steps: EngineSteps, call: Call) -> None:
    request = call.argument(0, "item")
    steps.profiler.begin_request(request.request_id, len(request.initial_tokens))


def _delivered(steps: EngineSteps, call: Call) -> None:
    tokens = 0
    for each in call.result[0]:
        if each.has_new_token and each.state.status.name not in ("FINISHED", "PENDING"):
            tokens += 1
            steps.profiler.request_tokens(each.state.request_id)
    if steps.measures:
        steps.facts.set("tokens", tokens)


def _ended(steps: EngineSteps, call: Call) -> None:
    done = [call.argument(0, "request_id")] if call.result is None else [each.request_id for each in call.result]
    for request in done:
        steps.profiler.end_request(request)


def _phase(call: Call) -> str:
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


_GENERATING: Final = "generating"
_DRAFTING: Final = "drafting"
_ASSISTED: Final = "assisted"
_PREFILLED: Final = "prefilled, and no token chosen yet"
_UNFINISHED: Final = "unfinished"
_PROPOSED: Final = "proposed"
_BEAMS: Final = "beams"
_REQUESTS: Final = "requests, one for each sequence"
_DELIVERED: Final = "tokens of each sequence in the open step"
_SAMPLER: Final = "sampler"
_POSTPROC: Final = "postproc"
_AT_ONCE: Final = {"MaxLengthCriteria", "MaxTimeCriteria"}
"""Criteria that stop all sequences at the same step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _InLoop(Does):
    """A method that ``generate`` calls. While a draft is made, it is the draft's, and is not timed."""

    def enter(self, steps: EngineSteps, call: Call) -> None:
        if _GENERATING in steps.state and _DRAFTING not in steps.state:
            Does.enter(self, steps, call)

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        if _GENERATING in steps.state and _DRAFTING not in steps.state:
            Does.leave(self, steps, call, raised=raised)


def _prefill(steps: EngineSteps, call: Call) -> None:
    steps.begin_step()
    steps.set_phase("prefill")
    _set_kv_length(steps, call.argument(2, "model_kwargs"), None)
    steps.state[_PREFILLED] = True
    steps.open("prefill", call)


def _step_ends(steps: EngineSteps, _call: Call) -> None:
    """The loop's test. Its first comes after a prefill that is a step's first half."""
    if _PREFILLED in steps.state:
        del steps.state[_PREFILLED]
    else:
        steps.end_step()
        for request, tokens in zip(steps.state.get(_REQUESTS, ()), steps.state.pop(_DELIVERED, ()), strict=False):
            steps.profiler.request_tokens(request, int(tokens))  # none is no delivery


def _step_begins(steps: EngineSteps, call: Call) -> None:
    if call.result:
        steps.begin_step()


def _inputs_of_step(steps: EngineSteps, call: Call) -> None:
    if call.kwargs.get("is_first_iteration"):
        steps.set_phase("prefill")
    ids, new = call.argument(0, "input_ids"), call.kwargs.get("next_sequence_length")
    if _PREFILLED not in steps.state:
        _set_kv_length(steps, call.kwargs, None if ids is None or new is None else int(ids.shape[1] - new))
    steps.open("inputs", call)


def _forward(steps: EngineSteps, call: Call) -> None:
    decode = "verify" if _ASSISTED in steps.state else "decode"
    steps.open("prefill" if steps.phase == "prefill" else decode, call)


def _forwarded(steps: EngineSteps, _call: Call) -> None:
    if _ASSISTED in steps.state:
        steps.open(_SAMPLER, _SAMPLER)


def _update(steps: EngineSteps, call: Call) -> None:
    """Called after the pass of the model, before a token is chosen; in assisted generation after it."""
    steps.close(_SAMPLER)
    steps.open(_POSTPROC, call)
    tokens: Any = call.kwargs.get("num_new_tokens")
    if _ASSISTED in steps.state and steps.measures and tokens is not None:
        steps.facts.set("tokens", tokens)
        steps.facts.set_drafts(steps.state[_PROPOSED], tokens - 1)
        steps.state[_DELIVERED] = [tokens]


def _updated(steps: EngineSteps, _call: Call) -> None:
    if _ASSISTED not in steps.state:
        steps.open(_SAMPLER, _SAMPLER)


def _criteria_made(steps: EngineSteps, call: Call) -> None:
    kind: Any = type(call.result)
    watched = _watched_class(kind)(call.result)
    watched.steps = steps
    call.result = watched


def _drafter_made(steps: EngineSteps, call: Call) -> None:
    steps.state[_ASSISTED] = True
    steps.attach_part(call.result, _GENERATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft(Role):
    def enter(self, steps: EngineSteps, call: Call) -> None:
        steps.state[_DRAFTING] = True
        steps.open("draft", call)

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        steps.close(call)
        del steps.state[_DRAFTING]
        if not raised:
            steps.state[_PROPOSED] = int(call.result[0].shape[1]) - int(call.argument(0, "input_ids").shape[1])


def _cache_prepared(steps: EngineSteps, call: Call) -> None:
    cache = (call.argument(1, "model_kwargs") or {}).get("past_key_values")
    if cache is not None:
        steps.attach_part(cache, _KV_CACHE)


def _set_kv_length(steps: EngineSteps, model_kwargs: Any, otherwise: int | None) -> None:
    """What is in the cache, if the host knows, and its bytes: of the cache of an encoder-decoder both parts."""
    if not steps.measures:
        return
    cache = (model_kwargs or {}).get("past_key_values")
    length = cache.get_seq_length() if cache is not None else None
    length = length if type(length) is int else otherwise
    if length is not None:
        steps.facts.set("length", length)
    if length and cache is not None:
        steps.facts.set_cache(cache)


@cache
def _watched_class(kind: Any) -> Any:
    class Watched(kind):  # type: ignore[misc]
        steps: EngineSteps

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            self.steps.close(_SAMPLER)
            self.steps.open(_POSTPROC, self)
            done = super().__call__(*args, **kwargs)
            try:
                _count(self.steps, done, self)
            except Exception as error:
                self.steps.profiler.problems.error("attach_engine: stopping criteria", error)
            return done

    return Watched


def _count(steps: EngineSteps, done: Any, criteria: Any) -> None:
    """Each sequence that was not finished before gets a token. On a device the count is left there."""
    if _ASSISTED in steps.state or steps.state.get(_BEAMS):
        return
    state = steps.state
    unfinished = state.get(_UNFINISHED)
    if len(done) == 1 or {type(each).__name__ for each in criteria} <= _AT_ONCE:
        tokens: Any = len(done)
        state[_DELIVERED] = [1] * tokens
    elif done.device.type == "cpu":
        unfinished = unfinished or [True] * len(done)
        tokens = sum(unfinished)
        state[_DELIVERED] = unfinished
        state[_UNFINISHED] = [before and not now for before, now in zip(unfinished, done.tolist(), strict=True)]
    else:
        unfinished = ~done.new_zeros(len(done)) if unfinished is None else unfinished
        tokens = unfinished.sum()
        state[_UNFINISHED] = unfinished & ~done
    if steps.measures:
        steps.facts.set("tokens", tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generate(Run):
    def enter(self, steps: EngineSteps, call: Call) -> None:
        if _DRAFTING not in steps.state:
            Run.enter(self, steps, call)
            steps.state[_GENERATING] = True
            steps.state[_BEAMS] = _setting(call, "num_beams") > 1
            self._begin_requests(steps, call)

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        if _DRAFTING not in steps.state:
            for request in steps.state.get(_REQUESTS, ()):
                steps.profiler.end_request(request)
            Run.leave(self, steps, call, raised=raised)

    def _begin_requests(self, steps: EngineSteps, call: Call) -> None:
        """Each sequence is a request, where the host knows which of them get tokens."""
        batch = steps.value(_batch, call)
        if not batch or steps.state[_BEAMS] or (batch > 1 and call.owner.device.type != "cpu"):
            return
        steps.state[_REQUESTS] = [(id(steps), number) for number in range(batch)]
        prompt = _inputs(call)
        for request in steps.state[_REQUESTS]:
            steps.profiler.begin_request(request, int(prompt.shape[1]))


def _setting(call: Call, name: str) -> int:
    config = call.argument(1, "generation_config") or call.owner.generation_config
    return int(call.kwargs.get(name) or getattr(config, name, None) or 1)


def _inputs(call: Call) -> Any:
    for name in ("inputs", "input_ids", "inputs_embeds", "input_features"):
        inputs = call.argument(0, name) if name == "inputs" else call.kwargs.get(name)
        if inputs is not None:
            return inputs
    return None


def _batch(call: Call) -> int | None:
    inputs = _inputs(call)
    if inputs is None:
        return None
    return int(inputs.shape[0]) * max(_setting(call, "num_return_sequences"), _setting(call, "num_beams"))


_GENERATOR: Final = EngineMapping(
    name="transformers candidate generator",
    methods={"get_candidates": _Draft(), "update_candidate_strategy": Bucket(_POSTPROC)},
)
_KV_CACHE: Final = EngineMapping(name="transformers KV cache", methods={"crop": Bucket("kv.delete", optional=True)})

GENERATE: Final = EngineMapping(
    name="transformers generate",
    methods={
        "generate": _Generate(batch=_batch, label="generate"),
        "_get_stopping_criteria": _InLoop(returned=_criteria_made),
        "_get_candidate_generator": _InLoop(returned=_drafter_made, optional=True),
        "_prepare_cache_for_generation": _InLoop(returned=_cache_prepared, optional=True),
        "_prefill": _InLoop(called=_prefill),
        "_has_unfinished_sequences": _InLoop(called=_step_ends, returned=_step_begins),
        "prepare_inputs_for_generation": _InLoop(called=_inputs_of_step),
        "forward": _InLoop(called=_forward, returned=_forwarded),
        "_update_model_kwargs_for_generation": _InLoop(called=_update, returned=_updated),
        "init_continuous_batching": Makes(CONTINUOUS_BATCHING, optional=True),
    },
    classes=("transformers.generation.utils.GenerationMixin",),
    about="models of transformers: generate (greedy, sampling, assisted), and continuous batching",
)
