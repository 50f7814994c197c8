"""Rolls a compiled weather emulator forward, with a look at the extremes on the way."""

import torch

TRUTH = {"regime": ("overhead", "memory"), "remedy": ("graph-breaks", "sync")}


def advance(state, wind, log):
    for k in range(12):
        flux = torch.sin(state) * wind + 0.1 * torch.cos(2 * state)
        state = state + 0.01 * (flux - flux.mean())
        log.append((k, state.max().item()))
        state = torch.tanh(state) * 1.05
    return state


def advance_quietly(state, wind):
    peaks = []
    for _ in range(12):
        flux = torch.sin(state) * wind + 0.1 * torch.cos(2 * state)
        state = state + 0.01 * (flux - flux.mean())
        peaks.append(state.max())
        state = torch.tanh(state) * 1.05
    return state, torch.stack(peaks)


def _step(logged):
    torch.manual_seed(0)
    state, wind = torch.randn(2, 16, 64)
    roll = torch.compile(advance if logged else advance_quietly)

    @torch.no_grad()
    def step():
        new = state
        for _ in range(8):
            if logged:
                log = []
                new = roll(new, wind, log)
                peaks = torch.tensor([peak for _, peak in log])
            else:
                new, peaks = roll(new, wind)
        return new, peaks

    return step


def make_step():
    return _step(logged=True)


def make_step_fixed():
    return _step(logged=False)
