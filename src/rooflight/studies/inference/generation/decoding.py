"""A generation loop of a transformers decoder: prefill, then decode steps that a profiler measures.

Nothing but the model, its KV cache and the choice of tokens is in a step. Every sequence gets as many tokens as were
asked for: a token that ends a text ends nothing here, since all steps are to have the whole batch.
"""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from rooflight.studies.inference.facts import cache_bytes
from rooflight.studies.inference.generation.ragged_cache import RaggedCache
from rooflight.studies.inference.profiler import Profiler, get_active_profiler

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

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


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a step, per sequence: tokens, and of a draft those proposed and accepted."""

    tokens: tuple[int, ...]
    proposed: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


class DecodeLoop(ABC):
    """The state of a generation between its steps. ``remaining``: tokens that the slowest sequence has still to get."""

    remaining: int

    def __init__(
        self, prompt_ids: Tensor, new_tokens: int, temperature: float, seed: int, device: torch.device
    ) -> None:
        check_temperature(temperature)
        self.prompt_ids, self.new_tokens, self.device = prompt_ids, new_tokens, device
        self.temperature = temperature
        self.generator = torch.Generator(device).manual_seed(seed)

    @abstractmethod
    def prefill(self, prof: Any) -> None:
        """Put the prompt into the caches, and choose the first token."""

    @abstractmethod
    def step(self, prof: Any) -> Counts:
        """Decode once."""

    @property
    @abstractmethod
    def cached(self) -> int | list[int]:
        """Tokens in the model's cache, of all sequences or of each."""

    @property
    @abstractmethod
    def caches(self) -> Any:
        """What holds keys and values."""

    def chosen(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """A token of each sequence, and the distribution it was drawn from; None at temperature 0."""
        if not self.temperature:
            return logits.argmax(-1), None
        distribution = probabilities(logits, self.temperature)
        return drawn(distribution, self.generator), distribution


def generate(loop: DecodeLoop, profiler: Any, on_step: OnStep | None) -> tuple[float, list[Counts]]:
    """Run a loop to its end under a profiler. Returns the seconds of the prefill, and what each step generated."""
    prof = get_active_profiler() if profiler is None else profiler
    report = on_step or (lambda _tokens, _of: None)
    batch, new_tokens = len(loop.prompt_ids), loop.new_tokens
    requests = _BatchRequests(prof, batch, loop.prompt_ids.shape[1], new_tokens)
    begun = time.perf_counter()
    with prof.step_timing_ctx():
        prof.set_step_phase("prefill")
        prof.set_step_seq_len(0)
        prof.set_step_tokens(batch)
        loop.prefill(prof)
    if loop.device.type == "cuda":
        torch.cuda.synchronize(loop.device)
    prefill_s = time.perf_counter() - begun
    requests.deliver([1] * batch)
    report(1, new_tokens)
    steps: list[Counts] = []
    while loop.remaining:
        held = cache_bytes(loop.caches)
        with prof.step_timing_ctx():
            prof.set_step_seq_len(loop.cached)
            prof.set_step_kv_cache(held)
            counts = loop.step(prof)
            prof.set_step_tokens(sum(counts.tokens))
            if counts.proposed:
                live = [row for row, tokens in enumerate(counts.tokens) if tokens]
                prof.set_step_speculation(*([each[row] for row in live] for each in (counts.proposed, counts.accepted)))
        requests.deliver(counts.tokens)
        steps.append(counts)
        report(new_tokens - loop.remaining, new_tokens)
    return prefill_s, steps


class _BatchRequests:
    def __init__(self, prof: Any, batch: int, prompt: int, new_tokens: int) -> None:
        self._prof = prof
        self._left = [new_tokens] * batch
        self._ids = [object() for _ in range(batch)]
        for each in self._ids:
            prof.begin_request(each, prompt_tokens=prompt)

    def deliver(self, tokens: Sequence[int]) -> None:
        for row, count in enumerate(tokens):
            if count:
                self._prof.request_tokens(self._ids[row], count)
                self._left[row] -= count
                if not self._left[row]:
                    self._prof.end_request(self._ids[row])


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
    loop = _PlainLoop(model, prompt_ids, new_tokens, temperature, seed, cache)
    prefill_s, steps = generate(loop, profiler, on_step)
    return Generation(tokens=torch.stack(loop.tokens, dim=1), prefill_s=prefill_s, steps=len(steps))


class _PlainLoop(DecodeLoop):
    def __init__(
        self, model: PreTrainedModel, prompt_ids: Tensor, new_tokens: int, temperature: float, seed: int, cache: str
    ) -> None:
        if cache not in CACHES:
            raise ValueError(f'cache "{cache}": give one of {", ".join(CACHES)}')
        super().__init__(prompt_ids, new_tokens, temperature, seed, model.device)
        batch, prompt = prompt_ids.shape
        self._model, self._last = model, last_logits(model)
        self._ragged = RaggedCache(model, batch=batch, capacity=prompt + new_tokens) if cache == "ragged" else None
        self._held: dict[str, Any] = {}
        if cache == "static":
            from transformers import StaticCache

            self._held["past_key_values"] = StaticCache(config=model.config, max_cache_len=prompt + new_tokens)
        self.tokens: list[Tensor] = []

    @property
    def remaining(self) -> int:  # type: ignore[override]
        return self.new_tokens - len(self.tokens)

    @property
    def cached(self) -> int:
        return self.prompt_ids.shape[1] + len(self.tokens) - 1

    @property
    def caches(self) -> Any:
        return self._held if self._ragged is None else self._ragged.tensors

    def prefill(self, prof: Any) -> None:
        self._pass(prof, "prefill", self.prompt_ids, 0)

    def step(self, prof: Any) -> Counts:
        self._pass(prof, "decode", self.tokens[-1][:, None], self.cached)
        return Counts((1,) * len(self.prompt_ids))

    def _pass(self, prof: Any, bucket: str, ids: Tensor, cached: int) -> None:
        with prof.cpu_bucket_timer(bucket):
            logits = self._logits(ids, cached)
        with prof.cpu_bucket_timer("sampler"), prof.cuda_bucket_timer("sampler"):
            self.tokens.append(self.chosen(logits)[0])

    def _logits(self, ids: Tensor, cached: int) -> Tensor:
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


def check_temperature(temperature: float) -> None:
    """Raise ValueError for what is no temperature."""
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature {temperature}: give 0 for the most probable tokens, or a number above 0")


def last_logits(model: PreTrainedModel) -> dict[str, int]:
    """The argument with which a prefill computes the logits of the last position alone, where a model has it."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """The distribution of the next token at a temperature above 0, in float32 or wider: [..., vocabulary]."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.softmax(wide / temperature, dim=-1)


def drawn(distribution: Tensor, generator: torch.Generator) -> Tensor:
    """One token of each distribution, [batch, vocabulary] -> [batch]."""
    return torch.multinomial(distribution, 1, generator=generator)[:, 0]
