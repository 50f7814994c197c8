"""A script that asks a GPU that is not there for what it refuses, and goes on after each."""

import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.cpp_extension import load, load_inline

x = torch.randn(4, device="cuda")


def tried(run, *args):
    try:
        print(run(*args))
    except (RuntimeError, TypeError) as error:
        print(error)


HOST = torch.randn(4)
MIXED = (
    lambda: x + HOST, lambda: HOST.add_(x), lambda: torch.mul(x, 2, out=HOST), lambda: HOST[torch.argsort(x)],
    lambda: HOST.index_put_((torch.tensor([0]),), x[:1]), x.numpy, lambda: torch.zeros(4, device="cuda:1"),
    lambda: torch.cuda.set_device("cuda:2"),
)  # fmt: skip
ALLOWED = (
    lambda: HOST.copy_(x).shape, lambda: x.add_(HOST.sum()).shape, lambda: x[torch.tensor([0, 2])].shape,
    lambda: x[torch.arange(4) < 3].shape, lambda: x[torch.arange(4, device="cuda") < 2].shape, x.cpu().numpy,
)  # fmt: skip


def never_ends():
    y = x
    while y.mean().item() > -1:
        y = y * 0.9


def ends_by_another_answer():
    asked = 0
    while x.mean().item() > 0.5:
        asked += 1
    return asked


def many_batches():
    return [x.mean().item() for _ in range(4000)][-1]


tried(load_inline, "kernel", "", "__global__ void k() {}", ["k"])
tried(load, "kernel", ["a.cpp", "b.cu"])
tried(reduce_tensor, x)
tried(never_ends)
tried(ends_by_another_answer)
tried(many_batches)
print(x.data_ptr() % 16, x[2:].data_ptr() - x.data_ptr(), x.clone().data_ptr() == x.data_ptr())
for each in (*MIXED, *ALLOWED):
    tried(each)
try:
    import apex
except ImportError as error:
    print(error, apex if "apex" in vars() else "")
