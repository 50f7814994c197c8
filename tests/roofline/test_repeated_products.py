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


def bounds(program, device="T4"):
    """Program and fused bound of a recorded program."""
    with rl.record(memory=True) as recording:
        program()
    found = rl.analyze(recording.session, rl.devices.get(device)).program
    return found.program_bound_s, found.fused_bound_s


M, N, V = (torch.randn(256, 4096), torch.randn(4096, 4096), torch.randn(4, 4096))


def test_program_and_fused_bound_count_it_once():
    once = bounds(lambda: M @ N)
    assert bounds(lambda: (M @ N, M @ N)) == pytest.approx(once)
    assert bounds(lambda: ((M @ N).relu_(), (M @ N).sigmoid_())) == pytest.approx(once, rel=0.05)


def test_its_operands_are_read_once_where_memory_limits():
    once, twice = bounds(lambda: torch.relu(V @ N)), bounds(lambda: (V @ N).relu() + (V @ N).sigmoid())
    assert twice == pytest.approx(once, rel=0.01)
    assert bounds(lambda: (V @ N).relu() + (V @ M.t()).sum())[1] > once[1]


def test_products_of_products_are_found_again():
    assert repeated(lambda: ((X @ W) @ Y, (X @ W) @ Y)) == 2
    assert repeated(lambda: ((X @ W) @ Y, (X @ W).add_(1) @ Y)) == 1
    assert repeated(lambda: ((X @ W) @ Y, torch.addmm(Z, X, W) @ Y)) == 0


def test_chains_between_products_are_followed():
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    assert repeated(lambda: (net(X), net(X))) == 2
    assert repeated(lambda: (torch.relu(X @ W) @ Y, torch.sigmoid(X @ W) @ Y)) == 1
    assert repeated(lambda: ((X @ W * 2) @ Y, (X @ W * 3) @ Y)) == 1  # numbers are not known
    assert repeated(lambda: (F.dropout(X @ W) @ Y, F.dropout(X @ W) @ Y)) == 1
    once = bounds(lambda: torch.relu(V @ N) @ N.t())
    assert bounds(lambda: (torch.relu(V @ N) @ N.t()).relu() + (torch.relu(V @ N) @ N.t()).sigmoid()) == pytest.approx(
        once, rel=0.02
    )


def test_what_is_added_later_to_the_first_is_not_in_the_second():
    def program(width):
        y, again = V @ N, V @ N
        y.add_(1)
        return y @ N[:, :width], again @ N[:, width : 2 * width]

    # three products, and the weights of all
    assert bounds(lambda: program(1024))[1] == pytest.approx((4096 + 2048) / 4096 * bounds(lambda: V @ N)[1], rel=0.01)


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
