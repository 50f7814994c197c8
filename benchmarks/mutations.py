"""How many of N random faults in ``src`` the tests notice: python benchmarks/mutations.py [--count 200] [--seed 0]

A fault changes one comparison, operation, constant, truth value or condition of a random line. The tests that import
the changed module are run, those of its room where none does, for at most 45 s of processor time; a fault is caught
where one fails. Run it in a clean checkout: the changed file is put back after each fault. Each fault is printed, and
the share at the end.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "rooflight"
CPU_LIMIT_S, LIMIT_S = 45, 300
COMPARED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in"}
OPERATED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.BitOr: "&", ast.BitAnd: "|"}


def faults(text: str) -> Iterator[tuple[int, str, str]]:
    """Of a file: the line of each possible fault, an expression there, and what takes its place."""
    tree = ast.parse(text)
    hints = [
        node.annotation for node in ast.walk(tree) if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation
    ]
    hints += [node.returns for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns]
    skipped = {id(inner) for hint in hints for inner in ast.walk(hint)}
    lines = [line.encode() for line in text.splitlines()]
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if getattr(node, "lineno", None) is None or node.lineno != node.end_lineno:
            continue
        old = lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
            sides = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield node.lineno, old, f"({sides[0]} {COMPARED[type(node.ops[0])]} {sides[1]})"
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATED:
            yield node.lineno, old, f"({ast.unparse(node.left)} {OPERATED[type(node.op)]} {ast.unparse(node.right)})"
        elif isinstance(node, ast.BoolOp):
            other = " or " if isinstance(node.op, ast.And) else " and "
            yield node.lineno, old, f"({other.join(ast.unparse(value) for value in node.values)})"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node.lineno, old, f"({ast.unparse(node.operand)})"
        elif isinstance(node, ast.IfExp):
            yield node.lineno, old, f"({ast.unparse(node.orelse)})"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node.lineno, old, str(not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node.lineno, old, repr(node.value + 1)


def chosen(count: int, seed: int) -> list[tuple[Path, int, str, str]]:
    """Faults of random lines that can have one, each line as likely as any other."""
    lines: dict[tuple[Path, int], list[tuple[str, str]]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        for line, old, new in faults(path.read_text()):
            lines.setdefault((path, line), []).append((old, new))
    draw = random.Random(seed)
    places = draw.sample(list(lines), min(count, len(lines)))
    return [(path, line, *draw.choice(lines[path, line])) for path, line in places]


def tests_of(path: Path) -> list[str]:
    """The test files that import a module, or the folder of its room's tests."""
    inner = path.relative_to(SOURCES).with_suffix("")
    dotted = ".".join(("rooflight", *inner.parts)).removesuffix(".__init__")
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [str(test) for test in tests if f"{dotted} import" in test.read_text()]
    room = ROOT / "tests" / inner.parts[0]
    return found or [str(room if room.is_dir() else ROOT / "tests" / "cli")]


def caught(path: Path, line: int, old: str, new: str) -> bool | None:
    """Whether a test fails with the fault; None where the tests take too long."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", *tests_of(path)]
    try:
        path.write_text("".join(lines))
        done = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, timeout=LIMIT_S, check=False, preexec_fn=limit_cpu
        )
    except subprocess.TimeoutExpired:
        return None
    finally:
        path.write_text(text)
    return None if done.returncode < 0 else done.returncode != 0


def limit_cpu() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))


def main() -> None:
    """Try the faults one by one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results = []
    for path, line, old, new in chosen(options.count, options.seed):
        results.append(caught(path, line, old, new))
        word = {True: "caught", False: "missed", None: "no end"}[results[-1]]
        print(f"{word}  {path.relative_to(SOURCES)}:{line}  {old[:60]}  ->  {new[:60]}", flush=True)
    print(f"{results.count(True)} of {len(results)} caught, {results.count(None)} took too long")


if __name__ == "__main__":
    main()
