"""Write down what the step finder hears of the scripts of ``tests/scripts``: ``tests/scripts/heard.jsonl.gz``.

python benchmarks/hear_scripts.py
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from heard import HEARD
from run_scripts import prepare, rows

LEFT = ("orbit", "own_interrupt", "pooled")
"""What is heard first is no training, a signal ends it at any step, its children train."""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, gzip.open(HEARD, "wt", 9) as file:
        for row in rows():
            if row.launcher != "python" or row.signal or row.name in LEFT:
                continue
            work, into = Path(folder, "work"), Path(folder, "heard.json")
            into.unlink(missing_ok=True)
            script = prepare(row, work)
            words = [sys.executable, str(HEARD.parents[1] / "heard.py"), str(into), script, *row.args]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(
                words,
                cwd=work,
                env=environment,
                input=row.stdin.encode(),
                capture_output=True,
                check=False,
                timeout=240,
            )
            if into.exists():
                _, *rest = json.loads(into.read_text())
                file.write(json.dumps([row.name, *rest], separators=(",", ":")) + "\n")
                print(f"{row.name:<24}{len(rest[1]):>7} events", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
