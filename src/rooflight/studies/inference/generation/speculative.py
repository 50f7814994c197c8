"""A generation loop with a draft model: draft a few tokens, verify all in one pass of the target, accept by rejection
sampling. What it generates is distributed as the target's own tokens.

Sequences of a batch accept different numbers of tokens, so that each has a length of its own (``RaggedCache``). Passes
take the whole batch; a sequence that has all its tokens waits there for the others, and its tokens count no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from rooflight.studies.inference.generation.decoding import (
    Counts,
    DecodeLoop,
    Generation,
    OnStep,
    check_sizes,
    drawn,
    generate,
    last_logits,
    probabilities,
)
from rooflight.studies.inference.generation.ragged_cache import RaggedCache

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from transformers import PreTrainedModel

    from rooflight.studies.inference.profiler import Profiler


def accept_greedy(drafted: Tensor, target_logits: Tensor) -> tuple[Tensor, Tensor]:
    """At temperature 0: a drafted token is accepted if it is the target's most probable.

    ``drafted`` [batch, gamma], ``target_logits`` [batch, gamma + 1, vocabulary]. Returns ``accepted`` [batch, gamma],
    by position, and ``best`` [batch, gamma + 1], the target's tokens.
    """
    best = target_logits.argmax(-1)
    return drafted == best[:, :-1], best


def accept_sampled(drafted: Tensor, draft: Tensor, target: Tensor, generator: Generator) -> Tensor:
    """A drafted token x is accepted with probability min(1, p(x) / q(x)): [batch, gamma], by position.

    ``drafted`` [batch, gamma] was drawn from ``draft`` q [batch, gamma, vocabulary]; ``target`` is p
    [batch, gamma + 1, vocabulary].
    """
    at = drafted[..., None]
    q = draft.gather(-1, at)[..., 0]
    p = target[:, :-1].gather(-1, at)[..., 0]
    u = torch.rand(q.shape, generator=generator, device=q.device, dtype=q.dtype)
    return u * q < p  # u is below 1, so p = q is always accepted; p = 0 never is


def count_accepted(accepted: Tensor) -> Tensor:
    """How many were accepted before the first that was not: [batch, gamma] -> [batch]."""
    return accepted.long().cumprod(1).sum(1)


def token_after(count: Tensor, draft: Tensor, target: Tensor, generator: Generator) -> Tensor:
    """The token after ``count`` [batch] accepted ones: after a rejection one of norm(max(0, p - q)), after gamma
    accepted ones one of p, the bonus token. Distributions as in ``accept_sampled``.
    """
    rows = torch.arange(len(count), device=count.device)
    p = target[rows, count]
    q = torch.cat([draft, torch.zeros_like(target[:, :1])], dim=1)[rows, count]
    rest = (p - q).clamp_(min=0)
    # p and q that are equal but for rounding leave nothing: then either's tokens are the target's
    return drawn(torch.where(rest.sum(-1, keepdim=True) > 0, rest, p), generator)


MOST_GAMMA: Final = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculativeGeneration(Generation):
    """What a loop with a draft generated. ``steps`` are passes of the target after the prefill.

    ``proposed``, ``accepted`` and ``step_tokens`` have a row per step and a number per sequence. Drafted tokens count
    as far as they can be among those asked for. A sequence that has all its tokens has zeros; otherwise a step's tokens
    are the accepted ones and one.
    """

    proposed: tuple[tuple[int, ...], ...]
    accepted: tuple[tuple[int, ...], ...]
    step_tokens: tuple[tuple[int, ...], ...]


@torch.no_grad()
def speculative_decode(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt_ids: Tensor,
    new_tokens: int,
    *,
    gamma: int = 4,
    temperature: float = 0.0,
    seed: int = 0,
    acceptance: float | None = None,
    profiler: Profiler | None = None,
    on_step: OnStep | None = None,
) -> SpeculativeGeneration:
    """Generate ``new_tokens`` per sequence of ``prompt_ids`` [batch, prompt], up to ``gamma`` + 1 in each step.

    Each step is a step of ``profiler`` (None: the active one) with the engine's buckets ``draft`` (the draft's passes
    and the choice of its tokens), ``verify`` (the target's pass), ``sampler`` (rejection sampling, and the one wait for
    a device: how many tokens were accepted) and ``postproc``. The model's domain has ``draft`` and ``sampler`` too.

    Each sequence is a request, as in ``decode``. Temperature 0 gives the tokens of ``decode``. ``acceptance`` replaces
    the test of each drafted token by a draw that accepts it with this probability: all work is done and takes its time,
    but tokens are not the target's.

    Raises ValueError for a draft with another vocabulary, sizes that cannot be, and models without a cache that can be
    taken back (``RaggedCache``).
    """
    check_sizes(target, prompt_ids, new_tokens)
    check_sizes(draft, prompt_ids, new_tokens)
    check_vocabularies(target, draft)
    check_acceptance(gamma, acceptance)
    loop = _SpeculativeLoop(target, draft, prompt_ids, new_tokens, gamma, temperature, seed, acceptance)
    prefill_s, steps = generate(loop, profiler, on_step)
    return SpeculativeGeneration(
        tokens=loop.tokens(),
        prefill_s=prefill_s,
        steps=len(steps),
        proposed=tuple(each.proposed for each in steps),
        accepted=tuple(each.accepted for each in steps),
        step_tokens=tuple(each.tokens for each in steps),
    )


def check_vocabularies(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise ValueError where a draft's tokens are not the target's."""
    theirs, ours = (model.config.get_text_config().vocab_size for model in (draft, target))
    if theirs != ours:
        raise ValueError(f"the draft has {theirs:,} tokens, the target {ours:,}: they must share the vocabulary")


def check_acceptance(gamma: int, acceptance: float | None) -> None:
    """Raise ValueError for a length of drafts, or a probability, that cannot be."""
    if not 1 <= gamma <= MOST_GAMMA:
        raise ValueError(f"gamma {gamma}: draft at least 1 token a step, and at most {MOST_GAMMA:,}")
    if acceptance is not None and not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance {acceptance}: give a probability from 0 to 1")


class _SpeculativeLoop(DecodeLoop):
    """The state between steps. ``_ids`` has all tokens of each sequence, ``_have`` how many of them are certain."""

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel,
        prompt_ids: Tensor,
        new_tokens: int,
        gamma: int,
        temperature: float,
        seed: int,
        acceptance: float | None,
    ) -> None:
        super().__init__(prompt_ids, new_tokens, temperature, seed, target.device)
        batch, self._prompt = prompt_ids.shape
        self._whole = self._prompt + new_tokens
        capacity = self._whole + gamma  # drafted beyond the end, while others of the batch are not there yet
        device = target.device
        self._models = target, draft
        self._caches = [RaggedCache(model, batch=batch, capacity=capacity) for model in self._models]
        self._ids = torch.zeros(batch, capacity + 1, dtype=torch.long, device=device)
        self._ids[:, : self._prompt] = prompt_ids
        self._rows = torch.arange(batch, device=device)[:, None]
        self._have = [self._prompt] * batch
        self._behind = False  # whether a sequence's last drafted token is not in the draft's cache
        self._gamma, self._acceptance = gamma, acceptance

    @property
    def remaining(self) -> int:  # type: ignore[override]
        return self._whole - min(self._have)

    @property
    def caches(self) -> list[Any]:
        return [cache.tensors for cache in self._caches]

    @property
    def cached(self) -> list[int]:
        """Tokens in the target's cache, per sequence: all but the last."""
        return [have - 1 for have in self._have]

    def tokens(self) -> Tensor:
        return self._ids[:, self._prompt : self._whole].clone()

    def prefill(self, prof: Any) -> None:
        ids = self._ids[:, : self._prompt]
        starts = [0] * len(ids)
        with prof.cpu_bucket_timer("prefill"):
            with prof.cpu_bucket_timer("draft"), prof.cuda_bucket_timer("draft"):
                self._pass(1, ids, starts, last=True)
            logits = self._pass(0, ids, starts, last=True)
        with prof.cpu_bucket_timer("sampler"), prof.cuda_bucket_timer("sampler"):
            self._ids[:, self._prompt] = self.chosen(logits[:, -1])[0]
        self._have = [self._prompt + 1] * len(ids)

    def step(self, prof: Any) -> Counts:
        """Draft, verify, accept: always ``gamma`` tokens, so that all steps do the same; too many are dropped."""
        gamma = self._gamma
        with prof.cpu_bucket_timer("draft"), prof.cuda_bucket_timer("draft"):
            drafted, distributions = self._draft(gamma)
        with prof.cpu_bucket_timer("verify"):
            at = torch.tensor(self.cached, device=self._ids.device)[:, None]
            ids = torch.cat([self._ids.gather(1, at), *drafted], dim=1)
            logits = self._pass(0, ids, self.cached)
        with prof.cpu_bucket_timer("sampler"), prof.cuda_bucket_timer("sampler"):
            count, after = self._accept(ids[:, 1:], distributions, logits)
            accepted = count.tolist()
        with prof.cpu_bucket_timer("postproc"):
            block = torch.cat([ids[:, 1:], after[:, None]], dim=1)
            block[self._rows[:, 0], count] = after
            self._ids[self._rows, at + 1 + torch.arange(gamma + 1, device=at.device)] = block
            return self._count(gamma, accepted)

    def _draft(self, gamma: int) -> tuple[list[Tensor], list[Tensor]]:
        """``gamma`` drafted tokens, [batch, 1] each, and the distributions they were drawn from."""
        drafted: list[Tensor] = []
        distributions: list[Tensor] = []
        queries = 2 if self._behind else 1  # a token that is cached already is written again as it was
        starts = [have - queries for have in self._have]
        at = torch.tensor(starts, device=self._ids.device)[:, None] + torch.arange(queries, device=self._ids.device)
        ids = self._ids.gather(1, at)
        for _ in range(gamma):
            token, distribution = self.chosen(self._pass(1, ids, starts)[:, -1])
            starts = [start + ids.shape[1] for start in starts]
            ids = token[:, None]
            drafted.append(ids)
            if distribution is not None:
                distributions.append(distribution)
        return drafted, distributions

    def _pass(self, number: int, ids: Tensor, starts: Sequence[int], *, last: bool = False) -> Tensor:
        """Logits of a model's pass over tokens [batch, n]; ``last``: of the last alone, where it can."""
        model = self._models[number]
        arguments = self._caches[number].arguments(starts, ids.shape[1]) | (last_logits(model) if last else {})
        return model(input_ids=ids, **arguments).logits  # type: ignore[no-any-return]

    def _accept(self, drafted: Tensor, distributions: list[Tensor], logits: Tensor) -> tuple[Tensor, Tensor]:
        if not self.temperature:
            accepted, best = accept_greedy(drafted, logits)
            count = count_accepted(self._assumed(accepted))
            return count, best.gather(1, count[:, None])[:, 0]
        target = probabilities(logits, self.temperature)
        draft = torch.stack(distributions, dim=1) if distributions else target[:, :0]
        count = count_accepted(self._assumed(accept_sampled(drafted, draft, target, self.generator)))
        return count, token_after(count, draft, target, self.generator)

    def _assumed(self, accepted: Tensor) -> Tensor:
        if self._acceptance is None:
            return accepted
        shape, device = accepted.shape, accepted.device
        return torch.rand(shape, generator=self.generator, device=device) < self._acceptance

    def _count(self, gamma: int, accepted: Sequence[int]) -> Counts:
        """Add the accepted tokens and the one after them to each sequence, up to those asked for. The last of those is
        the target's own, so that one drafted token less can count.
        """
        left = [self._whole - have for have in self._have]
        drafted = [max(most - 1, 0) for most in left]
        found = Counts(
            proposed=tuple(min(gamma, most) for most in drafted),
            accepted=tuple(min(count, most) for count, most in zip(accepted, drafted, strict=True)),
            tokens=tuple(min(count + 1, most) for count, most in zip(accepted, left, strict=True)),
        )
        self._have = [have + more for have, more in zip(self._have, found.tokens, strict=True)]
        # sequences that are done stay where they are: all their drafted tokens are written again
        self._behind = any(count == gamma and most for count, most in zip(accepted, left, strict=True))
        return found
