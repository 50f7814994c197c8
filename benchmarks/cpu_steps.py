"""Training steps on this CPU: predicted beside measured, 12 times, each measured within minutes of what it is predicted
from.

    python benchmarks/cpu_steps.py                      # about 7 minutes; nothing else may run meanwhile
    python benchmarks/cpu_steps.py --on shipped         # the rows added to the shipped models

A GPT-2 and a small Llama, batch 1 and 2 of 128 tokens, float32, each with unfused and fused AdamW. The machine is
calibrated once. Each of three rounds samples operators (``rooflight sample smart``) and times the ops of other, smaller
models of both kinds (``SIBLINGS``: other widths, lengths, vocabularies), learns from all rows so far, and then measures
the four steps: the median of five by the wall clock, after two to warm up. A predicted step is the sum over its ops.
Nothing of the four steps themselves is learned from. Two predictions stand side by side: from the sampled operators
alone, and from them and the siblings.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from csv_results import write_csv

import rooflight as rl
from rooflight.hardware.machine.cpu_load import Bystander

FOLDER = Path(tempfile.mkdtemp(prefix="rooflight-cpu-steps-"))
SEQUENCE = 128
WARM_UP, REPEATS = 2, 5


def gpt2(**sizes: int) -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def llama(**sizes: int) -> torch.nn.Module:
    given = {
        "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8,
        "num_key_value_heads": 4, "vocab_size": 16_000, **sizes,
    }  # fmt: skip
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**given))


def small_gpt2() -> torch.nn.Module:
    return gpt2(n_embd=640, n_head=10, n_layer=4, vocab_size=40_000, bos_token_id=0, eos_token_id=0)


def small_llama() -> torch.nn.Module:
    return llama(
        hidden_size=384, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3,
        vocab_size=12_000,
    )  # fmt: skip


STEPS = (
    ("gpt2, AdamW", gpt2, 1, SEQUENCE, False),
    ("gpt2, fused AdamW", gpt2, 1, SEQUENCE, True),
    ("small llama, AdamW", llama, 2, SEQUENCE, False),
    ("small llama, fused AdamW", llama, 2, SEQUENCE, True),
)
SIBLINGS = (
    ("gpt2-sibling", small_gpt2, 1, 160, False),
    ("gpt2-sibling-fused", small_gpt2, 2, 96, True),
    ("llama-sibling", small_llama, 2, 96, False),
    ("llama-sibling-fused", small_llama, 1, 320, True),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A step of a round: seconds measured and predicted."""

    round: int
    step: str
    measured_s: float
    least_s: float
    most_s: float
    from_samples_s: float
    predicted_s: float
    low_s: float
    high_s: float
    others_share: float | None

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", default="30s", help="of sampling, each round")
    parser.add_argument("--on", help="add the rows to these models: shipped, or a folder")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    os.environ["ROOFLIGHT_CACHE"] = str(FOLDER / "cache")  # roofs of this hour, not the best of all days
    began = time.perf_counter()
    command("calibrate")
    rows: list[Row] = []
    for number in range(options.rounds):
        command("sample", "smart", "--cpu", "--budget", options.budget, "--out", str(FOLDER / f"samples-{number}"))
        for name, make, batch, seq, fused in SIBLINGS:
            teach(FOLDER / f"{name}-{number}.session", *training(make, batch, seq, fused=fused))
        for row in measured_round(number, *models(number, options.on)):
            print(f"{row.step}: {row.error:+.0%}", file=sys.stderr, flush=True)
            rows.append(row)
    for row in map(cells, rows):
        print(*row, sep="  ")
    print(summary(rows))
    write_csv("cpu_steps", HEADER, map(cells, rows))
    print(f"\n{time.perf_counter() - began:.0f} s in all")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


def command(*words: str) -> None:
    print("rooflight", *words[:2], file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "rooflight", *words], capture_output=True, text=True, cwd=FOLDER, check=False
    )
    if done.returncode:
        raise SystemExit(f"rooflight {' '.join(words)}: {done.stderr.strip()[-500:]}")


def models(number: int, on: str | None) -> tuple[rl.Predictor, rl.Predictor]:
    """Those of the sampled rows so far, and those of these and the siblings' ops."""
    base = ["--on", on] if on else []
    samples = [str(folder) for folder in sorted(FOLDER.glob("samples-*/sampling_data"))]
    sessions = [str(file) for file in sorted(FOLDER.glob("*.session"))]
    found = []
    # cold caches of samples and warm ones of a program, minutes apart on a machine whose speed varies: fit takes such
    # rows for two devices' unless told otherwise
    for name, data in (("samples", samples), ("all", [*samples, *sessions])):
        out = FOLDER / f"models-{name}-{number}"
        command("fit", *data, "--keep-flagged", "--out", str(out), *base)
        found.append(rl.Predictor.load(out))
    return found[0], found[1]


def training(
    make: Callable[..., torch.nn.Module], batch: int, seq: int, *, fused: bool
) -> tuple[torch.nn.Module, Callable[[], Any]]:
    torch.manual_seed(0)
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused, foreach=None if fused else True)
    tokens = torch.randint(0, model.config.vocab_size, (batch, seq))

    def step() -> None:
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()

    step()  # the optimizer makes its state
    return model, step


def teach(file: Path, model: torch.nn.Module, step: Callable[[], Any]) -> None:
    with rl.record(model) as recording:
        step()
    rl.measure(recording.session, step, max_seconds=6.0).save(file)


def measured_round(number: int, samples: rl.Predictor, everything: rl.Predictor) -> Iterator[Row]:
    for name, make, batch, seq, fused in STEPS:
        model, step = training(make, batch, seq, fused=fused)
        with rl.record(model) as recording:
            step()
        seconds, watch = [], Bystander()
        for _ in range(WARM_UP + REPEATS):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        others = watch.others()
        seconds = seconds[WARM_UP:]
        alone, both = (
            rl.analyze(recording.session, predictor=predictor).totals.predicted for predictor in (samples, everything)
        )
        yield Row(
            round=number,
            step=name,
            measured_s=statistics.median(seconds),
            least_s=min(seconds),
            most_s=max(seconds),
            from_samples_s=alone.time_s,
            predicted_s=both.time_s,
            low_s=both.low_s,
            high_s=both.high_s,
            others_share=others,
        )


HEADER = ("round", "step", "measured ms", "least of five", "most of five", "predicted ms", "error %", "low ms",
          "high ms", "samples alone, error %", "others, % of the CPU")  # fmt: skip


def cells(row: Row) -> tuple[object, ...]:
    times = (row.measured_s, row.least_s, row.most_s, row.predicted_s)
    others = "" if row.others_share is None else f"{100 * row.others_share:.0f}"
    return (
        row.round + 1,
        row.step,
        *(f"{1e3 * time_s:.0f}" for time_s in times),
        f"{100 * row.error:.0f}",
        f"{1e3 * row.low_s:.0f}",
        f"{1e3 * row.high_s:.0f}",
        f"{100 * (row.from_samples_s / row.measured_s - 1):.0f}",
        others,
    )


def summary(rows: list[Row]) -> str:
    errors = [abs(row.error) for row in rows]
    alone = [abs(row.from_samples_s / row.measured_s - 1) for row in rows]
    held = sum(row.low_s <= row.measured_s <= row.high_s for row in rows)
    return (
        f"Median error {statistics.median(errors):.1%} of {len(rows)} (mean {statistics.mean(errors):.1%}; from "
        f"samples alone {statistics.median(alone):.1%}); {held} of {len(rows)} in their intervals."
    )


if __name__ == "__main__":
    sys.exit(main())
