"""The loops of ``benchmarks/hot_paths.py``: each function makes one, with ``place`` applied to what is to be
compiled.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rooflight.compiling import workloads

Place = Callable[[Any], Any]
Step = Callable[[int], Any]

torch.manual_seed(0)


def _workload(name: str) -> Callable[[Place], Step]:
    def make(place: Place) -> Step:
        made = workloads.WORKLOADS[name]()
        if isinstance(made, tuple):
            run, model = made
            place(model)
            return lambda _: run()
        hot = place(made)
        return lambda _: hot()

    return make


def _language_model(kind: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if kind == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(n_layer=4, n_head=4, n_embd=128, vocab_size=1000, n_positions=128, resid_pdrop=0.0,
                       embd_pdrop=0.0, attn_pdrop=0.0)
        )  # fmt: skip
    return LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, hidden_size=128,
                    intermediate_size=344, vocab_size=1000, max_position_embeddings=128)
    )  # fmt: skip


def _training(kind: str) -> Callable[[Place], Step]:
    def make(place: Place) -> Step:
        model = _language_model(kind)
        place(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = torch.randint(0, 1000, (4, 64))

        def step(_: int) -> None:
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()

        return step

    return make


def _generation(kind: str) -> Callable[[Place], Step]:
    def make(place: Place) -> Step:
        model = _language_model(kind).eval()
        place(model)
        ids = torch.randint(0, 1000, (1, 16))

        @torch.no_grad()
        def step(_: int) -> None:
            model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)

        return step

    return make


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.other = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.other(self.second(functional.relu(self.norm(self.first(x))))))


def resnet(place: Place) -> Step:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *(_Residual(16) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip
    place(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images, labels = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))

    def step(_: int) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


class _Perceptron(nn.Module):
    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self.norm(functional.gelu(layer(x)) * torch.sigmoid(x))
        return x


def grpo(place: Place) -> Step:
    """Samples in no_grad, a reference model, and a policy's clipped loss."""
    policy, reference = _Perceptron(), _Perceptron()
    place(policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-4)
    prompts = torch.randn(16, 64)

    def step(_: int) -> None:
        with torch.no_grad():
            before, base = policy(prompts).log_softmax(-1), reference(prompts).log_softmax(-1)
            actions = before.argmax(-1, keepdim=True)
            rewards = before.gather(-1, actions).squeeze(-1)
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        now = policy(prompts).log_softmax(-1)
        ratio = (now.gather(-1, actions) - before.gather(-1, actions)).exp().squeeze(-1)
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        optimizer.zero_grad()
        (loss + 0.01 * (now.exp() * (now - base)).sum(-1).mean()).backward()
        optimizer.step()

    return step


def changing_batch(place: Place) -> Step:
    model = _Perceptron()
    place(model)
    inputs = [torch.randn(rows, 64) for rows in (16, 24, 32, 40, 48)]

    @torch.no_grad()
    def step(number: int) -> None:
        model(inputs[number % len(inputs)])

    return step


def changing_sequence(place: Place) -> Step:
    model = _Perceptron()
    place(model)
    inputs = [torch.randn(2, length, 64) for length in range(8, 40)]

    @torch.no_grad()
    def step(number: int) -> None:
        model(inputs[number % len(inputs)])

    return step


def train_and_eval(place: Place) -> Step:
    model = _Perceptron()
    place(model)
    x = torch.randn(32, 64)

    def step(number: int) -> None:
        if number % 4 == 3:
            model.eval()
            with torch.no_grad():
                model(x)
        else:
            model.train()
            model.zero_grad()
            model(x).square().mean().backward()

    return step


def random_control_flow(place: Place) -> Step:
    choose = random.Random(0)
    functions = [torch.sin, torch.cos, torch.tanh, torch.exp, torch.abs, torch.sigmoid]
    x = torch.randn(64, 64)

    def function(value: torch.Tensor, order: list[Callable[[torch.Tensor], torch.Tensor]]) -> torch.Tensor:
        for each in order:
            value = each(value).clamp(-2, 2)
        return value

    hot = place(function)
    return lambda _: hot(x, [choose.choice(functions) for _ in range(12)])


def data_dependent_branch(place: Place) -> Step:
    numbers = torch.Generator().manual_seed(0)  # as many inputs for each branch, whichever loop it is
    inputs = [torch.randn(64, 64, generator=numbers) for _ in range(7)]

    def function(value: torch.Tensor) -> torch.Tensor:
        value = torch.tanh(value @ value) * 2 + 1
        if value.sum() > 4096:
            return (value.exp() + value).sin() * value
        return (value.cos() - value).tanh() * value

    hot = place(function)
    return lambda number: hot(inputs[number % len(inputs)])


LOOPS: dict[str, Callable[[Place], Step]] = {
    **{name: _workload(name) for name in workloads.WORKLOADS},
    "GPT-2 training": _training("gpt2"),
    "GPT-2 generation": _generation("gpt2"),
    "Llama training": _training("llama"),
    "Llama generation": _generation("llama"),
    "ResNet training": resnet,
    "GRPO": grpo,
    "changing batch": changing_batch,
    "changing sequence": changing_sequence,
    "train and eval": train_and_eval,
    "random control flow": random_control_flow,
    "data-dependent branch": data_dependent_branch,
    "5 iterations": _workload("mlp-training-step"),
}
