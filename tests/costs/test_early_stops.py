"""Ops that may be done before they have read everything: a bound is of what they must read."""

import torch
from builders import cost, spec
from recorded_costs import only_cost
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence


def test_equal_may_stop_at_the_first_element():
    x = torch.zeros(1_000)
    different = only_cost(lambda: torch.equal(x, torch.ones(1_000)), "equal")
    assert (different.bytes_read, different.bytes_written, different.vector_flops) == (8, 0, 1)
    assert different.note
    assert only_cost(lambda: torch.equal(x, torch.zeros(1_000)), "equal") == different  # equal or not is data
    assert only_cost(lambda: torch.equal(x, x), "equal").bytes_read == 0
    assert only_cost(lambda: torch.equal(x[:10], x[10:20]), "equal").bytes_read == 8
    assert only_cost(lambda: torch.equal(x, torch.zeros(999)), "equal").bytes_read == 0
    assert only_cost(lambda: torch.equal(x[:0], x[:0]), "equal").bytes_read == 0


def test_any_and_all_may_stop_at_the_first_element_of_each_result():
    x = torch.zeros(1_000, 3)
    for answer in ((x == 1).all, (x == 0).any):
        c = only_cost(answer, answer.__name__)
        assert (c.bytes_read, c.bytes_written, c.vector_flops) == (1, 1, 1)
        assert c.note
    of_rows = only_cost(lambda: (x == 1).all(dim=1), "all")
    assert (of_rows.bytes_read, of_rows.bytes_written, of_rows.vector_flops) == (1_000, 1_000, 1_000)
    assert only_cost(x[:0].any, "any").bytes_read == 0


def test_allclose_may_stop_at_the_first_element():
    c = cost("aten::allclose", {"self": spec((1_000,)), "other": spec((1_000,))})
    assert (c.bytes_read, c.note != "") == (8, True)
    assert cost("aten::allclose", {"self": spec((0,)), "other": spec((0,))}).bytes_read == 0


def test_ctc_loss_reads_the_classes_that_a_target_may_name():
    steps, batch, classes, labels = 12, 2, 5_000, 3
    x = torch.randn(steps, batch, classes).log_softmax(-1)
    targets = torch.tensor([[1, 2, 3], [4, 5, 6]])

    def program():
        functional.ctc_loss(x, targets, torch.tensor([12, 12]), torch.tensor([3, 3]))

    c = only_cost(program, "_ctc_loss")
    # 12 steps of 2 sequences, three labels and the blank; targets and lengths of 8 bytes
    assert c.bytes_read == 4 * steps * batch * (labels + 1) + 8 * (batch * labels + 2 * batch)
    assert c.upper


def test_packing_reads_no_padding():
    x = torch.randn(3, 10, 4)
    c = only_cost(lambda: pack_padded_sequence(x, torch.tensor([10, 2, 1]), batch_first=True), "_pack_padded_sequence")
    assert c.bytes_read == 4 * 13 * 4 + 3 * 8
