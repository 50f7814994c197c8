"""Which drafted tokens a target accepts, and the token after them, so that all are distributed as the target's own.

Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding (2023), algorithm 1; Chen et al.:
Accelerating Large Language Model Decoding with Speculative Sampling (2023), algorithm 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Generator, Tensor


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """The distribution of the next token at a temperature above 0, in float32 or wider: [..., vocabulary]."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.softmax(wide / temperature, dim=-1)


def drawn(distribution: Tensor, generator: Generator) -> Tensor:
    """One token of each distribution, [batch, vocabulary] -> [batch]."""
    return torch.multinomial(distribution, 1, generator=generator)[:, 0]


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
