"""Self-distillation: a teacher follows its student slowly."""

import copy

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": ("fused-optimizer", "vectorise")}


@torch.no_grad()
def follow(teacher, student, decay=0.99):
    names = dict(student.named_parameters())
    for name, old in teacher.named_parameters():
        old.copy_(decay * old + (1 - decay) * names[name])


@torch.no_grad()
def follow_together(teacher, student, decay=0.99):
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 1 - decay)


def _step(update):
    torch.manual_seed(0)
    layers = [part for _ in range(80) for part in (nn.LayerNorm(12), nn.PReLU(12))]
    student = nn.Sequential(nn.Linear(6, 12), *layers)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01, fused=True)
    views = torch.randn(2, 4, 6)

    def step():
        loss = (student(views[0]) - teacher(views[1])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update(teacher, student)
        return loss.detach()

    return step


def make_step():
    return _step(follow)


def make_step_fixed():
    return _step(follow_together)
