"""Replaces what the pages show of commands by what the commands print today: docs/refresh.py [--measured] [PAGE ...].

A block of a page begins with ``$ `` and the command. ``BLOCKS`` lists these commands and which parts of what they print
the page shows; each part that it leaves out is marked by a line with an ellipsis. Without ``--measured``, the script
replaces the blocks whose figures follow from the code, and draws the README's picture; a test compares them. With it,
the script replaces the blocks with measured times, which takes a machine that runs nothing else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A command, a page that shows it, and the parts of a report that the page shows.

    A part is a paragraph, or a single note, and is named by how it begins. Without ``parts`` all are shown. ``rows``
    limits the lines of every part. ``round``: the command runs ``train.py``, which is ``FIRST_HOUR`` after so many of
    the changes that the page makes to it. What is ``slow`` is compared by ``make slow``.
    Of ``rooflight run`` standard error is shown.
    """

    page: str
    command: str
    parts: tuple[str, ...] = ()
    rows: int = 100
    measured: bool = False
    slow: bool = False
    round: int | None = None


GRPO = "python examples/grpo_loop.py --rl-enable-sol-tracking --rl-sol-report-interval 10"
EXPLAIN = "rooflight explain examples/explained_loss.py:loss"
DECODE = "rooflight profile-decode llama-tiny --batch 8 --prompt 512 --new 128 --run-name plain"
DRAFT = (
    "rooflight profile-decode llama-tiny --batch 1 --prompt 128 --new 256 "
    "--draft self:2 --acceptance 0.8 --run-name draft"
)
FIRST_HOUR = ROOT / "examples" / "first_hour.py"
ELSEWHERE = "rooflight run --on H100-SXM5-80GB,A100-SXM4-80GB --gpus 8 examples/ddp_vit.py"
PREDICT = "rooflight predict gemm --m 4096 --n 4096 --k 4096 --dtype fp16 --device A100-SXM4-80GB"

RUN = "rooflight run --save round{}.session train.py"
FIRST_SCREEN = ("A step is", "regime", "What costs")
STEP = "rooflight analyze gpt2 --step train --batch 8 --seq 1024 --device H100-SXM5-80GB --predict --top 4"
DECODED = ("Decode steps", "381 steps", "Model bucket", "! Other programs")

BLOCKS = (
    Block(page="README.md", command=STEP, parts=("First", "What costs"), rows=16),
    Block(page="README.md", command=RUN.format(0), parts=FIRST_SCREEN[1:], measured=True, round=0),
    Block(page="docs/guide/run.md", command=RUN.format(0), parts=FIRST_SCREEN, measured=True, round=0),
    Block(page="docs/guide/analyze.md", command=STEP, parts=("Speed", "Waterfall", "By layer")),
    Block(page="docs/guide/inference.md", command=DECODE, parts=DECODED, measured=True),
    Block(page="docs/guide/inference.md", command=f"{DRAFT} --all", parts=("Speculative decoding\n",), measured=True),
    Block(
        page="docs/guide/explain.md",
        command=EXPLAIN,
        parts=("Dynamo: graph breaks", "Dynamo: recompiles"),
        rows=11,
        measured=True,
    ),
    Block(page="docs/guide/predict.md", command=PREDICT),
    Block(page="docs/guide/elsewhere.md", command=ELSEWHERE, parts=("A step is", "On devices"), slow=True),
    Block(
        page="docs/guide/tracking.md",
        command=GRPO,
        parts=("The step took", "By phase"),
        rows=9,
        measured=True,
    ),
    *(
        Block(
            page="docs/guide/first_hour.md",
            command=RUN.format(number),
            parts=FIRST_SCREEN if number in (0, 3) else FIRST_SCREEN[1:],
            measured=True,
            round=number,
        )
        for number in range(4)
    ),
    Block(
        page="docs/reference/memory.md",
        command="rooflight analyze gpt2 --small --step train --device H100-SXM5-80GB --top 3",
        parts=("Memory at the peak", "Alive at the peak"),
    ),
)


def rounds(page: str) -> list[str]:
    """The script ``FIRST_HOUR``, and the same after each of the diffs in a page. Lines ``…`` part what lies apart.

    Raises ValueError where the lines that a diff replaces do not stand in the script once.
    """
    texts = [FIRST_HOUR.read_text()]
    for diff in re.findall(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        text = texts[-1]
        for hunk in re.split(r"^…\n", diff, flags=re.MULTILINE):
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
            if text.count(old) != 1:
                raise ValueError(f"not once in the script of round {len(texts)}:\n{old}")
            text = text.replace(old, new)
        texts.append(text)
    return texts


def printed(block: Block) -> str:
    """What a command prints. Its devices have the roofs of their datasheets: the folder of calibrations is empty, but
    for a script, which is run on a machine that was calibrated.
    """
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder) / "bin"
        programs.mkdir()
        for name, words in {"rooflight": "-m rooflight", "python": ""}.items():
            script = programs / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            script.chmod(0o755)
        variables = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "COLUMNS": "110",
            "PYTHONIOENCODING": "utf-8",
        }
        if block.round is None:
            place, shown_there = ROOT, "stderr" if block.command.startswith("rooflight run") else "stdout"
            variables["ROOFLIGHT_CACHE"] = folder
        else:
            place, shown_there = Path(folder), "stderr"
            (place / "train.py").write_text(rounds((ROOT / block.page).read_text())[block.round])
            variables |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled", "COLUMNS": "100"}
        streams = {shown_there: subprocess.PIPE}
        done = subprocess.run(block.command, shell=True, cwd=place, env=variables, text=True, check=True, **streams)
    return str(getattr(done, shown_there))


def parts_of(text: str) -> list[str]:
    """The paragraphs of a report; each note, which begins with an exclamation mark, is one of its own."""
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    paragraphs = [paragraph.strip("\n") for paragraph in re.split(r"\n\s*\n", lines)]
    return [part for paragraph in paragraphs for part in re.split(r"\n(?=  ! )", paragraph) if part]


def shown(block: Block, text: str) -> str:
    """The parts of a report that a block shows, with an ellipsis in the place of the others."""
    pieces: list[str] = []
    for part in parts_of(text):
        if not block.parts or part.strip().startswith(block.parts):
            lines = part.splitlines()
            more = ["  …"] if len(lines) > block.rows else []  # a part that follows adds no second ellipsis
            note = part.startswith("  ! ") and pieces and pieces[-1].startswith("  ! ")
            separate = "" if note or not pieces or pieces[-1].endswith("  …") else "\n"
            pieces.append(separate + "\n".join([*lines[: block.rows], *more]))
        elif not (pieces and pieces[-1].endswith("  …")):
            pieces.append("  …")
    return "\n".join(pieces) + "\n"


def replaced(page: str, block: Block, text: str) -> str:
    """A page with the block of a command replaced. Raises ValueError where the page has no such block."""
    pattern = re.compile(rf"(^```\w*\n\$ {re.escape(block.command)}[^\n]*\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"no block of: $ {block.command}")
    return pattern.sub(lambda found: found[1] + shown(block, text), page)


def main(pages: list[str], *, measured: bool) -> None:
    """Replace the blocks of the pages, or of all, after each command has run once."""
    blocks = [block for block in BLOCKS if block.measured is measured and (not pages or block.page in pages)]
    texts = {command: printed(block) for command, block in {block.command: block for block in blocks}.items()}
    for block in blocks:
        path = ROOT / block.page
        path.write_text(replaced(path.read_text(), block, texts[block.command]))
    if not measured and (not pages or "README.md" in pages):
        printed(Block(page="README.md", command="python docs/pictures/draw.py gpt2 docs/pictures/gpt2.svg"))


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if word != "--measured"], measured="--measured" in sys.argv[1:])
