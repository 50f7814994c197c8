"""Projects many states onto a basis and back."""

import torch

TRUTH = {"regime": ("compute",), "remedy": None}


def _step():
    torch.manual_seed(0)
    states, basis = torch.randn(1024, 1024), torch.randn(1024, 1024)
    back = basis.T.contiguous()

    @torch.no_grad()
    def step():
        return torch.mm(torch.mm(states, basis), back)

    return step


make_step = make_step_fixed = _step
