"""Watch what a step calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class AttentionCall:
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    has_mask: bool
    is_causal: bool


class AttentionSpy(TorchFunctionMode):
    """Every call of F.scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[AttentionCall] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.nn.functional.scaled_dot_product_attention:
            query, key, value = args
            self.calls.append(
                AttentionCall(
                    tuple(query.shape),
                    tuple(key.shape),
                    tuple(value.shape),
                    kwargs["attn_mask"] is not None,
                    kwargs["is_causal"],
                )
            )
        return function(*args, **kwargs)
