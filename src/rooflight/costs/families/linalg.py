"""Factorizations, solvers and Fourier transforms.

Factorizations and solvers.

Conventions: leading-order FLOPs of the classical dense algorithms (LAPACK working notes), counted on the matrix unit,
where blocked algorithms do most of them, and 4 times as many on complex numbers; every batch entry alike. Of iterative
methods (eigenvalues, singular values) only the reduction they start with is counted: iterations depend on data, so
those counts are low. A QR factorization first makes a small matrix of a tall one (Chan, ACM TOMS 8, 1982), and the
driver gesvda takes the eigenvalues of A^T A: what singular values take beyond these is avoidable. Checking for errors
reads one number per matrix.
Of symmetric and triangular matrices one triangle is read.

Fourier transforms.

Conventions: 5 N log2 N vector FLOPs for a complex transform of N points (radix 2, as FFT benchmarks count), half for
one that is real on either side; N is the product of the sizes transformed, each batch entry one transform. Split-radix
algorithms do fewer, so counts are ``upper``. torch.stft and istft reach these ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log2, prod

from rooflight.costs.cost import OpCost
from rooflight.costs.families.matmul import multiply_adds, product
from rooflight.costs.registry import Formula
from rooflight.costs.rules import Family, copies, dims, moves, moving, per_output, picked_bytes, read_bytes
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

linalg_ops = Family("linalg")

ITERATIONS_NOTE = "iterations not counted"


def factorize(
    op: OpSignature,
    matrix: TensorSpec,
    flops: float,
    *,
    least: float | None = None,
    half: TensorSpec | None = None,
    note: str = "",
) -> OpCost:
    """The cost of an op that does so many real FLOPs for each matrix of a batch, ``least`` of which none can avoid. Of
    ``half``, an input, it reads one triangle.
    """
    count = prod(matrix.shape[:-2]) * round(flops)
    avoidable = 0 if least is None else multiply_adds(prod(matrix.shape[:-2]) * round(flops - least), matrix) // 2
    read = read_bytes(op)
    if half is not None:
        read -= half.nbytes - picked_bytes(half, prod(half.shape[:-1]) * (_square(half) + 1) // 2)
    cost = product(op, count, matrix, read=read, note=note)
    # counted one by one, not as multiply-adds
    return replace(cost, matrix_flops=cost.matrix_flops // 2, avoidable_flops=avoidable)


def _square(matrix: TensorSpec) -> int:
    return matrix.shape[-1]


def _columns(right: TensorSpec, size: int) -> int:
    """Right-hand sides per matrix of n rows: a vector is one."""
    return right.numel // max(1, size) if len(right.shape) < 2 else right.shape[-1]


def lu_flops(matrix: TensorSpec) -> float:
    """Elimination: k^2 (max - k / 3) with k the shorter side; 2 n^3 / 3 if square."""
    short, long = sorted(matrix.shape[-2:])
    return short**2 * (long - short / 3)


def householder_flops(matrix: TensorSpec) -> float:
    """QR without forming Q: 2 k^2 (max - k / 3)."""
    return 2 * lu_flops(matrix)


def reflector_flops(rows: int, columns: int, reflectors: int) -> float:
    """Forming an m x n matrix out of k reflectors: 4 m n k - 2 (m + n) k^2 + 4 k^3 / 3."""
    return 4 * rows * columns * reflectors - 2 * (rows + columns) * reflectors**2 + 4 * reflectors**3 / 3


def of_first(flops: Callable[[TensorSpec], float], *, half: bool = False, note: str = "") -> Formula:
    """A formula: FLOPs that follow from the first input, of which some read one triangle."""
    return lambda op: factorize(op, op.inputs[0], flops(op.inputs[0]), half=op.inputs[0] if half else None, note=note)


def solved(factor: int, right: int, *, times: int = 2, half: bool = False) -> Formula:
    """A formula: B [n, k] of the input ``right``, solved with the [n, n] at ``factor``: ``times`` n^2 k. Of Cholesky's
    and LDL's factors one triangle is read.
    """

    def cost(op: OpSignature) -> OpCost:
        a, b = op.inputs[factor], op.inputs[right] if right >= 0 else op.outputs[0]
        reads_half = half or "cholesky" in op.name or "ldl" in op.name
        flops = times * _square(a) * b.shape[-1] * b.shape[-2]
        return factorize(op, b, flops, half=a if reads_half else None)

    return cost


linalg_ops.rows(
    {
        of_first(
            lambda a: _square(a) ** 3 / 3, half=True
        ): "cholesky linalg_cholesky linalg_cholesky_ex linalg_ldl_factor linalg_ldl_factor_ex",
        of_first(lambda a: 2 * _square(a) ** 3 / 3, half=True): "cholesky_inverse",
        of_first(lambda a: 2 * _square(a) ** 3 / 3): "det linalg_det _linalg_det slogdet linalg_slogdet "
        "_linalg_slogdet",
        of_first(lambda a: 2 * _square(a) ** 3): "linalg_inv linalg_inv_ex inverse",
        # A [m, n] to its triangular factors and pivots, or to R and the reflectors of Q
        of_first(lu_flops): "linalg_lu linalg_lu_factor linalg_lu_factor_ex _lu_with_info",
        of_first(householder_flops): "geqrf",
        # reductions to tridiagonal form, Hessenberg form, bidiagonal form: 4 k^2 (max - k / 3)
        of_first(lambda a: 4 * _square(a) ** 3 / 3, half=True, note=ITERATIONS_NOTE): "_linalg_eigh linalg_eigh "
        "linalg_eigvalsh",
        of_first(lambda a: 10 * _square(a) ** 3 / 3, note=ITERATIONS_NOTE): "linalg_eig linalg_eigvals _linalg_eigvals",
        # how many products it takes depends on the norm; none is counted
        lambda op: moves(op, note=ITERATIONS_NOTE): "linalg_matrix_exp matrix_exp",
        # B and a factor, perhaps with pivots between them; A triangular and B, or B and A
        solved(1, 0): "cholesky_solve lu_solve _cholesky_solve_helper",
        solved(0, 2): "linalg_lu_solve linalg_ldl_solve",
        solved(0, -1, times=1, half=True): "linalg_solve_triangular",
        solved(1, -1, times=1, half=True): "triangular_solve",
        # inputs [s, ...] combined by coefficients [r, s] to [r, ...]
        moving(lambda op: 2 * op.outputs[0].numel * op.inputs[0].shape[0]): "_compute_linear_combination",
        copies: "lu_unpack _linalg_check_errors",
        per_output(3): "linalg_cross cross",
    }
)


@linalg_ops("_linalg_svd linalg_svd linalg_svdvals svd linalg_pinv")
def svd(op: OpSignature) -> OpCost:
    """A [m, n] to bidiagonal form, 4 k^2 (max - k / 3); of R [k, k] instead if A is factorized to Q R first."""
    a = op.inputs[0]
    (short, long), bidiagonal = sorted(a.shape[-2:]), 2 * householder_flops(a)
    least = min(bidiagonal, householder_flops(a) + 8 * short**3 / 3)
    if op.attribute("driver") == "gesvda":  # half of A^T A, and its reduction to tridiagonal form
        least = min(least, short**2 * long + 4 * short**3 / 3)
    return factorize(op, a, bidiagonal, least=least, note=ITERATIONS_NOTE)


@linalg_ops("linalg_householder_product orgqr")
def householder_product(op: OpSignature) -> OpCost:
    """k reflectors to Q [m, n]."""
    reflectors, tau = op.inputs[:2]
    rows, columns = reflectors.shape[-2:]
    return factorize(op, reflectors, reflector_flops(rows, columns, tau.shape[-1]))


@linalg_ops("linalg_solve linalg_solve_ex _linalg_solve_ex")
def solve(op: OpSignature) -> OpCost:
    """A [n, n], B [n, k]: LU, then two triangular solves."""
    a = op.inputs[0]
    n = _square(a)
    right = op.outputs[0].numel // max(1, prod(a.shape[:-1]))
    return factorize(op, a, 2 * n**3 / 3 + 2 * n**2 * right)


@linalg_ops("ormqr")
def ormqr(op: OpSignature) -> OpCost:
    """k reflectors of order q applied to C: 4 per reflector, row of it and column of C, less what is zero."""
    _, tau, target = op.inputs[:3]
    k = tau.shape[-1]
    order, other = target.shape[-2:] if op.attribute("left", True) else target.shape[:-3:-1]
    return factorize(op, target, 4 * order * other * k - 2 * other * k**2)


@linalg_ops("linalg_qr qr")
def qr(op: OpSignature) -> OpCost:
    """A [m, n] to Q and R; mode "r" forms no Q, "complete" all m columns of it."""
    a = op.inputs[0]
    mode = op.attribute("mode", "reduced")
    rows, _ = a.shape[-2:]
    short = min(a.shape[-2:])
    columns = {"r": 0, "complete": rows}.get(str(mode), short)
    forming = reflector_flops(rows, columns, short) if columns else 0
    return factorize(op, a, householder_flops(a) + forming)


@linalg_ops("linalg_lstsq")
def lstsq(op: OpSignature) -> OpCost:
    """A [m, n], B [m, k]: QR without Q, its transpose on B, a triangular solve."""
    a, b = op.inputs[:2]
    rows, columns = a.shape[-2:]
    right = _columns(b, rows)
    return factorize(op, a, householder_flops(a) + (4 * rows * columns + columns**2) * right)


fft_ops = Family("fft")


def transformed(flops_per_level: float, points: Callable[[OpSignature], TensorSpec]) -> Formula:
    """A formula: so many FLOPs for each point of a tensor and each level of its transform."""

    def cost(op: OpSignature) -> OpCost:
        tensor = points(op)
        size = prod(tensor.shape[dim] for dim in dims(op, len(tensor.shape)))
        levels = log2(size) if size > 1 else 0.0
        return moves(op, vector_flops=round(flops_per_level * tensor.numel * levels), upper=True)

    return cost


fft_ops.rows(
    {
        transformed(5.0, lambda op: op.inputs[0]): "_fft_c2c prims::fft_c2c",  # complex [..., n] to complex [..., n]
        # real [..., n] to complex [..., n] or its half [..., n // 2 + 1], and back
        transformed(2.5, lambda op: op.inputs[0]): "_fft_r2c prims::fft_r2c",
        transformed(2.5, lambda op: op.outputs[0]): "_fft_c2r prims::fft_c2r",
    }
)
