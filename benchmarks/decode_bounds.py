"""Does any published decode step or throughput beat its bound? gpt-fast's and TensorRT-LLM's tables.

    python benchmarks/decode_bounds.py [--only ROW]

Reads ``published_inference/`` in the folder that ROOFLIGHT_DATA names. A row's model is built from its sizes on the
meta device, with weights and KV cache stored at the row's precision; its prefill and decode steps are recorded, and
bounded by matrix FLOPs / peak at that precision and compulsory bytes / bandwidth. Nothing is fitted. Each choice makes
a bound lower, never higher:

- Work and bytes are divided by the number of GPUs, as if they were shared out without rest, and sent for nothing.
- Weights in FP4 have a scale of one byte for 16, in int8 one of two bytes for each output, in int4 scale and zero for
  128; in FP8 none. The head is stored as the layers are, and logits never leave the chip.
- A mixture of experts reads the experts of one token alone, and no router: it is built as a dense model.
- Keys and values take two bytes, with FP8 and FP4 weights one. Where attention is limited to a window or chunk (Mistral
  7B: 4,096 tokens, Llama 4: 8,192), no token sees more.
- *Decode*: the step after the prompt, where the cache is shortest. *Speculative*: 8 tokens of each pass, no draft.
- *Static batch*: the prefill, then each step at the mean KV length: what a step needs is convex in it.
- *In-flight batching*: all requests, perfectly overlapped. The batch is as large as device memory holds sequences that
  have their prompt alone, so that weights are read as rarely as can be.
- Where a column may be per GPU or in total, it is taken as the higher throughput.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import floor
from pathlib import Path
from typing import Any

import torch
from csv_results import write_csv
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, PreTrainedConfig, Starcoder2Config

import rooflight as rl
from rooflight.devices import get
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.sources.workloads.build import build_model, quiet_transformers
from rooflight.sources.workloads.caches import HeldLayer, held_cache

TABLES = (
    "gpt_fast_decode",
    "trtllm_v05_first_token_latency",
    "trtllm_v061_peak_throughput",
    "trtllm_v017_throughput",
    "trtllm_v10_throughput",
)
DEVICES = {"A100": "A100-SXM4-80GB", "H100": "H100-SXM5-80GB", "H200": "H200-SXM-141GB", "GH200": "GH200-96GB",
           "GB200": "GB200 (per GPU)", "B200": "B200-SXM", "L40S": "L40S", "RTX6000Pro": "RTX PRO 6000 Blackwell",
           "MI-250x": "MI250X (per GCD)", "MI-300x": "MI300X"}  # fmt: skip
LLAMA_4 = {"layers": "48", "hidden": "5120", "heads": "40", "kv_heads": "8", "head_dim": "128", "ffn": "16384",
           "vocab": "202048"}  # fmt: skip
"""Sizes of both Llama 4 models, which the table leaves out, by the public configurations: a token passes 8,192 of a
shared expert and 8,192 of its own, or 16,384 of a dense layer."""
WINDOWS = {"Mistral": 4096, "Llama 4": 8192}
TOKENS_A_PASS = 8


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How weights and cache are stored, and at which peak products run."""

    weight_bits: int
    cache_bytes: int
    peak: str
    scale_bytes_per_output: int = 0
    scaled_weights: int = 0  # that share scale_bytes
    scale_bytes: int = 0


PRECISIONS = {
    "bf16": Precision(weight_bits=16, cache_bytes=2, peak="bfloat16"),
    "FP16": Precision(weight_bits=16, cache_bytes=2, peak="float16"),
    "int8": Precision(weight_bits=8, cache_bytes=2, peak="bfloat16", scale_bytes_per_output=2),
    "int4": Precision(weight_bits=4, cache_bytes=2, peak="bfloat16", scaled_weights=128, scale_bytes=4),
    "FP8": Precision(weight_bits=8, cache_bytes=1, peak="float8"),
    "FP4": Precision(weight_bits=4, cache_bytes=1, peak="float4", scaled_weights=16, scale_bytes=1),
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a pass must do, whatever runs it."""

    matrix_flops: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published figure as seconds (of a token or of a first token) beside the bound."""

    table: str
    number: str
    what: str
    published_s: float
    bound_s: float
    limiter: str
    by_hand: float  # compulsory bytes of the recorded decode step / bytes counted by hand


class StoredLinear(nn.Module):
    """A linear layer whose weight is stored in few bits, and widened before the product: compiled, or in the kernel."""

    def __init__(self, linear: nn.Linear, precision: Precision) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        self.bits = precision.weight_bits
        self.weight = _bytes(outputs, inputs * self.bits // 8)
        self.scales = _bytes(outputs, precision.scale_bytes_per_output) if precision.scale_bytes_per_output else None
        if precision.scaled_weights:
            self.scales = _bytes(outputs, inputs // precision.scaled_weights * precision.scale_bytes)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stored = self.weight
        wide = stored if self.bits == 8 else torch.stack((stored & 15, stored >> 4), dim=-1).flatten(-2)
        out = functional.linear(x, wide.to(x.dtype), self.bias)
        return out if self.scales is None else out * self.scales.sum(-1).to(x.dtype)


def _bytes(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.uint8, device="meta"), requires_grad=False)


class NarrowLayer(HeldLayer):
    """A cache layer of one byte per value."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        super().update(key_states, value_states)
        return tuple(place.to(key_states.dtype) for place in self._places)


class Model:
    """A model stored at a precision, on the meta device."""

    def __init__(self, config: PreTrainedConfig, precision: Precision) -> None:
        self.precision = precision
        self.model = build_model(config, device="meta", dtype="bf16")
        if precision.weight_bits < 16:
            for module in list(self.model.modules()):
                for name, child in list(module.named_children()):
                    if isinstance(child, nn.Linear):
                        setattr(module, name, StoredLinear(child, precision))

    @cache  # noqa: B019 - models are made once and live as long as the program
    def prefill(self, batch: int, length: int) -> Work:
        """All tokens of a batch of prompts at once."""
        ids = torch.empty((batch, length), dtype=torch.int64, device="meta")
        return self._recorded(lambda: self.model(input_ids=ids, use_cache=True, logits_to_keep=1))

    @cache  # noqa: B019
    def decode(self, batch: int, cached: int) -> Work:
        """One more token for each sequence after so many cached ones."""
        with torch.no_grad():
            _, afresh = held_cache(
                self.model, batch=batch, seq=cached, device=torch.device("meta"), dtype=torch.bfloat16
            )
        held = afresh()
        if self.precision.cache_bytes == 1:
            held.layers = [
                NarrowLayer(layer.keys.to(torch.uint8), layer.values.to(torch.uint8)) for layer in held.layers
            ]
        ids = torch.empty((batch, 1), dtype=torch.int64, device="meta")
        return self._recorded(lambda: self.model(input_ids=ids, past_key_values=held, use_cache=True))

    def _recorded(self, call: Callable[[], Any]) -> Work:
        with quiet_transformers(), torch.no_grad(), rl.record(self.model) as recording:
            call().logits[:, -1].argmax(-1)
        analysis = rl.analyze(recording.session, get("A100-SXM4-80GB"))
        assert not analysis.coverage.uncosted, analysis.coverage.uncosted
        return Work(matrix_flops=analysis.totals.matrix_flops, bytes=analysis.program.compulsory_bytes)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A decoder's sizes; ``ffn`` is what a token passes. ``gated``: the MLP has three matrices, as Llama's, not two.

    transformers' own Falcon keeps keys and values of all heads, its GPT-J reads a table of angles in each layer: both
    are built as StarCoder 2, which has their matrices and neither.
    """

    gated: bool
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    @classmethod
    def of(cls, row: dict[str, str]) -> Sizes:
        known = LLAMA_4 | {name: value for name, value in row.items() if value} if "Llama 4" in row["model"] else row
        if not known["hidden"]:
            raise ValueError(f"{row['model']}: the table has no sizes")
        number = {name: int(known[name]) for name in ("layers", "hidden", "heads", "kv_heads")}
        experts = int(row["top_k"] or 0) + int(row["n_shared_experts"] or 0)
        return cls(
            gated=not row["model"].startswith(("GPT-J", "Falcon")),
            head_dim=int(known["head_dim"] or number["hidden"] // number["heads"]),
            ffn=experts * int(row["moe_ffn"]) if experts else int(known["ffn"]),
            vocab=int(known["vocab"] or 32000),
            **number,
        )

    def config(self) -> PreTrainedConfig:
        if not self.gated:
            return Starcoder2Config(vocab_size=self.vocab, hidden_size=self.hidden, num_hidden_layers=self.layers,
                                    num_attention_heads=self.heads, num_key_value_heads=self.kv_heads,
                                    intermediate_size=self.ffn, use_bias=False, sliding_window=None,
                                    tie_word_embeddings=False, max_position_embeddings=1 << 16)  # fmt: skip
        return LlamaConfig(vocab_size=self.vocab, hidden_size=self.hidden, num_hidden_layers=self.layers,
                           num_attention_heads=self.heads, num_key_value_heads=self.kv_heads, head_dim=self.head_dim,
                           intermediate_size=self.ffn, max_position_embeddings=1 << 16)  # fmt: skip

    def weight_bytes(self, precision: Precision) -> float:
        """By hand: projections of attention, MLP and head, with their scales."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        inputs_outputs = [
            *[(self.hidden, query), (self.hidden, 2 * kv), (query, self.hidden)] * self.layers,
            *[(self.hidden, self.ffn)] * ((1 + self.gated) * self.layers),
            *[(self.ffn, self.hidden)] * self.layers,
            (self.hidden, self.vocab),
        ]
        weights = sum(inputs * outputs for inputs, outputs in inputs_outputs)
        outputs = sum(outputs for _, outputs in inputs_outputs)
        scales = weights / precision.scaled_weights * precision.scale_bytes if precision.scaled_weights else 0
        return weights * precision.weight_bits / 8 + scales + outputs * precision.scale_bytes_per_output

    def cache_bytes(self, precision: Precision) -> int:
        """Of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * precision.cache_bytes


@cache
def model_of(sizes: Sizes, precision: Precision) -> Model:
    return Model(sizes.config(), precision)


def device_of(name: str) -> DeviceSpec:
    """The part that a table means; where it may be one of several, the fastest."""
    found = next((device for start, device in DEVICES.items() if name.startswith(start)), None)
    if found is None:
        raise ValueError(f"which device is {name}?")
    return get(found)


class Figure:
    """One row of a table, bounded."""

    def __init__(self, row: dict[str, str]) -> None:
        self.row = row
        self.sizes = Sizes.of(row)
        self.precision = PRECISIONS[row["precision"].split()[0]]
        self.device = device_of(row["gpu"])
        self.gpus = int(row["n_gpus"])
        self.model = model_of(self.sizes, self.precision)
        self.window = next((window for name, window in WINDOWS.items() if name in row["model"]), 1 << 30)
        self.isl, self.osl = int(row["isl"] or 5), int(row["osl"] or 1)

    def bounded(self) -> Row:
        phase = self.row["phase"]
        if phase.startswith("first token"):
            published_s, parts = self.first_token()
        elif phase.startswith("static batch"):
            published_s, parts = self.static_batch()
        elif phase.startswith("offline"):
            published_s, parts = self.in_flight()
        else:
            published_s, parts = self.one_by_one()
        limiter, bound_s = max(parts.items(), key=lambda part: part[1])
        step = self.model.decode(1, min(self.isl, self.window))
        cached = min(self.isl, self.window) * self.sizes.cache_bytes(self.precision)
        return Row(
            table=self.row["table"],
            number=self.row["row_id"].rpartition("-")[2],
            what=self._what(),
            published_s=published_s,
            bound_s=bound_s,
            limiter=limiter,
            by_hand=step.bytes / (self.sizes.weight_bytes(self.precision) + cached),
        )

    def one_by_one(self) -> tuple[float, dict[str, float]]:
        """Seconds of a token, batch 1."""
        tokens = TOKENS_A_PASS if self.row["phase"].startswith("speculative") else 1
        step = self._least_s(self.model.decode(1, self.isl))
        return 1 / float(self.row["out_tokens_per_s"]), {name: seconds / tokens for name, seconds in step.items()}

    def first_token(self) -> tuple[float, dict[str, float]]:
        """Seconds of the prefill. The table has whole milliseconds: the longest that is printed so."""
        return (float(self.row["ttft_ms"]) + 0.5) / 1e3, self._least_s(self.model.prefill(1, self.isl))

    def static_batch(self) -> tuple[float, dict[str, float]]:
        """Seconds per token of a sequence; steps are at the mean KV length."""
        batch, osl = int(self.row["batch_size"]), self.osl
        per_gpu = float(self.row["out_tokens_per_s_per_gpu"] or self.row["out_tokens_per_s"])
        step = self._least_s(self.model.decode(batch, self._mean_length()))
        prefill = self._least_s(self.model.prefill(batch, self.isl))
        whole_s = max(prefill.values()) + (osl - 1) * max(step.values())
        return batch / (per_gpu * self.gpus), {max(step, key=lambda name: step[name]): whole_s / osl}

    def in_flight(self) -> tuple[float, dict[str, float]]:
        """Seconds of a token of the whole group, all requests overlapped."""
        osl = self.osl
        room = self.gpus * (self.device.memory[-1].capacity_bytes or 0) - self.sizes.weight_bytes(self.precision)
        shortest = min(self.isl + 1, self.window) * self.sizes.cache_bytes(self.precision)
        batch = max(1, min(floor(room / shortest), int(self.row["num_requests"])))
        step = self.model.decode(batch, self._mean_length())
        length = min(self.isl, self.window)  # beyond it every token sees a whole window: at least as many as before
        prompt_flops = self.model.prefill(1, length).matrix_flops * self.isl / length
        work = Work(
            matrix_flops=round((prompt_flops + (osl - 1) * step.matrix_flops / batch) / osl),
            bytes=round((osl - 1) * step.bytes / batch / osl),
        )
        return 1 / float(self.row["out_tokens_per_s"]), self._least_s(work)

    def _mean_length(self) -> int:
        """Of the steps after the first token, no token seeing more than the window."""
        lengths = [min(length, self.window) for length in range(self.isl, self.isl + max(1, self.osl - 1))]
        return floor(sum(lengths) / len(lengths))

    def _least_s(self, work: Work) -> dict[str, float]:
        peak, bandwidth = self.device.matrix_peak(self.precision.peak), self.device.dram_bytes_per_s
        assert peak is not None
        assert bandwidth is not None
        return {
            "compute": work.matrix_flops / (self.gpus * peak),
            "memory": work.bytes / (self.gpus * bandwidth),
        }

    def _what(self) -> str:
        row = self.row
        gpus = f"{self.gpus} x {self.device.name}" if self.gpus > 1 else self.device.name
        batch = f", batch {row['batch_size']}" if row["batch_size"] not in ("", "1") else ""
        tokens = f", {self.isl} + {self.osl} tokens" if row["osl"] not in ("", "1") else f", {self.isl} tokens"
        name = re.sub(r" int4, draft.*", " (speculative)", row["model"])
        return f"{name}, {row['precision'].split()[0]}, {gpus}{batch}{tokens}"


def main() -> int:
    """Bound the rows, print them, and fail if one is faster than its bound, or has none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose row_id contains this")
    options = parser.parse_args()
    folder = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "published_inference"
    if not folder.is_dir():
        parser.error("set ROOFLIGHT_DATA to the folder that has published_inference/")
    rows: list[Row] = []
    refused: list[str] = []
    for table in TABLES:
        with (folder / f"{table}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                if options.only not in row["row_id"]:
                    continue
                print(f"\r{row['row_id']:60}", end="", file=sys.stderr, flush=True)
                try:
                    rows.append(Figure(row).bounded())
                except ValueError as error:
                    refused.append(f"{row['row_id']}: {error}")
    print(file=sys.stderr)
    print("\n".join(markdown(rows, refused)))
    if not options.only:
        header = ("table", "row", "what", "published_s", "bound_s", "limiter", "bound / published")
        write_csv("decode_bounds", header, map(cells, rows))
    return 1 if refused or any(row.bound_s > row.published_s for row in rows) else 0


def cells(row: Row) -> tuple[object, ...]:
    share = f"{row.bound_s / row.published_s:.2f}"
    return row.table, row.number, row.what, f"{row.published_s:.3g}", f"{row.bound_s:.3g}", row.limiter, share


def markdown(rows: list[Row], refused: list[str]) -> Iterator[str]:
    yield "| table | rows | faster than the bound | bound ÷ published: least | median | most |"
    yield "|---|---:|---:|---:|---:|---:|"
    for table in TABLES:
        shares = sorted(row.bound_s / row.published_s for row in rows if row.table == table)
        if shares:
            beaten = sum(share > 1 for share in shares)
            least, median, most = shares[0], shares[len(shares) // 2], shares[-1]
            yield f"| {table} | {len(shares)} | {beaten} | {least:.2f} | {median:.2f} | {most:.2f} |"
    yield ""
    by_hand = [row.by_hand for row in rows]
    if by_hand:
        yield (
            "Compulsory bytes of the recorded decode step of one sequence ÷ bytes of weights and cache by hand: "
            f"{min(by_hand):.4f} to {max(by_hand):.4f}."
        )
    for each in refused:
        yield f"- not bounded: {each}"


if __name__ == "__main__":
    sys.exit(main())
