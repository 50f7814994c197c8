"""CUDA graphs, from torch's own log of them: recorded, recorded again, or why not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rooflight.compiling.explaining.explanation import CudaGraphEvent

_ID: Final = re.compile(r"^\[([^\]]*)\] ")
_RECORDED: Final = re.compile(r"Recording cudagraph tree for (.+)$")
_AGAIN: Final = re.compile(r"Re-recording function=.*?reason=(.*)$", re.DOTALL)
_SKIPPED: Final = re.compile(r"^(?:(?:skipping|disabling) cudagraphs (?:for backward )?due to )+(.*)$", re.DOTALL)
_SIZES: Final = re.compile(r"CUDAGraph supports dynamic shapes by recording .*?observed (\d+) distinct", re.DOTALL)

_FIXES: Final = (
    (
        r"mutated inputs",
        "return the result and copy it outside; mark a buffer that stays where it is by "
        "torch._dynamo.mark_static_address",
    ),
    (
        r"cpu device|cpu tensor|multiple devices",
        "keep all tensors of the function on one GPU: no .cpu(), no .item(), no indices from the CPU",
    ),
    (r"dynamic|symint|symbolic|distinct", "pad inputs to a few sizes, so that each has a graph that is replayed"),
    (r"incompatible op|unsafe", "move the op outside the compiled function, so that the rest is replayed"),
    (
        r"data pointer changed|static input",
        "pass the same tensors each time (copy into them); mark_static_address only what stays where it is",
    ),
    (r"expanded|complex memory overlap", "pass x.contiguous()"),
    (
        r"not on path|alive|living|are live|dealloc",
        "call torch.compiler.cudagraph_mark_step_begin() before each step; clone results that outlive the next one",
    ),
    (r"allocator", "use torch's caching allocator"),
    (r"C\+\+ wrapper|cpp wrapper|cpp_wrapper", "set torch._inductor.config.cpp_wrapper = False"),
)


def cuda_graphs(lines: Iterable[str]) -> tuple[CudaGraphEvent, ...]:
    """The events that lines of the logs ``cudagraphs`` of torch tell of, in order; other lines are left out."""
    found = []
    for line in lines:
        named = _ID.match(line)
        id_, text = ("", line) if named is None else (named[1], line[named.end() :])
        if (event := _event(id_, text)) is not None:
            found.append(event)
    return tuple(found)


def _event(id_: str, text: str) -> CudaGraphEvent | None:
    if (again := _AGAIN.search(text)) is not None:
        reason = again[1].strip()
        return CudaGraphEvent(what="recorded again", id=id_, reason=reason, fix=fix(reason))
    if (recorded := _RECORDED.search(text)) is not None:
        return CudaGraphEvent(what="recorded", id=id_, reason=recorded[1].strip())
    if (skipped := _SKIPPED.search(text)) is not None:
        reason = skipped[1].strip()
        return CudaGraphEvent(what="skipped", id=id_, reason=reason, fix=fix(reason))
    if (sizes := _SIZES.search(text)) is not None:
        reason = f"{sizes[1]} distinct sizes, a graph for each"
        return CudaGraphEvent(what="warning", id=id_, reason=reason, fix=fix(reason))
    return None


def fix(reason: str) -> str:
    """What lets torch record a CUDA graph once, by the reason it gives."""
    return next((advice for pattern, advice in _FIXES if re.search(pattern, reason, re.IGNORECASE)), "")
