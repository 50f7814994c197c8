import closed_forms
import pytest
from torch.utils.flop_counter import FlopCounterMode

from rooflight.sources.workloads.presets import preset
from rooflight.sources.workloads.steps import make_step

DENSE = ["gpt2", "llama-3.1-8b", "qwen3-8b", "gpt-neox-20b"]


def counted(name, mode, batch, seq):
    """What torch's counter sees on a CPU: every matmul but attention's, which it has no formula for there."""
    step = make_step(name, step=mode, batch=batch, seq=seq, device="cpu", small=True)
    with FlopCounterMode(display=False) as counter:
        step.run()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", DENSE)
def test_linear_part_is_what_torch_counts(name):
    batch, seq = 2, 24
    config = preset(name).small()
    linear = closed_forms.linear_flops(config, batch * seq)
    assert counted(name, "forward", batch, seq) == linear
    assert counted(name, "train", batch, seq) == 3 * linear
    assert counted(name, "decode", batch, seq) == closed_forms.linear_flops(config, batch)
    head = 2 * config.hidden_size * config.vocab_size
    assert counted(name, "prefill", batch, seq) == linear - batch * (seq - 1) * head


def test_attention_by_hand():
    config = preset("gpt2").small()  # 2 layers of 4 heads of 32
    # 3 positions see 1 + 2 + 3 = 6 of themselves; 4 * B * H * P * D = 4 * 1 * 4 * 6 * 32 = 3072 a layer
    assert closed_forms.attention_flops(config, 1, 6) == 2 * 3072
    forward = closed_forms.forward_matrix_flops(config, 1, 3)
    assert forward == closed_forms.linear_flops(config, 3) + 6144
    # backward: twice the linear part, 2.5 * 6144 = 15360 of attention
    assert closed_forms.train_matrix_flops(config, 1, 3) - forward == 2 * closed_forms.linear_flops(config, 3) + 15360


def test_six_flops_a_parameter_and_token():
    config = preset("llama-3.1-405b").config()
    flops = closed_forms.train_matrix_flops(config, 1, 8192)
    six_nd = 6 * 405.85e9 * 8192  # = 1.995e16
    # the embedding, 2.10e9 of 405.85e9 parameters, multiplies nothing: 0.9948
    # attention: 126 layers * 3.5 * 4 * 128 heads * 8192 * 8193 / 2 pairs * 128 = 9.70e14: 0.0486
    assert flops / six_nd == pytest.approx(0.9948 + 0.0486, abs=1e-4)


@pytest.mark.parametrize(("name", "active_billions"), [("mixtral-8x7b", 12.88), ("qwen3-30b-a3b", 3.35)])
def test_mixtures_use_their_active_parameters(name, active_billions):
    config = preset(name).config()
    embedding = config.vocab_size * config.hidden_size  # published counts include it, though it multiplies nothing
    weights = closed_forms.linear_flops(config, 1) / 2 + embedding
    assert weights / 1e9 == pytest.approx(active_billions, rel=0.01)
