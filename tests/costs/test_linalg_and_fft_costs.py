import pytest
from builders import cost, spec
from cost_table import costs


@pytest.mark.parametrize(
    ("name", "inputs", "output", "flops", "attributes"),
    [
        ("linalg_cholesky_ex", [(6, 6)], (6, 6), 72, {}),  # 216 / 3
        ("linalg_inv_ex", [(6, 6)], (6, 6), 432, {}),  # 2 * 216
        ("linalg_lu_factor_ex", [(6, 6)], (6, 6), 144, {}),  # 2 * 216 / 3
        ("linalg_lu_factor_ex", [(9, 6)], (9, 6), 252, {}),  # 36 * (9 - 2)
        ("_linalg_solve_ex", [(6, 6), (6, 4)], (6, 4), 432, {}),  # 144 + 2 * 36 * 4
        ("_linalg_solve_ex", [(6, 6), (6,)], (6,), 216, {}),  # 144 + 2 * 36
        ("cholesky_solve", [(6, 4), (6, 6)], (6, 4), 288, {}),  # 2 * 36 * 4
        ("linalg_lu_solve", [(6, 6), (6,), (6, 4)], (6, 4), 288, {}),
        ("linalg_solve_triangular", [(6, 6), (6, 4)], (6, 4), 144, {}),  # 36 * 4
        ("geqrf", [(9, 6)], (9, 6), 504, {}),  # 2 * 36 * (9 - 2)
        ("linalg_qr", [(9, 6)], (9, 6), 1_008, {"mode": "reduced"}),  # 504 + 4*324 - 2*15*36 + 288
        ("linalg_qr", [(9, 6)], (9, 6), 504, {"mode": "r"}),
        ("ormqr", [(6, 6), (6,), (6, 4)], (6, 4), 288, {"left": True}),  # 4 * 6 * 4 * 6 - 2 * 4 * 36
        ("_linalg_eigh", [(6, 6)], (6,), 288, {}),  # 4 * 216 / 3
        ("linalg_eig", [(6, 6)], (6,), 720, {}),  # 10 * 216 / 3
        ("_linalg_svd", [(9, 6)], (6,), 1_008, {}),  # 4 * 36 * (9 - 2)
    ],
)
def test_leading_order(name, inputs, output, flops, attributes):
    tensors = [spec(shape) for shape in inputs]
    assert cost(f"aten::{name}", tensors, [spec(output)], **attributes).matrix_flops == flops


@pytest.mark.parametrize(
    ("name", "inputs", "bytes_read"),
    [
        ("linalg_cholesky_ex", [(6, 6)], 84),  # 6 * 7 / 2 = 21 elements
        ("cholesky_inverse", [(5, 6, 6)], 420),
        ("_linalg_eigh", [(6, 6)], 84),
        ("linalg_solve_triangular", [(6, 6), (6, 4)], 180),  # 21 + 24
        ("triangular_solve", [(6, 4), (6, 6)], 180),
        ("cholesky_solve", [(6, 4), (6, 6)], 180),
        ("lu_solve", [(6, 4), (6, 6)], 240),
    ],
)
def test_of_triangles_and_symmetric_matrices_half_is_read(name, inputs, bytes_read):
    tensors = [spec(shape) for shape in inputs]
    assert cost(f"aten::{name}", tensors, [tensors[0]]).bytes_read == bytes_read


def test_iterative_methods_say_so():
    assert cost("aten::_linalg_svd", [spec((6, 6))], [spec((6,))]).note == "iterations not counted"


test_costs = costs(
    """
    # batches and complex numbers: 4 * 432
    linalg_inv_ex 5x6x6 -> 5x6x6 = matrix 2160
    linalg_inv_ex 6x6:complex64 -> 6x6:complex64 = matrix 1728
    # fft: 5 * 24 * 3; 5 * 24 * log2(24) = 550.2
    _fft_c2c 3x8:complex64 -> 3x8:complex64 | dim=(1,) = vector 360, read 192, written 192
    _fft_c2c 3x8:complex64 -> 3x8:complex64 | dim=(0,1) = vector 550
    # real fft is half: 2.5 * 24 * 3
    _fft_r2c 3x8 -> 3x5:complex64 | dim=(1,) = vector 180
    _fft_c2r 3x5:complex64 -> 3x8 | dim=(1,) last_dim_size=8 = vector 180
    """
)
