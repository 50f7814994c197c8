"""Modules of a decoder without a known name, in their buckets by class, shapes and place; and gated LoRA."""

from __future__ import annotations

import pytest
import torch
from measured_runs import run_of
from small_decoders import GptFast
from torch import nn

from rooflight.studies.inference.engines.module_shapes import buckets_by_shape


@pytest.mark.parametrize("names", ["wqkv wo w13 w2", "one two three four"])
def test_a_decoder_in_the_manner_of_gpt_fast_is_known_by_names_or_shapes(prof, names):
    model = GptFast(names)
    prof.attach_model(model, use_gated_lora=True)
    with run_of(prof, bsz=2), torch.inference_mode(), prof.step_timing_ctx():
        prof.set_step_tokens(2)
        model(torch.arange(12).reshape(2, 6))
    projections = dict.fromkeys(("attn.qkv_proj", "attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"), 2)
    assert prof.results.totals.buckets["model"].calls == {
        "prepare": 1, "embed": 1, "residual": 2, "norm": 5, "attn.compute": 2, "mlp.act": 2, "lm_head": 1,
        **projections, **{f"{name}.lora": number for name, number in projections.items()},
    }  # fmt: skip
    assert not prof.problems.counts


def test_lora_that_has_no_modules_is_said_to_be_in_its_layers(prof):
    prof.attach_model(GptFast(layer=nn.Linear), use_gated_lora=True)
    assert list(prof.problems.counts) == [
        "attach_model: no layer of GptFast has modules of LoRA: its time is the layers'"
    ]


@pytest.mark.parametrize(
    ("made", "last", "kind"),
    [
        ([64, 64], (64, 32), "mlp.gate_up_proj"), ([96], (96, 32), "mlp.gate_up_proj"),
        ([96], (32, 32), "attn.qkv_proj"), ([32, 8, 8], (32, 32), "attn.qkv_proj"), ([40], (32, 32), "attn.qkv_proj"),
        ([64], (32, 16), None), ([200], (32, 32), None), ([32] * 4, (32, 32), None), ([], (32, 32), None),
    ],
)  # fmt: skip
def test_unnamed_layers_of_a_block_by_their_shapes(made, last, kind):
    def unnamed(made, last):
        return nn.Sequential(*(nn.Linear(32, each) for each in made), nn.Linear(*last))

    block = nn.ModuleDict({"one": unnamed([96], (32, 32)), "two": unnamed(made, last)})
    buckets = buckets_by_shape(nn.ModuleList([block]), lambda path: None)
    expected = {"attn.qkv_proj": "attn.o_proj", "mlp.gate_up_proj": "mlp.down_proj", None: None}[kind]
    assert [buckets.get(id(part)) for part in block["two"]] == [*([kind] * len(made)), expected]
