"""Names of the arguments of ops that torch does not have, by which formulas know them: a trace has them by place.

Schemas: flash-attn's ``flash_attn_interface.py`` and AITER's ``aiter/ops/mha.py``. AITER adds arguments from version to
version behind those that are named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_FORWARD: Final = "q k v dropout_p softmax_scale causal window_size_left window_size_right"
_BACKWARD: Final = (
    "dout q k v out softmax_lse dq dk dv dropout_p softmax_scale causal window_size_left window_size_right"
)
_LENGTHS: Final = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
_AITER_BACKWARD: Final = "dout q k v out softmax_lse dropout_p softmax_scale causal window_size_left window_size_right"
_PACKED: Final = _FORWARD.replace("k v", f"k v {_LENGTHS}")
_PACKED_BACKWARD: Final = _BACKWARD.replace("dk dv", f"dk dv {_LENGTHS}")


@dataclass(frozen=True, slots=True)
class Known:
    """The names of an op's first arguments, in order, and of those that its results are like."""

    names: tuple[str, ...]
    like: tuple[str, ...]

    def named(self, count: int) -> Sequence[str]:
        """The names of ``count`` arguments; by place where none is known."""
        return [*self.names, *(f"arg{place}" for place in range(len(self.names), count))][:count]


def _known(names: str, like: str) -> Known:
    return Known(tuple(names.split()), tuple(like.split()))


KNOWN: Final = {
    "flash_attn::_flash_attn_forward": _known(_FORWARD, "q"),
    "flash_attn::_flash_attn_backward": _known(_BACKWARD, "q k v"),
    "flash_attn::_flash_attn_varlen_forward": _known(_PACKED, "q"),
    "flash_attn::_flash_attn_varlen_backward": _known(_PACKED_BACKWARD, "q k v"),
    "trace::FlashAttnFunc": _known("q k v dropout_p softmax_scale causal", "q"),
    "aiter::_flash_attn_forward": _known(_FORWARD, "q"),
    "aiter::mha_fwd": _known(_FORWARD, "q"),
    "aiter::fmha_v3_fwd": _known(_FORWARD, "q"),
    "aiter::_flash_attn_backward": _known(_BACKWARD, "q k v"),
    "aiter::mha_bwd": _known(_AITER_BACKWARD, "q k v"),
    "aiter::fmha_v3_bwd": _known(_AITER_BACKWARD, "q k v"),
}
