"""What each rank sends, recorded in real processes over gloo: 120 floats, 480 bytes, gathered or unscattered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked_ranks
import pytest

WORLDS = (2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the ranks of all worlds left what they found."""
    folder = tmp_path_factory.mktemp("ranks")
    forked_ranks.start(Path(__file__).with_name("ranks.py"), folder, WORLDS)
    return folder


@pytest.fixture(params=WORLDS)
def sent(request, folder) -> tuple[int, list[dict[str, Any]]]:
    """How many ranks there were, and what each told."""
    ranks = request.param
    return ranks, [json.loads((folder / f"{ranks}.{rank}.json").read_text()) for rank in range(ranks)]


EXPECTED = {
    # n = 2, n = 3
    "all_reduce": (480, 640),  # 2 * 480 * 1 / 2, 2 * 480 * 2 / 3
    "all_reduce_async": (480, 640),
    "all_reduce_bfloat16": (240, 320),  # half the bytes
    "all_reduce_odd": (400, 533),  # 2 * 400 * 2 / 3 = 533.3
    "all_gather_into_tensor": (240, 320),  # 480 * 1 / 2, 480 * 2 / 3
    "all_gather": (240, 320),
    "reduce_scatter_tensor": (240, 320),
    "all_to_all_single": (240, 320),
    "broadcast": (480, 480),
    "reduce": (480, 480),
    "barrier": (0, 0),
    "functional_all_reduce": (480, 640),
    "functional_all_gather": (240, 320),
    "functional_reduce_scatter": (240, 320),
    "functional_all_to_all": (240, 320),
    "functional_broadcast": (480, 480),
    "data_parallel": (848, 1130),  # 212 parameters: 2 * 848 * 1 / 2, 2 * 848 * 2 / 3 = 1130.7
    "fully_sharded": (576, 768),  # 144 parameters, gathered once and scattered once: 2 * 576 * 1 / 2, 2 * 576 * 2 / 3
}


@pytest.mark.parametrize("name", EXPECTED)
def test_bytes_sent(sent, name):
    ranks, told = sent
    for rank in told:
        assert rank[name].get("error") is None
        assert rank[name]["sent"] == EXPECTED[name][ranks - 2]
        assert rank[name]["uncosted"] == []


def test_only_the_sender_sends(sent):
    _, told = sent
    assert [rank["send_receive"]["sent"] for rank in told[:2]] == [480, 0]


def test_parallel_training_computes_as_one_does(sent):
    """Linear(8, 16) and Linear(16, 4) on 5 rows that want no gradient: 3 * 1920 - 1280; Linear(12, 12): 2 * 1440."""
    _, told = sent
    for rank in told:
        assert rank["data_parallel"]["matrix_flops"] == 4480
        assert rank["fully_sharded"]["matrix_flops"] == 2880


def test_all_reduce_reads_and_writes_the_buffer(sent):
    _, told = sent
    assert all(rank["all_reduce"]["moved"] == 960 for rank in told)
