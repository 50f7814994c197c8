"""Tensors and modules of a script: parameters are fake from birth, values leave to Python by the table of answers."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer
from torch.utils import _foreach_utils

from rooflight.sources.capture.run.callers import calling_line
from rooflight.sources.capture.run.hooks import when_imported
from rooflight.sources.virtual.mode import PLAIN, VirtualMode


def install(mode: VirtualMode) -> None:
    """Set them, for the rest of the process."""
    for owner, name in ((torch, "tensor"), (torch.Tensor, "new_tensor")):
        setattr(owner, name, _lifted(getattr(owner, name)))
    torch.jit._builtins._builtin_table = None  # TorchScript looks its functions up anew, those above among them
    FakeTensorMode.__deepcopy__ = lambda self, _memo: self  # type: ignore[attr-defined] # with a tensor that it made
    vars(sys.modules[FakeTensorMode.__module__])["init_gpu_context"] = lambda _: None  # makes a real one in torch 2.11
    for kinds in (_foreach_utils._foreach_supported_types, optimizer._foreach_supported_types):
        kinds.append(FakeTensor)  # optimizers take them together, as on the device
    _leave_to_python(mode)
    _give_addresses(mode)
    _copy_storages()
    _make_parameters_fake(mode)
    _follow_data()
    _move_modules()
    _keep_files(mode)
    _enter_threads(mode)
    # transformers takes another way where a tensor is fake than on the device
    fakes = "transformers.utils.import_utils"
    when_imported(fakes, lambda: setattr(sys.modules[fakes], "is_fake_tensor", lambda _: False))


def _lifted(make: Callable[..., Any]) -> Callable[..., Any]:
    """Torch would make it on the device; of the CPU it is moved there, as each thread is told."""

    @wraps(make)
    def run(*args: Any, **kwargs: Any) -> Any:
        torch._C._set_only_lift_cpu_tensors(True)
        return make(*args, **kwargs)

    return run


def _leave_to_python(mode: VirtualMode) -> None:
    tensor: Any = torch.Tensor

    def of_real(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if isinstance(self, FakeTensor) and self.is_cuda and method.__name__ != "tolist":
                raise TypeError(
                    f"{calling_line()}: can't convert {self.device} device type tensor to numpy: .cpu() first"
                )
            return method(mode.real_of(self) if isinstance(self, FakeTensor) else self, *args, **kwargs)

        return run

    for name in ("numpy", "tolist", "__array__"):
        method = getattr(tensor, name)
        setattr(tensor, name, of_real(method))
        if name in vars(FakeTensor):
            setattr(FakeTensor, name, of_real(method))
    written = tensor.__format__

    def as_text(self: torch.Tensor, spec: str) -> str:
        if not isinstance(self, FakeTensor):
            return str(written(self, spec))
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, "")

    convert = tensor.type

    def as_type(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        made = getattr(torch.cuda, dtype.rsplit(".", 1)[-1], dtype) if isinstance(dtype, str) else dtype
        if getattr(made, "is_cuda", False) and isinstance(made, type):
            return self.to("cuda", made.dtype)  # type: ignore[attr-defined]
        return convert(self, *([] if dtype is None else [dtype]), *args, **kwargs)

    def pinned(self: torch.Tensor, *_: Any) -> torch.Tensor:
        mode.pins = True
        return self

    tensor.type = as_type
    tensor.__format__ = as_text
    tensor.record_stream = lambda _self, _stream: None
    tensor.pin_memory = pinned
    tensor.is_pinned = lambda _self, *_: True


def _give_addresses(mode: VirtualMode) -> None:
    tensor: Any = torch.Tensor

    def address(self: torch.Tensor) -> int:
        if not isinstance(self, FakeTensor):
            return int(at(self))
        mode.answers.note("an address of the device", "one that only tells tensors apart")
        return first(self.untyped_storage()) + int(self.storage_offset()) * self.element_size()

    def first(storage: torch.UntypedStorage) -> int:
        return int(storage._cdata << 5 if storage.device.type == "meta" else begin(storage))

    storages: Any = torch.UntypedStorage
    at, begin = tensor.data_ptr, storages.data_ptr
    tensor.data_ptr, storages.data_ptr = address, first


def _copy_storages() -> None:
    """What is copied together shares its copies as it shares storages; torch would do so with addresses alone."""
    tensor: Any = torch.Tensor
    copied = tensor.__deepcopy__

    @wraps(copied)
    def run(self: torch.Tensor, memo: dict[Any, Any]) -> Any:
        if type(self) is not FakeTensor or not self.is_leaf or id(self) in memo or self.layout is not torch.strided:
            return copied(self, memo)
        storage = self.untyped_storage()
        key = "storage", storage._cdata
        with torch.no_grad():
            if key not in memo:
                size = (storage.nbytes() // self.element_size(),)
                memo[key] = self.as_strided(size, (1,), 0).clone()
            made = memo[id(self)] = (
                memo[key].view(self.dtype).as_strided(self.shape, self.stride(), self.storage_offset())
            )
        if not isinstance(self, nn.Parameter):  # of a parameter torch copies none
            made.grad = copy.deepcopy(self.grad, memo)
        return made.requires_grad_(self.requires_grad)

    tensor.__deepcopy__ = run


def _make_parameters_fake(mode: VirtualMode) -> None:
    """A model's weights take no memory, and no time to be initialised."""
    kind: Any = nn.Parameter
    new = kind.__new__

    def make(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        if cls is kind and type(data) is torch.Tensor and data.device.type == "cpu" and data.numel():
            data = mode.fake_of(data.detach())
        return new(cls, data, requires_grad)

    kind.__new__ = staticmethod(make)


def _move_modules() -> None:
    """Torch swaps fake parameters, which fails where anything refers to them: they are given new data instead."""
    module: Any = nn.Module
    apply = module._apply

    def _apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        mine = [*self._parameters.values(), *self._buffers.values()]
        if any(each is not None and type(each) not in PLAIN for each in mine):
            moved: nn.Module = apply(self, fn, recurse)
            return moved
        if recurse:
            for child in self.children():
                child._apply(fn)
        for name, parameter in self._parameters.items():
            if parameter is not None:
                self._parameters[name] = _moved(parameter, fn)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    module._apply = _apply


def _moved(parameter: nn.Parameter, fn: Callable[[torch.Tensor], torch.Tensor]) -> nn.Parameter:
    with torch.no_grad():
        new = fn(parameter)
        gradient = fn(parameter.grad) if parameter.grad is not None else None
    if new is not parameter:
        if isinstance(parameter, FakeTensor) == isinstance(new, FakeTensor):
            parameter.data = new
        else:
            parameter = nn.Parameter(new, parameter.requires_grad)
    if gradient is not None:
        parameter.grad = None
        parameter.grad = gradient
    return parameter


def _follow_data() -> None:
    """A fake tensor that is given another's data is then where that is."""
    kind: Any = FakeTensor
    data = kind.data

    def give(self: Any, new: torch.Tensor) -> None:
        data.__set__(self, new)
        if isinstance(new, FakeTensor):
            self.fake_device = new.fake_device

    kind.data = property(data.__get__, give)


def _keep_files(mode: VirtualMode) -> None:
    """Nothing is written: what a script saves it may load again."""
    saved: dict[str, Any] = {}
    load = torch.load

    def path_of(file: Any) -> str:
        return str(Path(file).resolve()) if isinstance(file, str | Path) else f"id {id(file)}"

    @wraps(torch.save)
    def keep(obj: Any, f: Any, *_: Any, **__: Any) -> None:
        mode.answers.note("a file of weights", "kept in memory, not written")
        saved[path_of(f)] = obj

    @wraps(load)
    def give(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        del map_location
        if path_of(f) in saved:
            return copy.copy(saved[path_of(f)])
        return load(f, "cpu", *args, **kwargs)

    torch.save, torch.load = keep, give


def _enter_threads(mode: VirtualMode) -> None:
    """Threads of the script see the same device."""
    run = threading.Thread.run

    def with_mode(self: threading.Thread) -> None:
        with mode:
            run(self)

    threading.Thread.run = with_mode  # type: ignore[method-assign]
