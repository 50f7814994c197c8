"""Manifest: what a folder's models were learned from, and with what; a file that is not the one listed is refused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from subprocess import DEVNULL, PIPE, SubprocessError, run
from typing import Final

import msgspec

from rooflight.records.files import write_whole

NAME: Final = "manifest.json"
SCHEMA: Final = "rooflight.manifest/1"
_LIBRARIES: Final = ("rooflight", "numpy", "lightgbm", "scipy")


class Base(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The models on top of which rows were learned: "shipped" or a folder's name, and the SHA-256 of a line for each
    model's file, in the order of their names: name, blank, SHA-256.
    """

    name: str
    sha256: str


class Source(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """One fit: the SHA-256 of each file that it read, by name, the commit of Rooflight's sources (empty where they are
    in no repository), the versions of libraries, and what it was learned on top of.
    """

    files: dict[str, str]
    commit: str
    libraries: dict[str, str]
    on: Base | None = None


class Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A model's file: its kind of work, its SHA-256, and the place of its fit in the manifest."""

    key: str
    sha256: str
    fit: int


class Manifest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Models by the names of their files, and the fits that made them."""

    schema: str
    models: dict[str, Entry]
    fits: list[Source]


def read_manifest(folder: Path, *, whole: bool = False) -> Manifest | None:
    """The manifest of a folder of models, None where there is none. Raises ValueError for what is none, and where the
    folder is to be ``whole`` for one that lists files which are not there.
    """
    path = folder / NAME
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: no manifest of rooflight fit ({_line(error)}): fit the models again") from None
    if found.schema != SCHEMA or any(not 0 <= entry.fit < len(found.fits) for entry in found.models.values()):
        raise ValueError(f"{path}: no manifest that this version reads: fit the models again")
    lost = [name for name in found.models if not (folder / name).is_file()] if whole else []
    if lost:
        more = f" and {len(lost) - 1} more" if lost[1:] else ""
        raise ValueError(f"{path} lists {lost[0]}{more}, not in the folder: copy it whole, or fit the models again")
    return found


def check(manifest: Manifest | None, path: Path, content: bytes) -> None:
    """Raises ValueError where a folder has a manifest and a model's file is not the one that it lists."""
    if manifest is None:
        return
    entry = manifest.models.get(path.name)
    if entry is None:
        raise ValueError(f"{path} is not in {NAME} beside it: fit it again, or move it elsewhere")
    if sha256(content).hexdigest() != entry.sha256:
        raise ValueError(f"{path} is not the file that {NAME} beside it lists: fit it again")


def write_manifest(
    folder: Path,
    keys: Mapping[str, str],
    learned_from: Iterable[Path],
    *,
    on: Base | None = None,
    inherited: Manifest | None = None,
) -> Path:
    """List models in a folder, by file name with their kinds of work, as learned from files, on top of others where
    ``on`` says so. Models of earlier fits that are still there stay listed, and those ``inherited`` are listed as where
    they come from. Returns the manifest's path. Raises ValueError for an older one that cannot be read.
    """
    entries: dict[str, Entry] = {}
    fits: list[Source] = []
    taken = set(keys)
    for earlier in (inherited, read_manifest(folder)):
        if earlier is not None:
            kept = {name: e for name, e in earlier.models.items() if name not in taken and (folder / name).exists()}
            used = sorted({entry.fit for entry in kept.values()})
            entries |= {
                name: Entry(key=entry.key, sha256=entry.sha256, fit=len(fits) + used.index(entry.fit))
                for name, entry in kept.items()
            }
            fits += [earlier.fits[place] for place in used]
            taken |= set(kept)
    entries |= {
        name: Entry(key=key, sha256=_digest(folder / name), fit=len(fits)) for name, key in sorted(keys.items())
    }
    fits.append(Source(files=_digests(learned_from), commit=_commit(), libraries=_libraries(), on=on))
    manifest = Manifest(schema=SCHEMA, models=dict(sorted(entries.items())), fits=fits)
    write_whole(folder / NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    return folder / NAME


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    """By the part of each path that is not common to all: a manifest says nothing of the machine that made it."""
    named = sorted({path.absolute() for path in paths})  # links as they are called
    if not named:
        return {}
    common = Path(os.path.commonpath([path.parent for path in named]))
    return {path.relative_to(common).as_posix(): _digest(path) for path in named}


def _libraries() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Of the repository that holds these sources, not of one that an environment is in; "" where there is none."""
    here = Path(__file__).resolve().parents[1]
    command = ("git", "-C", str(here), "rev-parse", "--show-toplevel", "HEAD")
    try:
        found = run(command, stdout=PIPE, stderr=DEVNULL, text=True, timeout=10, check=True).stdout.split("\n")
    except (OSError, SubprocessError):
        return ""
    return found[1] if Path(found[0]).resolve() / "src" / "rooflight" / "prediction" == here else ""


def _line(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
