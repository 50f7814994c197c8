"""KernelBench's problems, Python files with ``Model``, ``get_inputs`` and ``get_init_inputs``, and their solutions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rooflight.sources.workloads.build import torch_device
from rooflight.sources.workloads.errors import (
    RunFailed,
    TargetError,
    in_one_line,
    missing_package,
    need_torch,
    place_of,
)
from rooflight.sources.workloads.steps import guarded
from rooflight.sources.workloads.user_code import imported, on_path, parsed

if TYPE_CHECKING:
    import torch
    from torch import nn


NAMES: Final = ("Model", "get_inputs", "get_init_inputs")
"""What a problem file defines: the class of the model, its inputs, and the arguments of its constructor."""

_SEED: Final = 42  # KernelBench's
_SCALARS: Final = (bool, int, float, complex, type(None))


def is_problem(path: Path) -> bool:
    """Whether a file is meant as a problem: it defines, assigns or imports two of NAMES at its top level, so that the
    third can be asked for. The file is not run.

    Raises TargetError for a file that cannot be read or parsed.
    """
    return len(_missing(parsed(path))) < len(NAMES) - 1


def open_problem(path: Path, device: str = "meta") -> Problem:
    """An imported problem file, whose model and inputs are made on ``device``.

    Raises TargetError for a file that is no problem, raises while it is imported, or needs a package that is not
    installed.
    """
    need_torch()
    place, path = torch_device(device), path.resolve()
    check_names(path)
    return Problem(ImportedFile(path, place))


def check_names(path: Path) -> None:
    """Raise TargetError for a file that lacks one of NAMES or cannot be read or parsed; it is not run."""
    tree = parsed(path)
    if missing := _missing(tree):
        lacking = " and no ".join(missing)
        hint = other_class(tree, "Model") if "Model" in missing else ""
        raise TargetError(
            f"{path.name} defines no {lacking}: a problem file has Model, get_inputs and get_init_inputs{hint}"
        )


class ImportedFile:
    """A user's file as a module, and the device for the models and tensors that it makes."""

    def __init__(self, path: Path, place: torch.device) -> None:
        """Import the file. Raises TargetError where that fails."""
        self.path, self.place = path, place
        with on_path(path.parent):
            self._module = imported(path)

    def function(self, name: str) -> Callable[..., Any]:
        """The function or class ``name`` of the file. Raises TargetError unless it can be called."""
        found: Callable[..., Any] = getattr(self._module, name, None)  # type: ignore[assignment]
        if not callable(found):
            raise TargetError(f"{self.path.name}: {name} cannot be called")
        return found

    def model(self, name: str, arguments: Sequence[Any]) -> nn.Module:
        """The module that a class of the file builds, on the device. Weights are the same on every call.

        Raises TargetError for a class that raises, builds no module, or puts it on another device.
        """
        build = self.function(name)
        model = self.made(name, lambda: build(*arguments))
        if not isinstance(model, need_torch().nn.Module):
            raise TargetError(f"{self.path.name}: {name} is no torch.nn.Module, calling it gave {type(model).__name__}")
        moved: nn.Module = _moved(model, self.place)
        self.refuse_others(name, [*moved.parameters(), *moved.buffers()])
        return moved

    def made(self, what: str, make: Callable[[], Any], draw: int = 0) -> Any:
        """The result of ``make``, made on the device, or on the CPU if it reads values that a meta tensor lacks."""
        torch = need_torch()
        places = [self.place] + ([torch.device("cpu")] if self.place.type == "meta" else [])
        for number, place in enumerate(places):
            try:
                with same_numbers(draw), place, on_path(self.path.parent):
                    return make()
            except TargetError:
                raise
            except (Exception, SystemExit) as error:
                if number == len(places) - 1:
                    raised = f"raised {in_one_line(error, prefer=self.path)}"
                    reason = _explained(error, self.path, self.place) or raised
                    raise TargetError(f"{self.path.name}: {what} {reason}") from error
        raise AssertionError("there is a place to build on")

    def refuse_others(self, what: str, tensors: list[torch.Tensor]) -> None:
        """Raise TargetError for tensors that the file put on another device by name: torch's error would be unclear."""
        other = next((tensor.device for tensor in tensors if tensor.device.type != self.place.type), None)
        if other is not None:
            raise TargetError(f"{self.path.name}: {what} {_fixed_device(str(other.type), self.place)}")

    def explaining(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """``run``, but its errors become a RunFailed in one line, with the file's line."""
        return guarded(_explaining(run, self.path, self.place), prefer=self.path)


class Problem:
    """The three callables of a problem file; what they make is on the file's device, the same on every call."""

    def __init__(self, file: ImportedFile) -> None:
        """Raises TargetError for a name that cannot be called."""
        self.file = file
        self._get_inputs, self._get_init_inputs = file.function("get_inputs"), file.function("get_init_inputs")
        file.function("Model")

    def init_inputs(self) -> list[Any]:
        """The arguments of the constructor. Raises TargetError if they are no list."""
        made: list[Any] = self.file.made(
            "get_init_inputs", lambda: self._listed("get_init_inputs", self._get_init_inputs())
        )
        return made

    def model(self) -> nn.Module:
        """The model, in training mode as built. Raises TargetError where it cannot be built."""
        return self.file.model("Model", self.init_inputs())

    def inputs(self, draw: int = 0) -> tuple[Any, ...]:
        """The arguments of forward; each ``draw`` has other random numbers.

        Raises TargetError for inputs that are neither tensors nor numbers, and for those on another device.
        """
        made = self.file.made("get_inputs", lambda: self._listed("get_inputs", self._get_inputs()), draw)
        for number, value in enumerate(made):
            if not isinstance(value, (need_torch().Tensor, *_SCALARS)) and not tensors_in([value]):
                raise TargetError(
                    f"{self.file.path.name}: get_inputs gives {type(value).__name__} as input {number}: "
                    "give tensors and numbers"
                )
        placed = tuple(_placed(value, self.file.place) for value in made)
        self.file.refuse_others("get_inputs", tensors_in(placed))
        return placed

    def _listed(self, name: str, given: Any) -> list[Any]:
        if not isinstance(given, (list, tuple)):
            raise TargetError(f"{self.file.path.name}: {name} returned {type(given).__name__}: return a list")
        return list(given)


def _missing(tree: ast.Module) -> list[str]:
    there = names_in(tree)
    return [name for name in NAMES if name not in there]


def names_in(tree: ast.Module) -> set[str]:
    """The names that a file defines, assigns or imports at its top level."""
    there: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            there.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            there.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            there.update(target.id for target in targets if isinstance(target, ast.Name))
    return there


def other_class(tree: ast.Module, name: str) -> str:
    """A question for the end of a message: whether the only class of the file is meant. Empty if it has several."""
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return f"; is class {classes[0]} the model? Name it {name}" if len(classes) == 1 else ""


def _explained(error: BaseException, path: Path, place: torch.device) -> str | None:
    if missing := missing_package(error, prefer=path):
        return missing
    text = str(error)
    # torch's words on a machine without CUDA, and where tensors of two devices meet
    if place.type != "cuda" and ("Torch not compiled with CUDA" in text or "NVIDIA driver" in text or "cuda:" in text):
        return _fixed_device("cuda", place) + place_of(error, prefer=path)
    return None


def _fixed_device(found: str, place: torch.device) -> str:
    return f'allocates on {found} explicitly, this run is on {place.type}: leave out device="{found}" and .{found}()'


def _explaining(run: Callable[[], Any], path: Path, place: torch.device) -> Callable[[], Any]:
    def explained() -> Any:
        try:
            return run()
        except (Exception, SystemExit) as error:
            if (reason := _explained(error, path, place)) is None:
                raise
            raise RunFailed(f"{path.name} {reason}") from error  # has the place already

    return explained


@contextmanager
def same_numbers(draw: int = 0) -> Iterator[None]:
    """In the block, the same random numbers for the same ``draw``; the program's random state stays as it is."""
    torch = need_torch()
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
        torch.manual_seed(_SEED + draw)
        yield


def _moved(model: nn.Module, place: torch.device) -> nn.Module:
    """The model on the device, with the tensors that it holds as plain attributes; those on CUDA stay there."""
    torch = need_torch()
    if all(tensor.device.type in ("cpu", "meta") for tensor in (*model.parameters(), *model.buffers())):
        model.to(place)
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                setattr(module, name, _placed(value, place))
    return model


def _placed(value: Any, place: torch.device) -> Any:
    torch = need_torch()
    if isinstance(value, torch.Tensor):
        return value.to(place) if value.device.type in ("cpu", "meta") else value
    if isinstance(value, (list, tuple)):
        return type(value)(_placed(each, place) for each in value)
    if isinstance(value, dict):
        return {key: _placed(each, place) for key, each in value.items()}
    return value


def tensors_in(values: Any) -> list[torch.Tensor]:
    """All tensors in values, which may be nested in lists, tuples and dicts."""
    tensor = need_torch().Tensor
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
        elif isinstance(value, dict):
            found += tensors_in(value.values())
    return found


SOLUTION_NAMES: Final = ("ModelNew", "Model")
"""Names of a solution's class: the first of them that the file has is taken."""


class Solution:
    """A solution's file, imported, and the name of its class."""

    def __init__(self, file: ImportedFile, name: str) -> None:
        self.file, self.name = file, name

    def model(self, init_inputs: Sequence[Any]) -> nn.Module:
        """The model, built with the same arguments as the problem's model and from the same random numbers.

        Raises TargetError where it cannot be built.
        """
        return self.file.model(self.name, init_inputs)


def solution_class(path: Path) -> str:
    """The name of the file's class; the file is not run. Raises TargetError for a file without one of NAMES, and for
    one that cannot be read or parsed.
    """
    tree = parsed(path)
    there = names_in(tree)
    for name in SOLUTION_NAMES:
        if name in there:
            return name
    raise TargetError(f"{path.name} defines no ModelNew: a solution has one{other_class(tree, 'ModelNew')}")


def open_solution(path: Path, device: str) -> Solution:
    """A solution, imported, for ``device``.

    Raises TargetError for a file that has no such class, raises while it is imported, or needs a package that is not
    installed.
    """
    need_torch()
    name = solution_class(path)
    return Solution(ImportedFile(path.resolve(), torch_device(device)), name)
