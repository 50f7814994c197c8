"""A problem and its solutions, as files."""

from __future__ import annotations

import textwrap
from pathlib import Path

from builders import op, spec
from sessions import Call, session_of
from tracked import CPU

from rooflight.hardware.machine.timing import Timing
from rooflight.roofline.analysis import analyze
from rooflight.sources.workloads.outputs import Difference
from rooflight.studies.scoring.result import Checked, Score
from rooflight.studies.scoring.trials import Trials

REFERENCE = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = nn.Linear(width, 8)
        def forward(self, x):
            return torch.relu(self.layer(x))

    def get_inputs():
        return [torch.randn(16, 12)]

    def get_init_inputs():
        return [12]
"""

RIGHT = """
    import torch
    from torch import nn

    class ModelNew(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = nn.Linear(width, 8)
        def forward(self, x):
            return self.layer(x).clamp_(min=0)
"""

FORWARD = "return self.layer(x).clamp_(min=0)"


class Files:
    """Writes a reference and a solution; either may have a part replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def reference(self, old: str = "", new: str = "", code: str = REFERENCE) -> Path:
        return self._written("problem.py", code, old, new)

    def solution(self, forward: str = FORWARD, *, old: str = "", new: str = "", code: str = RIGHT) -> Path:
        """``forward``: what the method does, one statement a line."""
        lines = f"\n{' ' * 12}".join(forward.splitlines())
        return self._written("solution.py", code.replace(FORWARD, lines), old, new)

    def _written(self, name: str, code: str, old: str, new: str) -> Path:
        assert old in code
        path = self.folder / name
        path.write_text(textwrap.dedent(code.replace(old, new) if old else code))
        return path


def score_by_hand(
    eager_s: float,
    solution_s: float,
    compiled_s: float | None = None,
    *,
    difference: Difference | None = None,
    others: float = 0.0,
) -> Score:
    """Of a copy of 4e8 bytes to as many, at 1e11 bytes/s: light takes 8 ms."""
    big = spec((10**8,), "float32")
    call = Call(op=op("aten::relu", {"self": big}, [big]), reads=(0,), writes=(1,))
    times = {"eager": eager_s, "compiled": compiled_s, "solution": solution_s}
    timings = {name: Timing(samples_s=(seconds,) * 3) for name, seconds in times.items() if seconds is not None}
    return Score(
        reference="problem.py",
        solution="solution.py",
        solution_class="ModelNew",
        place="cpu",
        analysis=analyze(session_of([call], storage_bytes=[4 * 10**8] * 2), CPU),
        checked=Checked(draws=5, difference=difference or Difference(error=1e-7, rms=1e-7, tolerance=1e-4)),
        trials=Trials(timings=timings, others_share=others),
    )
