"""Loader workers: their own lines, forked or spawned, and what is advised by them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset


def decode(number):
    time.sleep(0.004)
    return torch.full((8,), float(number))


class Numbers(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, number):
        return decode(number)


if __name__ == "__main__":
    loader = DataLoader(Numbers(), batch_size=8, num_workers=1, multiprocessing_context=sys.argv[1])
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(4):
        for x in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    print("done")
"""


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_lines_of_workers_are_those_of_the_dataset(tmp_path: Path, context: str) -> None:
    script, found = tmp_path / "loads.py", tmp_path / "found.json"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "rooflight", "run", "--json", str(found), str(script), context]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith("done\n")
    run = json.loads(found.read_text())
    loader = next(each for each in run["run"]["between"] if each["name"] == "loader")
    first = loader["inside"][0]
    assert (first["where"]["function"], first["where"]["calls"]) == ("decode", "time.sleep")
    assert first["asleep_s"] > 0.5 * first["seconds"]
    assert loader["workers"] == 1
    assert loader["again"]  # not shuffled
    finding = next(each for each in run["findings"] if each["id"] == "loader")
    assert finding["where"][0]["line"] == first["where"]["line"]
    assert finding["short"].startswith("num_workers=")
