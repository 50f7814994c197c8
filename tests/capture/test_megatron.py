"""megatron-core's own parallel layers, tensor parallel over two gloo ranks: nothing counts twice, nothing is missed.

Where megatron-core is not installed: pip install --no-deps megatron-core==0.16.1
"""

import json
from importlib.util import find_spec
from pathlib import Path

import forked_ranks
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("megatron") is None,
        reason="megatron-core is not installed: pip install --no-deps megatron-core==0.16.1",
    ),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("megatron")
    forked_ranks.start(Path(__file__).with_name("megatron_worker.py"), folder, [2])
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_each_rank_computes_its_part_of_the_hidden_width(ranks):
    # 6 * 2 = 12 rows; up 8 -> 16 / 2, down 16 / 2 -> 8: 2 * 12 * 8 * 8 = 1536 each; dx and dw as much each
    for rank in ranks:
        assert rank["classes"] == ["ColumnParallelLinear", "RowParallelLinear"]
        assert rank["matrix_flops"] == {
            "up forward": 1536, "down forward": 1536, "up backward": 3072, "down backward": 3072
        }  # fmt: skip


def test_two_all_reduces_of_the_activations(ranks):
    # [6, 2, 8] in float32: 384 bytes, the output of down and the gradient of the input of up
    for rank in ranks:
        assert rank["collectives"] == [
            ["c10d::allreduce_", "down", "forward", 384],
            ["c10d::allreduce_", "up", "backward", 384],
        ]
        assert rank["sent"] == 2 * 384  # 2 * 384 * (2 - 1) / 2 each


def test_what_torch_computes_is_not_filled_in_again(ranks):
    for rank in ranks:
        assert rank["unseen"] == []
        assert rank["uncosted"] == []


LAYERS = {"ColumnParallelLinear", "RowParallelLinear", "VocabParallelEmbedding", "DotProductAttention", "LayerNorm"}
ATTENTION, HEAD = 2 * 2 * 2 * 32 * 32 * 64, 2 * 64 * 64 * 128
"""FLOPs forward of both products of a layer, without a mask, and of the 64 tokens' 128 words."""
FORWARD = {
    # qkv, projection, up and down are 3, 1, 4 and 4 times 64 x 64
    "dense": 2 * (2 * 64 * 12 * 64 * 64 + ATTENTION) + HEAD,
    # each token goes to 2 experts of 8 times 64 x 64 each; the router is 64 x 4
    "experts": 2 * (2 * 64 * (4 + 2 * 8) * 64 * 64 + 2 * 64 * 64 * 4 + ATTENTION) + HEAD,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("megatron_gpt")
    forked_ranks.start(Path(__file__).with_name("megatron_gpt_worker.py"), folder, [1])
    return json.loads((folder / "0.json").read_text())


@pytest.mark.parametrize("name", FORWARD)
def test_whole_models_count_once(models, name):
    found = models[name]
    assert found["matrix_flops"] == 3 * FORWARD[name]
    assert (found["unseen"], found["uncosted"]) == (0, 0)
    experts = {"MoELayer", "TopKRouter", "SequentialMLP"} if name == "experts" else set()
    assert set(found["classes"]) >= LAYERS | experts
