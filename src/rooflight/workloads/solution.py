"""A solution of a problem, as KernelBench has them: a Python file with a class ``ModelNew`` in place of ``Model``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rooflight.workloads.build import torch_device
from rooflight.workloads.errors import TargetError
from rooflight.workloads.extras import need_torch
from rooflight.workloads.problem import ImportedFile, names_in, other_class
from rooflight.workloads.user_code import parsed

if TYPE_CHECKING:
    from torch import nn

NAMES: Final = ("ModelNew", "Model")
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
    for name in NAMES:
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
