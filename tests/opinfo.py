"""torch's own samples for its own ops, run with and without a recording around them."""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from recorded_model import Names
from torch.utils._pytree import tree_leaves

import rooflight as rl
from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import cost_of

# Their results are whatever lay in memory.
UNINITIALIZED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")

QUESTIONS = ("aten::is_same_size", "aten::_has_same_storage_numel")

# Run on one thread, the LAPACK call still gives other last bits from one call to the next.
UNREPEATABLE = ("linalg.lstsq",)

# torch itself takes another way through their backward as soon as any dispatch mode is on.
MODE_SENSITIVE = ("linalg.eig", "masked.prod", "ormqr", "prod")

# In inference mode, torch computes singular vectors that nobody asked for once it sees the parts of these.
SPECTRAL = ("linalg.cond", "linalg.eigvalsh", "linalg.matrix_norm", "linalg.norm", "linalg.svdvals", "norm")


@dataclass(slots=True)
class Tally:
    """How often each dispatched op ran, and why those without a cost have none."""

    pairs: int = 0  # op and sample
    calls: dict[str, int] = field(default_factory=dict)
    uncosted_calls: int = 0
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, session: rl.Session) -> None:
        self.pairs += 1
        for number in session.columns.signature[session.counted]:
            op = session.signatures[number]
            self.calls[op.name] = self.calls.get(op.name, 0) + 1
            cost = cost_of(op)
            if isinstance(cost, Uncosted):
                self.uncosted_calls += 1
                self.reasons.setdefault(op.name, cost.reason)

    @property
    def share_of_calls(self) -> float:
        return 1 - self.uncosted_calls / sum(self.calls.values())

    @property
    def share_of_ops(self) -> float:
        return 1 - len(self.reasons) / len(self.calls)


def opinfos() -> list[Any]:
    """torch's database of ops, without the test library it imports for its own assertions."""
    if "expecttest" not in sys.modules:
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_utils
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.opinfo import core
    # it looks for a unittest.TestCase on the stack, through the source of every frame: seconds where much is imported
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None

    return [
        info
        for info in op_db
        if torch.float32 in info.supported_dtypes("cpu") and not info.name.startswith("jiterator")
    ]


def samples(info: Any, limit: int | None = None) -> Iterator[Any]:
    """Sample inputs in float32 on the CPU, always the same ones."""
    torch.manual_seed(0)
    found = info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd)
    for index, sample in enumerate(found):
        if limit is not None and index >= limit:
            return
        yield sample


def check(info: Any, sample: Any) -> rl.Session:
    """Run one sample plain, under a mode that only lists names, and recorded: results and gradients are the same bits,
    and the record holds what the mode saw.
    """
    plain = _run(info, sample)
    with Names() as seen:
        under_mode = _run(info, sample)
    with rl.record() as recording:
        recorded = _run(info, sample)
    if info.name not in UNINITIALIZED + UNREPEATABLE:
        assert_same(under_mode if info.name in MODE_SENSITIVE else plain, recorded)
    if info.name not in UNINITIALIZED + UNREPEATABLE + SPECTRAL:
        with torch.inference_mode():  # where composites reach a mode whole
            with Names():
                inferred = _run(info, sample)
            with rl.record():
                assert_same(inferred, _run(info, sample))
    session = recording.session
    is_parent = {int(parent) for parent in session.columns.parent}
    leaves = [op.signature.name for index, op in enumerate(session.records) if index not in is_parent]
    assert leaves == [name for name in seen.names if name not in QUESTIONS]
    return session


def _run(info: Any, sample: Any) -> list[Any]:
    """Outputs and gradients of one call, or the error it ends in."""
    torch.manual_seed(1)
    inputs = [t for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, torch.Tensor)]
    leaves = [tensor for tensor in inputs if tensor.requires_grad and tensor.is_leaf]
    results: list[Any] = []
    try:
        outputs = tree_leaves(info(sample.input, *sample.args, **sample.kwargs))
        results += [item.detach() if isinstance(item, torch.Tensor) else item for item in outputs]
        wanted = [item for item in outputs if isinstance(item, torch.Tensor) and item.requires_grad]
        if leaves and wanted:
            ones = [torch.ones_like(tensor) for tensor in wanted if tensor.layout is torch.strided]
            wanted = [tensor for tensor in wanted if tensor.layout is torch.strided]
            results += torch.autograd.grad(wanted, leaves, ones, allow_unused=True)
    except (RuntimeError, AssertionError) as error:
        results.append(str(error))
    return results


def assert_same(expected: list[Any], found: list[Any]) -> None:
    """Equal bit for bit, NaNs included."""
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert type(one) is type(other)
        if not isinstance(one, torch.Tensor):
            assert one == other or one != one  # noqa: PLR0124 - NaN
            continue
        assert (one.shape, one.dtype, one.layout, one.requires_grad) == (
            other.shape, other.dtype, other.layout, other.requires_grad)  # fmt: skip
        if one.layout is torch.strided and not one.is_nested:
            assert one.stride() == other.stride()
            assert one.is_conj() == other.is_conj()
            assert bits(one) == bits(other)
        else:
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def bits(tensor: torch.Tensor) -> bytes:
    """The values of a tensor as they lie in memory."""
    plain = tensor.detach().resolve_conj()
    same_size = {torch.bfloat16: torch.int16, torch.complex32: torch.int32}.get(plain.dtype)
    return (plain.view(same_size) if same_size else plain).numpy(force=True).tobytes()
