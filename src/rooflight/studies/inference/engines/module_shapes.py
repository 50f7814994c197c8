"""Which bucket a module without a known name belongs to, by what it does: class, shapes, place in a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    Sized = tuple[nn.Module, tuple[int, int]]


def sizes(module: nn.Module) -> tuple[int, int] | None:
    """Features in and out of a linear layer, of an adapted one's base too; None for any other module."""
    base = None if (own := _own_sizes(module)) else adapter_of(module)[0]
    return own if base is None else sizes(base)


def _own_sizes(module: nn.Module) -> tuple[int, int] | None:
    given, made = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return (given, made) if isinstance(given, int) and isinstance(made, int) else None


def adapter_of(module: nn.Module) -> tuple[nn.Module | None, list[nn.Module]]:
    """The base layer in one with LoRA, None where that is the layer itself, and the modules of its adapters: those
    called ``lora...``, or two layers of one low rank beside a base of the same features in and out.
    """
    lora = [part for name, part in module.named_children() if name.lower().startswith("lora")]
    rest = [(part, size) for part in module.children() if part not in lora and (size := sizes(part)) is not None]
    if lora:
        return (rest[0][0] if len(rest) == 1 else None), lora
    own = _own_sizes(module)
    bases: list[tuple[nn.Module | None, tuple[int, int]]] = [*rest, *([(None, own)] if own else [])]
    for base, size in bases:
        low = [each for each in rest if each[0] is not base]
        if len(low) == 2:
            (first, (given, rank)), (second, (taken, made)) = low
            if (given, made) == size and rank == taken and 2 * rank <= min(size):
                return base, [first, second]
    return None, []


def buckets_by_shape(model: nn.Module, named: Callable[[str], str | None]) -> dict[int, str]:
    """The buckets of a decoder's modules by their ids; none for a model without attention. ``named`` gives the bucket
    that a path has by its name: layers beside such a one are not guessed at.
    """
    found: dict[int, str] = {}
    vocabulary = {part.num_embeddings for part in model.modules() if hasattr(part, "num_embeddings")}
    for path, module in model.named_modules():
        linears = [(part, size) for part in module.children() if (size := sizes(part)) is not None]
        if any(step.isdigit() for step in path.split(".")):
            if not any(named(f"{path}.{name}") for name, part in module.named_children() if sizes(part)):
                found.update(_of_block(linears, [*_words(path, module)]))
        else:
            found.update((id(part), "lm_head") for part, size in linears if size[1] in vocabulary)
        bucket = _of_class(module)
        if bucket is not None:
            found.setdefault(id(module), bucket)
        if "attn.qkv_proj" in [found.get(id(part)) for part in module.children()]:
            norms = (part for part in module.children() if _of_class(part) == "norm")
            found.update(dict.fromkeys(map(id, norms), "attn.qk_norm"))
    known = {*found.values(), *(named(path) for path, _ in model.named_modules())}
    return found if "attn.qkv_proj" in known else {}


def _of_class(module: nn.Module) -> str | None:
    kind, file = type(module).__name__.lower(), type(module).__module__
    if file == "torch.nn.modules.activation" and "attention" not in kind:
        return "mlp.act"
    names = ("norm", "norm"), ("embedding", "embed"), ("rotary", "attn.rope"), ("rope", "attn.rope")
    found = [bucket for name, bucket in names if name in kind and not list(module.children())]
    return found[-1] if found else None  # a rotary embedding is none of tokens


def _words(path: str, module: nn.Module) -> Iterator[str]:
    name = f"{path.rpartition('.')[2]} {type(module).__name__}".lower()
    yield from (word for word in ("attn", "attention") if word in name)


def _of_block(linears: Sequence[Sized], attention: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Layers that widen the same features, and a last one that leads back to them."""
    first, last = linears[:-1], linears[-1:]
    if not last or not 1 <= len(first) <= 3 or any(size[0] != last[0][1][1] for _, size in first):
        return
    widths, inner = [size[1] for _, size in first], last[0][1][0]
    if not attention and widths in ([inner], [2 * inner], [inner, inner]):
        buckets = "mlp.gate_up_proj", "mlp.down_proj"
    elif attention or len(widths) == 3 or inner < sum(widths) <= 3 * inner:
        buckets = "attn.qkv_proj", "attn.o_proj"
    else:
        return
    yield from ((id(part), buckets[0]) for part, _ in first)
    yield id(last[0][0]), buckets[1]
