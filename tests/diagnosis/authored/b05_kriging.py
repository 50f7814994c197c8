"""Kriging of ore grades: a Gaussian process predicts mean and uncertainty at many blocks from the drilled holes."""
import torch

TRUTH = {
    "cause": "The whole covariance between all query points is computed (n x n), but only its diagonal is read.",
    "lines": ["cov = self.kernel(where, where) - half.t() @ half", "var = cov.diagonal()", "var = self.variance(where, half)"],
    "says": ["diagonal", "covarian", "full matrix", "n ?x ?n", "off-diagonal", "only .*(read|used)", "kernel\\(where, where\\)", "sliced away", "unread"],
    "remedy": ["diagonal", "only the variance", "column(-| )?(norm|sum)", r"\(half \* half\)", r"half\.(square|pow)", r"sum\(0\)", "einsum", "elementwise"],
}


class Kriging:
    def __init__(self, holes, grades, length=0.2, nugget=1e-2):
        self.holes, self.length = holes, length
        gram = self.kernel(holes, holes) + nugget * torch.eye(len(holes))
        self.chol = torch.linalg.cholesky(gram)
        self.alpha = torch.cholesky_solve(grades[:, None], self.chol)

    def kernel(self, a, b):
        return torch.exp(torch.cdist(a, b).square() / (-2 * self.length ** 2))

    def variance(self, where, half):
        cov = self.kernel(where, where) - half.t() @ half
        var = cov.diagonal()
        return var.clamp_min(1e-6)

    def predict(self, where):
        cross = self.kernel(self.holes, where)
        mean = (cross * self.alpha).sum(0)
        half = torch.linalg.solve_triangular(self.chol, cross, upper=False)
        var = self.variance(where, half)
        return mean, var.sqrt()


class LeanKriging(Kriging):
    def variance(self, where, half):
        return (1.0 - half.square().sum(0)).clamp_min(1e-6)


def build(kind):
    torch.manual_seed(0)
    holes = torch.rand(150, 3)
    grades = torch.sin(4 * holes).sum(1) + 0.05 * torch.randn(150)
    model = kind(holes, grades)
    blocks = torch.rand(2000, 3)

    def step():
        mean, std = model.predict(blocks)
        return mean, std, (mean - std > 0.5).float().mean()
    return step


def make_step():
    return build(Kriging)


def make_step_fixed():
    return build(LeanKriging)
