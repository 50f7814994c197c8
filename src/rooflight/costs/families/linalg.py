"""Factorizations, solvers and Fourier transforms.

Factorizations and solvers.

Conventions: leading-order FLOPs of the classical dense algorithms (LAPACK working notes), counted on the matrix unit,
where blocked algorithms do most of them, and 4 times as many on complex numbers; every batch entry alike. Of iterative
methods (eigenvalues, singular values) only the reduction they start with is counted: iterations depend on data, so
those counts are low. Checking for errors reads one number per matrix.
Of symmetric and triangular matrices one triangle is read.

Fourier transforms.

Conventions: 5 N log2 N vector FLOPs for a complex transform of N points (radix 2, as FFT benchmarks count), half for
one that is real on either side; N is the product of the sizes transformed, each batch entry one transform. Split-radix
algorithms do fewer, so counts are ``upper``. torch.stft and istft reach these ops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log2, prod

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.matmul import multiply_adds
from rooflight.costs.rules import copies, dims, moves, names, per_output, picked_bytes, read_bytes, register
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

formula = partial(registry.formula, error_group="linalg")

ITERATIONS_NOTE = "iterations not counted"


def factorize(
    op: OpSignature, matrix: TensorSpec, flops: float, *, half: TensorSpec | None = None, note: str = ""
) -> OpCost:
    """The cost of an op that does so many real FLOPs for each matrix of a batch. Of ``half``, an input, it reads one
    triangle.
    """
    batch = prod(matrix.shape[:-2])
    return OpCost(
        matrix_flops=batch * multiply_adds(round(flops), matrix) // 2,
        matrix_dtype=matrix.dtype,
        bytes_read=read_bytes(op) - (_bytes_of_other_half(half) if half else 0),
        bytes_written=op.output_bytes,
        note=note,
    )


def _bytes_of_other_half(matrix: TensorSpec) -> int:
    """Bytes of a square matrix (or a batch of them) on one side of its diagonal, without it."""
    n = _square(matrix)
    triangle = prod(matrix.shape[:-1]) * (n + 1) // 2
    return matrix.nbytes - picked_bytes(matrix, triangle)


def _square(matrix: TensorSpec) -> int:
    return matrix.shape[-1]


def _short_long(matrix: TensorSpec) -> tuple[int, int]:
    short, long = sorted(matrix.shape[-2:])
    return short, long


def _columns(right: TensorSpec, size: int) -> int:
    """Right-hand sides per matrix of n rows: a vector is one."""
    return right.numel // max(1, size) if len(right.shape) < 2 else right.shape[-1]


def of_square(flops: Callable[[int], float], ops: str, *, half: bool = False) -> None:
    """Register ops whose FLOPs follow from the size of a square first input, of which some read one triangle."""

    @formula(*names(ops))
    def cost(op: OpSignature) -> OpCost:
        a = op.inputs[0]
        return factorize(op, a, flops(_square(a)), half=a if half else None)


of_square(
    lambda n: n**3 / 3,
    "cholesky linalg_cholesky linalg_cholesky_ex linalg_ldl_factor linalg_ldl_factor_ex",
    half=True,
)
of_square(lambda n: 2 * n**3 / 3, "cholesky_inverse", half=True)
of_square(lambda n: 2 * n**3 / 3, "_linalg_det _linalg_slogdet linalg_det linalg_slogdet det slogdet")
of_square(lambda n: 2 * n**3, "linalg_inv linalg_inv_ex inverse")


def lu_flops(matrix: TensorSpec) -> float:
    """Elimination: k^2 (max - k / 3) with k the shorter side; 2 n^3 / 3 if square."""
    short, long = _short_long(matrix)
    return short**2 * (long - short / 3)


def householder_flops(matrix: TensorSpec) -> float:
    """QR without forming Q: 2 k^2 (max - k / 3)."""
    return 2 * lu_flops(matrix)


def reflector_flops(rows: int, columns: int, reflectors: int) -> float:
    """Forming an m x n matrix out of k reflectors: 4 m n k - 2 (m + n) k^2 + 4 k^3 / 3."""
    return 4 * rows * columns * reflectors - 2 * (rows + columns) * reflectors**2 + 4 * reflectors**3 / 3


@formula(*names("linalg_lu linalg_lu_factor linalg_lu_factor_ex _lu_with_info"))
def lu(op: OpSignature) -> OpCost:
    """A [m, n] to its triangular factors and pivots."""
    return factorize(op, op.inputs[0], lu_flops(op.inputs[0]))


@formula(*names("linalg_solve linalg_solve_ex _linalg_solve_ex"))
def solve(op: OpSignature) -> OpCost:
    """A [n, n], B [n, k]: LU, then two triangular solves."""
    a = op.inputs[0]
    n = _square(a)
    right = op.outputs[0].numel // max(1, prod(a.shape[:-1]))
    return factorize(op, a, 2 * n**3 / 3 + 2 * n**2 * right)


def _two_triangles(op: OpSignature, factor: TensorSpec, right: TensorSpec, *, half: bool) -> OpCost:
    n = _square(factor)
    return factorize(op, right, 2 * n * right.shape[-1] * right.shape[-2], half=factor if half else None)


@formula("aten::cholesky_solve", "aten::lu_solve", "aten::_cholesky_solve_helper")
def solve_factored(op: OpSignature) -> OpCost:
    """B [n, k] and a factor [n, n], of which Cholesky's is one triangle: 2 n^2 k."""
    right, factor = op.inputs[:2]
    return _two_triangles(op, factor, right, half="cholesky" in op.name)


@formula("aten::linalg_lu_solve", "aten::linalg_ldl_solve")
def solve_with_pivots(op: OpSignature) -> OpCost:
    """A factor [n, n], of which LDL's is one triangle, pivots and B [n, k]: 2 n^2 k."""
    factor, _, right = op.inputs[:3]
    return _two_triangles(op, factor, right, half="ldl" in op.name)


@formula("aten::linalg_solve_triangular")
def solve_triangular(op: OpSignature) -> OpCost:
    """A triangular [n, n], B [n, k]: n^2 k."""
    a, out = op.inputs[0], op.outputs[0]
    return factorize(op, out, _square(a) * out.shape[-1] * out.shape[-2], half=a)


@formula("aten::triangular_solve")
def triangular_solve(op: OpSignature) -> OpCost:
    """B [n, k], A triangular [n, n]: n^2 k."""
    a, out = op.inputs[1], op.outputs[0]
    return factorize(op, out, _square(a) * out.shape[-1] * out.shape[-2], half=a)


@formula("aten::geqrf")
def geqrf(op: OpSignature) -> OpCost:
    """A [m, n] to R and the reflectors of Q."""
    return factorize(op, op.inputs[0], householder_flops(op.inputs[0]))


@formula("aten::linalg_householder_product", "aten::orgqr")
def householder_product(op: OpSignature) -> OpCost:
    """k reflectors to Q [m, n]."""
    reflectors, tau = op.inputs[:2]
    rows, columns = reflectors.shape[-2:]
    return factorize(op, reflectors, reflector_flops(rows, columns, tau.shape[-1]))


@formula("aten::ormqr")
def ormqr(op: OpSignature) -> OpCost:
    """k reflectors of order q applied to C: 4 per reflector, row of it and column of C, less what is zero."""
    _, tau, target = op.inputs[:3]
    k = tau.shape[-1]
    order, other = target.shape[-2:] if op.attribute("left", True) else target.shape[:-3:-1]
    return factorize(op, target, 4 * order * other * k - 2 * other * k**2)


@formula("aten::linalg_qr", "aten::qr")
def qr(op: OpSignature) -> OpCost:
    """A [m, n] to Q and R; mode "r" forms no Q, "complete" all m columns of it."""
    a = op.inputs[0]
    mode = op.attribute("mode", "reduced")
    rows, _ = a.shape[-2:]
    short, _ = _short_long(a)
    columns = {"r": 0, "complete": rows}.get(str(mode), short)
    forming = reflector_flops(rows, columns, short) if columns else 0
    return factorize(op, a, householder_flops(a) + forming)


@formula("aten::linalg_lstsq")
def lstsq(op: OpSignature) -> OpCost:
    """A [m, n], B [m, k]: QR without Q, its transpose on B, a triangular solve."""
    a, b = op.inputs[:2]
    rows, columns = a.shape[-2:]
    right = _columns(b, rows)
    return factorize(op, a, householder_flops(a) + (4 * rows * columns + columns**2) * right)


@formula(*names("_linalg_eigh linalg_eigh linalg_eigvalsh"))
def eigh(op: OpSignature) -> OpCost:
    """A [n, n] symmetric: reduction to tridiagonal form, 4 n^3 / 3."""
    a = op.inputs[0]
    return factorize(op, a, 4 * _square(a) ** 3 / 3, half=a, note=ITERATIONS_NOTE)


@formula(*names("linalg_eig linalg_eigvals _linalg_eigvals"))
def eig(op: OpSignature) -> OpCost:
    """A [n, n]: reduction to Hessenberg form, 10 n^3 / 3."""
    return factorize(op, op.inputs[0], 10 * _square(op.inputs[0]) ** 3 / 3, note=ITERATIONS_NOTE)


@formula(*names("_linalg_svd linalg_svd linalg_svdvals svd linalg_pinv"))
def svd(op: OpSignature) -> OpCost:
    """A [m, n]: reduction to bidiagonal form, 4 k^2 (max - k / 3)."""
    return factorize(op, op.inputs[0], 2 * householder_flops(op.inputs[0]), note=ITERATIONS_NOTE)


@formula("aten::linalg_matrix_exp", "aten::matrix_exp")
def matrix_exp(op: OpSignature) -> OpCost:
    """A [n, n]: how many products it takes depends on the norm; none is counted."""
    return OpCost(bytes_read=read_bytes(op), bytes_written=op.output_bytes, note=ITERATIONS_NOTE)


@formula("aten::_compute_linear_combination")
def linear_combination(op: OpSignature) -> OpCost:
    """inputs [s, ...] combined by coefficients [r, s] to [r, ...]."""
    return moves(op, vector_flops=2 * op.outputs[0].numel * op.inputs[0].shape[0])


register(formula, {copies: "lu_unpack _linalg_check_errors", per_output(3): "linalg_cross cross"})


fft_formula = partial(registry.formula, error_group="fft")


def _transform(op: OpSignature, points: TensorSpec, flops_per_level: float) -> OpCost:
    size = prod(points.shape[dim] for dim in dims(op, len(points.shape)))
    levels = log2(size) if size > 1 else 0.0
    return moves(op, vector_flops=round(flops_per_level * points.numel * levels), upper=True)


@fft_formula("aten::_fft_c2c", "prims::fft_c2c")
def complex_to_complex(op: OpSignature) -> OpCost:
    """Complex [..., n] to complex [..., n]."""
    return _transform(op, op.inputs[0], 5.0)


@fft_formula("aten::_fft_r2c", "prims::fft_r2c")
def real_to_complex(op: OpSignature) -> OpCost:
    """Real [..., n] to complex [..., n] or its half [..., n // 2 + 1]."""
    return _transform(op, op.inputs[0], 2.5)


@fft_formula("aten::_fft_c2r", "prims::fft_c2r")
def complex_to_real(op: OpSignature) -> OpCost:
    """Complex half [..., n // 2 + 1] to real [..., n]."""
    return _transform(op, op.outputs[0], 2.5)
