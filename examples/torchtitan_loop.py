"""A plain training loop in the manner of torchtitan, tracked: steps of several micro-batches, gradient clipping, a
warmed-up learning rate and, with ``--checkpoint``, activation checkpointing.

    python examples/torchtitan_loop.py --rl-enable-sol-tracking --rl-sol-report-interval 10
    python examples/torchtitan_loop.py --rl-enable-sol-tracking --checkpoint --rl-sol-device B200-SXM
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from rooflight.tracking import (
    add_sol_arguments,
    initialize_sol,
    log_training_sol,
    shutdown_sol,
    sol_nvtx_range,
)

VOCABULARY = 512
HEAD = 32


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width), Attention(width)
        self.feed_forward_norm, self.feed_forward = nn.RMSNorm(width), FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Transformer(nn.Module):
    def __init__(self, *, layers: int, width: int, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.output = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.output(self.norm(x))


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Transformer(layers=args.layers, width=args.width, checkpointed=args.checkpoint).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.lr_scheduler = LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / args.warmup))
        self.batches = self.batch_generator()

    def batch_generator(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Sequences that count up from a random token, and what comes next in each."""
        while True:
            starts = torch.randint(0, VOCABULARY, (self.args.batch, 1))
            tokens = ((starts + torch.arange(self.args.sequence + 1)) % VOCABULARY).to(self.device)
            yield tokens[:, :-1], tokens[:, 1:]

    def forward_backward_step(self, tokens: Tensor, labels: Tensor) -> Tensor:
        with sol_nvtx_range("train/forward"):
            logits = self.model(tokens)
        with sol_nvtx_range("train/loss"):
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten()) / self.args.accumulation
        with sol_nvtx_range("train/backward"):
            loss.backward()
        return loss.detach()

    def train_step(self) -> float:
        self.optimizer.zero_grad()
        losses = []
        for _ in range(self.args.accumulation):
            with sol_nvtx_range("train/data"):
                tokens, labels = next(self.batches)
            losses.append(self.forward_backward_step(tokens, labels))
        with sol_nvtx_range("train/optimizer"):
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
            self.optimizer.step()
            self.lr_scheduler.step()
        return torch.stack(losses).sum().item()

    def train(self) -> None:
        initialize_sol(self.model, self.args)
        try:
            for step in range(1, self.args.steps + 1):
                loss = self.train_step()
                print(f"step {step:4}  loss {loss:.4f}", flush=True)
                log_training_sol(step)
        finally:
            shutdown_sol()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches of each step")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--checkpoint", action="store_true", help="recompute activations in the backward pass")
    return add_sol_arguments(parser).parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(0)
    Trainer(args).train()


if __name__ == "__main__":
    main()
