"""What the package sets up when it is imported, before any library: names that are imported when they are first used,
the libraries that they need, rooms that users import without naming the wing, files of a user that are run as modules,
its version, and the functions that draw reports.

``rooflight`` and the packages of its studies (``rooflight.tracking``, ...) export names lazily, so that a saved session
is analysed without torch and ``rooflight --help`` imports none of what it names. A package's ``__init__`` is::

    if TYPE_CHECKING:  # for type checkers and editors
        from .loop import run as run

    __all__ = ["run"]
    __getattr__, __dir__ = lazy_exports(__name__, {"run": f"{__name__}.loop"})

``reporting`` draws reports. It is above the rooms whose nouns are shown, so that they cannot import it: the package
itself (``rooflight/__init__``), which is above all rooms, announces the functions that draw.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX: Final = ".py"
EXTRAS: Final = {"torch": "torch", "transformers": "hf", "lightgbm": "predict"}
"""The extra of this package that installs a library."""


def is_missing(library: str) -> bool:
    """Whether a library is not installed; it is not imported."""
    if library in sys.modules:
        return sys.modules[library] is None
    return find_spec(library) is None


@contextmanager
def uncollected() -> Iterator[None]:
    """What is imported in the block sets off no garbage collection, which would look through all of torch's objects."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def install_line(libraries: Iterable[str]) -> str:
    """``pip install "rooflight[torch,hf]"``."""
    return f'pip install "rooflight[{",".join(EXTRAS[library] for library in libraries)}]"'


def need(library: str, purpose: str) -> None:
    """Raise ModuleNotFoundError with the line to install a library, if it is missing."""
    if is_missing(library):
        raise ModuleNotFoundError(f"{purpose} needs {library}: {install_line([library])}", name=library)


def lazy_exports(
    package: str, homes: Mapping[str, str], namespaces: Iterable[str] = (), needs: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package: ``homes`` has the module of each name, ``namespaces`` the names of
    subpackages that are attributes of it without being imported first, ``needs`` the library without which a name is
    of no use. Using a name whose library is missing raises ModuleNotFoundError with the line to install it.
    """
    own_namespaces = frozenset(namespaces)

    def find(name: str) -> Any:
        if name in own_namespaces:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {public_name(package)!r} has no attribute {name!r}")
        if needs is not None and name in needs:
            need(needs[name], f"{package}.{name}")
        try:
            found = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            library = (error.name or "").partition(".")[0]
            if library in EXTRAS:  # one that is there, and broken, says more by itself
                need(library, f"{package}.{name}")
            raise
        setattr(sys.modules[package], name, found)  # the next use does not come here
        return found

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *own_namespaces})

    return find, listed


@dataclass(frozen=True, slots=True)
class Doors:
    """Finds rooms by the names that users write, without the wing: ``rooflight.devices`` is the same module as
    ``rooflight.hardware.devices``, and so is each module in it. ``wings`` has the wing of each such room.
    """

    wings: Mapping[str, str]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:  # noqa: ARG002
        """What the import of a module needs; None where the name leads to no such room."""
        home = self._home(name)
        return ModuleSpec(name, self) if home and find_spec(home) else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Import makes an empty module, which the room's own takes the place of."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the room, and let this name stand for it."""
        sys.modules[module.__name__] = import_module(self._home(module.__name__))

    def _home(self, name: str) -> str:
        package, _, inner = name.partition(".")
        wing = self.wings.get(inner.partition(".")[0]) if package == "rooflight" else None
        return f"rooflight.{wing}.{inner}" if wing else ""


def public_name(module: str) -> str:
    """The name that users write for a module: without the wing, where a door leads to it."""
    package, _, inner = module.partition(".")
    wing, _, room = inner.partition(".")
    doors = next((finder for finder in sys.meta_path if isinstance(finder, Doors)), None)
    return f"{package}.{room}" if doors and doors.wings.get(room.partition(".")[0]) == wing else module


def load_module(path: Path) -> ModuleType:
    """Run a user's file, once, as ``python file.py`` would: it can import the files beside it.

    Raises ValueError for a file that does not exist or cannot be run.
    """
    name = f"_rooflight_user_{path.resolve()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"cannot read {path}: no such file")
    made = module_from_spec(spec)
    sys.modules[name] = made
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that no file beside it hides a library
    try:
        spec.loader.exec_module(made)
    except (Exception, SystemExit) as error:  # sys.exit in a user's file ends the file, not the command
        del sys.modules[name]
        raise ValueError(f"{path} raised {type(error).__name__}: {error}") from error
    return made


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """A function of a user's file. Raises ValueError for a file that cannot be run and for a missing function."""
    found = getattr(load_module(path), name, None)
    if not callable(found):
        raise ValueError(f"{path} has no function {name}")
    function: Callable[..., Any] = found
    return function


def announced(group: str, name: str, what: str) -> Any:
    """What a package announces under an entry point group by a name, None if nobody does. Raises ValueError if several
    packages do; ``what`` says of them what they do.
    """
    from importlib.metadata import entry_points

    found = entry_points(group=group, name=name)
    if len(found) > 1:
        raise ValueError(f"{len(found)} packages {what}: {', '.join(each.value for each in found)}")
    return next((each.load() for each in found), None)


def installed_version() -> str:
    """The version of Rooflight that is installed."""
    from importlib.metadata import PackageNotFoundError, version  # they take longer to import than the package

    try:
        return version("rooflight")
    except PackageNotFoundError:  # imported from a folder of sources
        return "0+unknown"


def __getattr__(name: str) -> str:
    if name == "__version__":
        return installed_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """``on_terminal`` prints a report to standard output, ``in_notebook`` returns it as a piece of HTML."""

    on_terminal: Callable[[Any], None]
    in_notebook: Callable[[Any], str]


_drawing: Drawing | None = None


def announce(drawing: Drawing) -> None:
    """Set the functions that draw reports. They can be set once."""
    global _drawing
    assert _drawing is None, "announced once, by rooflight/__init__"
    _drawing = drawing


def drawing() -> Drawing:
    """The functions that draw reports."""
    assert _drawing is not None, "rooflight/__init__ announces it before any of its modules can be imported"
    return _drawing
