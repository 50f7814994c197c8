"""``generate`` of transformers: greedy search, sampling, and assisted (speculative) generation.

A call of ``generate`` is a run. Its first step is a prefill step: the pass over the prompt and the choice of the first
token; in assisted generation the first round of draft and verification, in which both models see the prompt. Each step
after it is one pass of the loop: one token for each sequence that is not finished, or one round. Every step ends where
the loop asks whether sequences are unfinished.

What a draft model does in ``get_candidates`` is its bucket, even where the draft is a part of the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from rooflight.inference.engine_continuous import CONTINUOUS_BATCHING
from rooflight.inference.engine_mapping import Bucket, Call, EngineMapping, Makes, Role, Run

if TYPE_CHECKING:
    from rooflight.inference.engine_steps import EngineSteps

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
class _InLoop(Role):
    """A method that ``generate`` calls. While a draft is made, it is the draft's, and is not timed."""

    def enter(self, steps: EngineSteps, call: Call) -> None:
        if _GENERATING in steps.state and _DRAFTING not in steps.state:
            self.begin(steps, call)

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        if _GENERATING in steps.state and _DRAFTING not in steps.state:
            self.end(steps, call, raised=raised)

    def begin(self, steps: EngineSteps, call: Call) -> None:
        """It is called."""

    def end(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        """It returned or raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefill(_InLoop):
    def begin(self, steps: EngineSteps, call: Call) -> None:
        steps.begin_step()
        steps.set_phase("prefill")
        _set_kv_length(steps, call.argument(2, "model_kwargs"), None)
        steps.state[_PREFILLED] = True
        steps.open("prefill", call)

    def end(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:  # noqa: ARG002
        steps.close(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unfinished(_InLoop):
    """The loop's test. Its first comes after a prefill that is a step's first half."""

    def begin(self, steps: EngineSteps, call: Call) -> None:  # noqa: ARG002
        if _PREFILLED in steps.state:
            del steps.state[_PREFILLED]
        else:
            steps.end_step()
            for request, tokens in zip(steps.state.get(_REQUESTS, ()), steps.state.pop(_DELIVERED, ()), strict=False):
                steps.profiler.request_tokens(request, int(tokens))  # none is no delivery

    def end(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        if call.result and not raised:
            steps.begin_step()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs(_InLoop):
    def begin(self, steps: EngineSteps, call: Call) -> None:
        first = bool(call.kwargs.get("is_first_iteration"))
        if first:
            steps.set_phase("prefill")
        ids, new = call.argument(0, "input_ids"), call.kwargs.get("next_sequence_length")
        before = None if ids is None or new is None else int(ids.shape[1] - new)
        if _PREFILLED not in steps.state:
            _set_kv_length(steps, call.kwargs, before)
        steps.open("inputs", call)

    def end(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:  # noqa: ARG002
        steps.close(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward(_InLoop):
    def begin(self, steps: EngineSteps, call: Call) -> None:
        decode = "verify" if _ASSISTED in steps.state else "decode"
        steps.open("prefill" if steps.phase == "prefill" else decode, call)

    def end(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        steps.close(call)
        if _ASSISTED in steps.state and not raised:
            steps.open(_SAMPLER, _SAMPLER)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Update(_InLoop):
    """Called after the pass of the model, before a token is chosen; in assisted generation after it."""

    def begin(self, steps: EngineSteps, call: Call) -> None:
        steps.close(_SAMPLER)
        steps.open(_POSTPROC, call)
        tokens: Any = call.kwargs.get("num_new_tokens")
        if _ASSISTED in steps.state and steps.measures and tokens is not None:
            steps.profiler.set_step_tokens(tokens)
            steps.profiler.set_step_speculation(steps.state[_PROPOSED], tokens - 1)
            steps.state[_DELIVERED] = [tokens]

    def end(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:  # noqa: ARG002
        steps.close(call)
        if _ASSISTED not in steps.state:
            steps.open(_SAMPLER, _SAMPLER)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stopping(_InLoop):
    """Makes the list of stopping criteria, which is called when tokens are chosen: ours is told of each call."""

    def end(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        if not raised:
            call.result = _watched(call.result, steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates(_InLoop):
    """Makes the candidate generator of assisted generation."""

    def end(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        if not raised:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cache(_InLoop):
    """Prepares the KV cache, in the arguments of the model: what is cut off it is a bucket."""

    def end(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        cache = (call.argument(1, "model_kwargs") or {}).get("past_key_values")
        if not raised and cache is not None:
            steps.attach_part(cache, _KV_CACHE)


def _set_kv_length(steps: EngineSteps, model_kwargs: Any, otherwise: int | None) -> None:
    """What is in the cache, if the host knows, and its bytes: of the cache of an encoder-decoder both parts."""
    if not steps.measures:
        return
    cache = (model_kwargs or {}).get("past_key_values")
    length = cache.get_seq_length() if cache is not None else None
    length = length if type(length) is int else otherwise
    if length is not None:
        steps.profiler.set_step_seq_len(length)
    if length and cache is not None:
        steps.profiler.set_step_kv_cache(cache)


def _watched(criteria: Any, steps: EngineSteps) -> Any:
    """The criteria, in a list of the same class that says when it is called."""
    kind: Any = type(criteria)
    watched = _watched_class(kind)(criteria)
    watched.steps = steps
    return watched


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
        steps.profiler.set_step_tokens(tokens)


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
    """Sequences in a pass of the model."""
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
        "_get_stopping_criteria": _Stopping(),
        "_get_candidate_generator": _Candidates(optional=True),
        "_prepare_cache_for_generation": _Cache(optional=True),
        "_prefill": _Prefill(),
        "_has_unfinished_sequences": _Unfinished(),
        "prepare_inputs_for_generation": _Inputs(),
        "forward": _Forward(),
        "_update_model_kwargs_for_generation": _Update(),
        "init_continuous_batching": Makes(CONTINUOUS_BATCHING, optional=True),
    },
    classes=("transformers.generation.utils.GenerationMixin",),
    about="models of transformers: generate (greedy, sampling, assisted), and continuous batching",
)
