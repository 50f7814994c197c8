"""Every preset at full size, without hardware: all of it costed, and dense language models to the last FLOP."""

from __future__ import annotations

import pytest
from workloads.closed_forms import (
    decode_matrix_flops,
    forward_matrix_flops,
    prefill_matrix_flops,
    train_matrix_flops,
)

import rooflight as rl
from rooflight.workloads.presets import PRESETS, preset
from rooflight.workloads.steps import make_step

DENSE = ("gpt2", "gpt2-xl", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen3-8b", "gpt-neox-20b")
CLOSED_FORMS = {
    "forward": forward_matrix_flops,
    "train": train_matrix_flops,
    "prefill": prefill_matrix_flops,
    "decode": decode_matrix_flops,
}


def analysis_of(name: str, mode: str, batch: int, seq: int) -> rl.Analysis:
    step = make_step(name, mode=mode, batch=batch, seq=seq)
    with rl.record(step.model) as recording:
        step.run()
    return rl.analyze(recording.session, "H100-SXM5-80GB")


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_call_of_every_preset_is_costed(name, mode):
    analysis = analysis_of(name, mode, batch=1, seq=16)
    assert analysis.coverage.uncosted == ()
    assert analysis.coverage.calls == 1
    assert analysis.totals.matrix_flops > 0
    if mode == "train":
        phases = {group.name: group for group in analysis.by("phase")}
        assert set(phases) == {"forward", "backward", "optimizer"}
        assert phases["optimizer"].matrix_flops == 0
        assert phases["backward"].matrix_flops > 1.5 * phases["forward"].matrix_flops


@pytest.mark.parametrize("mode", CLOSED_FORMS)
@pytest.mark.parametrize("name", DENSE)
def test_matrix_flops_of_dense_language_models_equal_the_closed_form(name, mode):
    batch, seq = 2, 48
    analysis = analysis_of(name, mode, batch, seq)
    # transformers before 5.20 formed the rotary angles by a small matrix product
    angles = sum(group.matrix_flops for group in analysis.by("layer") if "Rotary" in group.name)
    assert analysis.totals.matrix_flops - angles == CLOSED_FORMS[mode](preset(name).config(), batch, seq)
