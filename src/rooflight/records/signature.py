"""OpSignature: everything about an operation that its cost depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rooflight.records.tensor import TensorSpec, distinct_bytes

WRITTEN_OUTSIDE: Final = "rooflight::written_outside"
"""Name of the record of a tensor that something outside torch's dispatcher wrote: only its size is known."""

FAILED_MODULE: Final = "rooflight::failed_module"
"""Name of the record of a module's call whose module formula raised an error."""

UNSEEN: Final = ("unseen", True)
"""Attribute of ops that no dispatcher saw: Rooflight inferred them, and no profiler shows an event of that name."""

ON_HOST: Final = ("on_host", True)
"""Attribute of ops on tensors that a program on a GPU keeps in the host's memory: they take its device no time."""

FROM_HOST: Final = ("from_host", True)
"""Attribute of copies from the host's memory into the device's."""

TO_HOST: Final = ("to_host", True)
"""Attribute of copies from the device's memory into the host's."""

INCOMPLETE: Final = "incomplete"
"""Attribute of ops that could not be described completely, as where a trace does not tell a setting: the reason."""

ALGORITHM: Final = "algorithm"
"""Attribute of convolutions that a trace shows to have been computed in another way than by their definition:
"winograd" or "fft", which do fewer multiplications."""

COMPUTED_IN: Final = "computed_in"
"""Attribute of ops of which a trace shows at which precision their float32 products ran: "tfloat32" or "float32"."""

SETTING: Final = "torch.backends."
"""The beginning of attributes of a product that ran under other settings than those in the session's environment."""

NUMBER: Final = "number"
"""Attribute of a power, product or quotient by a number that is 0 or 1, and of a dropout of none or of all: which."""

HIDDEN: Final = "hidden"
"""Attribute of an op that masks scores, or is given a mask of them, which is known: of the mask how many pairs of query
and key it hides, and how many it has; how many keys it hides from all queries, and how many it has; and a
checksum of which pairs these are.
"""

ZEROED: Final = "zeroed"
"""Attribute of ops that put 0 in place of elements, where those are known: counts as of ``HIDDEN``."""

PADDED: Final = "padded"
"""Attribute of an op that masks scores [batch, ..., keys], or is given a mask of them, whose values were seen to hide
keys from all queries: rows of the mask, keys of each, the most that a row keeps, and those that all keep together.
"""

SCORED: Final = "scored"
"""Attribute of a call of attention with a score function, which may hide more pairs: it is not evaluated."""

LENGTHS: Final = "lengths"
"""Attribute of a call of attention on packed sequences whose lengths are known: queries and keys of each in turn."""

AttributeValue = int | bool | str | None | tuple[int, ...] | tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSignature:
    """An operation's name, tensors and settings. Equal signatures cost the same, so formulas run once for each.

    ``name`` is ``namespace::op`` without overload. ``inputs`` and ``outputs`` are flat: a list of tensors takes as many
    places as it has tensors, a missing optional tensor takes none; ``input_names`` gives, place by place, the argument
    of the op's schema. ``outputs`` are the tensors returned and the arguments mutated, the latter with the ``storage``
    number of the input they alias. ``attributes`` are the ints, bools, strings and lists of them that were passed;
    floats are left out, since no cost depends on them, except an ``alpha`` or ``beta`` of 0, with which an op does not
    read the tensor that it multiplies by it, and a probability in place of which a tensor would be read (True).
    """

    name: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    input_names: tuple[str, ...] = ()
    attributes: tuple[tuple[str, AttributeValue], ...] = ()

    @property
    def is_unseen(self) -> bool:
        """Whether no dispatcher saw the op: Rooflight inferred it."""
        return UNSEEN in self.attributes

    @property
    def incomplete(self) -> str:
        """Why the op could not be described completely, so that it cannot be costed; empty if it is complete."""
        return str(self.attribute(INCOMPLETE, ""))

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the inputs, place by place."""
        return tuple(tensor.shape for tensor in self.inputs)

    @property
    def input_bytes(self) -> int:
        """Distinct bytes of all inputs."""
        return distinct_bytes(self.inputs)

    @property
    def output_bytes(self) -> int:
        """Distinct bytes of all outputs."""
        return distinct_bytes(self.outputs)

    def named(self, name: str) -> tuple[TensorSpec, ...]:
        """The tensors of one argument: one place for a tensor, several for a list, none where it was not given."""
        return tuple(tensor for tensor, key in zip(self.inputs, self.input_names, strict=False) if key == name)

    def input(self, name: str) -> TensorSpec | None:
        """The tensor given for one argument, or None."""
        for tensor, key in zip(self.inputs, self.input_names, strict=False):
            if key == name:
                return tensor
        return None

    def attribute(self, name: str, default: AttributeValue = None) -> AttributeValue:
        """The value passed for a setting, or ``default`` where the caller left it out."""
        for key, value in self.attributes:
            if key == name:
                return value
        return default


KV_TOKENS: Final = "kv_tokens"
"""Keys that all sequences of an attention call have together, those of its own tokens included; the least, where that
is all that is known."""

VISIBLE_PAIRS: Final = "visible_pairs"
"""Pairs of a query and a key that it sees, of all sequences of an attention call, for one head; the least likewise."""

KV_WIDTH: Final = "kv_width"
"""Numbers that one token's key has in the cache, all heads of this rank together."""

CACHE_DTYPE: Final = "cache_dtype"
"""The dtype of the cache of keys and values."""

HIDDEN_SIZE: Final = "hidden_size"
"""The width of a model's tokens, without padding."""

EXPERT_WEIGHTS: Final = "expert_weights"
"""The weights of an expert, the part of this rank."""

EXPERTS_PER_TOKEN: Final = "experts_per_token"
IN_CONFIGS: Final = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)
"""What configs of transformers call that."""
"""How many experts a token goes to."""

EXPERT_BITS: Final = "expert_bits"
"""Bits of one weight of an expert."""

PRODUCT_DTYPE: Final = "product_dtype"
"""The dtype of the numbers multiplied on the matrix unit."""
