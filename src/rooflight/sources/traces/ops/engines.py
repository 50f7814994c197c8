"""What a trace and a model's config show of an engine's ops besides their arguments, as attributes of their signatures.

Lengths of sequences are in the annotations that vLLM and SGLang put around a step. In
``execute_context_2(70)_generation_3(3)``, two sequences have 70 new tokens, and three generate one token each. Some
builds add to the queries q of each sequence, and its keys k (those of its q included), sums of squares: ``(70_2900)``
are the sums of q and of q², ``(sq70sk90sqsq2900sqsk3800)`` those of q, k, q² and q k.

The dtype and the width of the cache are those of the tensors that other ops write; whether a window hides keys, and
which numbers experts multiply, is in names of kernels. Where something is not known for certain, an attribute is the
least that it can be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np

from rooflight.records import signature as attribute
from rooflight.records.signature import INCOMPLETE, AttributeValue
from rooflight.records.tensor import TensorSpec
from rooflight.sources.traces.file.trace import Trace
from rooflight.sources.traces.ops.arguments import tensors_of_op
from rooflight.sources.traces.ownership import Ownership
from rooflight.sources.workloads.presets import PRESETS

_NUM_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_EXPERT_WIDTH: Final = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size", "ffn_hidden_size")
_WIDTH: Final = ("hidden_size", "n_embd", "d_model")
_WITHOUT_GATE: Final = frozenset({"relu", "relu2"})
"""Activations of experts with two matrices; those of others multiply their result by that of a third."""

_BITS: Final = {"mxfp4": 4, "nvfp4": 4, "fp8": 8, "fbgemm_fp8": 8, "awq": 4, "gptq": 4, "bitsandbytes": 4}
_LEAST_BITS: Final = 4
"""Of a way to quantize that is not known: the fewest that engines have kernels for."""

Model = Mapping[str, Any] | str | PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model as its transformers config describes it; 0 where it has nothing. ``window``: the keys that a query of
    some layer sees at the most, ``expert_bits``: those of a weight, the least where the config has none.
    """

    name: str
    hidden_size: int
    heads: int
    experts: int
    experts_per_token: int
    expert_weights: int
    expert_bits: int
    window: int

    @property
    def has_experts(self) -> bool:
        """Whether the config has all that a layer of experts does."""
        return min(self.hidden_size, self.experts_per_token, self.expert_weights) > 0


def read_model(model: Model) -> ModelFacts:
    """The facts of a config: a mapping, the path of a config.json or its folder, or the name of a preset.

    Raises ValueError for a file that is no config and for a name that no preset has; OSError.
    """
    if isinstance(model, Mapping):
        return _facts("config", model)
    path = Path(model)
    if (preset := PRESETS.get(str(model).lower())) is not None:
        return _facts(preset.name, preset.shapes)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise ValueError(f"{model} is no file and no preset: give the model's config.json, or see rooflight presets")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: give the model's config.json") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a JSON object: give the model's config.json")
    return _facts(path.name, config)


def _facts(name: str, config: Mapping[str, Any]) -> ModelFacts:
    text = config.get("text_config")
    inner = {**config, **text} if isinstance(text, Mapping) else config
    found = ModelFacts(
        name=name,
        hidden_size=_integer(inner, *_WIDTH),
        heads=_integer(inner, "num_attention_heads", "n_head"),
        experts=_integer(inner, *_NUM_EXPERTS),
        experts_per_token=_integer(inner, *attribute.IN_CONFIGS),
        expert_weights=_matrices(inner) * _integer(inner, *_EXPERT_WIDTH) * _integer(inner, *_WIDTH),
        expert_bits=_bits(inner),
        window=_window(inner),
    )
    if not found.hidden_size:
        raise ValueError(f"{name} has no hidden_size: give the config.json of a language model")
    return found


def _integer(config: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _matrices(config: Mapping[str, Any]) -> int:
    names = {config.get(key) for key in ("hidden_act", "mlp_hidden_act", "hidden_activation", "activation")}
    return 2 if names & _WITHOUT_GATE else 3


def _window(config: Mapping[str, Any]) -> int:
    if config.get("use_sliding_window") is False:
        return 0
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and not any("sliding" in str(kind) or "chunked" in str(kind) for kind in kinds):
        return 0
    return _integer(config, "sliding_window", "attention_chunk_size")


def _bits(config: Mapping[str, Any]) -> int:
    quantized = config.get("quantization_config")
    if not isinstance(quantized, Mapping):
        return 16
    bits = [value for value in _all_values(quantized, ("bits", "num_bits", "weight_bits")) if value > 0]
    method = str(quantized.get("quant_method", "")).lower()
    return min(bits) if bits else _BITS.get(method, _LEAST_BITS)


def _all_values(config: Mapping[str, Any], keys: tuple[str, ...]) -> list[int]:
    found = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            found += _all_values(value, keys)
        elif key in keys and isinstance(value, int) and not isinstance(value, bool):
            found.append(value)
    return found


_STEP: Final = re.compile(r"^execute_.*?context_(\d+)\(([^()]*)\)_generation_(\d+)\(([^()]*)\)")
_NAMED: Final = re.compile(r"(sqsq|sqsk|sq|sk)(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLengths:
    """The sequences of a step: their tokens, and the least keys and visible pairs that they can have, which are all
    that they have if ``exact``.
    """

    sequences: int
    tokens: int
    keys: int
    pairs: int
    exact: bool

    def __add__(self, other: StepLengths) -> StepLengths:
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("sequences", "tokens", "keys", "pairs")}
        return StepLengths(**sums, exact=self.exact and other.exact)


NO_SEQUENCES: Final = StepLengths(sequences=0, tokens=0, keys=0, pairs=0, exact=True)


def step_lengths(annotations: Iterable[str], tokens: int) -> StepLengths | None:
    """The sequences of a call with so many tokens, by the first annotation that has lengths: all of the step, or
    those that are new, or those that generate, if one kind alone has so many. A call may have more, which are padding.
    None where no annotation has them.
    """
    parts = _parts(annotations)
    if parts is None:
        return None
    new, generating = parts
    if tokens >= new.tokens + generating.tokens:
        return new + generating
    fitting = [part for part in parts if part.tokens == tokens]
    return fitting[0] if len(fitting) == 1 else None


def step_tokens(annotations: Iterable[str]) -> int | None:
    """All tokens of a step, by the first annotation that has lengths; None where none has."""
    parts = _parts(annotations)
    return None if parts is None else sum(part.tokens for part in parts)


def _parts(annotations: Iterable[str]) -> tuple[StepLengths, StepLengths] | None:
    match = next(filter(None, map(_STEP.match, annotations)), None)
    if match is None:
        return None
    new, generating = _part(int(match[1]), match[2]), _part(int(match[3]), match[4])
    return None if new is None or generating is None else (new, generating)


def _part(sequences: int, text: str) -> StepLengths | None:
    sums = {name: int(value) for name, value in _NAMED.findall(text)}
    if not sums:
        found = re.fullmatch(r"(\d+)(?:_(\d+))?", text)
        if not found:
            return None
        sums = {"sq": int(found[1])} | ({"sqsq": int(found[2])} if found[2] else {})
    if "sq" not in sums:
        return None
    tokens = sums["sq"]
    if not sequences or not tokens:
        return NO_SEQUENCES
    # query i of a sequence sees all keys but those of the q - 1 - i queries after it: q k - q (q - 1) / 2 pairs
    if "sqsq" in sums:
        pairs = max(sums["sqsq"], sums.get("sqsk", 0)) - (sums["sqsq"] - tokens) // 2
    else:  # q <= k, so the pairs are at least q (k + 1) / 2; equal lengths have the least squares
        pairs = (max(sums.get("sqsk", 0), tokens * tokens // sequences) + tokens) // 2
    exact = sums.keys() >= {"sk", "sqsq", "sqsk"}
    keys = max(tokens, sums.get("sk", 0))
    return StepLengths(sequences=sequences, tokens=tokens, keys=keys, pairs=pairs, exact=exact)


def in_window(lengths: StepLengths, window: int) -> StepLengths:
    """The least keys and pairs that are left where a query sees no more than ``window`` keys, its own included.

    With unknown keys before them, n sequences of T tokens have at least the pairs of n sequences of T / n tokens that
    have no others; a sequence of all keys has min(window, its keys).
    """
    if lengths.sequences == 0:
        return lengths
    mean = lengths.tokens // lengths.sequences
    short = min(mean, window)
    each = short * (short + 1) // 2 + (mean - short) * window
    if lengths.sequences == 1 and lengths.exact:
        before = lengths.keys - lengths.tokens  # keys that were in the cache
        each = sum_of_clamped(before + 1, lengths.tokens, window)
        keys = min(lengths.keys, lengths.tokens + window - 1)
        return replace(lengths, keys=keys, pairs=each)
    pairs = max(lengths.tokens, lengths.sequences * each)
    return replace(lengths, keys=lengths.tokens, pairs=pairs, exact=False)


def sum_of_clamped(first: int, count: int, top: int) -> int:
    """The sum of min(first + i, top) over i in [0, count)."""
    rising = max(0, min(count, top - first))
    return rising * first + rising * (rising - 1) // 2 + (count - rising) * top


Facts = tuple[tuple[str, AttributeValue], ...]

_ATTENTION: Final = re.compile(
    r"attention|attn|mha_|mla_|pa_fwd|pa_ps_fwd|fmha|::(?:varlen_)?fwd|scaled_dot_product", re.IGNORECASE
)
_NO_ATTENTION: Final = re.compile(r"cache|rotary|rope|merge|state|quant|metadata|workspace", re.IGNORECASE)
_EXPERTS: Final = re.compile(r"moe_forward|fused_experts|fused_moe", re.IGNORECASE)
_MULTIPLY_EXPERTS: Final = re.compile(
    r"fused_experts|fused_moe|fmoe|moe_stage|group(?:ed)?_(?:mm|gemm)|moe_mm|moe_wna16|marlin|scaled_mm", re.IGNORECASE
)
_ATTENDS: Final = re.compile(
    r"fmha|flash|atten|attn|paged|mla|_fwd|fwd_|mha|\dpa_|xqa|prefill|decode|triton", re.IGNORECASE
)
_MULTIPLIES: Final = re.compile(r"gemm|moe|bmm|expert|group|matmul|_mm|nvjet|Cijk|cutlass|fused|ck::", re.IGNORECASE)
_LINEAR: Final = re.compile(r"_(?:LayerNorm)?Linear")
"""TransformerEngine's functions, which call their products past torch's dispatcher."""
_STORES: Final = re.compile(r"::(?:reshape_and_cache\w*|store_cache|store_kv_cache)$")
_SHOWS_WINDOW: Final = re.compile(r"::paged_attention|paged_attention_ragged|pa_fwd|pa_ps_fwd|::(?:varlen_)?fwd")
"""Ops that have no window, or whose arguments have it."""
_INSIDE: Final = "ops inside it did its work, and have their own rows: this is what else it launched"
_MERGES: Final = re.compile(r"merge_attn_states|merge_state")
"""Ops and kernels that put results together: of several calls of attention, each over a part of the keys."""
_SLIDING: Final = re.compile("sliding", re.IGNORECASE)
_NAMED_BY_WINDOW: Final = "fmhaSm1"
"""Kernels whose names have "Sliding" where they have a window."""
_EIGHT_BITS: Final = re.compile(r"e4m3|e5m2|fp8(?!KVCacheDataType\)0)|float8|nvjet_q|_F8", re.IGNORECASE)
_WIDENS: Final = re.compile(r"marlin|w8a16|wna16", re.IGNORECASE)
_FOUR_BITS: Final = re.compile(r"e2m1|fp4", re.IGNORECASE)


class EngineFacts:
    """Finds the facts of each op of an engine. ``used_model``: some of those found came of the model's config."""

    def __init__(self, owned: Ownership, model: ModelFacts | None) -> None:
        trace = self._trace = owned.trace
        self._model = model
        self.used_model = False
        work = owned.work_of(trace.named(trace.ops, _works))
        self._kernels = {op: frozenset(kernel for kernel, _ in pieces) for op, pieces in work.items()}
        self._holding = _holding(owned, self._kernels)
        self._cache = _cache(trace)
        self._ranks = _ranks(trace, model)
        self._windows_named = any(_SLIDING.search(name) for name in trace.names)
        self._merges = any(_MERGES.search(name) for name in trace.names)
        self._concerned = trace.named(trace.ops, _concerns)
        self._found: dict[tuple[tuple[int, int], frozenset[str], tuple[str, ...], bool], Facts] = {}

    def concerns(self, op: int) -> bool:
        """Whether an op is one of an engine that can have facts."""
        return bool(self._concerned[op])

    def of(self, op: int, annotations: Sequence[str]) -> Facts:
        """The facts of an op with these annotations around it, the innermost first; none for ops of no engine."""
        if not self.concerns(op):
            return ()
        kernels = self._kernels.get(op, frozenset())
        around = tuple(each for each in annotations if each.startswith("execute_"))
        kind = int(self._trace.ops.name[op]), int(self._trace.ops.args[op])
        key = kind, kernels, around, op in self._holding
        if key not in self._found:
            self._found[key] = self._facts(op, kernels, around)
        return self._found[key]

    def _facts(self, op: int, kernels: frozenset[str], around: Sequence[str]) -> Facts:
        name = self._trace.op_name(op)
        attends = _attends(name)
        shown = _ATTENDS if attends else _MULTIPLIES
        if self._trace.has_device and (op in self._holding or not any(shown.search(each) for each in kernels)):
            return ((INCOMPLETE, _INSIDE),)
        if attends:
            found = self._of_attention(op, name, kernels, around)
        elif _LINEAR.fullmatch(name):
            found = {attribute.PRODUCT_DTYPE: dtype} if (dtype := _product_dtype(kernels, 16)) else {}
        else:
            found = self._of_experts(kernels)
        return tuple(sorted(found.items()))

    def _of_attention(
        self, op: int, name: str, kernels: frozenset[str], around: Sequence[str]
    ) -> Mapping[str, AttributeValue]:
        found: dict[str, AttributeValue] = dict(self._cache)
        if attribute.CACHE_DTYPE not in found and any(_EIGHT_BITS.search(kernel) for kernel in kernels):
            found[attribute.CACHE_DTYPE] = "float8_e4m3fn"
        tokens = _tokens(tensors_of_op(self._trace, op))
        lengths = step_lengths(around, tokens) if tokens and not self._merges else None
        window = self._window(name, kernels)
        if lengths is not None and window is not None:
            self.used_model |= self._model is not None and not _SHOWS_WINDOW.search(name)
            lengths = in_window(lengths, window) if window else lengths
            found[attribute.KV_TOKENS], found[attribute.VISIBLE_PAIRS] = lengths.keys, lengths.pairs
        return found

    def _window(self, name: str, kernels: frozenset[str]) -> int | None:
        window = self._model.window if self._model is not None else None
        if _SHOWS_WINDOW.search(name) or window == 0:
            return 0
        if any(_SLIDING.search(kernel) for kernel in kernels):
            return window
        named = self._windows_named or any(kernel.startswith(_NAMED_BY_WINDOW) for kernel in kernels)
        return 0 if named else window

    def _of_experts(self, kernels: frozenset[str]) -> Mapping[str, AttributeValue]:
        model = self._model
        if model is None or not model.has_experts:
            return {}
        self.used_model = True
        found: dict[str, AttributeValue] = {
            attribute.HIDDEN_SIZE: model.hidden_size,
            attribute.EXPERT_WEIGHTS: max(1, model.expert_weights // self._ranks),
            attribute.EXPERTS_PER_TOKEN: model.experts_per_token,
            attribute.EXPERT_BITS: model.expert_bits,
        }
        if dtype := _product_dtype(kernels, model.expert_bits):
            found[attribute.PRODUCT_DTYPE] = dtype
        return found


def _attends(name: str) -> bool:
    return bool(_ATTENTION.search(name)) and not _NO_ATTENTION.search(name)


def _concerns(name: str) -> bool:
    return not name.startswith("aten::") and (_attends(name) or bool(_EXPERTS.search(name) or _LINEAR.fullmatch(name)))


def _works(name: str) -> bool:
    return _attends(name) or bool(_EXPERTS.search(name) or _MULTIPLY_EXPERTS.search(name) or _LINEAR.fullmatch(name))


def _holding(owned: Ownership, kernels: Iterable[int]) -> frozenset[int]:
    found = set()
    for op in kernels:
        name = owned.trace.op_name(op)
        attends, multiplies = _attends(name), bool(_MULTIPLY_EXPERTS.search(name))
        for around in owned.nesting.around(int(owned.nesting.parent[op])):
            outer = owned.trace.op_name(around)
            if (attends and _ATTENTION.search(outer)) or (multiplies and _EXPERTS.search(outer)):
                found.add(around)
    return frozenset(found)


def _cache(trace: Trace) -> Mapping[str, AttributeValue]:
    widths, dtypes = set(), set()
    for op in np.flatnonzero(trace.named(trace.ops, _STORES.search)).tolist():
        tensors = tensors_of_op(trace, op)
        if len(tensors) >= 4 and tensors[0].shape:
            key, cache = tensors[0], tensors[2]
            widths.add(key.numel // max(key.shape[0], 1))
            dtypes.add(cache.dtype)
    if not widths:
        return {}
    smallest = min(sorted(dtypes), key=lambda dtype: TensorSpec((1,), dtype).nbytes)
    return {attribute.KV_WIDTH: min(widths), attribute.CACHE_DTYPE: smallest}


def _ranks(trace: Trace, model: ModelFacts | None) -> int:
    """Among how many ranks heads and experts are split: by the heads of the config and of the trace's queries."""
    if model is None:
        return 1
    attending = trace.named(trace.ops, lambda name: _attends(name) and not name.startswith("aten::"))
    for op in np.flatnonzero(attending).tolist():
        tensors = tensors_of_op(trace, op)
        if tensors and len(tensors[0].shape) >= 3 and (heads := tensors[0].shape[-2]) and model.heads % heads == 0:
            return max(1, model.heads // heads)
    world = trace.distributed.get("world_size")
    return world if isinstance(world, int) and world > 0 else 1


def _tokens(tensors: Sequence[TensorSpec]) -> int:
    if not tensors or len(tensors[0].shape) < 2:
        return 0
    shape = tensors[0].shape
    width = shape[-1] if len(shape) == 2 else shape[-1] * shape[-2]
    return tensors[0].numel // width if width else 0


def _product_dtype(kernels: Iterable[str], bits: int) -> str:
    """The dtype that experts are multiplied in, by the kernels' names; empty: that of the tokens. Weights of 8 bits are
    multiplied by 8 bits, but by kernels that widen them; weights of 4 bits are widened, if no kernel shows otherwise.
    """
    listed = list(kernels)
    if any(_EIGHT_BITS.search(kernel) for kernel in listed):
        return "float8_e4m3fn"
    if any(_FOUR_BITS.search(kernel) for kernel in listed):
        return "float4_e2m1fn_x2"
    return "float8_e4m3fn" if bits == 8 and not any(_WIDENS.search(kernel) for kernel in listed) else ""
