"""Predicted time of whole models beside measured: NeuSight's labels, FP32, on AMD and NVIDIA GPUs.

    ROOFLIGHT_DATA=... python benchmarks/whole_models.py [--models FOLDER] [--json ROWS]

Reads ``neusight/e2e_labels`` in the folder that ROOFLIGHT_DATA names. Each model is built from its own config (without
memory), recorded once per batch and length, and predicted for every GPU that it was timed on, with the shipped models
and a typical host. Nothing is fitted to these times.

What was timed, by the script that made the labels: the mean of the fastest 5 of 25 calls between two CUDA events, with
eager attention, TF32 off, all tokens 1. ``inf``: forward without gradients (BERT: sequence classification). ``train``:
forward, then backward of the mean cross-entropy of all logits; the loss itself lies between the two and is not timed.
Before each call ``torch.cuda.empty_cache()`` gives all free memory back, so every call pays for allocating what it
needs again. A forward with gradients keeps its activations and so allocates all of them; one without gradients uses
again what it freed.

Labels of 4 GPUs and of compiled models are left out, as is the MI250 (no peak of its FP32 products is published apart
from the MI250X's). Switch Transformers route by the values of their tokens, which a recording without hardware has
none of: each expert takes as many tokens as its capacity allows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import rooflight as rl
from rooflight.roofline.memory.use import memory_use
from rooflight.sources.workloads.build import quiet_transformers

DEVICES = {
    "AMD_Instinct_MI100": "MI100",
    "AMD_Instinct_MI210": "MI210",
    "NVIDIA_A100-PCIE-40GB": "A100-PCIE-40GB",
    "NVIDIA_A100_80GB_PCIe": "A100-PCIE-80GB",
    "NVIDIA_H100_80GB_HBM3": "H100-SXM5-80GB",
    "Tesla_P100-PCIE-16GB": "P100-PCIE-16GB",
    "Tesla_P4": "P4",
    "Tesla_T4": "T4",
    "Tesla_V100-PCIE-32GB": "V100-PCIE-32GB",
}


@dataclass(frozen=True, kw_only=True)
class Label:
    """A model as it was timed on a device: seconds of forward and backward."""

    device: str
    model: str
    trains: bool
    seq: int
    batch: int
    forward_s: float
    backward_s: float

    @property
    def work(self) -> tuple[str, bool, int, int]:
        return self.model, self.trains, self.seq, self.batch


@dataclass(frozen=True, kw_only=True)
class Row:
    """A label beside its prediction; ``memory_share``: of the device's memory, that the step's tensors hold at most."""

    device: str
    model: str
    what: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    bound_s: float
    forward_measured_s: float
    forward_s: float
    backward_measured_s: float
    backward_s: float
    memory_share: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="predict with the models of this folder")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    folder = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "neusight"
    if not (folder / "e2e_labels").is_dir():
        parser.error("set ROOFLIGHT_DATA to the folder that has neusight/e2e_labels")
    predictor = rl.Predictor.load(options.models) if options.models else rl.Predictor()
    rows = sorted(scored(list(labels(folder)), folder, predictor), key=lambda row: (row.device, row.model, row.what))
    print("\n".join(markdown(rows)))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


def labels(folder: Path) -> Iterator[Label]:
    for path in sorted((folder / "e2e_labels").glob("*/*.json")):
        parts = path.stem.split("-")
        if len(parts) != 4 or path.parent.name not in DEVICES:  # compiled, or on 4 GPUs
            continue
        found = json.loads(path.read_text())
        yield Label(
            device=DEVICES[path.parent.name],
            model=parts[0],
            trains=parts[1] == "train",
            seq=int(parts[2]),
            batch=int(parts[3]),
            forward_s=found["fw_latency"] * 1e-3,
            backward_s=found["bwall_latency"] * 1e-3,
        )


def scored(found: Sequence[Label], folder: Path, predictor: rl.Predictor) -> Iterator[Row]:
    by_work: dict[Any, list[Label]] = defaultdict(list)
    for label in found:
        by_work[label.work].append(label)
    for number, ((model, trains, seq, batch), timed) in enumerate(by_work.items(), start=1):
        print(f"\r{number} of {len(by_work)}: {model}", end="  ", file=sys.stderr, flush=True)
        session = recorded(folder / "model_configs" / f"{model}.json", trains=trains, seq=seq, batch=batch)
        peak_bytes = memory_use(session).peak_bytes
        for label in timed:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                analysis = rl.analyze(session, label.device, predictor=predictor)
            by_phase = {group.name: group.predicted for group in analysis.by("phase")}
            loss_s = by_phase["loss"].time_s if "loss" in by_phase else 0.0
            wall = analysis.totals.predicted_wall
            yield Row(
                device=label.device,
                model=model,
                what=f"{'train' if trains else 'inf'} {seq} x {batch}",
                measured_s=label.forward_s + label.backward_s,
                predicted_s=wall.time_s - loss_s,
                low_s=wall.low_s - loss_s,
                high_s=wall.high_s - loss_s,
                bound_s=analysis.totals.op_bound_s,
                forward_measured_s=label.forward_s,
                forward_s=by_phase["forward"].time_s,
                backward_measured_s=label.backward_s,
                backward_s=by_phase["backward"].time_s if trains else 0.0,
                memory_share=peak_bytes / analysis.device.dram_capacity_bytes,
            )
    print(file=sys.stderr)


def recorded(config_file: Path, *, trains: bool, seq: int, batch: int) -> rl.Session:
    """The ops that were timed, in phases ``forward``, ``loss`` and ``backward``."""
    config = transformers.AutoConfig.from_pretrained(config_file)
    kind = config.architectures[0].lower()
    with quiet_transformers(), torch.device("meta"):
        model = _builder(kind, trains)(config, attn_implementation="eager", dtype=torch.float32).train(trains)
        tokens = torch.ones(batch, seq, dtype=torch.int64)
    if "switch" in kind:
        _route_by_capacity(model, config)
        inputs = {"input_ids": tokens, "decoder_input_ids": tokens, "decoder_attention_mask": tokens}
    else:
        inputs = {"input_ids": tokens}
    if "bert" not in kind:
        inputs["use_cache"] = False  # the release that was timed kept keys and values without copying them
    with quiet_transformers(), rl.record(model) as recording:
        with rl.phase("forward"), torch.set_grad_enabled(trains):
            result = model(**inputs)
        if trains:
            with rl.phase("loss"):
                logits = result["prediction_logits"] if "prediction_logits" in result else result["logits"]
                loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.view(-1))
            with rl.phase("backward"):
                loss.backward()
    return recording.session


def _builder(kind: str, trains: bool) -> Callable[..., Any]:
    if "bert" in kind:
        auto = transformers.AutoModelForPreTraining if trains else transformers.AutoModelForSequenceClassification
    else:
        auto = transformers.AutoModelForSeq2SeqLM if "switch" in kind else transformers.AutoModelForCausalLM
    return auto.from_config


def _route_by_capacity(model: torch.nn.Module, config: Any) -> None:
    """Let each expert take as many of the first tokens as its capacity allows."""

    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        _, probabilities, _ = self.router(hidden_states)
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        out = rows.clone()
        taken = torch.arange(min(rows.shape[0], hidden_states.shape[0] * config.expert_capacity), device="meta")
        for expert in self.experts.values():
            out = out.index_put((taken,), expert(rows[taken]))
        return probabilities * out.view_as(hidden_states)

    for module in model.modules():
        if type(module).__name__ == "SwitchTransformersSparseMLP":
            module.forward = forward.__get__(module)


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    names = "device", "model", "step", "measured ms", "predicted ms", "error", "90 % interval", "over bound"
    yield f"| {' | '.join((*names, 'forward', 'backward', 'memory'))} |"
    yield "|" + "---|" * (len(names) + 3)
    for row in rows:
        held = "holds" if row.low_s <= row.measured_s <= row.high_s else "misses"
        parts = [
            f"{given / measured - 1:+.0%}" if measured else ""
            for given, measured in (
                (row.forward_s, row.forward_measured_s), (row.backward_s, row.backward_measured_s),
            )
        ]  # fmt: skip
        yield (
            f"| {row.device} | {row.model} | {row.what} | {1e3 * row.measured_s:.0f} | {1e3 * row.predicted_s:.0f} "
            f"| {row.error:+.1%} | {held} | {row.measured_s / row.bound_s:.2f} | {parts[0]} | {parts[1]} "
            f"| {row.memory_share:.0%} |"
        )
    yield ""
    yield from _means("device", rows, lambda row: row.device)
    yield from _means("model", rows, lambda row: row.model)
    yield from _means("step", rows, lambda row: row.what.split()[0])
    yield from _means("all", rows, lambda _: "all")


def _means(name: str, rows: Sequence[Row], key: Callable[[Row], str]) -> Iterator[str]:
    yield f"| {name} | labels | mean error | median | mean signed | intervals hold |"
    yield "|---|---|---|---|---|---|"
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    for group, some in groups.items():
        errors = [row.error for row in some]
        held = sum(row.low_s <= row.measured_s <= row.high_s for row in some)
        sizes = [abs(error) for error in errors]
        yield (
            f"| {group} | {len(some)} | {statistics.mean(sizes):.1%} | {statistics.median(sizes):.1%} "
            f"| {statistics.mean(errors):+.1%} | {held} of {len(some)} |"
        )
    yield ""


if __name__ == "__main__":
    sys.exit(main())
