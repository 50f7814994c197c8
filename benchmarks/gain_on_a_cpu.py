"""The gain of torch.compile on this CPU, predicted beside measured: ``measure`` the steps of ``gain_workloads.py`` with
``rooflight compile-bench``, then ``score`` a half of them.

``python benchmarks/gain_on_a_cpu.py measure FOLDER [--rounds 2]`` writes a document per step and round; a step that is
there is left out, so that it can be stopped and run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from gain_workloads import KEPT_BACK, PRESETS, SEEN

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure",))
    parser.add_argument("folder", type=Path, help="where the measured times are")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for number in range(options.rounds):
        for seen, kept in zip(SEEN, KEPT_BACK, strict=True):
            for name in (seen, kept):
                measure(name, options.folder / f"{name.replace(' ', '-')}.{number}.json", options.threads)
    return 0


def measure(name: str, file: Path, threads: int) -> None:
    if file.exists():
        return
    command = [sys.executable, "-m", "rooflight", "compile-bench", *target_of(name), "--iterations", "200"]
    command += ["--warmup", "10", "--threads", str(threads), "--no-bounds", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(name, "measured" if done.returncode == 0 else f"failed: {done.stderr.strip()[-300:]}", flush=True)


def target_of(name: str) -> list[str]:
    """The arguments of compile-bench that name a step."""
    if name in PRESETS:
        preset, mode = PRESETS[name]
        return [preset, "--small", "--step", mode]
    return [name] if "-" in name else [f"{HERE / 'gain_workloads.py'}:{name}"]


if __name__ == "__main__":
    sys.exit(main())
