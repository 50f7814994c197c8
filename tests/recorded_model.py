"""A small model with nested modules and attention, which can be made to break in the middle."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import rooflight as rl
from rooflight.sources.capture.record.modules import function_name


class Names(TorchDispatchMode):
    """The ops that a plain mode sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class FunctionNames(TorchFunctionMode):
    """The functions that a mode sees, which may raise at each."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        super().__init__()
        self.names: list[str] = []
        self.error = error

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(function_name(func))
        if self.error is not None:
            raise self.error("stop")
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Block(nn.Module):
    def __init__(self, breaks: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.breaks = breaks

    def forward(self, x):
        x = self.project(x)
        if self.breaks is not None:
            self.breaks()
        return scaled_dot_product_attention(x, x, x).relu()


def model(breaks: Callable[[], None] | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(Block(), Block(breaks)), nn.Linear(8, 8))


def recorded(program: Callable[[], Any], model: Any = None, **options: Any) -> rl.Session:
    with rl.record(model, **options) as recording:
        program()
    return recording.session


def built(forward: Callable[..., Any], name: str, **parts: Any) -> nn.Module:
    """A module with these attributes, of a class of this name, that computes ``forward(module, ...)``."""
    module: nn.Module = type(name, (nn.Module,), {"forward": forward})()
    for key, part in parts.items():
        setattr(module, key, part)
    return module


def in_thread(work: Callable[[], Any]) -> None:
    """Run it in a thread of its own; what it raises is raised here."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def raiser(error: type[BaseException]) -> Callable[[], None]:
    def raise_it() -> None:
        raise error("stop")

    return raise_it


def x() -> torch.Tensor:
    return torch.ones(2, 3, 8)


def aligned(session: rl.Session) -> rl.Session:
    """A session whose columns fit together: as many storages as each signature has places for them."""
    columns = session.columns
    flat = ("offsets", "ids", "starts")
    assert {len(column) for name, column in columns.named_arrays() if not name.endswith(flat)} == {len(session)}
    assert len(columns.read_starts) == len(columns.read_ids)
    assert len(columns.written_starts) == len(columns.written_ids)
    for record in session.records:
        if len(record.reads) + len(record.writes) == 0 or record.parent is not None:
            continue
        if record.signature.name.startswith("aten::") and not record.signature.name.endswith("attention"):
            assert len(record.reads) == len(record.signature.inputs)
            sizes = [int(session.storage_bytes[number]) for number in record.reads]
            assert all(size >= tensor.nbytes for size, tensor in zip(sizes, record.signature.inputs, strict=True))
    return session
