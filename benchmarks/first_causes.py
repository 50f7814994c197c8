"""Whether cause, place and remedy of a planted mistake are among the first two rows that a user reads.

    python benchmarks/first_causes.py [FOLDER ...] [--only NAME ...] [--healthy] [--json FILE]

The programs of ``tests/diagnosis/authored`` were written by two authors who had not read the rules; what is right is in
each one's ``TRUTH``. A function is diagnosed (``make_step``), a script runs under ``rooflight run``. A row is right in
its cause if a pattern of ``says`` is in its words, in its place if its first line, or the caller's that stands beside
it, is one of ``lines``, in its remedy if a pattern of ``remedy`` is in what helps. Of healthy programs no finding may
cost over 5 % of an iteration.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAMS = Path(__file__).parents[1] / "tests" / "diagnosis" / "authored"
ROWS = 2
LITTLE = 0.25  # as on the first screen
HARMLESS = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[PROGRAMS])
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="beginnings of names of programs")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    options = parser.parse_args()
    paths = [path for folder in options.folders for path in sorted(folder.glob("*.py"))]
    found = []
    for path in (path for path in paths if path.name.startswith(tuple(options.only))):
        found.append(judged(path))
        print(line(found[-1]), flush=True)
    for kind, wants in (("function", False), ("script", False), ("healthy", True)):
        mine = [row for row in found if row["healthy"] is wants and (wants or row["kind"] == kind)]
        for what in ("peace",) if wants else ("cause", "place", "both", "remedy"):
            if mine:
                print(f"{kind}: {what} right in {sum(row[what] for row in mine)} of {len(mine)}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


def truth(path: Path):
    nodes = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign))
    return next(ast.literal_eval(node.value) for node in nodes if getattr(node.targets[0], "id", "") == "TRUTH")


def judged(path: Path):
    """What the first rows say of a program, and what of that is right."""
    right, text = truth(path), path.read_text()
    kind = "function" if "def make_step" in text else "script"
    document = document_of(path, kind)
    rows = first_rows(document)
    row = {"program": path.stem, "kind": kind, "healthy": bool(right.get("healthy")), "rows": rows}
    if row["healthy"]:
        return row | {"peace": document is not None and all(f["share"] <= HARMLESS for f in document["findings"])}
    numbered = list(enumerate(text.splitlines(), 1))
    lines = {number for number, content in numbered for part in right["lines"] if part in content}
    for each in rows:
        each["cause"] = matches(right["says"], " ".join((each["why"], each["function"], each["calls"])))
        shown = {f"{each['file']}:{each['line']}", each["caller"]}
        each["place"] = any(f"{path.parent.name}/{path.name}:{line}" in shown for line in lines)
        each["remedy"] = matches(right["remedy"], each["helps"])
    return (
        row
        | {what: any(each[what] for each in rows) for what in ("cause", "place", "remedy")}
        | {"both": any(each["cause"] and each["place"] for each in rows)}
    )


def document_of(path: Path, kind: str):
    """The JSON of a program's diagnosis, or of its run; None where there is none."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        target = ["diagnose", f"{path}:make_step", "--json", str(out)]
        words = target if kind == "function" else ["run", "--json", str(out), str(path)]
        command = [sys.executable, "-m", "rooflight", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=600, check=False)
        if out.exists():
            return json.loads(out.read_text())
        print(path.stem, done.stderr[-500:].decode(errors="replace"), file=sys.stderr)
        return None


def first_rows(document):
    """The first rows in the order of the first screen: a hot spot before findings that gain little beside it."""
    spots = list(document.get("hot_spots", ())) if document else []
    found = []
    for finding in document["findings"] if document else ():
        while spots and finding["predicted_gain_s"] < LITTLE * spots[0]["seconds"]:
            found.append(of_spot(spots.pop(0)))
        why = f"{finding['title']}: {finding['evidence']}"
        found.append(place_of(finding) | {"id": finding["id"], "why": why, "helps": finding["remedy"],
                                          "share": finding["share"]})  # fmt: skip
    return [*found, *map(of_spot, spots)][:ROWS]


def of_spot(spot):
    return place_of(spot) | {"id": "hot spot", "why": spot["what"], "helps": spot["helps"], "share": spot["share"]}


def place_of(row):
    """The first line that a row is at, as the screen shows it."""
    names = ("file", "line", "function", "calls", "caller")
    place = next((place for place in row["where"] if place["line"]), {"line": 0})
    return {name: place.get(name, "") for name in names}


def matches(patterns, text: str) -> bool:
    return any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


def line(row) -> str:
    if row["healthy"]:
        ids = [each["id"] for each in row["rows"]]
        return f"{row['program']:18} {'in peace' if row['peace'] else f'NOT IN PEACE: {ids}'}"
    marks = " ".join(f"{what} {'yes' if row[what] else 'NO '}" for what in ("cause", "place", "both", "remedy"))
    says = "; ".join(f"{each['id']}@{each['line']}" for each in row["rows"])
    return f"{row['program']:18} {marks}  {says}"


if __name__ == "__main__":
    sys.exit(main())
