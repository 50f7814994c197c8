"""Tensors of every kind, held in every odd way by a script that ``rooflight run`` watches: each counts once."""

import json
import subprocess
import sys

SCRIPT = """
import warnings, weakref
import torch
from torch import nn
warnings.filterwarnings("ignore")

class Tagged(torch.Tensor):
    pass

class Hostile:
    def __getattr__(self, name):
        raise RuntimeError("no attributes")
    @property
    def __dict__(self):
        raise RuntimeError("no dict")

class Unequal:
    def __init__(self):
        self.inside = torch.zeros(300)
    def __eq__(self, other):
        raise RuntimeError("no comparison")
    __hash__ = None

class Node:
    def __init__(self, other=None):
        self.other, self.own = other, torch.zeros(1000)

def generator():
    held = torch.zeros(20)
    yield held

circle = Node()
circle.other = Node(circle)
weak = weakref.WeakValueDictionary({1: circle})
elsewhere = torch.empty(1 << 40, device="meta")
sparse, rows = torch.eye(64).to_sparse(), torch.eye(64).to_sparse_csr()
shared = torch.zeros(500).share_memory_()
tagged = torch.zeros(600).as_subclass(Tagged)
few_bits = torch.quantize_per_tensor(torch.randn(700), 0.1, 0, torch.quint8)
hostile, unequal = Hostile(), Unequal()
running = generator()
next(running)
emptied = torch.zeros(800)
view = emptied[3:]
emptied.untyped_storage().resize_(0)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
"""


def test_each_is_counted_once_under_its_name(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["--json", "it.json", "--save", "it.session", "train.py"]
    subprocess.run([sys.executable, "-m", "rooflight", "run", *words], cwd=tmp_path, check=True, capture_output=True)
    memory = json.loads((tmp_path / "it.json").read_text())["memory"]
    assert memory["resident_bytes"] > 50e6  # of a process that has imported torch
    held = {each["holder"]: each["bytes"] for each in memory["rows"] if not each["touched"]}
    found = {name: held.get(name) for name in ("circle.own", "circle.other.own", "shared", "tagged", "few_bits")}
    assert found == {"circle.own": 4000, "circle.other.own": 4000, "shared": 2000, "tagged": 2400, "few_bits": 700}
    assert held["unequal.inside"] == 1200
    assert held["running"] == 80
    # of other devices, empty, weak, or what answers nothing
    assert not {"elsewhere", "emptied", "view", "weak", "hostile"} & held.keys()
