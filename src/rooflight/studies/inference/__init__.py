"""Profiles the steps of an inference engine by bucket: time, tokens, KV lengths and throughput.

In a step the profiler only notes: a stamp and a number where a bucket opens and closes. Afterwards it finds the
*state* after each note, the tuple of open buckets; the time in each state gives exclusive, inclusive and unattributed
time. Steps are read 32 at a time, and memory is bounded. Between heavy ops the caches of a processor hold little of
the profiler, so that its cost is the memory it touches: one context manager serves all steps, and one all openings of
a bucket. Errors of the profiler do not reach the engine: they are noted in its results.
"""

from typing import TYPE_CHECKING

from rooflight.records.package import lazy_exports

if TYPE_CHECKING:
    from .config import ENGINE_BUCKET_ORDER as ENGINE_BUCKET_ORDER
    from .config import MODEL_BUCKET_ORDER as MODEL_BUCKET_ORDER
    from .config import ProfilerConfig as ProfilerConfig
    from .config import generate_run_name as generate_run_name
    from .engines.hooks import register_engine_mapping as register_engine_mapping
    from .engines.mapping import EngineMapping as EngineMapping
    from .engines.module_buckets import register_module_bucket as register_module_bucket
    from .generation.decoding import Generation as Generation
    from .generation.decoding import decode as decode
    from .generation.speculative import SpeculativeGeneration as SpeculativeGeneration
    from .generation.speculative import speculative_decode as speculative_decode
    from .profiler import NullProfiler as NullProfiler
    from .profiler import Profiler as Profiler
    from .profiler import get_active_profiler as get_active_profiler
    from .profiler import register_active_profiler as register_active_profiler
    from .profiler import release_active_profiler as release_active_profiler
    from .saving import merge_ranks as merge_ranks
    from .speculation import expected_tokens as expected_tokens
    from .speculation import predicted_speedup as predicted_speedup
    from .timers import attention_compute_timer as attention_compute_timer
    from .timers import cpu_bucket_timer as cpu_bucket_timer
    from .timers import cuda_bucket_timer as cuda_bucket_timer
    from .timers import rope_compute_timer as rope_compute_timer

_NAMES = {
    "config": "ENGINE_BUCKET_ORDER MODEL_BUCKET_ORDER ProfilerConfig generate_run_name",
    "engines.hooks": "register_engine_mapping",
    "engines.mapping": "EngineMapping",
    "engines.module_buckets": "register_module_bucket",
    "generation.decoding": "Generation decode",
    "generation.speculative": "SpeculativeGeneration speculative_decode",
    "profiler": "NullProfiler Profiler get_active_profiler register_active_profiler release_active_profiler",
    "saving": "merge_ranks",
    "speculation": "expected_tokens predicted_speedup",
    "timers": "attention_compute_timer cpu_bucket_timer cuda_bucket_timer rope_compute_timer",
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOMES]  # noqa: PLE0604 - names of the table above
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
