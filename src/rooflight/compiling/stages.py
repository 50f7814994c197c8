"""Where the time of compiling goes, from torch's own clocks of its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
