"""What the Python of a page stands among: small models and data under the names that a reader's program would have."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from scoring_problems import REFERENCE, RIGHT
from torch import Tensor, nn
from tracked import Model, loss_of, tokens

import rooflight as rl


def common() -> dict[str, Any]:
    """A model, its optimizer, and a step of it."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)

    def step() -> None:
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"rl": rl, "torch": torch, "nn": nn, "Tensor": Tensor, "model": model, "optimizer": optimizer, "step": step}


def few_ops() -> Tensor:
    """A step that is soon predicted."""
    return torch.ones(64, 64) @ torch.ones(64, 64)


@cache
def decoder() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, vocab_size=64, max_position_embeddings=256, eos_token_id=None, pad_token_id=0)
    return LlamaForCausalLM(config).eval()


def prompts(batch: int, length: int) -> Tensor:
    return torch.ones(batch, length, dtype=torch.long)


def _inference() -> dict[str, Any]:
    parts = {"model": decoder(), "load_model": decoder, "prompts": prompts, "batches": [prompts(2, 4)] * 2}
    return parts | {"kv_lengths": [3, 4], "accepted": 2}


def _predict() -> dict[str, Any]:
    session = rl.measure(few_ops)
    for name in ("a", "b", "c", "mine"):
        session.save(f"{name}.session")
    return {"measured": [("a", 1e-3), ("b", 1.1e-3), ("c", 1.2e-3)]}


def _score() -> dict[str, Any]:
    for name, text in (("problem.py", REFERENCE), ("solution.py", RIGHT)):
        Path(name).write_text(textwrap.dedent(text))
    return {}


def _trainer() -> Any:
    from transformers import Trainer, TrainingArguments

    class Squares(nn.Linear):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": (super().forward(x) - labels).square().mean()}

    arguments = TrainingArguments(output_dir="out", max_steps=3, use_cpu=True, report_to=[], disable_tqdm=True)
    rows = [{"x": torch.ones(4), "labels": torch.ones(4)}] * 8
    return Trainer(Squares(4, 4), arguments, train_dataset=rows)


def _tracking() -> dict[str, Any]:
    import lightning.pytorch  # the page's second trainer

    model = Model()
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "parser": argparse.ArgumentParser(),
        "iterations": 4,
        "loss_of": lambda model, batch: loss_of(model(batch), batch),
        "loss_fn": loss_of,
        "batch": tokens(),
        "tokens": tokens(),
        "targets": tokens(),
        "writer": None,
        "trainer": _trainer(),
        "lightning": lightning,
    }


def _workloads() -> dict[str, Any]:
    names = common()
    return {"mine": (names["model"], names["optimizer"], torch.ones(2, 4))}


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "compile_bench": lambda: {"session": rl.measure(few_ops)},
    "explain": lambda: {"x": torch.randn(32, 256), "weight": torch.randn(256, 256, requires_grad=True)},
    "hot_paths": lambda: {"train_step": lambda: None},
    "inference": _inference,
    "predict": _predict,
    "score": _score,
    "tracking": _tracking,
    "workloads": _workloads,
    "collectives": lambda: {"rank": 0},
}
"""By the name of a page: what its blocks need beyond ``common``. Runs in the folder in which the blocks run."""
