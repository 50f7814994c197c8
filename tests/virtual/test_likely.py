"""What is likely of values that do not exist: shares of masks, sizes that follow, truths; by hand arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import copy, gc, json, torch, torch.nn.functional as F
d = "cuda"
logits = torch.randn(64, 8, device=d)
found = {}
weights, places = logits.softmax(-1).topk(2, dim=-1)
found["one of eight, twice"] = torch.where(places == 3)[0].numel()
found["rows with one"] = (places == 3).any(-1).nonzero().numel()
hot = F.one_hot(places, num_classes=8)
found["one hot"] = torch.where(hot.permute(2, 1, 0)[5])[0].numel()
found["not"] = logits[(places != 3).all(-1)].shape[0]
first = logits.argmax(-1)
found["below"] = (first < 2).nonzero().numel()
found["flat"] = torch.where(places.flatten().sort()[0] == 0)[0].numel()
found["drawn"] = torch.zeros(1000, device=d)[torch.rand(1000, device=d) < 0.15].numel()
found["either"] = logits[(first == 1) | (first == 2)].shape[0]
found["both"] = torch.masked_select(logits, (first == 1)[:, None] & (torch.rand(64, 8, device=d) < 0.5)).numel()
chosen = torch.zeros_like(logits).scatter_(1, places, 1.0)
found["scattered"] = chosen[:, 0].nonzero().numel()
counts = torch.bincount(first, minlength=8)
found["counts"] = counts.tolist()
found["counts of two"] = torch.bincount(places.flatten().cpu(), minlength=8).view(2, 4).sum(1).tolist()
found["split"] = [part.shape[0] for part in logits.split(counts.tolist())]
found["number"] = int((first == 3).sum())
found["any routed"] = bool((first == 3).any())
found["none routed"] = bool((torch.randn(2, 8, device=d).argmax(-1) == 3).any())
found["any wrong"] = bool((logits > 3).any()) or bool(logits.isnan().any())
found["unknown mask"] = logits[logits[:, 0] > 0].shape[0]
valid = torch.arange(64, device=d) % 4 < 3
found["routed and valid"] = logits[(first == 1) & valid].shape[0]
found["unknown and valid"] = logits[(logits[:, 0] > 0) & valid].shape[0]
host, confused = torch.zeros(64), torch.zeros(8, 8, dtype=torch.long)
host[(first == 1).cpu()] = logits[:, 0][first == 1].cpu()
confused.index_put_((first.cpu(), places[:, 0].cpu()), torch.tensor(1), accumulate=True)
found["written on the host"] = [float(host.sum()), int(confused.sum())]
whole = torch.zeros(4, device=d)
copied, part = copy.deepcopy([whole, whole[2:]])
copied[3] = 5
found["copied together"] = [part.tolist(), whole.tolist(), copied.requires_grad]
halves = torch.nn.parallel.data_parallel(torch.nn.Linear(8, 3).cuda(), logits, device_ids=[0, 1])
found["of two devices"] = list(halves.shape)
found["all"] = bool(torch.isfinite(logits).all())
first.zero_()
found["zeroed"] = (first == 1).nonzero().numel()
tokens = torch.randint(0, 50, (200,), device=d)
found["tokens"] = (tokens == 7).nonzero().numel()
tokens.add_(torch.randint(0, 50, (200,), device=d))
found["changed"] = tokens[tokens == 7].numel()

import torch.distributed as dist
dist.init_process_group("nccl", rank=0, world_size=4)
arriving = torch.empty_like(counts)
dist.all_to_all_single(arriving, counts)
found["arriving"] = arriving.view(4, 2).sum(1).tolist()
gathered = torch.empty(4 * 64, dtype=torch.long, device=d)
dist.all_gather_into_tensor(gathered, logits.argmax(-1))
found["gathered"] = (gathered == 3).nonzero().numel()

gc.collect()
held = torch.cuda.memory_allocated()
with torch.no_grad():
    large = torch.empty(1000, 1000, device=d)
    part = large[1:]
    found["a view takes nothing"] = torch.cuda.memory_allocated() - held
    del large, part
    found["given back"] = torch.cuda.memory_allocated() - held
    torch.cuda.reset_peak_memory_stats()
    scores = F.scaled_dot_product_attention(*(torch.empty(1, 2, 512, 64, device=d) for _ in range(3)))
    scores.mul_(2)
    found["most"] = torch.cuda.max_memory_allocated() - held
    scores.untyped_storage().resize_(0)
    found["shrunk"] = torch.cuda.memory_allocated() - held
    free, total = torch.cuda.mem_get_info()
    found["free"] = total - free == torch.cuda.memory_reserved() >= torch.cuda.max_memory_allocated()
with torch.autocast("cuda", torch.bfloat16):
    x = torch.randn(4, 6, 8, device=d)
    found["recurrent"] = [str(each.dtype) for each in torch.nn.GRU(8, 16, bidirectional=True).cuda()(x.bfloat16())]
    cell = torch.nn.LSTMCell(8, 16).cuda()
    state = cell(x[0], cell(x[0]))
    state[0].sum().backward()
    found["cell"] = [list(state[1].shape), list(cell.weight_hh.grad.shape)]
    cell = torch.nn.GRUCell(8, 16).cuda()
    state = cell(x[0], cell(x[0]))
    state.sum().backward()
    found["gated cell"] = [list(state.shape), list(cell.weight_hh.grad.shape)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("likely")
    (folder / "program.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "rooflight", "run", "--on", "H100-SXM5-80GB", "program.py"]
    run = subprocess.run(words, check=False, cwd=folder, capture_output=True, text=True, timeout=400)
    assert run.stdout, run.stderr
    return json.loads(run.stdout)


EXPECTED = {
    "one of eight, twice": 16,  # 64 rows of two places, each one of eight
    "rows with one": 16,  # the two places of a row differ
    "one hot": 16,
    "not": 49,  # 64 * (7 / 8)^2
    "below": 16,  # 64 * 2 / 8
    "flat": 16,
    "drawn": 150,
    "either": 16,
    "both": 32,  # 512 / 8 / 2
    "scattered": 16,  # 64 * 2 / 8
    "counts": [8] * 8,
    "counts of two": [64, 64],
    "split": [8] * 8,
    "number": 8,
    "any routed": True,  # 64 / 8 are expected
    "none routed": False,  # 2 / 8
    "any wrong": False,
    "unknown mask": 64,  # the most that can be
    "routed and valid": 6,  # 64 / 8 * 3 / 4
    "unknown and valid": 48,
    "written on the host": [8, 64],
    "copied together": [[0, 5], [0, 0, 0, 0], False],
    "of two devices": [64, 3],
    "all": True,
    "zeroed": 0,  # known
    "tokens": 4,
    "changed": 200,
    "arriving": [16] * 4,  # 64 in all, as each rank sends
    "gathered": 32,  # 256 / 8
    "a view takes nothing": 4_000_256,  # 10^6 numbers of 4 bytes, in blocks of 512
    "given back": 0,
    "most": 4 * 2 * 512 * 64 * 4,  # three operands and the result
    "shrunk": 0,
    "free": True,
    "recurrent": ["torch.bfloat16"] * 2,  # cuDNN casts weights too
    "cell": [[6, 16], [64, 16]],
    "gated cell": [[6, 16], [48, 16]],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_likely(found, name):
    assert found[name] == EXPECTED[name]
