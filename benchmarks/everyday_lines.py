"""Everyday lines of PyTorch, each in a process of its own, on the CPU and on a GPU that is not there.

    python benchmarks/everyday_lines.py [--only TEXT]

Three authors wrote them (``tests/virtual/one_lines.py``, ``more_lines.py``, ``third_lines.py``), the others without
having seen the room. The third's need einops, timm and torchvision.
Of tensors, shapes, types, strides and devices are compared, of what is on the host values, of errors their class.
"""

from __future__ import annotations

import argparse
import gc
import json
import linecache
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

LINES = Path(__file__).resolve().parents[1] / "tests" / "virtual"
DEVICE = "H100-SXM5-80GB"
LONGEST_S = 60
HOW = ("conform", "refused by name", "differ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--into", help=argparse.SUPPRESS)
    parser.add_argument("--author", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.into:
        inside(Path(asked.into), asked.author, asked.only)
        return 0
    print(f"{'':<16}{'lines':>8}" + "".join(f"{how:>17}" for how in HOW))
    for author in ("one_lines", "more_lines", "third_lines"):
        here, there = outcomes(author, asked.only, []), outcomes(author, asked.only, virtual(author))
        found = Counter[str]()
        for line, wanted in here.items():
            answer = there.get(line, "not reached").replace("FakeTensor", "Tensor")
            how = how_like(wanted, answer)
            found[how] += 1
            if how != "conform":
                print(f"{how}: {line[:200]}\n    here   {wanted[:300]}\n    there  {answer[:300]}")
        print(f"{author:<16}{len(here):>8}" + "".join(f"{found[how]:>17}" for how in HOW), flush=True)
    return 0


def how_like(wanted: str, found: str) -> str:
    if wanted[:1] == found[:1] == "!":
        return "conform" if wanted.partition(":")[0] == found.partition(":")[0] else "differ"
    if wanted == found:
        return "conform"
    return "refused by name" if found[:1] == "!" and "virtual GPU" in found else "differ"


def virtual(author: str) -> list[str]:
    session = Path(tempfile.gettempdir(), f"{author}.session")
    return ["-m", "rooflight", "run", "--on", DEVICE, "--step", "module:NoModule", "--save", str(session)]


def outcomes(author: str, only: str, before: list[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "found.json")
        words = [str(Path(__file__).resolve()), "--only", only, "--author", author, "--into", str(into)]
        subprocess.run([sys.executable, *before, *words], capture_output=True, check=False)
        return dict(map(json.loads, into.read_text().splitlines()))


# -- in the process that is looked at


def inside(into: Path, author: str, only: str) -> None:
    """A line each is run in a process that is forked once torch is there."""
    parts = ("more_lines", "third_setup", author) if author == "third_lines" else (author,)
    source = "\n".join((LINES / f"{part}.py").read_text() for part in parts)
    space: dict[str, Any] = {"__name__": "__main__"}
    if author == "one_lines":
        exec(compile(source.partition("\nfor n, line in")[0], LINES / f"{author}.py", "exec"), space)
        setup = "torch.manual_seed(0)\nx = torch.randn(5, 8).to(D)"
    else:
        exec(source, space)
        import torch

        setup, space["D"] = space["SETUP"], "cuda" if torch.cuda.is_available() else "cpu"
    exec(setup, dict(space))  # so that what it imports is there
    gc.collect()
    lines = [line for line in space["LINES"].splitlines() if line and only in line]
    with into.open("w") as file:
        for line in lines:
            file.write(json.dumps((line, in_a_process(line, setup, space))) + "\n")
            file.flush()


def in_a_process(line: str, setup: str, space: dict[str, Any]) -> str:
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        with os.fdopen(writes, "w") as pipe:
            pipe.write(outcome(line, setup, space))
        os.kill(os.getpid(), signal.SIGKILL)  # nothing that the program has for its end is run
    os.close(writes)
    with os.fdopen(reads) as pipe:
        ready, _, _ = select.select([pipe], [], [], LONGEST_S)
        text = pipe.read() if ready else "!took too long"
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return text or "!died"


def outcome(line: str, setup: str, space: dict[str, Any]) -> str:
    try:
        exec(setup, space)
        *first, last = line.rsplit(";", 1)
        for each in first:
            linecache.cache["<line>"] = (len(each), None, [f"{each.strip()}\n"], "<line>")  # TorchScript reads it
            exec(compile(each.strip(), "<line>", "exec"), space)
        return said(eval(last.strip(), space), space["D"])
    except BaseException as error:
        return f"!{type(error).__name__}: {str(error)[:200]}"


def said(value: Any, device: str) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        known = value.tolist() if value.device.type != device and value.numel() < 50 else ""
        where = "D" if value.device.type == device else str(value.device)
        strides = value.stride() if value.layout is torch.strided else ""
        kind = f"{type(value).__name__} {value.dtype} {value.requires_grad}"
        return f"{kind} {tuple(value.shape)} {strides} {where} {known}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{', '.join(said(each, device) for each in value)}]"
    if isinstance(value, dict):
        return f"dict[{', '.join(f'{key}: {said(each, device)}' for key, each in value.items())}]"
    return repr(value).replace("cuda:0", "D").replace("'cuda'", "'D'").replace("'cpu'", "'D'").replace(" at 0x", "")


if __name__ == "__main__":
    sys.exit(main())
