"""Complex numbers: the FLOPs that the kernels do, of which this build's are asked by how they round."""

import pytest
import torch
from builders import cost, spec
from recorded_costs import only_cost, recorded_costs
from torch.nn import functional


def imaginary_error(product, shapes, dtype):
    """The relative error of the imaginary part, where three real products instead of four would leave nothing of it.

    (Ar + Ai)(Br + Bi) - Ar Br - Ai Bi: with real parts 10^8 times the imaginary ones, float32 loses all of the latter.
    """
    generator = torch.Generator().manual_seed(0)
    a, b = (
        torch.complex(
            1e4 * torch.randn(shape, generator=generator, dtype=torch.float64),
            1e-4 * torch.randn(shape, generator=generator, dtype=torch.float64),
        ).to(dtype)
        for shape in shapes
    )
    x, y = a.to(torch.complex128), b.to(torch.complex128)
    exact = x.real @ y.imag + x.imag @ y.real
    return float((product(a, b).imag.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("size", [8, 64, 384])
def test_the_products_of_this_build_multiply_four_times(size):
    square = (size, size)
    assert imaginary_error(torch.mm, [square, square], torch.complex64) < 1e-5
    assert imaginary_error(torch.bmm, [(2, *square), (2, *square)], torch.complex64) < 1e-5
    assert imaginary_error(torch.mm, [square, square], torch.complex128) < 1e-13


def test_three_multiplications_would_be_seen():
    def gauss(a, b):
        both = (a.real + a.imag) @ (b.real + b.imag)
        real, imaginary = a.real @ b.real, a.imag @ b.imag
        return torch.complex(real - imaginary, both - real - imaginary)

    assert imaginary_error(gauss, [(64, 64), (64, 64)], torch.complex64) > 1


def test_products_count_what_they_multiply():
    a, b = torch.randn(2, 4, 5, dtype=torch.complex64), torch.randn(2, 5, 6, dtype=torch.complex64)
    assert only_cost(lambda: a[0] @ b[0], "mm").matrix_flops == 8 * 4 * 5 * 6
    assert only_cost(lambda: a @ b, "bmm").matrix_flops == 2 * 8 * 4 * 5 * 6
    assert only_cost(lambda: a[0].conj() @ b[0], "mm").bytes_moved == 8 * (20 + 30 + 24)  # conj is a mark
    assert only_cost(lambda: torch.vdot(a[0, 0], b[0, :, 0]), "vdot").matrix_flops == 8 * 5
    assert only_cost(lambda: a.mH @ a, "bmm").bytes_read == 8 * 40


def test_a_convolution_is_three_real_ones():
    x, w = torch.randn(2, 3, 8, 8, dtype=torch.complex64), torch.randn(4, 3, 3, 3, dtype=torch.complex64)
    costs = recorded_costs(lambda: functional.conv2d(x, w, padding=1))
    real = 2 * 2 * 4 * 64 * 3 * 9
    assert [c.matrix_flops for c in costs["convolution"]] == [real] * 3
    assert {c.matrix_dtype for c in costs["convolution"]} == {"float32"}
    whole = cost(
        "aten::convolution",
        {"input": spec((2, 3, 8, 8), "complex64"), "weight": spec((4, 3, 3, 3), "complex64")},
        [spec((2, 4, 8, 8), "complex64")],
    )
    assert whole.matrix_flops == 3 * real


def test_the_backward_of_a_convolution_is_that_of_three():
    x = torch.randn(2, 3, 8, 8, dtype=torch.complex64, requires_grad=True)
    w = torch.randn(4, 3, 3, 3, dtype=torch.complex64, requires_grad=True)
    costs = recorded_costs(lambda: functional.conv2d(x, w, padding=1).abs().sum().backward())
    assert sum(c.matrix_flops for c in costs["convolution_backward"]) == 3 * 2 * (2 * 2 * 4 * 64 * 3 * 9)


def test_elements():
    x = torch.randn(4, 5, dtype=torch.complex64)
    flops = {
        "mul": (lambda: x * x, 6),
        "div": (lambda: x / x, 6),
        "add": (lambda: x + x, 2),
        "exp": (x.exp, 2),
        "sum": (x.sum, 2),
        "prod": (x.prod, 6),
        "cumprod": (lambda: x.cumprod(0), 6),
    }
    for name, (program, per_element) in flops.items():
        assert only_cost(program, name).vector_flops == per_element * 20, name
    assert only_cost(lambda: torch.view_as_real(x) * 2, "mul").vector_flops == 40
    assert only_cost(lambda: x.conj().resolve_conj(), "clone").bytes_moved == 2 * 160
