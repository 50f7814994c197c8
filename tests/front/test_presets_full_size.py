"""Every preset at full size, without hardware: it runs, all of it is costed, dense models to the last FLOP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
from workloads.closed_forms import (
    decode_matrix_flops,
    forward_matrix_flops,
    prefill_matrix_flops,
    train_matrix_flops,
)

import rooflight as rl
from rooflight.roofline.groups import Group
from rooflight.workloads.presets import PRESETS, preset
from rooflight.workloads.steps import make_step

DENSE = ("gpt2", "gpt2-xl", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen3-8b", "gpt-neox-20b")
BATCH, SEQ, SHORT_SEQ = 2, 48, 16  # state space models run a loop as long as the sequence
CLOSED_FORMS = {
    "forward": forward_matrix_flops,
    "train": train_matrix_flops,
    "prefill": prefill_matrix_flops,
    "decode": decode_matrix_flops,
}


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a step gave and what its analysis says."""

    device: str
    shape: tuple[int, ...]
    coverage: float
    uncosted: tuple
    matrix_flops: int
    phases: dict[str, Group]
    layers: dict[str, Group]


@cache
def ran(name: str, mode: str) -> Ran:
    seq = SEQ if name in DENSE else SHORT_SEQ
    step = make_step(name, mode=mode, batch=BATCH, seq=None if PRESETS[name].kind == "image-classification" else seq)
    with rl.record(step.model) as recording:
        result = step.run()
    result = result if mode == "train" else result.logits
    analysis = rl.analyze(recording.session, "H100-SXM5-80GB")
    return Ran(
        device=result.device.type,
        shape=tuple(result.shape),
        coverage=analysis.coverage.calls,
        uncosted=analysis.coverage.uncosted,
        matrix_flops=analysis.totals.matrix_flops,
        phases={group.name: group for group in analysis.by("phase")},
        layers={group.name: group for group in analysis.by("layer")},
    )


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_and_every_call_of_it_is_costed(name, mode):
    found = ran(name, mode)
    assert found.device == "meta"
    assert found.uncosted == ()
    assert found.coverage == 1
    assert found.matrix_flops > 0
    if mode == "train":
        assert found.shape == ()  # the loss
        assert set(found.phases) == {"forward", "backward", "optimizer"}
        assert found.phases["optimizer"].matrix_flops == 0
        assert found.phases["backward"].matrix_flops > 1.5 * found.phases["forward"].matrix_flops


@pytest.mark.parametrize("mode", CLOSED_FORMS)
@pytest.mark.parametrize("name", DENSE)
def test_matrix_flops_of_dense_language_models_equal_the_closed_form(name, mode):
    found = ran(name, mode)
    # transformers before 5.20 formed the rotary angles by a small matrix product
    angles = sum(group.matrix_flops for name, group in found.layers.items() if "Rotary" in name)
    assert found.matrix_flops - angles == CLOSED_FORMS[mode](preset(name).config(), BATCH, SEQ)


@pytest.mark.parametrize("name", [*DENSE, "deepseek-v3", "mamba-130m"])
def test_a_decode_step_gives_one_token_a_sequence(name):
    assert ran(name, "decode").shape == (BATCH, 1, preset(name).config().vocab_size)
