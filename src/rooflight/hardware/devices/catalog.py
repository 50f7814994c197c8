"""Finds datasheets by name: the files in ``data``, and the user's own."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Final

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.records.visible import visible

FOLDER_VARIABLE: Final = "ROOFLIGHT_DEVICES"
_SHIPPED: Final = Path(__file__).parent / "data"
_VENDOR_WORDS: Final = ("nvidia", "tesla", "geforce", "amd", "instinct")


def datasheet(name: str) -> DeviceSpec:
    """The device called ``name``, as its datasheet has it: a catalog name, what its driver prints, a name's beginning,
    or a path to a TOML.

    Capitals, blanks and hyphens do not matter. Raises ValueError where no device has the name or where several begin
    with it (``"h100"``); a device is never guessed.
    """
    if name.lower().endswith(".toml"):
        return _load(Path(name))
    files = _files()
    beginning = _slug(name) + "-"
    candidates = [stem for stem in sorted(files) if stem.startswith(beginning)]
    spec = _called(name) or (find_by_torch_name(name) if len(candidates) < 2 else None)  # "H200" is not "NVIDIA H200"
    if spec is not None:
        return spec
    if not candidates:
        raise ValueError(_unknown(name, sorted(files)))
    if len(candidates) > 1:
        raise ValueError(f'"{name}" may be {", ".join(candidates[:-1])} or {candidates[-1]}: name one of them')
    return _load(files[candidates[0]])


def find_by_torch_name(text: str) -> DeviceSpec | None:
    """The datasheet of the device for which torch, nvidia-smi or rocm-smi prints ``text``; None where none is known.

    The whole name must agree: a "4090 Laptop GPU", an "A800" and a MIG slice are not the parts they resemble.
    """
    if (exact := _called(text)) is not None:
        return exact
    files = _likely_first(_key(text))
    # without the vendor's words what a driver prints goes first: for "Instinct MI250X" that is one of its two halves
    for spoken in (lambda spec: spec.match, lambda spec: (spec.name,)):
        for path in files:
            if _key(text) in map(_key, spoken(_load(path))):
                return _load(path)
    return None


def _called(text: str) -> DeviceSpec | None:
    squeezed = _squeezed(text)
    for path in _likely_first(_key(text)):
        spec = _load(path)
        if squeezed in map(_squeezed, (path.stem, spec.name, *spec.match)):
            return spec
    return None


def names() -> tuple[str, ...]:
    """Every device's catalog name: the name of its file."""
    return tuple(sorted(_files()))


def datasheets() -> tuple[DeviceSpec, ...]:
    """Every device, in the order of ``names``."""
    return tuple(_load(path) for _, path in sorted(_files().items()))


def same_name(one: str, other: str) -> bool:
    """Whether two names differ at most in capitals, blanks and marks."""
    return _squeezed(one) == _squeezed(other)


def _files() -> dict[str, Path]:
    """File of each catalog name. The user's come first, and take the place of shipped ones of the same name."""
    files = {_slug(path.stem): path for path in _users_files()}
    for path in _SHIPPED.glob("*.toml"):
        files.setdefault(path.stem, path)
    return files


def _users_files() -> list[Path]:
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return []
    if not Path(folder).is_dir():
        raise ValueError(f'{FOLDER_VARIABLE} is "{folder}", which is not a folder: correct or unset it')
    return sorted(Path(folder).glob("*.toml"))


def _likely_first(wanted: str) -> list[Path]:
    # The family that the name begins with is tried before the rest, which then need not be read.
    def order(path: Path) -> tuple[bool, bool]:
        family = path.stem.partition("-")[0]
        return path.parent == _SHIPPED, not wanted.startswith(family)

    return sorted(_files().values(), key=order)


def _load(path: Path) -> DeviceSpec:
    # The time of change is part of the key, so that a notebook sees an edited file.
    return _load_once(path, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=256)
def _load_once(path: Path, changed_ns: int) -> DeviceSpec:  # noqa: ARG001
    from rooflight.hardware.devices.device_file import read_device

    return read_device(path)


def _slug(name: str) -> str:
    """``"NVIDIA GeForce RTX 3090"`` → ``"rtx-3090"``."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    for word in _VENDOR_WORDS:
        slug = slug.removeprefix(word).lstrip("-")
    return slug


def _key(name: str) -> str:
    return _slug(name).replace("-", "")


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())


def _unknown(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    family = _slug(name).partition("-")[0]
    families = get_close_matches(family, {stem.partition("-")[0] for stem in known}, cutoff=0.75)
    close = [stem for stem in known if stem.partition("-")[0] in families] or get_close_matches(_slug(name), known)
    close.sort(key=lambda stem: stem.partition("-")[0] != family)  # a V100 of another form is closer than an H100
    hint = f" (close: {', '.join(close[:4])})" if close else ""
    return (
        f'unknown device "{visible(name)}"{hint}: rooflight devices lists those that are known; '
        "name one of them by --device or --on, or a TOML that describes yours"
    )
