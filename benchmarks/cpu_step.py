"""A training step on this CPU, predicted op by op from five minutes of samples, beside the measured step.

    rooflight calibrate
    rooflight sample smart --budget 5m --out /tmp/cpu && rooflight fit /tmp/cpu/sampling_data --out /tmp/cpu/models
    python benchmarks/cpu_step.py /tmp/cpu/models

A GPT-2 and a small Llama, batch 1 and 2, float32, AdamW. The measured step is the median of nine, by the wall clock,
after three to warm up; the predicted one is the sum over its ops. Nothing else may run meanwhile, nor while the machine
is calibrated and sampled. Nothing of the models' steps is learned from.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import transformers

import rooflight as rl
from rooflight.prediction.predictor import Predictor

SEQUENCE = 128


def gpt2() -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config())


def llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=16_000,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def main() -> None:
    predictor = Predictor.load(sys.argv[1])
    for name, make, batch, fused in (
        ("gpt2", gpt2, 1, False), ("gpt2, fused AdamW", gpt2, 1, True), ("small llama", llama, 2, False),
        ("small llama, fused AdamW", llama, 2, True),
    ):  # fmt: skip
        torch.manual_seed(0)
        model = make()
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused, foreach=None if fused else True)
        tokens = torch.randint(0, model.config.vocab_size, (batch, SEQUENCE))

        def step(model=model, optimizer=optimizer, tokens=tokens) -> None:
            optimizer.zero_grad()
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()

        seconds = []
        for number in range(12):
            start = time.perf_counter()
            step()
            if number > 2:
                seconds.append(time.perf_counter() - start)
        with rl.record(model) as recording:
            step()
        analysis = rl.analyze(recording.session, predictor=predictor)
        predicted = analysis.totals.predicted
        measured = statistics.median(seconds)
        print(
            f"{name:26} measured {1e3 * measured:7.1f} ms ({1e3 * min(seconds):.1f} to {1e3 * max(seconds):.1f}), "
            f"predicted {1e3 * predicted.time_s:.1f} ms ({1e3 * predicted.low_s:.1f} to {1e3 * predicted.high_s:.1f}), "
            f"off by {100 * (predicted.time_s / measured - 1):+.1f} %, "
            f"not measured as such: {100 * predicted.extrapolated_s / predicted.time_s:.0f} %"
        )
        groups = sorted(analysis.by("op"), key=lambda group: -group.predicted.time_s)
        print(
            "   " + ", ".join(f"{group.name} {1e3 * group.predicted.time_s:.0f}" for group in groups[:12]), flush=True
        )


if __name__ == "__main__":
    main()
