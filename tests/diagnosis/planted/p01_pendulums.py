"""A swarm of damped pendulums, integrated with the classical Runge-Kutta method."""

import torch

TRUTH = {"regime": ("overhead",), "remedy": "compile"}


def acceleration(angle, speed, push):
    return -torch.sin(angle) - 0.1 * speed + push * torch.cos(angle) / (1 + angle * angle)


def advance(angle, speed, push, dt=0.01):
    a1, v1 = acceleration(angle, speed, push), speed
    a2, v2 = acceleration(angle + 0.5 * dt * v1, speed + 0.5 * dt * a1, push), speed + 0.5 * dt * a1
    a3, v3 = acceleration(angle + 0.5 * dt * v2, speed + 0.5 * dt * a2, push), speed + 0.5 * dt * a2
    a4, v4 = acceleration(angle + dt * v3, speed + dt * a3, push), speed + dt * a3
    return angle + dt * (v1 + 2 * v2 + 2 * v3 + v4) / 6, speed + dt * (a1 + 2 * a2 + 2 * a3 + a4) / 6


def _step(function):
    torch.manual_seed(0)
    start, speed, push = torch.randn(3, 96)

    @torch.no_grad()
    def step():
        angle, velocity = start, speed
        for _ in range(60):
            angle, velocity = function(angle, velocity, push)
        return angle, velocity

    return step


def make_step():
    return _step(advance)


def make_step_fixed():
    return _step(torch.compile(advance))
