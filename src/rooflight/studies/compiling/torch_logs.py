"""What torch logs while it compiles, and where the time of compiling goes by torch's own clocks.

Lines of its artifacts (the names that ``TORCH_LOGS`` takes) are heard without being shown. A benchmark hears nothing
else, since these lines cost no time that it measures. An explanation hears torch's structured trace too, for which
torch prints each graph and times each guard.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, Literal

Artifact = Literal["graph_breaks", "recompiles", "output_code", "inductor_metrics", "cudagraphs", "perf_hints"]
_MODULES: Final[dict[Artifact, tuple[str, ...]]] = {
    "graph_breaks": ("torch._dynamo.convert_frame", "torch._dynamo.exc", "torch._dynamo.symbolic_convert"),
    "recompiles": ("torch._dynamo.guards",),
    "output_code": ("torch._inductor.codecache",),
    "inductor_metrics": ("torch._inductor.compile_fx",),
    "cudagraphs": (
        "torch._inductor.cudagraph_trees",
        "torch._inductor.cudagraph_utils",
        "torch._inductor.compile_fx",
    ),
    "perf_hints": ("torch._inductor.graph",),
}
"""The modules that log each; a logger may be named before torch imports its module."""


@contextmanager
def hearing(*artifacts: Artifact) -> Iterator[dict[Artifact, list[str]]]:
    """Collect the lines of artifacts in the block. Loggers are put back afterwards.

    "inductor_metrics" has Inductor count the bytes of its kernels too (``torch._inductor.metrics``).
    """
    lines: dict[Artifact, list[str]] = {artifact: [] for artifact in artifacts}
    with ExitStack() as stack:
        if "recompiles" in artifacts:
            stack.enter_context(_recompiles_worded())
        for artifact, heard in lines.items():
            for module in _MODULES[artifact]:
                logger = logging.getLogger(f"{module}.__{artifact}")
                stack.enter_context(attached(logger, _Lines(heard), quiet=False))
        yield lines


@contextmanager
def attached(logger: logging.Logger, handler: logging.Handler, *, quiet: bool) -> Iterator[None]:
    """Have a handler get all that a logger gets; ``quiet``: and nobody else."""
    level, propagate = logger.level, logger.propagate
    enabled = logger.isEnabledFor(logging.DEBUG)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    if quiet or not enabled:  # what a user did not ask torch for is not shown
        logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line of a log."""
        self._lines.append(record.getMessage())


@contextmanager
def _recompiles_worded() -> Iterator[None]:
    """torch words why it compiles again only where this artifact is asked for by its settings, not by a logger."""
    import torch._dynamo.guards  # noqa: F401 - imported afterwards, it would show them
    from torch._logging._internal import log_state

    asked = log_state.is_artifact_enabled("recompiles")
    log_state.enable_artifact("recompiles")
    try:
        yield
    finally:
        if not asked:
            log_state.artifact_names.discard("recompiles")


DYNAMO, AOT, INDUCTOR, BUILD = "Dynamo", "AOT autograd", "Inductor", "code generation and build"


def stages_s() -> dict[str, float]:
    """Seconds of each stage in this process so far; those that took part in no compilation are 0."""
    from torch._dynamo.utils import compilation_time_metrics

    return of_metrics(compilation_time_metrics)


def of_metrics(metrics: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Seconds by stage from torch's nested clocks (``torch._dynamo.utils.compilation_time_metrics``).

    Each stage without the next: Dynamo traces and guards; AOT autograd makes the joint graph, decomposes and cuts it;
    Inductor lowers and schedules; code generation writes kernels and has them built. The backward graph, which is
    compiled when it first runs, is in Inductor's stages.
    """

    def total(name: str) -> float:
        return sum(metrics.get(name, ()))

    build = total("GraphLowering.compile_to_fn")
    inductor = total("compile_fx_inner")
    backward = sum(sum(taken) for name, taken in metrics.items() if name.endswith(".bw_compiler"))
    forward = max(0.0, inductor - backward)  # compiled while Dynamo waits
    backend = total("OutputGraph.call_user_compiler")
    return {
        DYNAMO: max(0.0, total("_compile.compile_inner") - backend),
        AOT: max(0.0, backend - forward),
        INDUCTOR: max(0.0, inductor - build),
        BUILD: build,
    }
