"""Libraries that a script finds where there is a GPU: Triton, whose kernels run as nothing and are counted by their own
code, and flash-attn, whose functions are torch's ops of the same work. Only the script's own imports find them, since
libraries choose their way by what is here. Operators that are written in Python are taken apart, as they run there.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from rooflight.sources.capture.op_call import OpCall
from rooflight.sources.capture.own_code import is_users
from rooflight.sources.capture.triton_programs import (
    LANGUAGE,
    Block,
    Descriptor,
    UnknownError,
    Work,
    dtype_of,
    names_of,
    work_of,
)
from rooflight.sources.virtual.mode import HANDLERS, VirtualMode

_LIBRARIES: Final[dict[str, torch.library.Library]] = {}


def install() -> None:
    """Let the script import them, for the rest of the process."""
    given = {"triton": _triton(), "kernels": _module("kernels", get_kernel=_get_kernel)}
    given |= dict.fromkeys(("flash_attn", "flash_attn_interface"), _flash_attention())
    find: Any = builtins.__import__

    @wraps(find)
    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:  # noqa: A002
        root, *rest = name.split(".")
        if level or root not in given or not is_users((globals or {}).get("__file__") or "<"):
            return find(name, globals, locals, fromlist, level)
        found: Any = given[root]
        for part in rest if fromlist else ():
            found = getattr(found, part)
        return found

    builtins.__import__ = imported
    cuda: Any = torch.cuda
    cuda._compile_kernel = lambda _source, kernel_name, *_, **__: _Compiled(kernel_name)
    library: Any = torch.library
    _own_operators()
    library.wrap_triton = lambda kernel: kernel


def _module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(content)
    return made


# -- Triton


class _Kernel:
    """A function of Triton's: launched it runs as nothing, called by another it is a part of that."""

    def __init__(self, fn: Any, settings: dict[str, Any] | None = None) -> None:
        self.fn: Callable[..., Any] = getattr(fn, "fn", fn)
        self._settings, self.__name__ = settings or {}, self.fn.__name__
        self._known: dict[Any, Work | None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)

    def run(self, *args: Any, grid: Any, **kwargs: Any) -> None:
        """Launch it."""
        names = names_of(self.fn)
        given = {**self._settings, **dict(zip(names, args, strict=False)), **kwargs}
        programs = grid(given) if callable(grid) else grid
        given = {name: value for name, value in given.items() if name in names}
        bases = {name: getattr(value, "base", value) for name, value in given.items()}
        tensors = {name: base for name, base in bases.items() if isinstance(base, torch.Tensor)}
        key = (tuple(programs), *((name, _looked_at(value)) for name, value in given.items()))
        if key not in self._known:
            self._known[key] = self._counted(given, tensors, programs)
        work = self._known[key]
        moved = (
            ([], []) if work is None else ([at for pair in each for at in pair] for each in (work.read, work.written))
        )
        _launch(self.__name__, list(tensors.values()), -1 if work is None else work.flops, *moved)

    def _counted(self, given: dict[str, Any], tensors: dict[str, torch.Tensor], programs: Any) -> Work | None:
        blocks = {}
        for number, (name, tensor) in enumerate(tensors.items()):
            pointer = Block((), dtype_of(str(tensor.dtype).removeprefix("torch.")), number)
            of = given[name]
            is_tensor = isinstance(of, torch.Tensor)
            blocks[name] = pointer if is_tensor else Descriptor(pointer, of.shape, of.strides, of.block_shape)
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors.values()]
        try:
            return work_of(self.fn, {**given, **blocks}, [int(each) for each in programs], sizes)
        except UnknownError:
            return None


def _looked_at(value: Any) -> Any:
    base = getattr(value, "base", value)
    return (tuple(base.shape), base.dtype, base.stride()) if isinstance(base, torch.Tensor) else value


def _launch(name: str, tensors: list[torch.Tensor], flops: int, read: list[int], written: list[int]) -> None:
    """An op of the kernel's own name, which writes what is not known."""
    library = _LIBRARIES.setdefault("triton", torch.library.Library("triton", "FRAGMENT"))
    if not hasattr(torch.ops.triton, name):
        library.define(f"{name}(Tensor[] tensors, int matrix_flops, int[] read, int[] written) -> ()")

        def forget(mode: VirtualMode, call: OpCall) -> None:
            tree_map_only(FakeTensor, mode.values.forget, call.args[0])

        HANDLERS[getattr(torch.ops.triton, name).default] = forget
    if any(isinstance(each, FakeTensor) for each in tensors):
        with torch.no_grad():
            getattr(torch.ops.triton, name)([each.detach() for each in tensors], flops, read, written)


def _triton() -> ModuleType:
    def jit(fn: Any = None, **_: Any) -> Any:
        return jit if fn is None else _Kernel(fn)

    def autotune(configs: Sequence[Any] = (), *_: Any, **__: Any) -> Any:
        settings = configs[0].kwargs if configs else {}
        return lambda kernel: _Kernel(kernel, {**getattr(kernel, "_settings", {}), **settings})

    def config(kwargs: dict[str, Any], *_: Any, **settings: Any) -> Any:
        return SimpleNamespace(kwargs=kwargs, **settings)

    tensor_descriptor = _module("triton.tools.tensor_descriptor", TensorDescriptor=Descriptor)
    return _module(
        "triton", jit=jit, autotune=autotune, Config=config, language=LANGUAGE, cdiv=LANGUAGE.cdiv, __version__="3.7.0",
        next_power_of_2=lambda size: 1 << (size - 1).bit_length(), set_allocator=lambda _: None,
        heuristics=lambda _: lambda kernel: kernel, tools=_module("triton.tools", tensor_descriptor=tensor_descriptor),
    )  # fmt: skip


class _Compiled:
    """A kernel that a script compiles from CUDA's C++: it runs as nothing, and what it does is not known."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, _grid: Any = (), _block: Any = (), args: Any = (), **_: Any) -> None:
        _launch(self._name, [each for each in args if isinstance(each, torch.Tensor)], -1, [], [])

    def set_shared_memory_config(self, *_: Any) -> None:
        """Nothing to set."""


# -- operators written in Python


class _Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: Any, *args: Any) -> Any:
        ctx.op = op
        out = op.fn(*args)
        if op.setup is not None:
            op.setup(ctx, args, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = ctx.op.back(ctx, *gradients)
        return None, *(found if isinstance(found, tuple) else (found,))


class _CustomOp:
    """What ``torch.library.custom_op`` makes: a call runs its code, whose ops are seen one by one."""

    def __init__(self, name: str, fn: Any, mutates_args: Any, schema: str | None) -> None:
        space, self._name = name.split("::")
        self.fn, self.back, self.setup = fn, None, None
        self._space = getattr(torch.ops, space)
        library = _LIBRARIES.setdefault(space, torch.library.Library(space, "FRAGMENT"))
        library.define(self._name + (schema or torch.library.infer_schema(fn, mutates_args=mutates_args)))
        library.impl(self._name, self._run, "CompositeImplicitAutograd")

    def _run(self, *args: Any) -> Any:
        if self.back is not None and torch.is_grad_enabled():
            return _Custom.apply(self, *args)
        with torch.no_grad():
            return self.fn(*args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._space, self._name)(*args, **kwargs)

    def register_autograd(self, backward: Any, /, *, setup_context: Any = None) -> None:
        """Its backward pass."""
        self.back, self.setup = backward, setup_context

    def register_kernel(self, device_types: Any, fn: Any = None, /) -> Any:
        """Its code for devices."""
        if fn is None:
            return lambda made: self.register_kernel(device_types, made)
        if device_types is None or "cuda" in device_types:
            self.fn = fn
        return fn

    def register_fake(self, fn: Any = None, /, **_: Any) -> Any:
        """Not needed."""
        return fn if fn is not None else lambda made: made

    register_vmap = register_torch_dispatch = register_fake


def _own_operators() -> None:
    """Let the script's own be taken apart; those of libraries are torch's."""
    library: Any = torch.library
    made: dict[str, _CustomOp] = {}

    def of_script(define: Any) -> Any:
        @wraps(define)
        def custom_op(name: str, fn: Any = None, /, *, mutates_args: Any = (), schema: Any = None, **rest: Any) -> Any:
            if not is_users(sys._getframe(1).f_code.co_filename):
                return define(name, fn, mutates_args=mutates_args, schema=schema, **rest)
            if fn is None:
                return lambda code: made.setdefault(name, _CustomOp(name, code, mutates_args, schema))
            return made.setdefault(name, _CustomOp(name, fn, mutates_args, schema))

        return custom_op

    def of_operator(register: Any) -> Any:
        @wraps(register)
        def run(op: Any, *args: Any, **kwargs: Any) -> Any:
            known = op if isinstance(op, _CustomOp) else made.get(op)
            return getattr(known, register.__name__)(*args, **kwargs) if known else register(op, *args, **kwargs)

        return run

    library.custom_op, library.triton_op = of_script(library.custom_op), of_script(library.triton_op)
    for name in ("register_fake", "register_autograd", "register_kernel"):
        setattr(library, name, of_operator(getattr(library, name)))


# -- flash-attn


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False, window_size: Sequence[int] = (-1, -1), **_: Any,
) -> torch.Tensor:  # fmt: skip
    """q [Tq, Hq, D], k and v [Tk, Hkv, D], packed sequences, or [B, N, H, D] without cumulative lengths."""
    left, right = (each if each >= 0 else None for each in window_size)
    out, *_rest = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), dropout_p, causal, False,
        scale=softmax_scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return out  # type: ignore[no-any-return]


def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """q [B, Nq, Hq, D], k and v [B, Nk, Hkv, D] to [B, Nq, Hq, D]."""
    return flash_attn_varlen_func(q, k, v, None, None, q.shape[1], k.shape[1], *args, **kwargs)


def _packed(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """The same where the argument at ``place`` is several tensors in one, by its third dimension from the end."""
    return lambda *args, **kwargs: function(*args[:place], *args[place].unbind(-3), *args[place + 1 :], **kwargs)


def _qkv_varlen(qkv: torch.Tensor, ends: torch.Tensor, longest: int, *args: Any, **kwargs: Any) -> torch.Tensor:
    q, k, v = qkv.unbind(-3)
    return flash_attn_varlen_func(q, k, v, ends, ends, longest, longest, *args, **kwargs)


def _unpad(hidden: torch.Tensor, mask: torch.Tensor, _: Any = None) -> tuple[Any, ...]:
    """[B, S, ...] to the tokens that the mask [B, S] keeps; their places, cumulative lengths, the longest, and all."""
    lengths = mask.sum(-1, dtype=torch.int32)
    places = mask.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[places], places, ends, int(lengths.max()), lengths


def _pad(hidden: torch.Tensor, places: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    whole = hidden.new_zeros(batch * length, *hidden.shape[1:])
    whole.index_put_((places,), hidden)
    return whole.view(batch, length, *hidden.shape[1:])


def _flash_attention() -> ModuleType:
    made = _module(
        "flash_attn", __version__="2.8.3", flash_attn_func=flash_attn_func,
        flash_attn_varlen_func=flash_attn_varlen_func,
        flash_attn_qkvpacked_func=_packed(flash_attn_func, 0), flash_attn_kvpacked_func=_packed(flash_attn_func, 1),
        flash_attn_varlen_qkvpacked_func=_qkv_varlen,
        bert_padding=_module("flash_attn.bert_padding", unpad_input=_unpad, pad_input=_pad,
                             index_first_axis=lambda first, places: first[places]),
    )  # fmt: skip
    vars(made)["flash_attn_interface"] = made
    return made


def _get_kernel(name: str, *_: Any, **__: Any) -> Any:
    """What the package ``kernels`` loads: flash attention alone."""
    if "flash-attn" not in name and "flash-attention" not in name:
        raise ImportError(f"{name} is compiled for CUDA, and there is no GPU here")
    return _flash_attention()
