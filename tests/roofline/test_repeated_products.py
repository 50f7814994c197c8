"""Products of the same values are counted once in the bound of a program."""

import pytest
import torch

import rooflight as rl

F = torch.nn.functional
X, W, Y, Z = (torch.randn(64, 64) for _ in range(4))
B = torch.randn(64, 2, 64)


def repeated(program):
    """How many products of a program, recorded, repeat one before; all of 64^3 multiply-adds."""
    with rl.record() as recording:
        program()
    found = rl.analyze(recording.session, "A100-SXM4-80GB")
    return len(found.fusion.repeated)


def test_a_product_of_the_same_values_again_is_one():
    assert repeated(lambda: (X @ W, X @ W)) == 1
    assert repeated(lambda: [F.linear(X, W) for _ in range(3)]) == 2
    assert repeated(lambda: (X @ W, X.t().t() @ W)) == 1


@pytest.mark.parametrize(
    "program",
    [
        lambda: (X @ W, W @ X),
        lambda: (X @ W, X @ W.t()),
        lambda: (X @ W, X.clone() @ W),
        lambda: (B[:, 0] @ W, B[:, 1] @ W),  # other places of one memory
        lambda: ((x := X.clone()) @ W, x.add_(1), x @ W),  # written between
        lambda: ((c := X + 1j * W) @ c, c.conj() @ c),
        lambda: (F.dropout(X, 0.5), F.dropout(X, 0.5)),
    ],
)
def test_a_product_of_other_values_is_another(program):
    assert repeated(program) == 0


def test_what_is_added_may_differ():
    assert repeated(lambda: (torch.addmm(Y, X, W), torch.addmm(Z, X, W, alpha=2.5))) == 1


def test_the_program_bound_counts_it_once_and_the_fused_bound_each_time():
    x = torch.randn(256, 8192)
    w = torch.randn(8192, 8192)
    with rl.record() as once:
        x @ w
    with rl.record() as twice:
        x @ w, x @ w
    device = rl.devices.get("T4")
    one, two = (rl.analyze(each.session, device).program for each in (once, twice))
    assert two.program_bound_s == pytest.approx(one.program_bound_s)
    assert two.fused_bound_s == pytest.approx(2 * one.fused_bound_s)


def test_scores_of_an_attention_are_computed_once():
    """Of 2 + 5 products of one size, forward and backward, one is that of the forward pass again."""
    q, k, v = (torch.randn(1, 1, 512, 64, requires_grad=True) for _ in range(3))
    with rl.record() as recording:
        F.scaled_dot_product_attention(q, k, v).sum().backward()
    device = rl.devices.get("T4")
    found = rl.analyze(recording.session, device)
    peak = device.matrix_peak("float32")
    assert found.program.program_bound_s == pytest.approx(6 * 2 * 512 * 512 * 64 / peak)
    assert found.totals.matrix_flops == 7 * 2 * 512 * 512 * 64
