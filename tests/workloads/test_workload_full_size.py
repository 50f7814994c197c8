"""Every preset at full size on meta: a forward and a training step, with no memory but that of the shapes."""

import pytest

from rooflight.workloads.presets import PRESETS
from rooflight.workloads.steps import make_step

# The same code at another size: left to the slow run.
SAME_CODE = {"gpt2", "llama-3.1-8b", "llama-3.1-70b", "mamba"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SAME_CODE else []) for n in PRESETS])
def test_full_size_trains_on_meta(name):
    options = {} if PRESETS[name].kind == "vision" else {"seq": 4}
    step = make_step(name, batch=1, **options)
    loss = step.run()
    assert loss.device.type == "meta"
    assert loss.shape == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_full_size_runs_forward_on_meta(name):
    options = {} if PRESETS[name].kind == "vision" else {"seq": 4}
    assert make_step(name, mode="forward", batch=1, **options).run().logits.device.type == "meta"


@pytest.mark.parametrize("name", ["llama-3.1-405b", "deepseek-v3", "mamba-130m"])
def test_full_size_decodes_on_meta(name):
    step = make_step(name, mode="decode", batch=1, seq=4)
    vocab = step.model.config.vocab_size
    assert step.run().logits.shape == step.run().logits.shape == (1, 1, vocab)
