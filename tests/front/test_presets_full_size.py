"""Every preset at full size, without hardware: it runs, all of it is costed, dense models to the last FLOP."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from some_presets import presets
from workloads.closed_forms import (
    decode_matrix_flops,
    forward_matrix_flops,
    prefill_matrix_flops,
    train_matrix_flops,
)

import rooflight as rl
from rooflight.sources.workloads.presets import PRESETS, preset
from rooflight.sources.workloads.steps import make_step

DENSE = ("gpt2", "gpt2-xl", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen3-8b", "gpt-neox-20b")
BATCH, SEQ, SHORT_SEQ = 2, 48, 16  # state space models run a loop as long as the sequence
CLOSED_FORMS = {
    "forward": forward_matrix_flops,
    "train": train_matrix_flops,
    "prefill": prefill_matrix_flops,
    "decode": decode_matrix_flops,
}


@cache
def ran(name: str, mode: str) -> tuple[torch.device, torch.Size, rl.Analysis]:
    """Where a step's result was, its shape, and what its analysis says."""
    seq = SEQ if name in DENSE else SHORT_SEQ
    step = make_step(name, step=mode, batch=BATCH, seq=None if PRESETS[name].kind == "image-classification" else seq)
    with rl.record(step.model) as recording:
        result = step.run()
    result = result if mode == "train" else result.logits
    return result.device, result.shape, rl.analyze(recording.session, "H100-SXM5-80GB")


def matrix_flops(analysis: rl.Analysis, key: str) -> dict[str, int]:
    return {group.name: group.matrix_flops for group in analysis.by(key)}


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("name", presets(PRESETS))
def test_every_preset_runs_and_every_call_of_it_is_costed(name, mode):
    device, shape, analysis = ran(name, mode)
    assert device.type == "meta"
    assert (analysis.coverage.uncosted, analysis.coverage.calls) == ((), 1)
    assert analysis.totals.matrix_flops > 0
    if mode == "train":
        assert shape == ()  # the loss
        phases = matrix_flops(analysis, "phase")
        assert phases == {"forward": phases["forward"], "backward": phases["backward"], "optimizer": 0}
        assert phases["backward"] > 1.5 * phases["forward"]


@pytest.mark.parametrize("mode", CLOSED_FORMS)
@pytest.mark.parametrize("name", presets(DENSE))
def test_matrix_flops_of_dense_language_models_equal_the_closed_form(name, mode):
    *_, analysis = ran(name, mode)
    # transformers before 5.20 formed the rotary angles by a small matrix product
    angles = sum(flops for layer, flops in matrix_flops(analysis, "layer").items() if "Rotary" in layer)
    assert analysis.totals.matrix_flops - angles == CLOSED_FORMS[mode](preset(name).config(), BATCH, SEQ)


@pytest.mark.parametrize("name", presets([*DENSE, "deepseek-v3", "mamba-130m"]))
def test_a_decode_step_gives_one_token_a_sequence(name):
    assert ran(name, "decode")[1] == (BATCH, 1, preset(name).config().vocab_size)
