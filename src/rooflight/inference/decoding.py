"""A generation loop of a transformers decoder: prefill, then decode steps that a profiler measures.

Nothing but the model, its KV cache and the choice of tokens is in a step. Every sequence gets as many tokens as were
asked for: a token that ends a text ends nothing here, since all steps are to have the whole batch.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from rooflight.inference.memory_use import cache_bytes
from rooflight.inference.ragged_cache import RaggedCache
from rooflight.inference.rejection_sampling import drawn, probabilities
from rooflight.inference.timers import get_active_profiler

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from rooflight.inference.profiler import Profiler

CacheKind = Literal["dynamic", "static", "ragged"]
CACHES: Final[tuple[CacheKind, ...]] = ("dynamic", "static", "ragged")
"""``dynamic``: the model's own, which grows by copying, as in transformers' ``generate``; ``static``: transformers'
``StaticCache``, whose attention always runs over all slots; ``ragged``: ``RaggedCache``, as in speculative decoding.
"""

OnStep = Callable[[int, int], None]
"""Called after the prefill and after each step with the tokens that the slowest sequence has, and those asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """What a loop generated. ``prefill_s`` ends with the first token of each sequence; ``steps`` follow it."""

    tokens: Tensor  # [batch, new tokens]
    prefill_s: float
    steps: int


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    prompt_ids: Tensor,
    new_tokens: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    cache: CacheKind = "dynamic",
    profiler: Profiler | None = None,
    on_step: OnStep | None = None,
) -> Generation:
    """Generate ``new_tokens`` per sequence of ``prompt_ids`` [batch, prompt], one in each step after the prefill.

    Each step is a step of ``profiler`` (None: the active one) with the engine's buckets ``decode`` and ``sampler``
    (which the model's domain has too); the prefill is a step of the phase ``prefill``. Each sequence is a request,
    which begins before the prefill; without ``strict_sync`` a GPU's tokens count as delivered when their work is
    queued. Temperature 0 takes the most probable token; otherwise tokens are drawn, the same for the same ``seed``.
    Call it between ``begin_run`` and ``end_run``.

    Raises ValueError for sizes that cannot be, also for more tokens than the model has positions.
    """
    check_sizes(model, prompt_ids, new_tokens)
    choose = _chooser(temperature, seed, model.device)
    prof = get_active_profiler() if profiler is None else profiler
    batch, prompt = prompt_ids.shape
    cached = _CachedModel(model, batch, prompt + new_tokens, cache)
    requests = BatchRequests(prof, batch, prompt, new_tokens)
    begun = time.perf_counter()
    with prefill_step(prof, batch):
        with prof.cpu_bucket_timer("prefill"):
            logits = cached.logits(prompt_ids, 0)
        with prof.cpu_bucket_timer("sampler"), prof.cuda_bucket_timer("sampler"):
            latest = choose(logits)
    wait_for(model.device)
    prefill_s = time.perf_counter() - begun
    requests.deliver([1] * batch)
    tokens = [latest]
    told = on_step or _silent
    told(1, new_tokens)
    for number in range(1, new_tokens):
        held = cache_bytes(cached.cache)
        with prof.step_timing_ctx():
            prof.set_step_seq_len(prompt + number - 1)
            prof.set_step_tokens(batch)
            prof.set_step_kv_cache(held)
            with prof.cpu_bucket_timer("decode"):
                logits = cached.logits(latest[:, None], prompt + number - 1)
            with prof.cpu_bucket_timer("sampler"), prof.cuda_bucket_timer("sampler"):
                latest = choose(logits)
            tokens.append(latest)
        requests.deliver([1] * batch)
        told(number + 1, new_tokens)
    return Generation(tokens=torch.stack(tokens, dim=1), prefill_s=prefill_s, steps=new_tokens - 1)


@contextmanager
def prefill_step(prof: Any, batch: int) -> Iterator[None]:
    """A step of a profiler that puts prompts into empty caches, and makes the first token of each sequence."""
    with prof.step_timing_ctx():
        prof.set_step_phase("prefill")
        prof.set_step_seq_len(0)
        prof.set_step_tokens(batch)
        yield


class BatchRequests:
    """The sequences of a batch as requests of a profiler: all begin now, and each ends with its last token."""

    def __init__(self, prof: Any, batch: int, prompt: int, new_tokens: int) -> None:
        self._prof = prof
        self._left = [new_tokens] * batch
        self._ids = [object() for _ in range(batch)]
        for each in self._ids:
            prof.begin_request(each, prompt_tokens=prompt)

    def deliver(self, tokens: Sequence[int]) -> None:
        """So many tokens of each sequence are there."""
        for row, count in enumerate(tokens):
            if count:
                self._prof.request_tokens(self._ids[row], count)
                self._left[row] -= count
                if not self._left[row]:
                    self._prof.end_request(self._ids[row])


def check_sizes(model: PreTrainedModel, prompt_ids: Tensor, new_tokens: int) -> None:
    """Raise ValueError where there is nothing to generate, or no position for it."""
    if prompt_ids.ndim != 2 or not prompt_ids.numel():
        raise ValueError(f"a prompt of shape {tuple(prompt_ids.shape)}: give [batch, tokens], at least 1 of each")
    if new_tokens < 1:
        raise ValueError(f"{new_tokens} new tokens: ask for at least 1")
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    needed = prompt_ids.shape[1] + new_tokens - 1  # the last token is not fed
    if isinstance(limit, int) and needed > limit:
        raise ValueError(
            f"a prompt of {prompt_ids.shape[1]:,} tokens and {new_tokens:,} new ones need {needed:,} positions: "
            f"{type(model).__name__} has {limit:,}"
        )


def wait_for(device: torch.device) -> None:
    """Wait for what was queued on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def generator_of(seed: int, device: torch.device) -> torch.Generator:
    """Random numbers of one run."""
    return torch.Generator(device).manual_seed(seed)


def check_temperature(temperature: float) -> None:
    """Raise ValueError for what is no temperature."""
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature {temperature}: give 0 for the most probable tokens, or a number above 0")


def last_logits(model: PreTrainedModel) -> dict[str, int]:
    """The argument with which a prefill computes the logits of the last position alone, where a model has it."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def _chooser(temperature: float, seed: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    check_temperature(temperature)
    if not temperature:
        return lambda logits: logits.argmax(-1)
    generator = generator_of(seed, device)
    return lambda logits: drawn(probabilities(logits, temperature), generator)


class _CachedModel:
    """A model and its KV cache."""

    def __init__(self, model: PreTrainedModel, batch: int, capacity: int, kind: str) -> None:
        if kind not in CACHES:
            raise ValueError(f'cache "{kind}": give one of {", ".join(CACHES)}')
        self._model = model
        self._last = last_logits(model)
        self._ragged = RaggedCache(model, batch=batch, capacity=capacity) if kind == "ragged" else None
        self._held: dict[str, Any] = {}
        if kind == "static":
            from transformers import StaticCache

            self._held["past_key_values"] = StaticCache(config=model.config, max_cache_len=capacity)

    @property
    def cache(self) -> Any:
        """What holds keys and values."""
        return self._held if self._ragged is None else self._ragged.tensors

    def logits(self, ids: Tensor, cached: int) -> Tensor:
        """A pass over tokens [batch, n] after so many cached ones: logits [batch, vocabulary] of the last."""
        model, held = self._model, self._held
        if self._ragged is not None:
            arguments = self._ragged.arguments([cached] * len(ids), ids.shape[1])
            return model(input_ids=ids, **arguments, **self._last).logits[:, -1]  # type: ignore[no-any-return]
        output = model(input_ids=ids, use_cache=True, **held, **self._last)
        name = "cache_params" if "cache_params" in output else "past_key_values"
        if output.get(name) is None:
            raise ValueError(f"{type(model).__name__} keeps no cache: it does not decode")
        held[name] = output[name]
        return output.logits[:, -1]  # type: ignore[no-any-return]


def _silent(_tokens: int, _of: int) -> None:
    """Nobody follows."""
