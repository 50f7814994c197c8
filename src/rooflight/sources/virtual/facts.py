"""What the schema of an op says of it, for the mode that answers its calls."""

from __future__ import annotations

import re
from typing import Any, Final

import torch

from rooflight.sources.capture.op_call import OpCall, written_by
from rooflight.sources.capture.record.composites import COMPOSITE_OPS
from rooflight.sources.capture.record.dispatch import is_composite

NONE_THERE: Final = "a virtual GPU has no sparse and no strided nested tensors, whose sizes are in values"
_PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "mv", "dot"})
_VALUELESS: Final = ("empty", "resize")  # beside what a generator makes
_SILENT: Final = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4)}
"""Arguments that an op writes although its schema does not say so."""
_HEAVY: Final = frozenset({"mm", "addmm", "bmm", "convolution", "linear", "baddbmm"})
_ALWAYS_RUN: Final = frozenset({"resize_", "set_", "nonzero", "lift_fresh", "lift", "record_stream"})
_ODD: Final = re.compile(r"(?<!cslt_)sparse(?!_semi)|nested_tensor")
_FILLS: Final = frozenset({"fill_", "zero_"})  # write what is there several times, too


class Facts:
    """What the schema of an op says, once."""

    __slots__ = ("composite", "kind", "known", "name", "on_host", "overwrites", "product", "refused", "routed", "view",
                 "written")  # fmt: skip

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name = name = schema.name.split("::")[-1]
        given = [each.alias_info for each in schema.arguments]
        returned = [each.alias_info for each in schema.returns]
        self.written = written_by(func)
        self.written += [(place, schema.arguments[place].name) for place in _SILENT.get(name, ())]
        self.view = any(given) and not self.written
        random = torch.Tag.nondeterministic_seeded in func.tags
        self.on_host = func.namespace == "aten" and not self.view and not any(word in name for word in _VALUELESS)
        self.known = self.on_host and not random and name not in _HEAVY
        of_sizes_in_values = _ODD.search(name) if func.namespace == "aten" else None
        self.refused = f"{NONE_THERE} ({func})" if of_sizes_in_values else ""
        self.overwrites = torch.Tag.pointwise in func.tags and name not in _FILLS
        self.product = name in _PRODUCTS and func._overloadname == "default"
        self.routed = func in COMPOSITE_OPS
        self.composite = self.routed or is_composite(func)
        self.kind = ""
        """How its results are made again: "new", "view", "written", or never."""
        if func.namespace == "c10d" and name != "broadcast_":  # no schema there says what is written
            self.written = [(place, each.name) for place, each in enumerate(schema.arguments)]
        if func.namespace != "aten" or name in _ALWAYS_RUN or torch.Tag.inplace_view in func.tags:
            return
        if not any("Tensor" in str(each.type) for each in schema.arguments):
            return
        if name == "_unsafe_view":  # a view, though its schema does not say so
            self.kind = "view"
        elif not any(given) and not any(returned):
            self.kind = "new"
        elif self.written:
            self.kind = "written" if len(returned) <= 1 and (not returned or returned[0] is not None) else ""
        elif len(returned) == 1 and given[0] and not any(given[1:]):
            self.kind = "view"

    def refuse(self, call: OpCall, written: list[torch.Tensor]) -> None:
        """Raise for a call that a GPU refuses though torch's rules for shapes do not, NotImplementedError for what this
        one has not.
        """
        if self.refused:
            raise NotImplementedError(self.refused)
        if self.product and len({each.dtype for each in call.tensors}) > 1:
            raise RuntimeError(f"{self.name}: expected one dtype, but got {[each.dtype for each in call.tensors]}")
        if self.overwrites and any(map(_overlaps, written)):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a single memory"
                " location. Please clone() the tensor before performing the operation."
            )
        if self.name == "as_strided":
            size, stride, *offset = call.args[1:]
            last = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
            begin = next(iter(offset), None) or call.kwargs.get("storage_offset") or 0
            whole = call.tensors[0].untyped_storage().nbytes()
            if 0 not in size and (begin + last + 1) * call.tensors[0].element_size() > whole:
                raise RuntimeError(f"setStorage: sizes {size}, strides {stride}: out of bounds for {whole} bytes")


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True))
