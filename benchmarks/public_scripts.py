"""Public scripts, plain and under ``rooflight run`` in turns: how much longer until the last line, and is all the same?

    python benchmarks/public_scripts.py CLONES [--only NAME ...] [--turns 5]

CLONES holds repositories of ``shared/data/scripts/SOURCE.md`` as ``owner+name`` or ``owner+name/repo``; what is not
there is left out, and said. Scripts run in a folder made anew for each turn, from a copy with one more line, which
writes down the time. Prints medians of seconds from the start of the process to that line, and of its CPU time. The
report, which follows, is not in them. Standard output and exit codes are compared where two plain runs agree.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

LAST_LINE = """
import json as _json, os as _os, time as _time
with open(_os.environ["LAST_LINE"], "w") as _file: _json.dump([_time.time(), _time.process_time()], _file)
"""
LARGEST = 0.03  # share that a script may take longer


@dataclass(frozen=True, kw_only=True)
class Script:
    """``first`` are shell commands that make its data, in the folder of the repository."""

    name: str
    repository: str
    file: str
    arguments: str = ""
    first: str = ""


TEXT = "data/wikitext-2/valid.txt"
TINY = f"mkdir data/tiny && for part in train valid test; do head -380 {TEXT} > data/tiny/$part.txt; done"
CHARACTERS = """python -c "
import pickle
import numpy as np
text = open('model.py').read() * 40
known = {letter: number for number, letter in enumerate(sorted(set(text)))}
for part, file in ((text[:-40000], 'train'), (text[-40000:], 'val')):
    np.array([known[letter] for letter in part], dtype=np.uint16).tofile(f'data/shakespeare_char/{file}.bin')
pickle.dump({'vocab_size': len(known)}, open('data/shakespeare_char/meta.pkl', 'wb'))
" """
SCRIPTS = (
    Script(name="nanoGPT", repository="karpathy+nanoGPT", file="train.py", first=CHARACTERS, arguments=
           "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=4 --log_interval=1 "
           "--block_size=64 --batch_size=8 --n_layer=3 --n_head=4 --n_embd=64 --max_iters=24 --lr_decay_iters=24 "
           "--dropout=0.0 --eval_interval=8 --gradient_accumulation_steps=3 --always_save_checkpoint=True"),
    Script(name="makemore", repository="karpathy+makemore", file="makemore.py",
           arguments="-i names.txt --max-steps 211 -n 2 --n-layer 1 --n-embd 32 -b 16 --type transformer"),
    Script(name="bigram", repository="karpathy+ng-video-lecture", file="bigram.py"),
    Script(name="language_model", repository="pytorch+examples", file="word_language_model/main.py", first=TINY,
           arguments="--data ./data/tiny --emsize 32 --nhid 32 --epochs 2 --log-interval 5"),
    Script(name="generate", repository="pytorch+examples", file="word_language_model/generate.py",
           first=f"{TINY}; python main.py --data ./data/tiny --emsize 32 --nhid 32 --epochs 1",
           arguments="--data ./data/tiny --words 300 --log-interval 100"),
    Script(name="hello_rnn", repository="hunkim+PyTorchZeroToAll", file="12_2_hello_rnn.py"),
    Script(name="two_layer_net", repository="jcjohnson+pytorch-examples", file="autograd/two_layer_net_autograd.py"),
    Script(name="dynamic_net", repository="jcjohnson+pytorch-examples", file="nn/dynamic_net.py"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One run: seconds until the last line by the wall and of the process's CPU, standard output, exit code."""

    wall_s: float
    cpu_s: float
    output: bytes
    code: int


def environment(folder: str) -> dict[str, str]:
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    as_installed = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return as_installed | {"LAST_LINE": f"{folder}/last", "OMP_NUM_THREADS": "1", "PYTHONPATH": path,
                         "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # fmt: skip


def turn(script: Script, clone: Path, *, watched: bool) -> Turn:
    with tempfile.TemporaryDirectory(prefix="public-script-") as folder:
        files = ". ':(exclude)*/train.txt'"  # a large one, which a snapshot may lack
        unpack = f"git -C {clone} archive HEAD -- {files} 2>/dev/null | tar x -C {folder}"
        subprocess.run(unpack, shell=True, check=True)
        place = (Path(folder) / script.file).parent
        ours = environment(folder)
        if script.first:
            subprocess.run(script.first, shell=True, check=True, cwd=place, env=ours, capture_output=True)
        file = Path(folder) / script.file
        file.write_text(file.read_text() + LAST_LINE)
        tool = ["-m", "rooflight", "run"] if watched else []
        start = time.time()
        ended = subprocess.run(
            [sys.executable, *tool, file.name, *script.arguments.split()],
            cwd=place,
            env=ours,
            capture_output=True,
            check=False,
        )
        if not Path(ours["LAST_LINE"]).exists():
            raise SystemExit(f"{script.name} came not to its last line:\n{ended.stderr.decode()}")
        last, cpu_s = json.loads(Path(ours["LAST_LINE"]).read_text())
    return Turn(wall_s=last - start, cpu_s=cpu_s, output=ended.stdout, code=ended.returncode)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("clones", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    missed, shares = [], []
    compileall.compile_dir(Path(find_spec("rooflight").origin).parent, quiet=2)  # as pip does when it installs
    print(f"{'script':16}{'plain s':>10}{'run s':>10}{'more':>9}{'of CPU':>9}  output")
    for script in SCRIPTS:
        if given.only and script.name not in given.only:
            continue
        clone = next((path for path in (given.clones / script.repository / "repo", given.clones / script.repository)
                      if path.is_dir()), None)  # fmt: skip
        if clone is None:
            print(f"{script.name:16}  no clone of {script.repository}")
            continue
        plain, watched = [], []
        for _ in range(given.turns):
            plain.append(turn(script, clone, watched=False))
            watched.append(turn(script, clone, watched=True))
        before, after = (statistics.median(each.wall_s for each in side) for side in (plain, watched))
        cpu_before, cpu_after = (statistics.median(each.cpu_s for each in side) for side in (plain, watched))
        steady = len({each.output for each in plain}) == 1
        same = {(each.output, each.code) for each in watched} == {(each.output, each.code) for each in plain}
        said = "the same" if same else "CHANGED" if steady else "differs between plain runs"
        share = after / before - 1
        shares.append(share)
        missed += [script.name] if share > LARGEST or said == "CHANGED" else []
        print(f"{script.name:16}{before:10.2f}{after:10.2f}{share:+9.1%}{cpu_after / cpu_before - 1:+9.1%}  {said}",
              flush=True)  # fmt: skip
    print(f"median {statistics.median(shares):+.1%}; over {LARGEST:.0%} or changed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
