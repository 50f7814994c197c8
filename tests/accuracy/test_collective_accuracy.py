"""What each rank sends, recorded in real processes over gloo: 120 floats, 480 bytes, gathered or unscattered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RANKS = Path(__file__).with_name("ranks.py")
SECONDS = 120


@pytest.fixture(scope="module", params=[2, 3])
def sent(request, tmp_path_factory) -> tuple[int, list[dict[str, Any]]]:
    """How many ranks there were, and what each told."""
    ranks = request.param
    meeting = tmp_path_factory.mktemp("ranks") / "meeting"
    processes = [
        subprocess.Popen(
            [sys.executable, str(RANKS), str(rank), str(ranks), str(meeting)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    told = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, errors
            told.append(json.loads(output.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return ranks, told


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
