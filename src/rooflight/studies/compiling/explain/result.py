"""What each stage makes of a function: the document of ``rooflight explain``, and its parts."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final, Literal

from rooflight.records.account import Place
from rooflight.records.document import Document, Fields

_TORCHS: Final = re.compile(r"(^|-packages/|pytorch/)torch/")
_STANDARD: Final = sysconfig.get_path("stdlib")


class SourceLine(Place, frozen=True, kw_only=True):
    """A place with the text of its line, ``code``, empty where unknown."""

    code: str = ""


def place_of(place: SourceLine | None) -> str:
    """``train.py:12``; empty where it is unknown, or in torch itself."""
    return "" if place is None or of_library(place.file) else f"{PurePath(place.file).name}:{place.line}"


def of_library(file: str) -> bool:
    """Whether a file is torch's or Python's own."""
    return bool(_TORCHS.search(file)) or (file.startswith(_STANDARD) and "site-packages" not in file)


def total(sizes: Iterable[int | None]) -> int | None:
    """The sum of some bytes; None where some are unknown."""
    known = list(sizes)
    return None if None in known else sum(size for size in known if size is not None)


LayerKind = Literal["autocast", "autograd", "composite", "in-place and views", "functionalization", "python", "backend",
                    "other"]  # fmt: skip


class Layer(Fields, frozen=True, kw_only=True):
    """A kernel that the dispatcher runs for an op: that of dispatch key ``key``, ``registered`` in a source file.

    ``masks``: the keys that it excludes before it calls on. ``cost_s``: seconds per call that the layer adds, the
    difference of medians with and without it; ``spread_s``: distance of the quartiles of that difference. None where
    it was not measured.
    """

    key: str
    kind: LayerKind
    registered: str = ""
    masks: tuple[str, ...] = ()
    cost_s: float | None = None
    spread_s: float | None = None


class Dispatched(Fields, frozen=True, kw_only=True):
    """Calls of an op with the same key set: how it comes about, and the layers, first to last.

    ``inputs``: keys of the tensors among its arguments. ``always``, ``never``: keys that are global, included and
    excluded for each op of each thread; ``included``, ``excluded``: those that this thread adds. Of the excluded ones,
    those that inputs or includes bring. ``passed_over``: keys of the set whose kernel falls through. ``calls_on``: ops
    that its kernels call, each of which is dispatched anew; ``within``: the op that called it so, empty for a call of
    the program. ``backward``: called by autograd's engine. ``grad``: in grad mode. ``call_s``: seconds of a call from
    Python with small inputs.
    """

    op: str
    calls: int
    inputs: tuple[str, ...]
    included: tuple[str, ...]
    excluded: tuple[str, ...]
    always: tuple[str, ...]
    never: tuple[str, ...]
    passed_over: tuple[str, ...]
    layers: tuple[Layer, ...]
    calls_on: tuple[str, ...] = ()
    within: str = ""
    backward: bool = False
    grad: bool = False
    call_s: float | None = None


class Guard(Fields, frozen=True, kw_only=True):
    """A check before compiled code runs: its kind as torch names it, what it reads, and the check."""

    kind: str
    source: str
    check: str
    place: SourceLine | None = None


class OpCount(Fields, frozen=True, kw_only=True):
    """How often an op is in a graph."""

    op: str
    count: int


class Graph(Fields, frozen=True, kw_only=True):
    """What Dynamo made of a frame: compile ``id`` as torch counts (frame/compilation).

    ``origin``: the first compilation of a function, the rest of one after a graph break, or a recompile. ``state``:
    captured; empty: no tensor op in it; failed: the frame runs eagerly, ``failed`` says why. ``guard_s``: seconds that
    checking all guards takes, as torch measured. ``stages_s``: seconds by stage of compiling.
    """

    id: str
    function: str
    place: SourceLine | None
    origin: Literal["first", "after a break", "recompile"]
    state: Literal["captured", "empty", "failed"]
    ops: tuple[OpCount, ...] = ()
    code: str = ""
    guards: tuple[Guard, ...] = ()
    guard_s: float | None = None
    stages_s: dict[str, float]
    failed: str = ""


class GraphBreak(Fields, frozen=True, kw_only=True):
    """Why Dynamo ended a graph: torch's reason, explanation and hints, the line of the user's code, and a rewrite.

    ``times``: in how many compilations it occurred. ``whole_function``: the function, or the rest of it, runs eagerly.
    ``cuts``: ops before and after it are in two graphs, or eager. ``rewrite``: empty in torch's own code.
    """

    reason: str
    explanation: str
    hints: tuple[str, ...]
    place: SourceLine | None
    rewrite: str
    times: int
    whole_function: bool
    more: str = ""
    cuts: bool = True


class FailedGuard(Fields, frozen=True, kw_only=True):
    """A guard that failed: of which earlier compilation, what it reads, what it expected and what it got, as torch says
    it; empty where it does not say.
    """

    of: str
    check: str
    source: str = ""
    expected: str = ""
    actual: str = ""


class Recompile(Fields, frozen=True, kw_only=True):
    """A function compiled again: the guards that failed, and what prevents it. ``limit``: torch gave up instead, and
    the function runs eagerly from then on. ``lasts``: it goes on, as the last call compiled again, too.
    """

    id: str
    function: str
    place: SourceLine | None
    guards: tuple[FailedGuard, ...]
    fix: str
    limit: bool = False
    lasts: bool = False


class Saved(Fields, frozen=True, kw_only=True):
    """A tensor kept from forward to backward; ``of_input``: an input, a parameter or a view of one,
    which takes no further memory."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    bytes: int | None
    op: str
    of_input: bool
    place: SourceLine | None = None


class Decomposition(Fields, frozen=True, kw_only=True):
    """An op that AOT autograd replaced by others."""

    op: str
    into: tuple[str, ...]
    count: int


class Autograd(Fields, frozen=True, kw_only=True):
    """What AOT autograd made of graph ``id``. ``joint``: ops of forward and backward together, 0 for inference.

    ``recomputed``: ops of forward that backward computes again rather than saving. ``mutated_inputs``: inputs written
    in place, which the functional graph returns and a copy writes back. ``code``: the joint graph, or the graph for
    inference.
    """

    id: str
    joint: int
    forward: int
    backward: int
    decompositions: tuple[Decomposition, ...]
    saved: tuple[Saved, ...]
    recomputed: tuple[str, ...]
    mutated_inputs: int
    code: str


class Kernel(Fields, frozen=True, kw_only=True):
    """A kernel of graph ``id``: generated (``fused`` from several ops, ``single``), or a call of a ``library``.

    ``ops``: the ATen ops computed in it, as Inductor received them; ``eager_ops`` as eager runs them. ``bytes_eager``:
    what these move one by one; ``bytes_kernel``: what the kernel moves, as Inductor counts. None: sizes are unknown.
    """

    id: str
    name: str
    kind: Literal["fused", "single", "library"]
    direction: Literal["forward", "backward", "inference"]
    ops: tuple[str, ...]
    eager_ops: tuple[str, ...]
    places: tuple[SourceLine, ...]
    bytes_eager: int | None
    bytes_kernel: int | None
    code: str = ""


class CudaGraphEvent(Fields, frozen=True, kw_only=True):
    """What torch logged of CUDA graphs; ``what`` it means, the reason, and what helps."""

    what: Literal["recorded", "recorded again", "skipped", "warning"]
    id: str
    reason: str
    fix: str = ""


class ExplainDocument(Document, frozen=True, kw_only=True, tag="rooflight.explain/1"):
    """What each stage made of ``target`` over ``calls`` calls. ``not_compiled``: why the function did not compile at
    all, empty where it did. ``cuda_graphs``: whether they were asked for. ``uncompiled_calls``: functions that torch
    skipped, with its reason.
    """

    target: str
    torch: str
    device: str
    backend: str
    mode: str
    calls: int
    not_compiled: str
    dispatched: tuple[Dispatched, ...]
    graphs: tuple[Graph, ...]
    graph_breaks: tuple[GraphBreak, ...]
    recompiles: tuple[Recompile, ...]
    autograd: tuple[Autograd, ...]
    kernels: tuple[Kernel, ...]
    fallbacks: tuple[str, ...]
    cuda_graphs_asked: bool
    cuda_graphs: tuple[CudaGraphEvent, ...]
    notes: tuple[str, ...]
