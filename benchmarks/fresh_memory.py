"""Does the promise of ``fresh-memory`` hold: steps on a CPU with and without glibc giving back what is freed.

    python benchmarks/fresh_memory.py [--turns 3]

Each program runs under ``rooflight run`` as it is and with MALLOC_TOP_PAD_=4294967296, in turn. Shown are the medians
of the mean iteration, what the finding promised of it, and what was gained. Ends with 1 if a gain is outside of the
promised interval.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REMEDY = {"MALLOC_TOP_PAD_": "4294967296"}
HEAD = "import torch\nfrom torch import nn\ntorch.set_num_threads(1)\ntorch.manual_seed(0)\n"
LOOP = """
some = torch.optim.AdamW(net.parameters())
for _ in range(12):
    loss().backward()
    some.step()
    some.zero_grad()
"""
PROGRAMS = {
    "convolutions": """
net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1),
                    nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
loss = lambda: net(torch.randn(16, 3, 96, 96)).logsumexp(1).mean()
""",
    "gpt2, 2 layers": """
from transformers import GPT2Config, GPT2LMHeadModel
net = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=256, n_head=4, vocab_size=20000, bos_token_id=0, eos_token_id=0))
def loss():
    words = torch.randint(0, 20000, (4, 128))
    return net(words, labels=words).loss
""",
    "mixer": """
net = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512), nn.Linear(512, 1))
loss = lambda: net(torch.randn(4096, 512)).square().mean()
""",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    wrong = 0
    for name, text in PROGRAMS.items():
        plain, kept, promises = [], [], []
        for _ in range(turns):
            found = run(HEAD + text + LOOP, {})
            plain.append(found["account"]["wall_s"])
            promises += [each for each in found["findings"] if each["id"] == "fresh-memory"]
            kept.append(run(HEAD + text + LOOP, REMEDY)["account"]["wall_s"])
        gained = statistics.median(plain) - statistics.median(kept)
        promised, low, high = (
            statistics.median(each[field] for each in promises) if promises else 0.0
            for field in ("predicted_gain_s", "predicted_gain_low_s", "predicted_gain_high_s")
        )
        right = low <= gained <= high or not promises
        wrong += not right
        said = f"of {promised * 1e3:.1f} ({low * 1e3:.1f} to {high * 1e3:.1f})" if promises else "nothing was promised"
        print(f"{name}: {statistics.median(plain) * 1e3:.1f} to {statistics.median(kept) * 1e3:.1f} ms: gained "
              f"{gained * 1e3:.1f}, {said}"
              f"{'' if right else ', which is WRONG'}", flush=True)  # fmt: skip
    return int(wrong > 0)


def run(text: str, more: dict[str, str]) -> dict:
    """The JSON of a script's run."""
    with tempfile.TemporaryDirectory() as folder:
        script, out = Path(folder) / "train.py", Path(folder) / "run.json"
        script.write_text(text)
        command = [sys.executable, "-m", "rooflight", "run", "--json", str(out), str(script)]
        subprocess.run(command, env={**os.environ, **more}, capture_output=True, check=True, cwd=folder)
        return json.loads(out.read_text())


if __name__ == "__main__":
    sys.exit(main())
