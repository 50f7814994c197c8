"""How much longer ops on images take on a CPU where channels do not lie together: the constants of the remedy
channels-last. Prints milliseconds of a call, the least of seven, in both layouts, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
import torch.nn.functional as F  # noqa: N812

SHAPE = (4, 64, 56, 56)
OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 1, 1),
    "max_pool2d, halved": lambda x: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
}


def milliseconds(call: Callable[[], object]) -> float:
    call()
    found = []
    for _ in range(7):
        start = perf_counter()
        call()
        found.append(perf_counter() - start)
    return 1e3 * min(found)


def main() -> None:
    torch.set_num_threads(1)
    print("op                    forward: apart, together   backward: apart, together")
    for name, op in OPS.items():
        row: list[float] = []
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(SHAPE).contiguous(memory_format=layout).requires_grad_()
            out = op(x)
            back = partial(torch.autograd.grad, out, x, torch.ones_like(out), retain_graph=True)
            row += [milliseconds(partial(op, x.detach())), milliseconds(back)]
        print(f"{name:20} {row[0]:12.2f} {row[2]:10.2f} {row[1]:18.2f} {row[3]:10.2f}  ms", flush=True)


if __name__ == "__main__":
    main()
