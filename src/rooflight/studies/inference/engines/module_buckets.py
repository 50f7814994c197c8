"""Which bucket the time of each module of a decoder belongs to, by the names of transformers and gpt-fast.

Modules that the table names are timed as a whole. A module around them is timed too, and what it does itself, apart
from them, is named by what it holds: around the projections of attention ``attn.compute``, around those of an MLP
``mlp.act``, around experts ``mlp.experts``, around attention ``residual``, around layers ``prepare``, around the
head ``logits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rooflight.sources.capture.time.timed_calls import compiled_code
from rooflight.studies.inference.config import MODEL_BUCKET_ORDER
from rooflight.studies.inference.engines.module_shapes import adapter_of, buckets_by_shape

if TYPE_CHECKING:
    from torch import nn

COMPILED: Final = "compiled"
"""The bucket of a module that torch.compile made one: what is inside cannot be told apart."""

_ATTENTION: Final = ("self_attn", "self_attention", "attention", "attn")

_TABLE: Final[dict[str, str]] = {}


def register_module_bucket(name: str, bucket: str) -> None:
    """Time the modules called ``name`` in the model's bucket ``bucket``.

    ``name`` is a module's attribute (``"q_proj"``), the end of its path (``"attn.c_proj"``) or its class
    (``"LlamaMLP"``); the longest end of a path counts before a shorter one, and both before a class. Raises ValueError
    for a name that the table has, or that is empty.
    """
    if not isinstance(name, str) or not isinstance(bucket, str) or not name.strip(".") or not bucket:
        raise ValueError(f"register_module_bucket({name!r}, {bucket!r}): give a module's name and a bucket's")
    if name in _TABLE:
        raise ValueError(f'modules called "{name}" are in bucket {_TABLE[name]} already: give a longer end of the path')
    _TABLE[name] = bucket


_SHIPPED: Final[Mapping[str, str]] = {
    "embed": "embed_tokens tok_embeddings embed_positions embed_in wte wpe word_embeddings project_in",
    "attn.qkv_proj": "q_proj k_proj v_proj qkv_proj query_key_value c_attn Wqkv wqkv wq wk wv",
    "attn.qk_norm": "q_norm k_norm q_layernorm k_layernorm",
    "attn.rope": "rotary_emb",
    "attn.o_proj": " ".join(
        ("o_proj", "wo", *(f"{each}.{name}" for each in _ATTENTION for name in ("c_proj", "dense", "out_proj")))
    ),
    "mlp.router": "mlp.gate block_sparse_moe.gate router shared_expert_gate",
    "mlp.gate_up_proj": "gate_proj up_proj gate_up_proj w13 w1 w3 mlp.c_fc fc1 fc_in dense_h_to_4h",
    "mlp.act": "act_fn activation_fn mlp.act gelu_impl",
    "mlp.experts": "experts",
    "mlp.down_proj": "down_proj w2 mlp.c_proj fc2 fc_out dense_4h_to_h",
    "norm": "input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm norm ln_1"
    " attention_norm ffn_norm ln_2 ln_f ln_attn ln_mlp final_layer_norm final_layernorm self_attn_layer_norm"
    " word_embeddings_layernorm",
    "lm_head": "lm_head embed_out project_out",
}
"""Names of modules by bucket, as in Llama, Qwen, Mistral, Mixtral, Gemma, Phi, OPT, GPT-2, GPT-J, GPT-NeoX, Falcon,
Bloom, StarCoder, OLMo, StableLM and Cohere of transformers 5, and in gpt-fast.
"""

for _bucket, _names in _SHIPPED.items():
    for _name in _names.split():
        register_module_bucket(_name, _bucket)

_AROUND: Final = (
    ("residual", {"attn.compute"}),
    ("prepare", {"residual"}),
    ("mlp.experts", {"mlp.experts"}),
    ("attn.compute", {"attn.qkv_proj"}),
    ("mlp.act", {"mlp.down_proj"}),
    ("logits", {"lm_head"}),
)
"""What a module does itself, by the buckets of the modules directly in it: the first that fits."""

_MEASURED_AROUND: Final = {"prepare", "logits", "residual", "attn.compute", "mlp.act"}
"""Buckets of modules whose parts are timed too."""

_IDLE: Final = {"Dropout", "Identity"}
"""Classes that do nothing while a model serves: their time is that of the module around them."""

_CONTAINERS: Final = {"ModuleList", "ModuleDict"}
"""Classes that are never called."""


@dataclass(frozen=True, slots=True)
class Placed:
    """One module and the bucket of its time. ``known`` is False where the bucket is just its class."""

    path: str
    module: nn.Module
    bucket: str
    known: bool = True


def placed_modules(model: nn.Module, *, lora: bool) -> tuple[Placed, ...]:
    """The modules of a model to be timed, each once. ``lora``: time adapters apart, in ``<bucket>.lora``.

    A module without a name of the table is known by its shapes, or is in a bucket called as its class.
    """
    walk = _Walk(buckets_by_shape(model, lambda path: _named(path, "")), lora=lora)
    walk.place(model, "", None)
    return tuple(walk.found)


class _Walk:
    def __init__(self, by_shape: Mapping[int, str], *, lora: bool) -> None:
        self.found: list[Placed] = []
        self._by_shape = by_shape
        self._lora = lora
        self._seen: set[int] = set()

    def place(self, module: nn.Module, path: str, inherited: str | None) -> str | None:
        """Place a module and those in it. Returns its bucket."""
        kind = type(module).__name__
        if id(module) in self._seen or kind in _IDLE:
            return None
        self._seen.add(id(module))
        bucket = _named(path, kind) or inherited or self._by_shape.get(id(module))
        if kind in _CONTAINERS:
            inside = {self.place(child, f"{path}.{name}", bucket) for name, child in module.named_children()}
            return bucket or ("residual" if inside & {"residual", COMPILED} else None)
        if bucket is not None and bucket not in _MEASURED_AROUND:
            adapted = self._lora and not is_compiled(module)
            return self._adapted(module, path, bucket) if adapted else self._add(path, module, bucket)
        if is_compiled(module):
            return self._add(path, module, COMPILED)
        return self._around(module, path, bucket)

    def _around(self, module: nn.Module, path: str, bucket: str | None) -> str | None:
        before = len(self.found)
        inside = {self.place(child, f"{path}.{name}", None) for name, child in module.named_children()}
        bucket = bucket or next((around for around, parts in _AROUND if parts & inside), None)
        if bucket is not None:
            return self._add(path, module, bucket)
        if len(self.found) == before and all(type(child).__name__ in _IDLE for child in module.children()):
            return self._add(path, module, type(module).__name__, known=False)
        return None

    def _adapted(self, module: nn.Module, path: str, bucket: str) -> str:
        """A layer, maybe with LoRA. Where its base is a part of it, all that it does itself is LoRA's."""
        base, adapters = adapter_of(module)
        if base is not None and adapters:
            self._add(path, module, f"{bucket}.lora")
            name = next(name for name, part in module.named_children() if part is base)
            return self._add(f"{path}.{name}", base, bucket)
        self._add(path, module, bucket)
        for name, child in module.named_children():
            if child in adapters:
                self._add_all(f"{path}.{name}", child, f"{bucket}.lora")
        return bucket

    def _add_all(self, path: str, module: nn.Module, bucket: str) -> None:
        if type(module).__name__ not in _CONTAINERS:
            self._add(path, module, bucket)
            return
        for name, child in module.named_children():
            self._add_all(f"{path}.{name}", child, bucket)

    def _add(self, path: str, module: nn.Module, bucket: str, *, known: bool = True) -> str:
        self.found.append(Placed(path.strip("."), module, bucket, known))
        return bucket


def buckets_inside(module: Any) -> tuple[str, ...]:
    """The buckets of the modules in one that torch.compile made one, in canonical order: they cannot be told apart."""
    whole = getattr(module, "_orig_mod", module)
    inside = {_named(path, type(part).__name__) for path, part in whole.named_modules()}
    return tuple(name for name in MODEL_BUCKET_ORDER if name in inside)


def is_compiled(module: Any) -> bool:
    """Whether torch.compile wraps a module, or compiled it in place."""
    return type(module).__name__ == "OptimizedModule" or compiled_code(module) is not None


def _named(path: str, kind: str) -> str | None:
    parts = path.split(".")
    ends = (".".join(parts[number:]) for number in range(len(parts)))
    return next((_TABLE[end] for end in ends if end in _TABLE), _TABLE.get(kind))
