"""The sampler of the host's thread: lines, sleep, and what library code they are in; what torch.compile compiled."""

from __future__ import annotations

import dis
import importlib
import linecache
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rooflight.records.timeline import Within
from rooflight.sources.capture.own_code import is_of_tensors
from rooflight.sources.capture.time.compilations import compilations
from rooflight.sources.capture.time.host_lines import HostLines, host_lines


def sleeps() -> None:
    time.sleep(0.02)


def counts() -> int:
    return sum(number * number for number in range(200_000))


def test_a_sleep_is_told_from_work() -> None:
    for function, asleep in ((sleeps, True), (counts, False)):
        lines, walls = host_lines(function, least=3)
        assert lines[0].where.function.startswith(function.__name__)
        assert lines[0].where.file == "tests/capture/test_host_lines.py"
        assert (lines[0].asleep_s > 0.5 * lines[0].seconds) is asleep
        assert len(walls) >= 3


NUMBERS = [number * 7919 % 1_000_003 for number in range(300_000)]


def holds() -> list[int]:
    """One call that keeps the interpreter's lock."""
    return sorted(NUMBERS)


def lets_go() -> None:
    Path("/").stat()  # an op of torch has threads, for which it waits on a busy machine


def test_what_keeps_the_interpreter_is_named_and_not_what_lets_it_go_next() -> None:
    lines, _ = host_lines(lambda: (holds(), lets_go()), least=8)
    assert lines[0].where.function == "holds"


def test_sampling_ends_with_its_block_and_restores_the_interpreter() -> None:
    interval, threads = sys.getswitchinterval(), threading.active_count()
    with pytest.raises(KeyboardInterrupt), HostLines().sampling():
        raise KeyboardInterrupt
    assert (sys.getswitchinterval(), threading.active_count()) == (interval, threads)


def test_a_loader_is_named_with_the_line_of_its_dataset() -> None:
    class Slow(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            time.sleep(0.01)
            return index

    loader = torch.utils.data.DataLoader(Slow(), batch_size=2)
    lines, _ = host_lines(lambda: list(loader), least=2)
    assert (lines[0].within, lines[0].where.function.rpartition(".")[2]) == ("the data loader", "__getitem__")


def test_torchs_account_of_recompiles_is_read() -> None:
    torch._dynamo.reset()

    def scaled(x: torch.Tensor, number: int) -> torch.Tensor:
        return x * number

    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    for number in (3, 4, 5):
        compiled(torch.ones(2), number)
    found = next(each for each in compilations() if each.where and each.where.function == "scaled")
    assert found.times >= 3
    assert found.reason.startswith("number == ")
    torch._dynamo.reset()


def test_lines_slept_for_what_they_were_not_awake_and_all_of_them_for_what_the_thread_was_not():
    lines = HostLines()
    codes = [compile("\n" * line + "pass", f"/{line}.py", "exec") for line in range(4)]
    for line, wall_s, ran_s, waited_s in (
        (1, 0.004, 0.0, 0.0),  # a tick by the wall
        (1, 0.0, 0.002, 0.003),  # one by its CPU: another program had that for some time
        (2, 0.002, 0.002, 0.0),
        (3, 0.006, 0.0, 0.0),
        (3, 0.002, 0.0, 0.0),
    ):
        lines.take((codes[line], 0, Within.ITSELF, None, 0), wall_s, ran_s, waited_s)
    asleep_s = {int(line.where.file.strip("/")[0]): line.asleep_s for line in lines.lines(1)}
    assert asleep_s == pytest.approx({1: 0.0, 2: 0.0, 3: 0.014 - 0.007}, abs=1e-9)


def test_what_an_import_runs_is_not_named_by_the_library_that_it_imports(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "site-packages" / "torch" / "distributed"
    folder.mkdir(parents=True)
    (folder / "loads.py").write_text(
        "import time\nend = time.thread_time() + 0.02\nwhile time.thread_time() < end: pass"
    )
    monkeypatch.syspath_prepend(str(folder))

    def imports() -> None:
        sys.modules.pop("loads", None)
        importlib.import_module("loads")

    lines, _ = host_lines(imports, least=3)
    assert (lines[0].within, lines[0].where.function.rpartition(".")[2]) == (Within.IMPORTING, "imports")


IDLE = {dis.opmap[name] for name in ("POP_TOP", "CACHE")}


class Held:
    def __init__(self) -> None:
        self.tensor, self.number = torch.ones(4), 4

    @property
    def costly(self) -> torch.Tensor:
        raise AssertionError("looking must run no code of the program's")


@pytest.mark.parametrize(
    ("expression", "of_tensors"),
    [
        ("x + x", True),
        ("torch.cat([x])", True),
        ("held.tensor.sum()", True),
        ("layer.weight", True),
        ("held.costly", False),
        ("held.number + number", False),
        ("sorted([number])", False),
        ("np.ones(3)", False),
        ("relu(number)", True),
        ("torch.tensor([number])", False),
        ("x.tolist()", False),
    ],
)
def test_an_expression_of_tensors_is_told_from_one_of_python(tmp_path, expression: str, of_tensors: bool) -> None:
    file = tmp_path / "e.py"
    file.write_text(f"def stands():\n    yield 1\n    {expression}\n")
    names = {"x": torch.ones(2), "torch": torch, "held": Held(), "number": 3, "layer": torch.nn.Linear(2, 2)}
    names |= {"np": np, "relu": torch.relu}
    exec(compile(file.read_text(), str(file), "exec"), names)
    waiting = names["stands"]()
    next(waiting)
    code = waiting.gi_frame.f_code
    whole = (3, 3, 4, 4 + len(expression))
    last = max(
        at * 2 for at, each in enumerate(code.co_positions()) if each == whole and code.co_code[at * 2] not in IDLE
    )
    linecache.checkcache(str(file))
    assert is_of_tensors(waiting.gi_frame, last) is of_tensors


def test_what_an_operator_of_tensors_took_is_not_the_loops() -> None:
    x = torch.ones(1200, 1200)

    def loops() -> None:
        for _ in range(6):
            y = x @ x  # the work
            del y

    lines, _ = host_lines(loops, least=4)
    own = sum(line.seconds for line in lines if line.within.is_own)
    assert own < 0.5 * sum(line.seconds for line in lines)
