"""One process a GPU: each with its share, together exactly the part that was asked for."""

from __future__ import annotations

from typing import ClassVar

import pytest

from rooflight.sampling import launch as local
from rooflight.sampling import store as provenance


class Finished:
    """A process that ends with a code of its own."""

    commands: ClassVar[list[list[str]]] = []
    codes: ClassVar[dict[str, int]] = {}

    def __init__(self, command):
        self.commands.append(command)
        self.number = command[-1]

    def wait(self) -> int:
        return self.codes.get(self.number, 0)


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(local.subprocess, "Popen", Finished)
    monkeypatch.setattr(Finished, "commands", [])
    monkeypatch.setattr(Finished, "codes", {})
    return Finished


def test_every_gpu_has_its_share_of_the_part(processes):
    told = []
    local.run_on_all(["gemm", "--sweep", "collect"], gpus=3, parts=2, part=2, progress=told.append)
    words = [command[command.index("--parts") :] for command in processes.commands]
    assert words == [
        ["--parts", "6", "--part", "2", "--device-num", "0"],
        ["--parts", "6", "--part", "4", "--device-num", "1"],
        ["--parts", "6", "--part", "6", "--device-num", "2"],
    ]
    mine = set(range(2 - 1, 100, 2))  # shapes of part 2 of 2, numbered from 0
    shares = [set(range(int(each[3]) - 1, 100, 6)) for each in words]
    assert set.union(*shares) == mine
    assert sum(map(len, shares)) == len(mine)
    assert told[0] == "GPU 0: part 2 of 6"


def test_a_gpu_that_fails_is_named(processes):
    processes.codes = {"1": 1}
    with pytest.raises(RuntimeError, match="sampling failed on GPU 1: run the same command again to go on"):
        local.run_on_all(["gemm"], gpus=2, parts=1, part=1, progress=lambda _: None)


def test_files_bear_estimate_train_time_s_device_names(monkeypatch):
    monkeypatch.setattr(provenance, "cuda_name", lambda number: "NVIDIA A100-SXM4-80GB")
    assert provenance.device_label("cuda") == "NVIDIAA100-SXM4-80GB"
    monkeypatch.setattr(provenance, "cpu_model", lambda: "Some CPU @ 2.0GHz (family 1, model_2)")
    assert provenance.device_label("cpu") == "SomeCPU-2.0GHz-family1-model-2"
