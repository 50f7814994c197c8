"""Tastes of many people, by self-distillation: teachers follow their student, each at its pace."""

import copy

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": ("fused-optimizer", "vectorise")}


class Tastes(nn.Module):
    def __init__(self, people=400, width=10):
        super().__init__()
        self.each = nn.ParameterList(torch.randn(width) for _ in range(people))

    def forward(self, dishes):
        return torch.tanh(dishes @ torch.stack(list(self.each), 1))


@torch.no_grad()
def follow(teacher, student, decay):
    names = dict(student.named_parameters())
    for name, old in teacher.named_parameters():
        old.copy_(decay * old + (1 - decay) * names[name])


@torch.no_grad()
def follow_together(teacher, student, decay):
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 1 - decay)


def _step(update):
    torch.manual_seed(0)
    student = Tastes()
    teachers = {decay: copy.deepcopy(student).requires_grad_(False) for decay in (0.9, 0.95, 0.99, 0.995, 0.999)}
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01, fused=True)
    dishes = torch.randn(2, 30, 10)

    def step():
        loss = (student(dishes[0]) - teachers[0.99](dishes[1])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for decay, teacher in teachers.items():
            update(teacher, student, decay)
        return loss.detach()

    return step


def make_step():
    return _step(follow)


def make_step_fixed():
    return _step(follow_together)
