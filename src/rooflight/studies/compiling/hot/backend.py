"""CheckedBackend: compiles as another backend does, and compares what was compiled with the graph that it came of.

And what is asked of Dynamo: to run eagerly what it cannot trace, to forget compiled frames, why it compiles once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch

from rooflight.sources.workloads.errors import in_one_line
from rooflight.sources.workloads.outputs import compare
from rooflight.studies.compiling.bench.check import InFloat64, Kinds, rounding

CHECKED_RUNS: Final = 2
"""How many first runs of a compiled graph are compared with the graph."""

Graph = torch.fx.GraphModule
Run = Callable[..., Any]
Inner = Callable[[Graph, list[Any]], Run]

_LOUD: Final = ("torch._dynamo.convert_frame", "torch._subclasses.fake_tensor")
_MOST_REASONS: Final = 8
_KINDS: Final = ("result", "inputs it writes", "gradients")


class CheckedBackend:
    """A backend for ``torch.compile`` around another one.

    The first runs of each compiled graph are compared with the graph run eagerly: outputs, gradients and tensors that
    it writes, from the same random numbers, each on copies of its inputs. Only the graph runs again: what the program
    does in Python happens once. A graph that differs is run eagerly from then on (``wrong`` says why), and so is one
    that does not compile (``failed``). One that ``allowed`` refuses is run eagerly until ``forget_refused``.
    """

    def __init__(self, inner: Inner, *, checks: int = CHECKED_RUNS, allowed: Callable[[], bool] = lambda: True) -> None:
        self._inner = inner
        self._checks = checks
        self._allowed = allowed
        self.graphs = 0
        self.refused = 0
        self._refused: set[Any] = set()
        self.checked = 0
        self.failed = ""
        self.wrong = ""
        self.error: float | None = None

    def __call__(self, graph: Graph, inputs: list[Any]) -> Run:
        """Compile a graph that Dynamo captured."""
        from torch._dynamo.eval_frame import innermost_fn
        from torch._dynamo.exc import RestartAnalysis

        if not self._allowed():
            self.refused += 1
            self._refused.add(_compilation())
            return graph.forward
        try:
            compiled = self._inner(graph, inputs)
        except RestartAnalysis:  # Dynamo captures the frame once more, by what the backend found
            raise
        except TimeoutError as error:
            self.failed = self.failed or f"compiling {error}"
            return graph.forward
        except Exception as error:
            self.failed = self.failed or in_one_line(error)
            return graph.forward
        self.graphs += 1
        compiled = innermost_fn(compiled)  # without what switches Dynamo off, which Dynamo adds to what it is given
        return self._checking(graph, compiled) if self._checks else compiled

    def forget_refused(self) -> bool:
        """Have Dynamo forget the graphs that were refused, which run eagerly also where others compile them, or had
        compiled them before for fewer sizes. Whether there were any.
        """
        refused, self._refused = self._refused, set()
        if refused:
            _drop(refused)
        return bool(refused)

    def _checking(self, graph: Graph, compiled: Run) -> Run:
        left = self._checks

        def check(*args: Any) -> Any:
            nonlocal left
            left -= 1
            try:
                why, error = difference(graph.forward, compiled, args)
            except Exception as broken:
                why, error = f"it raises {in_one_line(broken)}", None
            self.checked += 1
            self.error = max(self.error or 0.0, error) if error is not None else self.error
            if why:
                self.wrong = self.wrong or why
                run.call(graph.forward)
            elif not left:
                run.call(compiled)
            return (graph.forward if why else compiled)(*args)

        run = Exchangeable(check)
        return run


class Exchangeable(partial[Any]):
    """A function that calls another one, which can be exchanged; without a frame of Python for each call."""

    def call(self, function: Run) -> None:
        """Call this function from now on."""
        self.__setstate__((function, (), {}, None))  # type: ignore[attr-defined]


def difference(eager: Run, compiled: Run, args: Sequence[Any]) -> tuple[str, float | None]:
    """How two functions differ on copies of the arguments, from the same random numbers: in what they return, write and
    pass back. In words, empty where they agree or rounding explains it; and the largest error: of ``compare``, or from
    float64 where that explains it.
    """
    before = _random_state()

    def followed(function: Run, mode: InFloat64 | None = None) -> Iterable[list[Any]]:
        _restore(before)
        return _outcome(function, args, nullcontext if mode is None else mode.running)

    def in_float64(mode: InFloat64) -> Kinds:
        truth = map(mode.exact, followed(eager, mode))
        return [(what, [each]) for what, *each in zip(_KINDS, truth, *sides, strict=True)]

    try:
        sides = [followed(function) for function in (eager, compiled)]
        found = [compare(ours, theirs) for ours, theirs in zip(*sides, strict=True)]
        wrong = next((f"{what}: {each.message}" for what, each in zip(_KINDS, found, strict=True) if each.message), "")
        if wrong and not any(each.why for each in found) and (exact := rounding(in_float64)).explains:
            return "", exact.compiled
        return wrong, max((each.error for each in found if each.error is not None), default=None)
    finally:
        _restore(before)


def _outcome(
    function: Run, given: Sequence[Any], running: Callable[[], AbstractContextManager[None]]
) -> tuple[list[Any], list[Any], list[Any]]:
    args, leaves = _copies(given)
    with running():
        out = function(*args)
    several = out if isinstance(out, (list, tuple)) else (out,)
    results = [value for value in several if isinstance(value, (torch.Tensor, bool, int, float))]
    ends = [value for value in results if isinstance(value, torch.Tensor) and value.requires_grad]
    gradients: list[Any] = []
    if ends and leaves:
        cotangents = [_cotangent(value) for value in ends]
        with running():
            found = torch.autograd.grad(ends, leaves, cotangents, allow_unused=True)
        # autograd may leave out a gradient of zeros
        gradients = [torch.zeros_like(leaf) if each is None else each for leaf, each in zip(leaves, found, strict=True)]
    # versions do not say it: eager batch norm writes its statistics without a new one
    written = [
        value.detach()
        for value, original in zip(args, given, strict=True)
        if isinstance(value, torch.Tensor) and not isinstance(original, torch.nn.Parameter)
    ]
    return [value.detach() if isinstance(value, torch.Tensor) else value for value in results], written, gradients


def _cotangent(value: torch.Tensor) -> torch.Tensor:
    """Numbers between -1 and 1 that are the same each time and use no random numbers."""
    flat = torch.arange(value.numel(), device=value.device, dtype=torch.float32).cos_()
    return flat.to(value.dtype).reshape(value.shape)


def _copies(given: Sequence[Any]) -> tuple[list[Any], list[torch.Tensor]]:
    memories: dict[int, torch.UntypedStorage] = {}
    copies, leaves = [], []
    for value in given:
        if not isinstance(value, torch.Tensor):
            copies.append(value)
            continue
        copy = _copied(value.detach(), memories)
        if value.requires_grad:
            leaf = copy.requires_grad_()
            leaves.append(leaf)
            # autograd lets a program write what is not a leaf, unless it is a view of one
            copy = leaf if value.is_leaf else leaf.clone()
        copies.append(copy)
    return copies, leaves


def _copied(value: torch.Tensor, memories: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_conj() or value.is_neg():
        return value.clone()
    memory = value.untyped_storage()
    if memory._cdata not in memories:
        memories[memory._cdata] = memory.clone()
    copy = torch.empty(0, dtype=value.dtype, device=value.device)
    return copy.set_(memories[memory._cdata], value.storage_offset(), value.shape, value.stride())


def _random_state() -> tuple[torch.Tensor, list[torch.Tensor]]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), cuda


def _restore(state: tuple[torch.Tensor, list[torch.Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


def _compilation() -> Any:
    from torch._guards import CompileContext

    return CompileContext.current_compile_id()


def _drop(compilations: Set[Any]) -> None:
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo.convert_frame import input_codes
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    for code in [found for known in input_codes.seen if (found := known()) is not None]:
        for entry in _debug_get_cache_entry_list(code):
            manager = entry.guard_manager
            if entry.compile_id in compilations and not isinstance(manager, DeletedGuardManagerWrapper):
                state = manager.extra_state
                if state is not None:
                    state.invalidate(entry, DeletedGuardManagerWrapper("Rooflight did not compile it"))


@contextmanager
def falling_back(reasons: list[str]) -> Iterator[None]:
    """Frames that Dynamo cannot trace run eagerly in the block, instead of raising in the program. Why is added to
    ``reasons``, in a line each, instead of being logged with a stack.
    """
    from torch._dynamo import config

    def quiet(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            reasons.extend(_error_in(record.getMessage()))
            del reasons[:-_MOST_REASONS]
            return False
        return True

    loggers = [logging.getLogger(name) for name in _LOUD]
    for logger in loggers:
        logger.addFilter(quiet)
    try:
        with config.patch(suppress_errors=True):
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(quiet)


def guarded(compiled: Run, eager: Run) -> Run:
    """The compiled function. A call that Dynamo cannot trace runs eagerly: errors of the program stay its own."""
    from torch._dynamo.exc import TorchDynamoException

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except TorchDynamoException:
            return eager(*args, **kwargs)

    return call


def _error_in(message: str) -> list[str]:
    lines = [line.strip() for line in message.splitlines()]
    return [line for line in lines if "Error" in line.split(":")[0] or line.startswith("torch._dynamo.exc.")][-1:]


def recompile_reason() -> str:
    """Why torch compiles what it compiles now once more, in its words; empty where it does not say."""
    from torch._dynamo.utils import get_metrics_context

    context = get_metrics_context()
    found = getattr(context, "_metrics", {}).get("recompile_reason") if context.in_progress() else None
    lines = [" ".join(line.split()) for line in str(found or "").splitlines()]
    return " ".join(line for line in lines if "BACKEND_MATCH" not in line)  # two of its plans, which this made itself
