"""The mode under which a script runs: what touches the device runs on fake tensors, all else runs as it is.

An op with a fake tensor among its arguments, or that is told to make one on ``cuda``, computes only the shapes of its
results; these are remembered by kind of call. Where all its inputs are known (``values``), it runs on these too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident, local
from typing import Any, Final

import torch
from torch._C import _dispatch_has_kernel_for_dispatch_key as _has_kernel
from torch._C import _storage_id  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from rooflight.sources.capture.op_call import OpCall, tensors_of
from rooflight.sources.capture.record.composites import call_unrecorded, decomposed
from rooflight.sources.capture.run.callers import calling_line
from rooflight.sources.virtual.facts import NONE_THERE, Facts
from rooflight.sources.virtual.likely import balanced, expect_share, guess, likely_of
from rooflight.sources.virtual.memory import Memory
from rooflight.sources.virtual.values import Answers, Values, covers, is_small

_aten = torch.ops.aten
PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor})
_VALUES: Final = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout}
)
_TRACER: Final = torch._C._dispatch_key_parse("Tracer")
_DENSE: Final = frozenset({torch.strided, torch.jagged})
_OVERWRITES: Final = frozenset({"fill_", "zero_", "copy_"})
_LIKE: Final = frozenset({"new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"})
"""Ops that need of a tensor only what it is like."""
_COPIES: Final = frozenset({"copy_", "_foreach_copy_", "resize_"})  # between devices
_DECIDES: Final = {
    "logical_or": True, "bitwise_or": True, "__or__": True, "logical_and": False, "bitwise_and": False,
    "__and__": False,
}  # fmt: skip
Handler = Callable[["VirtualMode", OpCall], Any]
HANDLERS: Final[dict[Any, Handler]] = {}
"""By op: what answers a call of it, or leaves it to the mode by NotImplemented."""


class _OddError(Exception):
    """A call that a key cannot describe completely."""


class _InKernel(local):
    """Whether a mode of fake tensors runs a kernel, told apart by thread."""

    def __init__(self) -> None:
        self.modes: set[FakeTensorMode] = set()

    def __get__(self, mode: FakeTensorMode, kind: type) -> bool:
        return mode in self.modes

    def __set__(self, mode: FakeTensorMode, value: bool) -> None:
        (self.modes.add if value else self.modes.discard)(mode)


class VirtualMode(TorchDispatchMode):
    """One for the process; it is on the stack of every thread of the script."""

    supports_higher_order_operators = True

    def __init__(self, sized: Handler, gpus: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gpus = gpus
        self.sized = sized  # what makes results whose sizes depend on values
        self.values, self.answers, self.memory = Values(), Answers(), Memory()
        FakeTensorMode.in_kernel_invocation = _InKernel()  # type: ignore[assignment]
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.fake.dispatch = self._counted(self.fake.dispatch)  # type: ignore[method-assign]
        self.device = torch.device("cuda", 0)
        self.pins = False  # whether the script pinned memory of the host
        self._facts: dict[int, Facts] = {}
        self._known: dict[Any, Any] = {}
        self._foreign: dict[type, bool] = {}
        self._templates: dict[torch.device, dict[str, Any]] = {}

    def _counted(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Count the memory of fake tensors, but not that of steps of an op, whose kernel keeps it to itself. A mode of
        another class would lack the rules of FlexAttention.
        """
        inside: set[int] = set()  # threads

        def run(*call: Any) -> Any:
            thread = get_ident()
            if thread in inside:
                return make(*call)
            inside.add(thread)
            try:
                out = make(*call)
            finally:
                inside.discard(thread)
            for each in tensors_of((out,)):
                self.memory.hold(_dense(each))
            return out

        return run

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Do not let compiled functions run eagerly for this mode."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for kind in types:
            if kind not in PLAIN and self.is_foreign(kind):
                return NotImplemented
        call = OpCall(func, args, kwargs or {})
        handler = HANDLERS.get(func)
        if handler is not None:
            out = handler(self, call)
            if out is not NotImplemented:
                return out
        if not isinstance(func, torch._ops.OpOverload):
            with self.fake:
                return self._with_fakes(call).run()
        facts = self._facts.get(id(func))
        if facts is None:
            facts = self._facts[id(func)] = Facts(func)
        if facts.composite:  # under inference_mode they arrive whole
            with self:
                return call_unrecorded(call) if facts.routed else decomposed(call)
        if not any(isinstance(each, FakeTensor) for each in call.tensors):
            device = call.kwargs.get("device") or next(
                (each for each in call.args if isinstance(each, torch.device)), "cpu"
            )
            if torch.device(device).type != "cuda":
                out = self._unpinned(call).run()
                if call.kwargs.get("pin_memory"):
                    out._is_pinned = True
                return out
        for each in call.tensors:
            _dense(each)
        return self._run(call, facts)

    def is_foreign(self, kind: type) -> bool:
        """Whether a tensor class does its own dispatch, to ops on plain tensors that come back to this mode."""
        known = self._foreign.get(kind)
        if known is None:
            dispatch = getattr(kind, "__torch_dispatch__", None)
            known = dispatch is not None and dispatch is not torch._C._disabled_torch_dispatch_impl
            known = self._foreign[kind] = known and not issubclass(kind, FakeTensor)
        return known

    def was_used(self) -> bool:
        """Whether something was on the device."""
        return bool(self.memory.phases)

    # -- results

    def _run(self, call: OpCall, facts: Facts) -> Any:
        if "device" in call.kwargs:
            call = call.with_options(device=self.with_index(call.kwargs["device"]))
        call = self._unpinned(call)
        written = call.writes(facts.written)
        facts.refuse(call, written)
        if any(not isinstance(each, FakeTensor) for each in written):  # what is real stays so
            if call.op.namespace == "aten" and facts.name not in _COPIES:
                one_device(written[0].device, call.tensors)
            return call.mapped(self.real_of).run()
        key = _key_of(call) if facts.kind else None
        learnt = self._known.get(key) if key is not None else None
        if learnt is not None:
            out = self._make_again(learnt, call.args)
        else:
            out, fixed = self._run_fake(call)
            if key is not None and fixed:
                self._learn(key, facts.kind, call, out)
        self._follow(call, facts, written, out)
        return out

    def _run_fake(self, call: OpCall) -> tuple[Any, bool]:
        """The result, and whether its shape is that of all such calls."""
        faked, traced = self._with_fakes(call), torch._C._get_tracing_state()
        try:
            if traced is not None:  # sizes would be tensors
                _trace(None)
            with self.fake:
                return faked.run(), True
        except (DynamicOutputShapeException, DataDependentOutputException):
            return self.sized(self, call), False
        except UnsupportedOperatorException:  # a kernel of the script's own, in Python
            if not _has_kernel(call.op.name(), "CUDA"):
                raise
            with self:
                return call.op._op_dk(torch._C.DispatchKey.CUDA, *call.args, **call.kwargs), False
        except (AssertionError, RuntimeError, ValueError) as error:
            of_rules = type(error).__module__ != "builtins" or not isinstance(error, RuntimeError)
            if call.op.namespace != "aten" or not of_rules:  # the rules of fake tensors raise others than kernels
                raise
            raise RuntimeError(f"{calling_line()}: {error}") from None
        finally:
            if traced is not None:
                _trace(traced)

    def _with_fakes(self, call: OpCall) -> OpCall:
        if all(isinstance(each, FakeTensor) for each in call.tensors):
            return call
        return call.mapped(lambda each: self.fake_of(each) if isinstance(each, torch.Tensor) else each)

    def _unpinned(self, call: OpCall) -> OpCall:
        if not call.kwargs.get("pin_memory"):
            return call
        self.pins = True
        return call.with_options(pin_memory=False)

    def with_index(self, device: Any) -> Any:
        """A device with its index, as torch gives it to tensors."""
        if device is None:
            return None
        device = torch.device(device)
        if device.type == "cuda" and device.index is not None:
            self.check(device.index)
        return self.device if device.type == "cuda" and device.index is None else device

    def check(self, index: int) -> int:
        """The index of a device that is there. Raises RuntimeError for others, as CUDA does."""
        if index >= self.gpus:
            raise RuntimeError(f"{calling_line()} asks for cuda:{index}: say --gpus {index + 1}, or more")
        return index

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor of the same strides on the same device."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if _dense(tensor).layout is not torch.strided or type(tensor) not in PLAIN:
            return self.fake.from_tensor(tensor, static_shapes=True)
        return self._new(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    def _new(self, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        with torch._C._DisableTorchDispatch():
            return self._fake(torch.empty_strided(size, stride, dtype=dtype, device="meta"), device)

    def _fake(self, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
        template = self._templates.get(device)
        if template is None:
            made = FakeTensor(self.fake, torch.empty(0, device="meta"), device)
            template = self._templates[device] = dict(made.__dict__)
        tensor: torch.Tensor = torch.Tensor._make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
        tensor.__dict__.update(template)
        return tensor

    def _learn(self, key: Any, kind: str, call: OpCall, out: Any) -> None:
        first = call.args[0] if call.args else None
        if kind == "written":
            if out is None or out is first:
                self._known[key] = kind, None, out is not None
            return
        several = isinstance(out, tuple | list)
        results = list(out) if several else [out]
        given = {_storage_id(each) for each in call.tensors}
        for each in results:
            if each is None:
                continue
            if not isinstance(each, FakeTensor) or each.layout is not torch.strided:
                return
            if each.is_complex() or each.is_neg():
                return
            if kind == "new" and (_storage_id(each) in given or each.storage_offset()):
                return
        if kind == "view":
            assert isinstance(first, torch.Tensor)
            if any(_storage_id(each) != _storage_id(first) or each.dtype is not first.dtype for each in results):
                return
        made = [
            None if each is None else (each.shape, each.stride(), each.dtype, each.fake_device, each.storage_offset())
            for each in results
        ]
        self._known[key] = kind, type(out) if several else None, made

    def _make_again(self, learnt: Any, args: tuple[Any, ...]) -> Any:
        kind, several, made = learnt
        if kind == "written":
            return args[0] if made else None
        results: Any
        if kind == "view":
            fake, inside = self.fake, torch._C._meta_in_tls_dispatch_include()
            before = fake.in_kernel_invocation
            with torch._C._DisableTorchDispatch():
                fake.in_kernel_invocation = True
                torch._C._set_meta_in_tls_dispatch_include(True)
                try:
                    views = [torch.as_strided(args[0], size, stride, offset) for size, stride, _, _, offset in made]
                finally:
                    fake.in_kernel_invocation = before
                    torch._C._set_meta_in_tls_dispatch_include(inside)
                results = [self._fake(view, each[3]) for view, each in zip(views, made, strict=True)]
        else:
            results = [None if each is None else self._new(*each[:4]) for each in made]
            for each in results:
                self.memory.hold(each)
        return several(results) if several is not None else results[0]

    # -- values

    def _follow(self, call: OpCall, facts: Facts, written: list[torch.Tensor], out: Any) -> None:
        """Keep what the results hold where it is known; what an op wrote otherwise is unknown. On the host all ops run
        on what is known, on the device those that are cheap and not random.
        """
        results = tensors_of((out,))
        here = all(each.device.type == "cpu" for each in (*call.tensors, *results))
        runs = (facts.known or (facts.on_host and here)) and all(map(is_small, results))
        if runs and self._can_run(call, facts) and self._run_known(call, written, results):
            return
        for each in written:
            if isinstance(each, FakeTensor):
                self.values.forget(each)
        decides = _DECIDES.get(facts.name)
        if decides is not None and isinstance(out, FakeTensor) and is_small(out) and covers(out):
            self._decide(decides, call.tensors, out)
        guess(facts.name, call, out, view=facts.view)

    def _decide(self, decides: bool, tensors: list[torch.Tensor], out: torch.Tensor) -> None:
        """Of a logic one known operand may decide alone: True of an "or" of truths, 0 of any "and". Of others the share
        that is true is known.
        """
        for each in tensors if out.dtype is torch.bool or not decides else ():
            known = self.values.of(each) if isinstance(each, FakeTensor) else each
            if known is not None and bool((known.bool() == decides).all()):
                self.values.hold(out, known.expand(out.shape))
            elif known is not None and known.dtype is torch.bool:
                expect_share(each, float(known.float().mean()))

    def _can_run(self, call: OpCall, facts: Facts) -> bool:
        if facts.name in _LIKE:
            return True
        values = self.values
        overwritten = call.args[0] if facts.name in _OVERWRITES and call.args else None
        if facts.name == "scatter_" and call.args[0].shape == call.args[2].shape:  # the inverse of a permutation
            overwritten = call.args[0]
        for each in call.tensors:
            if not is_small(each):
                return False
            if isinstance(each, FakeTensor) and each not in values and not (each is overwritten and covers(each)):
                return False
        if isinstance(overwritten, FakeTensor) and overwritten not in values:
            values.begin(overwritten)
        return True

    def _run_known(self, call: OpCall, written: list[torch.Tensor], results: list[torch.Tensor]) -> bool:
        try:
            found = self.of_known(call)
        except (RuntimeError, LookupError, TypeError, ValueError):
            return False
        if written:
            return True
        made = tensors_of((found,))
        if [each.shape for each in made] != [each.shape for each in results]:
            return False
        for fake, each in zip(results, made, strict=True):
            if covers(fake):
                self.values.hold(fake, each)
        return True

    def of_known(self, call: OpCall) -> Any:
        """What an op makes of known values, on the CPU. Raises KeyError where one is not known."""

        def real(value: Any) -> Any:
            if isinstance(value, torch.device):
                return torch.device("cpu")
            found = self.values.of(value) if isinstance(value, FakeTensor) else value
            if found is None and value is not None:
                if name not in _LIKE:
                    raise KeyError
                found = torch.empty(value.shape if name.endswith("_like") else 0, dtype=value.dtype, device="cpu")
            return found

        name = call.op._opname
        return call.mapped(real).run()

    def value_of(self, tensor: torch.Tensor) -> Any:
        """The one number that a fake tensor holds, or what is assumed of it."""
        known = self.values.of(tensor)
        if known is not None:
            return known.item()
        if tensor.dtype is torch.bool:
            return self.answers.truth("a truth of the device", likely=likely_of(tensor).truth is not False)
        return self.answers.number(tensor, likely_of(tensor).total)

    def chosen_of(self, mask: torch.Tensor) -> int:
        """How many elements a mask chooses whose values are unknown: the share that is likely, else all, the most."""
        share = likely_of(mask).share
        text = "chooses all" if share is None else f"chooses {share:.3g} of all: balanced"
        self.answers.note("a mask of the device", text)
        return mask.numel() if share is None else round(share * mask.numel())

    def real_of(self, tensor: Any) -> Any:
        """All that a fake tensor holds, ones where it is not known; anything else as it is."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        known = self.values.of(tensor)
        if known is not None:
            return known.clone()
        _, share, _, total = likely_of(tensor)
        if share is not None and tensor.dtype is torch.bool:
            return balanced(self.chosen_of(tensor), tensor.shape, torch.bool)
        if total is not None:
            self.answers.note("counts of the device", f"{round(total):,} in all: balanced")
            return balanced(total, tensor.shape, tensor.dtype)
        self.answers.note("values of the device", "ones")
        return torch.ones(tensor.shape, dtype=tensor.dtype, device="cpu")


def _trace(state: Any) -> None:
    """Go on with TorchScript's trace, or without one. It cannot be changed where ops are not traced."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded.remove(_TRACER)):
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def one_device(device: torch.device, tensors: Iterable[Any]) -> None:
    """Raise RuntimeError, as torch does, for tensors that are not on the device of another."""
    for each in tensors:
        if isinstance(each, torch.Tensor) and each.device.type != device.type:
            raise RuntimeError(
                f"{calling_line()}: Expected all tensors to be on the same device, but found {device} and {each.device}"
            )


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor. Raises NotImplementedError of a sparse one, whose values would say how large it is."""
    if tensor.layout not in _DENSE:
        raise NotImplementedError(NONE_THERE)
    return tensor


def _key_of(call: OpCall) -> Any:
    key: list[Any] = [call.op, torch.get_default_dtype()]
    try:
        for value in call.args:
            _describe(value, key)
        for name, value in call.kwargs.items():
            key.append(name)
            _describe(value, key)
        made = tuple(key)
        hash(made)
    except (_OddError, TypeError, RuntimeError):
        return None
    return made


def _describe(value: Any, key: list[Any]) -> None:
    kind = type(value)
    if isinstance(value, FakeTensor):
        if value.constant is not None or value.dtype.is_complex or value.is_neg():
            raise _OddError
        key += value.shape, value.stride(), value.dtype, value.fake_device, value.storage_offset()
    elif kind in _VALUES:
        key += kind, value  # 1, 1.0 and True are equal, and promote differently
    elif kind is list or kind is tuple or kind is torch.Size:
        key.append(len(value))
        for each in value:
            _describe(each, key)
    elif kind is torch.Tensor and not value.dim():
        key += "number", value.dtype
    else:
        raise _OddError
