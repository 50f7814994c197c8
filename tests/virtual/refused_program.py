"""A script that asks a GPU that is not there for what it refuses, and goes on after each."""

import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.cpp_extension import load, load_inline

x = torch.randn(4, device="cuda")


def tried(run, *args):
    try:
        print(run(*args))
    except RuntimeError as error:
        print(error)


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
try:
    import apex
except ImportError as error:
    print(error, apex if "apex" in vars() else "")
