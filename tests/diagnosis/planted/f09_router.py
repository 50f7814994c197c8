"""Trains layers of experts on two ranks; the routers' biases follow the load of the experts on all ranks.

This process is rank 0; rank 1 is this file as a program, which takes part in the sums.
"""

import atexit
import functools
import os
import subprocess
import sys
import tempfile
import threading

import torch
import torch.distributed as dist
from torch import nn

TRUTH = {"regime": ("communication", "latency"), "remedy": ("small-collectives",)}
LAYERS, EXPERTS = 20, 8


def join(file, rank):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    return dist.new_group([0, 1]), dist.new_group([0, 1])


@functools.lru_cache(None)
def ranks():
    if dist.is_initialized():
        dist.destroy_process_group()
    file = os.path.join(tempfile.mkdtemp(), "store")
    other = subprocess.Popen([sys.executable, __file__, file])
    atexit.register(other.kill)
    return join(file, 0)


def answer(group, shape):
    load = torch.zeros(shape)
    while True:
        dist.all_reduce(load.fill_(1), group=group)


def serve(file):
    torch.set_num_threads(1)
    shapes = (EXPERTS,), (LAYERS, EXPERTS)
    for group, shape in zip(join(file, 1), shapes):
        threading.Thread(target=answer, args=(group, shape)).start()


class Routed(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.gate, self.experts = nn.Linear(width, EXPERTS), nn.Parameter(torch.randn(EXPERTS, width, width) * 0.1)
        self.register_buffer("bias", torch.zeros(EXPERTS))
        self.load = None

    def forward(self, x):
        scores = self.gate(x)
        chosen = (scores.detach() + self.bias).argmax(-1)
        self.load = torch.bincount(chosen, minlength=EXPERTS).float()
        weights = torch.zeros_like(scores).scatter(1, chosen[:, None], 1.0) * scores.sigmoid()
        return x + torch.einsum("te,td,edo->to", weights, x, self.experts)


class Balance:
    def __init__(self, layers):
        self.layers, (self.group, self.joined) = layers, ranks()

    def move(self, layer, load):
        layer.bias += 1e-3 * (load.mean() - load).sign()

    def update(self):
        for layer in self.layers:
            dist.all_reduce(layer.load, group=self.group)
            self.move(layer, layer.load)


class BalanceOnce(Balance):
    def update(self):
        loads = torch.stack([layer.load for layer in self.layers])
        dist.all_reduce(loads, group=self.joined)
        for layer, load in zip(self.layers, loads):
            self.move(layer, load)


def _step(balance):
    torch.manual_seed(0)
    model = nn.Sequential(*(Routed() for _ in range(LAYERS)))
    balance, tokens = balance(model), torch.randn(32, 32)

    @torch.no_grad()
    def step():
        out = model(tokens)
        balance.update()
        return out

    return step


def make_step():
    return _step(Balance)


def make_step_fixed():
    return _step(BalanceOnce)


if __name__ == "__main__" and len(sys.argv) == 2:
    serve(sys.argv[1])
