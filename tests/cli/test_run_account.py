"""The account of a script: the lines around its steps, runs without a step, and ranks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import rooflight as rl

OWN_LINES = """
import time, torch
def tokenized(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
net = torch.nn.Linear(8, 8)
some = torch.optim.SGD(net.parameters())
for step in range(30):
    tokenized(0.02)
    time.sleep(0.02)
    net(torch.randn(4, 8)).sum().backward()
    some.step()
"""


def test_lines_between_steps_are_named_by_what_they_do(script):
    ended = script(OWN_LINES)
    rows = {row["cause"]: row for row in ended.document["account"]["rows"]}
    for cause, function, seconds in (("python", "tokenized", 0.02), ("asleep", "<module>", 0.02)):
        assert seconds * 0.7 < rows[cause]["seconds"] < ended.document["account"]["wall_s"] * 0.9
        assert rows[cause]["where"][0]["function"] == function
    assert sum(row["seconds"] for row in rows.values()) <= ended.document["account"]["wall_s"] * 1.001
    found = {each["id"]: each for each in ended.document["findings"]}
    assert {"host-code", "asleep"} <= found.keys()
    assert found["asleep"]["where"][0]["file"].endswith("train.py")
    assert "the program's own lines" in ended.err


def test_a_run_without_a_step_has_an_account_by_line(script):
    ended = script(
        "import time, torch\ndef work():\n    end = time.thread_time() + 0.5\n"
        "    while time.thread_time() < end:\n        pass\nwork()\ntime.sleep(0.5)\ntorch.ones(3)\n"
    )
    account = ended.document["account"]
    rows = {row["cause"]: row for row in account["rows"]}
    assert account["iterations"] == 1
    assert sum(row["share"] for row in account["rows"]) == pytest.approx(1)
    assert rows["python"]["source"] == "measured"
    assert "work" in [place["function"] for place in rows["python"]["where"]]
    assert rows["asleep"]["seconds"] == pytest.approx(0.5, rel=0.5)  # and what reading torch slept
    assert "No step was found" in " ".join(ended.err.split())


RANKS = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
def augmented():
    end = time.thread_time() + 0.02 * dist.get_rank()
    while time.thread_time() < end:
        pass
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
some = torch.optim.SGD(net.parameters())
for step in range(25):
    augmented()
    net(torch.randn(16, 64)).sum().backward()
    some.step()
dist.destroy_process_group()
"""


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
OURS = ["-m", "rooflight", "run", "--json", "run.json", "--save", "run.session"]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([*OURS, *TORCHRUN], id="around the launch"),
        pytest.param([*TORCHRUN, *OURS], id="in each rank", marks=pytest.mark.slow),
    ],
)
def test_ranks_are_put_together_and_the_straggler_is_named_by_its_cause(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(RANKS)
    done = subprocess.run([sys.executable, *words, "train.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "run.json").read_text())
    assert (document["schema"], document["slowest_rank"]) == ("rooflight.ranks/1", 1)
    waited = {row["cause"]: row["seconds"] for row in document["accounts"]["0"]["rows"]}
    assert 0.008 < waited["communication"] < document["accounts"]["0"]["wall_s"]
    text = " ".join(done.stderr.split())
    assert "The others wait for rank 1" in text
    assert "more of the program's own lines than the others' median" in text
    assert rl.load("run.rank1.session").environment["rank"] == "1"


LENGTHS = """
import torch
from torch import nn
torch.manual_seed(0)
class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.up = nn.Embedding(100, 64), nn.Linear(64, 256)
    def forward(self, input_ids):
        return nn.functional.gelu(self.up(self.words(input_ids))).sum()
net = Reads()
some = torch.optim.AdamW(net.parameters())
for step in range(60):
    length = 2048 if step % 4 == 0 else 16
    net(input_ids=torch.zeros(4, length, dtype=torch.long)).backward()
    some.step()
"""


def test_of_batches_of_unequal_length_the_size_that_takes_longest_is_accounted(script):
    ended = script(LENGTHS)
    long, short = sorted(ended.run["alike"], key=lambda size: -size["elements"])
    assert (long["elements"], long["count"], long["recorded"]) == (4 * 2048, 15, True)
    assert (short["elements"], short["count"], short["recorded"]) == (4 * 16, 45, False)
    assert "15 of 60 are of the recorded size" in " ".join(ended.err.split())
    between_s = sum(each["seconds"] for each in ended.run["between"])
    assert ended.document["account"]["wall_s"] >= long["median_s"] * 0.5 + between_s


OWN_SIGNALS = """
import asyncio, signal, threading, torch
rings = [0, 0]
def ring(number, frame):
    rings[number == signal.SIGPROF] += 1
signal.signal(signal.SIGALRM, ring)
signal.signal(signal.SIGPROF, ring)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
net = torch.nn.Linear(64, 64)
some = torch.optim.SGD(net.parameters())
def beside():
    sum(number * number for number in range(300_000))
async def step():
    await asyncio.sleep(0.005)
    exec("net(torch.randn(16, 64)).sum().backward()")
    some.step()
async def main():
    for _ in range(40):
        other = threading.Thread(target=beside)
        other.start()
        await step()
        other.join()
asyncio.run(main())
signal.setitimer(signal.ITIMER_REAL, 0)
signal.setitimer(signal.ITIMER_PROF, 0)
assert all(count > 4 for count in rings), rings
if threading.active_count() == 1:
    net(torch.randn(16, 64)).sum()
    raise SystemExit(3)
"""


def test_a_script_keeps_its_alarms_threads_and_event_loop_and_ends_within_a_step(script):
    ended = script(OWN_SIGNALS)
    assert ended.code == 3, ended.err
    assert ended.run["step"]["count"] == 40
    account = ended.document["account"]
    assert sum(row["seconds"] for row in account["rows"]) == pytest.approx(account["wall_s"], rel=1e-3)
