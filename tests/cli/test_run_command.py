"""``rooflight run``: scripts as they are. Each runs in a process of its own, as a user starts it."""

from __future__ import annotations

import re
import signal

import pytest
import torch

import rooflight as rl

TRAINING = """
import argparse, time, torch
from torch import nn
from torch.utils.data import DataLoader
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
epochs = parser.parse_args().epochs
torch.manual_seed(0)
torch.set_num_threads(1)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, place):
        time.sleep(0.005)
        return torch.randn(64), place % 10
net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer, loss = torch.optim.AdamW(net.parameters()), nn.CrossEntropyLoss()
loader = DataLoader(Data(), batch_size=4, shuffle=True)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        cost = loss(net(x), y)
        cost.backward()
        optimizer.step()
    with torch.no_grad():
        for _ in range(50): net(x)
    print(epoch, cost.item())
torch.save(net.state_dict(), "net.pt")
"""
TWO_OPTIMIZERS = """
import torch
from torch import nn
d, g = nn.Linear(8, 1), nn.Linear(4, 8)
of_d, of_g = torch.optim.Adam(d.parameters()), torch.optim.SGD(g.parameters(), lr=0.1)
for _ in range(6):
    d(torch.randn(2, 8)).mean().backward()
    made = g(torch.randn(2, 4))
    d(made.detach()).mean().backward()
    of_d.step()
    d(made).mean().backward()
    of_g.step()
raise ValueError("of the script")
"""
BY_HAND = """
import os, sys, torch
os.chdir("/")  # what the options name lies where the script began
w = torch.ones(4, 4, requires_grad=True)
for _ in range(9):
    (w @ w).sum().backward()
    with torch.no_grad():
        w -= 0.01 * w.grad
        w.grad = None
print(w.sum().item())
sys.stdout.flush()
os._exit(5)
"""
AFTER_A_STRAY = """
import torch
torch.empty(1, requires_grad=True).backward()  # starts the device
net = torch.nn.Linear(8, 8)
optimizer = OPTIMIZER
for _ in range(STEPS):
    net.eval()
    with torch.no_grad():
        for _ in range(2): net(torch.ones(2, 8))
    net.train()
    net(torch.ones(2, 8)).sum().backward()
    with torch.no_grad():
        for each in net.parameters():
            each -= 0.1 * each.grad
    if optimizer: optimizer.step()
"""
SPAWNED = """
import torch, torch.multiprocessing as mp
def train(rank, net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(7):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    net = torch.nn.Linear(4, 4).share_memory()
    mp.spawn(train, args=(net,), nprocs=2)
    print("joined")
"""
TERMINATED = """
import os, signal, time, torch
print(signal.getsignal(signal.SIGTERM), flush=True)
net = torch.nn.Linear(4, 4)
with torch.inference_mode():
    for _ in range(5): net(torch.ones(2, 4))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
FACTS = """
import os, signal, sys
print(sys.argv, __name__, __file__, sys.path[0], os.getcwd(), sys.orig_argv[1:], __spec__, sys.stdin.read())
print(signal.getsignal(signal.SIGTERM), sys.excepthook is sys.__excepthook__, __loader__.name, __cached__)
sys.exit(3)
"""


def test_a_training_script(script, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    plain = script(TRAINING, "--epochs", "2", plain=True)
    weights = (tmp_path / "net.pt").read_bytes()
    ended = script(TRAINING, "--epochs", "2")
    assert (ended.out, ended.code) == (plain.out, 0)
    assert (tmp_path / "net.pt").read_bytes() == weights
    step, run = ended.run["step"], ended.run
    assert (step["kind"], step["name"], step["count"], step["recorded"]) == ("optimizer", "AdamW.step", 12, 3)
    assert (step["where"]["file"], step["where"]["line"]) == ("train.py", 23)
    assert step["begins"] == "the first call of Sequential with gradients on"
    between = {each["name"]: each["seconds"] for each in run["between"]}
    assert between["loader"] > 0.02  # four times 5 ms, every step
    assert between["loader"] > 2 * between["evaluation"] > 0
    assert ended.document["totals"]["measured_s"] is not None
    assert rl.load(tmp_path / "run.session").run.step.count == 12
    assert "A step is one call of AdamW.step (12 of them, train.py:23)." in " ".join(ended.err.split())
    lines = ended.err.strip().splitlines()
    table = next(at for at, line in enumerate(lines) if line.startswith("  What costs time"))
    assert table <= 13, ended.err
    assert len(lines) - table <= 12, ended.err  # three remedies of two lines; one line for the long path of a test
    assert max(map(len, lines)) <= 100
    (named,) = [line for line in lines if line.startswith("  mean iteration ")]
    *parts, whole = (seconds_of(text) for text in re.findall(r"[\d.]+ [mµn]?s", named))
    assert sum(parts) == pytest.approx(whole, rel=0.01)
    assert whole == pytest.approx(run["between"][0]["seconds"] / run["between"][0]["share"], rel=0.01)


def seconds_of(text):
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]


@pytest.mark.slow
def test_two_optimizers_and_an_error(script):
    ended = script(TWO_OPTIMIZERS)
    assert ended.code == ended.run["exit_code"] == 1
    trace = ended.err[: ended.err.index("Speed of light")].strip().splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert "train.py" in trace[1]
    assert trace[-1] == "ValueError: of the script"
    assert len(trace) <= 4
    step = ended.run["step"]
    assert (step["count"], [count for _, count in step["calls"]]) == (6, [6, 6])
    assert step["name"] == "Adam.step and SGD.step"
    assert ended.run["alike"][0]["backwards"] == 3


def test_weights_updated_by_hand_and_a_hard_exit(script):
    ended = script(BY_HAND)
    assert (ended.code, ended.out) == (5, script(BY_HAND, plain=True).out)
    assert ended.run["exit_code"] == 5
    assert (ended.run["step"]["kind"], ended.run["step"]["count"]) == ("backward", 9)
    assert ended.document["totals"]["calls"] > 0


@pytest.mark.slow
def test_micro_batches_of_weights_updated_by_hand_some_in_every_second_step_are_one_step(script):
    """Three backward passes a step; the second layer is written in every second one, so that two steps make a cycle."""
    ended = script(
        "import torch\nnet = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))\n"
        "for step in range(14):\n    for micro in range(3):\n        net(torch.randn(4, 8)).sum().backward()\n"
        "    for layer in net if step % 2 else net[:1]:\n        for weight in layer.parameters():\n"
        "            with torch.no_grad():\n                weight -= 0.1 * weight.grad\n"
        "            weight.grad = None\n"
    )
    step = ended.run["step"]
    assert (step["name"], step["kind"]) == ("backward, the last before the weights change", "backward")
    assert (step["turns"], step["count"]) == (2, 6)  # 13 steps after the one that showed it
    assert ended.run["alike"][0]["backwards"] == 6
    assert sum(row["calls"] for row in ended.document["by_op"] if row["name"] == "aten::addmm") == 2 * 3 * 2


def test_an_evaluation_between_the_optimizers_of_a_step_is_none_of_it(script):
    """As where a warm-up evaluates before each step: a step of the training that follows is recorded."""
    ended = script(
        "import torch\nnet = torch.nn.Linear(8, 8)\n"
        "some = [torch.optim.SGD([net.weight], 0.1), torch.optim.Adam([net.bias])]\n"
        "for step in range(20):\n    if step < 9:\n        net.eval()\n        with torch.no_grad():\n"
        "            net(torch.randn(64, 8))\n    net.train()\n    net(torch.randn(4, 8)).sum().backward()\n"
        "    for each in some[:1] if step % 2 else some:\n        each.step()\n    net.zero_grad()\n"
    )
    (op,) = [row for row in ended.document["by_op"] if row["name"] == "aten::addmm"]
    assert (ended.run["step"]["turns"], op["calls"]) == (2, 2)


@pytest.mark.parametrize(
    ("made", "kind", "line", "steps", "stray"),
    [
        ("None", "backward", 11, 6, True),
        pytest.param("None", "backward", 11, 3, False, marks=pytest.mark.slow),
        pytest.param("torch.optim.Adam(net.parameters())", "optimizer", 15, 6, True, marks=pytest.mark.slow),
        ("torch.optim.Adam(net.parameters(), foreach=False)", "optimizer", 15, 6, False),
    ],
)
def test_what_runs_before_a_step_is_no_step_and_none_of_its_calls(script, tmp_path, made, kind, line, steps, stray):
    text = AFTER_A_STRAY.replace("OPTIMIZER", made).replace("STEPS", str(steps))
    ended = script(text if stray else text.replace(".backward()  #", "  #"))
    step = ended.run["step"]
    assert (step["kind"], step["count"], step["where"]["line"]) == (kind, steps, line)
    assert step["begins"] == "the first call of Linear with gradients on"
    session = rl.load(tmp_path / "run.session")
    names = [session.signatures[number].name for number in session.columns.signature.tolist()]
    assert names.count("aten::addmm") == 1  # none of the evaluation before it
    assert "aten::zeros_like" not in names  # states of the first step


@pytest.mark.slow
def test_children_step_and_their_parent_does_not(script):
    ended = script(SPAWNED)
    assert (ended.code, ended.out) == (0, "joined\n")
    step = ended.run["step"]
    assert (step["kind"], step["count"], step["processes"]) == ("optimizer", 14, "in 2 child processes")


def test_terminated(script):
    ended = script(TERMINATED)
    assert ended.code == ended.run["exit_code"] == -signal.SIGTERM
    assert ended.out == "0\n"
    assert (ended.run["step"]["kind"], ended.run["step"]["name"], ended.run["step"]["count"]) == ("module", "Linear", 5)


def test_what_a_script_sees(script):
    plain, ended = (
        script(FACTS, "a", "--debug", "", "--", "--help", plain=plain, stdin="in") for plain in (True, False)
    )
    assert (ended.out, ended.code) == (plain.out, plain.code) == (plain.out, 3)
    assert ended.err == "rooflight: train.py imported no torch: there is nothing to report\n"


def test_a_syntax_error(script):
    plain, ended = (script("def x(:", plain=plain) for plain in (True, False))
    assert ended.code == plain.code == 1
    assert ended.err.startswith(plain.err)


def test_what_ends_a_script_is_in_its_report(script):
    ended = script("import torch\ntorch.nn.Linear(2, 2).cuda()")
    assert ended.code == 1
    if not torch.cuda.is_available():
        says = (
            "which ended with exit code 1: train.py:2 needs a GPU, which is not here: rooflight run --on H100-SXM5-80GB"
        )
        assert says in " ".join(ended.err.split())
    ended = script("import torch\nraise KeyError('no ' + 'such ' * 100 + 'word')")
    assert ended.run["error"].startswith("train.py:2 raised KeyError: 'no such such")
    assert ended.run["error"].endswith("such ...")
    assert ended.run["error"] in " ".join(ended.err.split())


def test_scripts_that_a_script_begins_are_named(script, tmp_path):
    (tmp_path / "other.py").write_text("print('here')")
    ended = script("import subprocess, sys, torch\nsubprocess.run([sys.executable, 'other.py'])")
    assert ended.out == "here\n"
    assert "scripts begun by subprocess, and not watched: other.py (train.py:2)" in " ".join(ended.err.split())
    ended = script("import os, subprocess\nsubprocess.run('true'); subprocess.run('python other.py', shell=True)")
    assert "begun by subprocess, and not watched: other.py (train.py:2)" in " ".join(ended.err.split())
    step = "import subprocess, torch\nnet = torch.nn.Linear(2, 2)\nsome = torch.optim.SGD(net.parameters())\n"
    step += "for _ in range(9):\n    net(torch.ones(1, 2)).sum().backward(); some.step()\n"
    script(step + "subprocess.run(['python', 'other.py'])")
    assert any("not watched: other.py (train.py:6): run them" in note for note in rl.load("run.session").notes)


def test_a_function_as_the_step(script):
    text = """
import inspect, torch
class Trainer:
    def step(self):
        return torch.ones(4, 4) @ torch.ones(4, 4)
for _ in range(4): Trainer().step()
print(inspect.getsource(Trainer.step))
"""
    ended = script(text, options=("--step", "function:train.py:Trainer.step"))
    assert ended.out == script(text, plain=True).out
    assert (ended.run["step"]["count"], ended.run["step"]["where"]["line"]) == (4, 6)
    assert {"aten::mm"} <= {each["name"] for each in ended.document["by_op"]}


PHASES = """
import torch, rooflight as rl
net = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for place in range(8):
    with rl.phase("load"):
        x = torch.ones(2, 8)
    with rl.phase(OUTER):
        optimizer.zero_grad()
        with rl.phase("forward"):
            loss = net(x).sum()
        loss.backward()
        optimizer.step()
        extra = loss.detach().exp()
    with rl.phase("evaluate"), torch.no_grad():
        net(x), net(x)
"""


def test_a_phase_that_holds_each_step_is_the_step(script):
    ended = script(PHASES.replace("OUTER", "'train'"))
    step = ended.run["step"]
    assert (step["kind"], step["name"], step["where"]["line"]) == ("phase", 'phase("train")', 8)
    assert (step["count"], step["recorded"]) == (8, 3)
    assert ended.run["alike"][0]["backwards"] == 1
    names = {each["name"]: each["calls"] for each in ended.document["by_op"]}
    assert names["aten::exp"] == 1  # after the optimizer, within the phase
    assert ended.run["between"][0]["name"] == "calls without gradients"  # before each step


@pytest.mark.slow
def test_a_phase_is_the_step_of_tensors_alone_and_other_programs_are_named(script):
    text = """
import torch, rooflight as rl
with rl.phase("load"): x = torch.ones(40, 4)
for _ in range(6):
    with rl.phase("assign"): torch.cdist(x, x).argmin(1)
"""
    ended = script(text)
    step = ended.run["step"]
    assert (step["kind"], step["name"], step["count"], step["recorded"]) == ("phase", 'phase("assign")', 6, 3)
    assert 0 <= ended.document["measurement"]["others_share"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("outer", ["f'train {place % 2}'", "('a', 'b')[place > 1]"])
def test_phases_that_hold_some_steps_only_are_not(script, outer):
    step = script(PHASES.replace("OUTER", outer)).run["step"]
    assert (step["kind"], step["count"]) == ("optimizer", 8)
    assert step["recorded"] is not None


@pytest.mark.slow
def test_phases_within_a_step_or_around_all_of_them_are_not(script):
    text = """
import torch, rooflight as rl
net = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def epoch():
    for _ in range(4):
        with rl.phase("forward"): loss = net(torch.ones(2, 8)).sum()
        with rl.phase("backward"): loss.backward()
        with rl.phase("optimizer"): optimizer.step()
epoch()
with rl.phase("epoch"): epoch()
"""
    step = script(text).run["step"]
    assert (step["kind"], step["count"], step["recorded"]) == ("optimizer", 8, 3)


@pytest.mark.slow
def test_an_optimizer_that_steps_every_third_time_inside_compiled_code(script):
    text = """
import torch
from torch import nn
d, g = nn.Linear(8, 1), nn.Linear(4, 8)
of_d, of_g = torch.optim.SGD(d.parameters(), lr=0.1), torch.optim.SGD(g.parameters(), lr=0.1)
step = torch.compile(of_g.step, backend="eager")
for place in range(15):
    of_d.zero_grad()
    d(torch.ones(2, 8)).mean().backward()
    of_d.step()
    if place % 3 == 2:
        g(torch.ones(2, 4)).mean().backward()
        step()
print("trained")
"""
    ended = script(text)
    assert (ended.out, ended.code) == ("trained\n", 0)
    step = ended.run["step"]
    assert (step["count"], [count for _, count in step["calls"]], step["recorded"]) == (5, [15, 5], 3)
    assert ended.run["alike"][0]["backwards"] == 4


@pytest.mark.slow
def test_gradients_without_backward_and_a_traced_model(script):
    text = """
import torch
net = torch.nn.Linear(4, 4)
torch.jit.trace(net, torch.ones(2, 4))
for _ in range(6):
    found = torch.autograd.grad(net(torch.ones(2, 4)).sum(), list(net.parameters()))
print(len(found))
"""
    ended = script(text)
    assert (ended.out, ended.code) == ("2\n", 0)
    assert (ended.run["step"]["kind"], ended.run["step"]["count"]) == ("backward", 6)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("nowhere.py", "no script nowhere.py"),
        (".", "is a folder"),
        ("--json - x.py", "standard output is the script's"),
        ("--step often x.py", "--step often: write optimizer"),
        ("--step module x.py", "--step module: write optimizer"),
        ("--step function:x.py x.py", "with a file that exists"),
        ("--skip -1 x.py", "--skip"),
        ("--save . x.py", "is a folder"),
        ("--price L4=1 x.py", "--price: no effect without --on"),
        (
            "torchrun --nproc-per-node 2 x.py --a 1",
            "say rooflight run -m torch.distributed.run --nproc-per-node 2 x.py --a 1",
        ),
        ("python3 x.py --b", "say rooflight run x.py --b"),
        ("", "missing argument"),
    ],
)
def test_refused(run, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    code, out, err = run("run", *words.split())
    assert (code, out) == (2, "")
    assert says in err.lower() if words == "" else says in err


def test_an_uncalibrated_machine_in_a_pipe_is_not_calibrated(script, tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "empty"))
    ended = script(TERMINATED.replace("os.kill", "0 and os.kill").replace("sleep(60)", "sleep(0)"))
    says = r"No bounds here: rooflight calibrate --threads \d+ measures the roofs, in 20 s\."
    assert re.search(says, " ".join(ended.err.split()))
    assert ended.document["totals"]["op_bound_s"] in (0, None)
    assert (tmp_path / "run.session").exists()
