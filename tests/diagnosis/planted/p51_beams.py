"""Forms beams from an array of microphones: each microphone has its gain, each band its weight."""

import torch

TRUTH = {"regime": ("compute", "memory"), "remedy": "mostly-zeros"}


def form(signals, gains, bands, mix):
    levelled = torch.diag(gains) @ signals
    return mix @ (levelled @ torch.diag(bands))


def form_by_scaling(signals, gains, bands, mix):
    return mix @ (gains.unsqueeze(1) * signals * bands)


def _step(function):
    torch.manual_seed(0)
    frames, gains, bands, mix = torch.randn(6, 256, 512), torch.rand(256), torch.rand(512), torch.randn(8, 256)

    @torch.no_grad()
    def step():
        return torch.stack([function(frame, gains, bands, mix) for frame in frames])

    return step


def make_step():
    return _step(form)


def make_step_fixed():
    return _step(form_by_scaling)
