"""The mappings that are known by name, and which one is for an engine."""

from __future__ import annotations

from typing import Any, Final

from rooflight.inference.engine_continuous import CONTINUOUS_BATCHING
from rooflight.inference.engine_generate import GENERATE
from rooflight.inference.engine_mapping import Bucket, EngineMapping, Role, Step
from rooflight.inference.engine_sglang import SGLANG
from rooflight.inference.engine_vllm import VLLM, VLLM_CORE, VLLM_LLM

_BUCKETS: Final = {
    "schedule": ("schedule",),
    "inputs": ("prepare_inputs",),
    "draft": ("draft", "propose"),
    "verify": ("verify",),
    "sampler": ("sampler", "sample", "sample_tokens"),
    "postproc": ("postproc", "postprocess", "post_process", "detokenize"),
    "kv.allocate": ("kv_allocate", "allocate_kv"),
    "kv.gather": ("kv_gather", "gather_kv"),
    "kv.insert": ("kv_insert", "insert_kv"),
    "kv.delete": ("kv_delete", "free_kv", "evict"),
    "kv.swap": ("kv_swap", "swap_in", "swap_out"),
}

_BY_NAME: Final[dict[str, Role]] = {
    "step": Step(optional=True),
    "prefill": Bucket("prefill", step_of_phase="prefill", optional=True),
    "decode": Bucket("decode", step_of_phase="decode", optional=True),
} | {name: Bucket(bucket, optional=True) for bucket, names in _BUCKETS.items() for name in names}

PHASE_METHODS: Final = EngineMapping(
    name="phase methods",
    methods=_BY_NAME,
    about="engines whose methods are called as the phases of a step; prefill and decode are steps where none is open",
)
"""For any engine: its methods whose names are known."""

_known: Final[dict[str, EngineMapping]] = {}
_by_class: Final[dict[str, EngineMapping]] = {}


def register_engine_mapping(mapping: EngineMapping) -> EngineMapping:
    """Make a mapping known by its name, and for engines of its classes. Returns it. Raises ValueError if the name or a
    class has a mapping already.
    """
    if mapping.name in _known:
        raise ValueError(f'there is a mapping "{mapping.name}" already: give another name')
    for name in mapping.classes:
        if name in _by_class:
            raise ValueError(f'{name} has the mapping "{_by_class[name].name}" already')
    _known[mapping.name] = mapping
    _by_class.update(dict.fromkeys(mapping.classes, mapping))
    return mapping


for _mapping in (PHASE_METHODS, GENERATE, CONTINUOUS_BATCHING, VLLM, VLLM_CORE, VLLM_LLM, SGLANG):
    register_engine_mapping(_mapping)


def mapping_for(engine: Any, given: EngineMapping | str | None) -> EngineMapping:
    """The mapping given, by itself or by its name; else that of the engine's class, or of a class that it is derived
    from; else that of methods with known names. Raises ValueError if there is none.
    """
    if isinstance(given, EngineMapping):
        return given
    if isinstance(given, str):
        if given not in _known:
            raise ValueError(f'there is no mapping "{given}": there are {", ".join(_known)}')
        return _known[given]
    if given is not None:
        raise ValueError(f"mapping is a {type(given).__name__}: give an EngineMapping, the name of one, or None")
    for kind in type(engine).__mro__:
        found = _by_class.get(f"{kind.__module__}.{kind.__qualname__}")
        if found is not None:
            return found
    return PHASE_METHODS
