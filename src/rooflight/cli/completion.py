"""Shell completion: names of presets, devices, operators and dtypes. Needs no torch, and takes 0.2 s."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def presets(incomplete: str) -> Iterator[tuple[str, str]]:
    """Presets, each with its description. Files have other names, and the shell completes those itself."""
    from rooflight.sources.workloads.presets import PRESETS

    described = {name: preset.description for name, preset in PRESETS.items()}
    return ((name, described[name.lower()]) for name in _beginning(described, incomplete))


def devices(incomplete: str) -> Iterator[str]:
    """Devices of the catalog and of the user's own files, and ``cpu`` and ``cuda``."""
    from rooflight.hardware.devices import catalog

    return _beginning(("cpu", "cuda", *catalog.names()), incomplete)


def operators(incomplete: str) -> Iterator[tuple[str, str]]:
    """Operators that can be sampled and predicted, each with what it runs."""
    from rooflight.costs.operators import registry

    return ((each.name, each.summary) for each in registry.every() if each.name.startswith(incomplete))


def dtypes(incomplete: str) -> Iterator[str]:
    """Short names of the dtypes that models are trained in and served in."""
    return _beginning(("bf16", "fp16", "fp32", "fp64", "fp8"), incomplete)


def precisions(incomplete: str) -> Iterator[str]:
    """Short names of the precisions that products can be supposed to use."""
    return _beginning(("tf32", "bf16", "fp16", "fp8", "fp4", "fp32"), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> Iterator[str]:
    """Names that begin with what is written, in its capitals: the shell drops a completion that begins otherwise."""
    for name in names:
        if name.lower().startswith(incomplete.lower()):
            rest = name[len(incomplete) :]
            yield incomplete + (rest.upper() if incomplete.isupper() else rest)
