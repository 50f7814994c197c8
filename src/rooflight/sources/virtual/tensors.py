"""Tensors and modules of a script: parameters are fake from birth, values leave to Python by the table of answers."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable
from functools import cache, wraps
from itertools import count
from typing import Any, Final, cast

import numpy as np
import torch
from torch import nn
from torch._C import _storage_id  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nested._internal.nested_int import NestedIntNode
from torch.nn.parameter import UninitializedParameter, UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map_only

from rooflight.sources.capture.run.callers import calling_line
from rooflight.sources.capture.run.hooks import when_imported
from rooflight.sources.virtual.mode import PLAIN, VirtualMode
from rooflight.sources.virtual.values import Values, is_small

_MOST_SHOWN: Final = 64
_OURS: Final = (FakeTensor, UninitializedTensorMixin)


def install(mode: VirtualMode) -> None:
    """Set them, for the rest of the process."""
    _device_constructors()  # torch remembers which functions a default device concerns
    for owner, name in ((torch, "tensor"), (torch.Tensor, "new_tensor")):
        setattr(owner, name, _lifted(getattr(owner, name)))
    torch.jit._builtins._register_builtin(torch.tensor, "aten::tensor")  # for TorchScript
    vars(sys.modules[torch.jit.trace.__module__])["_check_trace"] = lambda *_, **__: None  # compares values
    FakeTensorMode.__deepcopy__ = lambda self, _memo: self  # type: ignore[attr-defined] # with a tensor that it made
    vars(sys.modules[FakeTensorMode.__module__])["init_gpu_context"] = lambda _: None  # makes a real one in torch 2.11
    for kinds in (_foreach_utils._foreach_supported_types, optimizer._foreach_supported_types):
        kinds += [FakeTensor, FakeParameter]  # optimizers take them together, as on the device
    _leave_to_python(mode)
    _give_addresses(mode)
    _copy_storages()
    _make_parameters_fake(mode)
    _follow_data()
    _move_modules(mode)
    _keep_files()
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
            if (
                isinstance(self, FakeTensor)
                and self.is_cuda
                and method.__name__ != "tolist"
                and not kwargs.get("force")
            ):
                raise TypeError(
                    f"{calling_line()}: can't convert {self.device} device type tensor to numpy: .cpu() first"
                )
            if isinstance(self, FakeTensor):
                self = mode.real_of(self).requires_grad_(self.requires_grad and method.__name__ != "tolist")
            return method(self, *args, **kwargs)

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

    def pinned(self: Any, *_: Any) -> torch.Tensor:
        mode.pins = True
        made = self.detach()
        made._is_pinned = True
        return made  # type: ignore[no-any-return]

    def described(self: torch.Tensor, **_: Any) -> str:
        known = mode.values.of(self)
        what = "..." if known is None or known.numel() > _MOST_SHOWN else str(known.tolist())  # no op: any may ask
        grad = f", grad_fn={self.grad_fn}" if self.grad_fn is not None else ", requires_grad=True" * self.requires_grad
        return f"tensor({what}, device='{self.device}', size={tuple(self.shape)}{grad})"

    def reduced(self: torch.Tensor, _protocol: int) -> Any:
        facts = tuple(self.shape), self.stride(), self.dtype, str(self.device)
        return _made_again, (*facts, self.requires_grad, isinstance(self, nn.Parameter), mode.values.of(self))

    numbers = count()

    def nested_int(self: Any, *, coeff: int = 1) -> Any:
        if self.nested_int_memo is None:
            self.nested_int_memo = torch.SymInt(NestedIntNode(next(numbers), 1))
        return self.nested_int_memo * coeff

    FakeTensor.get_nested_int = nested_int  # type: ignore[method-assign, assignment]
    FakeTensor.__reduce_ex__ = reduced  # type: ignore[method-assign]
    FakeTensor.__copy__ = lambda self: self.data.requires_grad_(self.requires_grad)  # type: ignore[attr-defined]
    FakeTensor.__repr__ = described  # type: ignore[method-assign, assignment]
    tensor.type = as_type
    tensor.__format__ = as_text
    tensor.record_stream = lambda _self, _stream: None
    tensor.pin_memory = pinned
    tensor.is_pinned = lambda self, *_: getattr(self, "_is_pinned", False)
    FakeTensor.share_memory_ = lambda self: self  # type: ignore[method-assign]


def _made_again(
    size: Any, stride: Any, dtype: torch.dtype, device: str, requires_grad: bool, is_parameter: bool,
    known: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """What a fake tensor was pickled as."""
    made = torch.empty_strided(size, stride, dtype=dtype, device=device) if known is None else known.to(device)
    return nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


def _give_addresses(mode: VirtualMode) -> None:
    tensor: Any = torch.Tensor

    def address(self: torch.Tensor) -> int:
        if not isinstance(self, FakeTensor):
            return int(at(self))
        mode.answers.note("an address of the device", "one that only tells tensors apart")
        return first(self.untyped_storage()) + int(self.storage_offset()) * self.element_size()

    def first(storage: torch.UntypedStorage) -> int:
        return int(storage._cdata << 5 if where.__get__(storage).type == "meta" else begin(storage))

    def place(storage: torch.UntypedStorage) -> torch.device:
        found: torch.device = where.__get__(storage)
        return mode.device if found.type == "meta" and mode.memory.has(storage) else found

    storages: Any = torch.UntypedStorage
    where = storages.device
    storages.device = property(place)
    at, begin = tensor.data_ptr, storages.data_ptr
    tensor.data_ptr, storages.data_ptr = address, first


def _copy_storages() -> None:
    """What is copied together shares its copies as it shares storages; torch would do so with addresses alone."""
    tensor: Any = torch.Tensor
    copied = tensor.__deepcopy__

    @wraps(copied)
    def run(self: torch.Tensor, memo: dict[Any, Any]) -> Any:
        if not isinstance(self, FakeTensor) or not self.is_leaf or id(self) in memo or self.layout is not torch.strided:
            return copied(self, memo)
        storage = self.untyped_storage()
        key = "storage", storage._cdata
        with torch.no_grad():
            if key not in memo:
                size = (storage.nbytes() // self.element_size(),)
                memo[key] = self.as_strided(size, (1,), 0).clone()
            view = memo[key].view(self.dtype).as_strided(self.shape, self.stride(), self.storage_offset())
            made = memo[id(self)] = view.data  # no view, to torch
            made.__class__ = type(self)
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
            real, data = data.detach(), mode.fake_of(data.detach())
            if is_small(real):  # what is the host's is real
                mode.values.hold(data, real)
        made = new(cls, data.detach() if isinstance(data, FakeParameter) else data, requires_grad)
        if type(made) is FakeTensor:
            made.__class__ = FakeParameter if cls is kind else _class_of(cls)
        return made

    kind.__new__ = staticmethod(make)
    as_subclass, make_subclass = torch.Tensor.as_subclass, torch.Tensor._make_subclass

    def seen_as(self: torch.Tensor, cls: type) -> Any:
        return as_subclass(self, cls) if not isinstance(self, FakeTensor) else _seen_as(self, cls)

    def made_as(cls: type, data: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(data, FakeTensor) or issubclass(cls, FakeTensor):
            return make_subclass(cls, data, *args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return _seen_as(data.detach(), cls).requires_grad_(bool(args and args[0]))

    make_tensor = torch.Tensor.__new__

    def made_of(cls: type, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], FakeTensor):
            return _seen_as(args[0].detach(), cls)
        return make_tensor(cls, *args, **kwargs)

    torch.Tensor.__new__ = staticmethod(made_of)  # type: ignore[method-assign]
    torch.Tensor.as_subclass = seen_as  # type: ignore[method-assign, assignment]
    torch.Tensor._make_subclass = staticmethod(made_as)  # type: ignore[method-assign]


class FakeParameter(FakeTensor):
    """A parameter, which its class makes others of, as ``type(p)(data)``."""

    def __new__(cls, data: Any = None, requires_grad: bool = True, **_: Any) -> Any:
        """A parameter of other data."""
        return nn.Parameter(data, requires_grad)

    def __init__(self, *_: Any, **__: Any) -> None:
        """It is made."""


FakeParameter.__name__ = FakeParameter.__qualname__ = "Parameter"


class _Seen(FakeTensor):
    """Of a class of the script's own, whose functions come before and after those of torch."""


_Seen.__torch_function__ = classmethod(torch.Tensor.__torch_function__.__func__)  # type: ignore[method-assign, assignment, attr-defined]


@cache
def _class_of(kind: Any) -> type:
    """A class of fake tensors that is a subclass of the script's own, too."""
    own: dict[str, Any] = {}
    if issubclass(kind, UninitializedTensorMixin):  # of a lazy module: torch makes fake ones of it by their shape
        own["shape"] = torch.Tensor.shape
        own["cls_to_become"] = FakeParameter if issubclass(kind, nn.Parameter) else FakeTensor
    made: Any = type(kind.__name__, (kind, _Seen), own)
    function = kind.__torch_function__  # torch leaves out one that is given as it makes the class
    made.__torch_function__ = classmethod(getattr(function, "__func__", function))
    return made  # type: ignore[no-any-return]


def _seen_as(tensor: torch.Tensor, kind: Any) -> torch.Tensor:
    plain = kind in (torch.Tensor, FakeTensor)
    if type(tensor) is FakeTensor if plain else isinstance(tensor, kind):
        return tensor
    seen: torch.Tensor = tensor.view_as(tensor)
    seen.__class__ = FakeTensor if plain else kind if issubclass(kind, FakeTensor) else _class_of(kind)
    return seen


def _move_modules(mode: VirtualMode) -> None:
    """Torch swaps fake parameters, which fails where anything refers to them: they are given new data instead."""
    module: Any = nn.Module
    apply = module._apply

    def _apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        mine = [*self._parameters.values(), *self._buffers.values()]
        if any(each is not None and type(each) not in PLAIN and not isinstance(each, _OURS) for each in mine):
            moved: nn.Module = apply(self, fn, recurse)
            return moved
        if recurse:
            for child in self.children():
                child._apply(fn)
        for name, parameter in self._parameters.items():
            if parameter is not None:
                self._parameters[name] = _moved(parameter, fn, mode.values)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    module._apply = _apply


def _moved(parameter: nn.Parameter, fn: Callable[[torch.Tensor], torch.Tensor], values: Values) -> nn.Parameter:
    if isinstance(parameter, UninitializedParameter):  # whose gradient and shape may not be asked for
        new, kind = fn(parameter), cast("Any", UninitializedParameter)
        return cast("nn.Parameter", kind(parameter.requires_grad, new.device, new.dtype))
    with torch.no_grad():
        new = fn(parameter)
        gradient = fn(parameter.grad) if parameter.grad is not None else None
    if isinstance(new, FakeTensor) and new.is_cuda and not parameter.is_cuda:
        values.forget(new)
    if new is not parameter:
        if isinstance(parameter, FakeTensor) == isinstance(new, FakeTensor) and not new.is_meta:
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


def _keep_files() -> None:
    """Files hold what is known of tensors of the device: their shapes. What is loaded comes to where it is wanted."""
    torch.serialization.add_safe_globals([_made_again])
    load = torch.load

    @wraps(load)
    def give(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        located: dict[int, str] = {}

        def locate(storage: Any, place: str) -> Any:
            located[storage._cdata] = place
            return storage

        def moved(each: torch.Tensor) -> torch.Tensor:
            place = str(each.device) if isinstance(each, FakeTensor) else located.get(_storage_id(each), "cpu")
            return each.to(_place(map_location, place))

        return tree_map_only(torch.Tensor, moved, load(f, locate, *args, **kwargs))

    def write_shapes() -> None:
        files = vars(sys.modules["safetensors.torch"])
        array_of = files["_to_ndarray"]
        files["_to_ndarray"] = lambda tensor: (
            (np.zeros(tensor.nbytes, np.uint8), tensor) if isinstance(tensor, FakeTensor) else array_of(tensor)
        )

    when_imported("safetensors.torch", write_shapes)
    torch.load = give


def _place(wanted: Any, place: str) -> Any:
    """Where a tensor that was saved at a place is wanted, by a ``map_location`` of any form."""
    if isinstance(wanted, dict):
        return wanted.get(place, place)
    if callable(wanted):
        found = wanted(_Saved("cpu"), place)
        return place if found is None else found.place
    return wanted or place


class _Saved:
    """A storage of a file, as a ``map_location`` that is a function is given it."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.device = torch.device(place)

    def cuda(self, device: Any = None, *_: Any) -> _Saved:
        return _Saved("cuda" if device is None else str(torch.device("cuda", device)))

    def cpu(self) -> _Saved:
        return _Saved("cpu")


def _enter_threads(mode: VirtualMode) -> None:
    """Threads of the script see the same device."""
    run = threading.Thread.run

    def with_mode(self: threading.Thread) -> None:
        with mode:
            run(self)

    threading.Thread.run = with_mode  # type: ignore[method-assign]
