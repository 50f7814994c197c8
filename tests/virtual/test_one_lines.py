"""Everyday lines give on a virtual GPU what they give on the CPU: shapes, strides, types, devices, values, errors."""

import subprocess
import sys
from pathlib import Path

LINES = Path(__file__).with_name("one_lines.py")
DIFFER = {
    "torch.eye(4, device=D).to_sparse()": "sparse",
    "(torch.eye(4).to_sparse().to(D) @ torch.ones(4, 2, device=D))": "sparse",
    "torch.sparse.mm(torch.eye(4, device=D).to_sparse(), torch.ones(4, 2, device=D))": "sparse",
    "torch.sparse_coo_tensor([[0, 1], [1, 0]], [1., 2.], (2, 2), device=D).to_dense()": "sparse",
    "torch.eye(4, device=D).to_sparse_csr()": "sparse",
    "torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1., 2.], device=D)": "sparse",
    "F.scaled_dot_product_attention(*[torch.zeros(2, 4, 8, 16, device=D)] * 3, is_causal=True)": "as on CUDA",
    "isinstance(torch.zeros(2, device=D), torch.Tensor), type(torch.zeros(2, device=D)) is torch.Tensor, "
    "type(torch.zeros(2, device=D)).__name__": "the type is a subclass",
}
"""Lines that do not conform, and why: one that does is to be taken out."""


def printed(text):
    rows = [line.split("\t") for line in text.splitlines()]
    return {row[1]: row[2].replace("FakeTensor", "Tensor") for row in rows if len(row) == 3 and row[0].isdigit()}


def outcome(text):
    """What is compared: of an error its class."""
    return text.partition(":")[0] if text.startswith("!") else text


def test_everyday_lines_conform(tmp_path):
    here = subprocess.run([sys.executable, LINES], check=True, capture_output=True, text=True).stdout
    words = ["-m", "rooflight", "run", "--on", "H100-SXM5-80GB", "--save", tmp_path / "one.session", LINES]
    there = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout
    wanted, found = printed(here), printed(there)
    assert len(wanted) == len(found) > 230
    assert {line for line in wanted if outcome(found[line]) != outcome(wanted[line])} == DIFFER.keys()
