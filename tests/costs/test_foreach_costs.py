from builders import cost, spec


def parameters(first=0):
    return [spec((4, 6), storage=first), spec((5,), storage=first + 1)]


def test_add_sums_its_lists():
    c = cost("aten::_foreach_add", {"self": parameters(), "other": parameters(10)}, parameters(20))
    assert c.vector_flops == 29  # 24 + 5
    assert (c.bytes_read, c.bytes_written) == (232, 116)  # 4 * 29 each


def test_in_place_reads_and_writes():
    x = parameters()
    c = cost("aten::_foreach_mul_", {"self": x}, x)
    assert (c.bytes_read, c.bytes_written, c.vector_flops) == (116, 116, 29)


def test_equal_tensors_that_share_nothing_both_count():
    c = cost("aten::_foreach_sqrt", {"self": [spec((3,))] * 2}, [spec((3,))] * 2)
    assert (c.bytes_read, c.vector_flops) == (24, 6)


def test_addcdiv_and_lerp_are_three():
    x = parameters()
    inputs = {"self": x, "tensor1": parameters(10), "tensor2": parameters(20)}
    c = cost("aten::_foreach_addcdiv_", inputs, x)
    assert (c.vector_flops, c.bytes_read, c.bytes_written) == (87, 348, 116)
    assert cost("aten::_foreach_lerp_", {"self": x, "tensors1": parameters(10)}, x).vector_flops == 87


def test_copy_and_zero_only_write():
    x = parameters()
    c = cost("aten::_foreach_copy_", {"self": x, "src": parameters(10)}, x)
    assert (c.bytes_read, c.bytes_written, c.vector_flops) == (116, 116, 0)
    c = cost("aten::_foreach_zero_", {"self": x}, x)
    assert (c.bytes_read, c.bytes_written) == (0, 116)


def test_norm_reads_all_and_writes_one_number_each():
    c = cost("aten::_foreach_norm", {"self": parameters()}, [spec(), spec()])
    assert (c.vector_flops, c.bytes_read, c.bytes_written) == (58, 116, 8)


def test_unscaling_gradients():
    grads, found = parameters(), spec((1,), storage=9)
    inputs = {"self": grads, "found_inf": found, "inv_scale": spec((1,))}
    c = cost("aten::_amp_foreach_non_finite_check_and_unscale_", inputs, [*grads, found])
    assert (c.vector_flops, c.bytes_read, c.bytes_written) == (58, 120, 120)
