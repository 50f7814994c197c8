"""How right are FLOP counts, Rooflight's and its peers'? Each tool's count over the truth by hand arithmetic.

    make peers
    python benchmarks/accuracy_flops.py --peers-python .venv-peers/bin/python

Cases and truths are in ``peers/cases.py``; every tool runs in its own process, every case in a child of that. Without
``--peers-python`` only Rooflight and torch's own counter are asked. Matrix FLOPs only: tools that add elementwise work
are a little above 1 on whole networks. "upper": the tool says itself that data could lower its count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from csv_results import write_csv
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "peers"))

from cases import CASES  # noqa: E402

OWN = ("rooflight", "torch")
PEERS = ("fvcore", "calflops", "torchinfo", "ptflops", "thop", "deepspeed")
CLOSE = 0.02  # counting elementwise work too is not a mistake

Answer = dict[str, Any]


def ask(tool: str, python: str) -> dict[str, Any]:
    """What a tool says of all cases."""
    command = [python, "-W", "ignore", str(HERE / "peers" / "count.py"), tool]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tool} does not run under {python}:\n{done.stderr[-2000:]}")
    first, *rest = map(json.loads, done.stdout.splitlines())
    return {**first, "cases": {line["case"]: line for line in rest}}


def ratio(answer: Answer | None, truth: int) -> str:
    """The count over the truth as it is shown: "1", "0.62", "unsupported", or "" where nobody was asked."""
    if answer is None:
        return ""
    if "unsupported" in answer:
        return "unsupported"
    found = answer["flops"] / truth
    if found in (0, 1):
        return f"{found:.0f}"
    shown = f"{found:.4f}".rstrip("0").rstrip(".") if abs(found - 1) < CLOSE else f"{found:.2f}"
    return f"{shown}, upper" if answer.get("upper") else shown


def rows(told: list[dict[str, Any]], kind: str) -> list[list[str]]:
    """A row a case: its name, the true count, each tool's ratio."""
    table = []
    for case in CASES.values():
        truth = case.forward if kind == "forward" else case.training
        if truth is not None:
            answers = [tool["cases"].get(case.name, {}).get(kind) for tool in told]
            table.append([case.name, f"{truth:,}", *(ratio(answer, truth) for answer in answers)])
    return table


def summary(told: list[dict[str, Any]], kind: str) -> list[str]:
    """For each tool how many cases it gets within 2 %."""
    counts = []
    for tool in told:
        right = total = 0
        for case in CASES.values():
            truth = case.forward if kind == "forward" else case.training
            answer = tool["cases"].get(case.name, {}).get(kind)
            if truth is None or answer is None:
                continue
            total += 1
            right += "flops" in answer and abs(answer["flops"] / truth - 1) < CLOSE
        counts.append(f"{right} of {total}")
    return ["within 2 %", "", *counts]


def print_table(title: str, header: list[str], body: list[list[str]]) -> None:
    table = Table(title=title)
    for index, column in enumerate(header):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for row in body:
        table.add_row(*row)
    Console(width=max(190, Console().width)).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", help="interpreter of the environment that benchmarks/peers/install.sh made")
    parser.add_argument("--why", action="store_true", help="say why a tool does not support a case")
    options = parser.parse_args()

    wanted = [(tool, sys.executable) for tool in OWN]
    if options.peers_python:
        wanted += [(tool, options.peers_python) for tool in PEERS]
    with ThreadPoolExecutor(max_workers=2) as pool:
        told = list(pool.map(lambda asked: ask(*asked), wanted))
    versions = ", ".join(f"{tool['tool']} {tool['version']}" for tool in told)

    for kind, title, name in (("forward", "forward", "forward"), ("training", "forward and backward", "backward")):
        shown = [tool for tool in told if any(kind in line for line in tool["cases"].values())]
        header = ["case", "true FLOPs", *(tool["tool"] for tool in shown)]
        body = [*rows(shown, kind), summary(shown, kind)]
        print_table(f"{title}: count / truth", header, body)
        write_csv(f"flops_{name}", header, body)
    print(versions)
    if options.why:
        for tool in told:
            for name, line in tool["cases"].items():
                for kind in ("forward", "training"):
                    if why := line.get(kind, {}).get("unsupported"):
                        print(f"{tool['tool']}, {name}, {kind}: {' '.join(why.split())}")


if __name__ == "__main__":
    main()
