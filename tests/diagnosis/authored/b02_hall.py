"""Augments speech with the acoustics of rooms: an impulse response, some noise, a level."""
import torch
import torch.nn.functional as F

TRUTH = {
    "cause": "Clips are convolved with impulse responses of thousands of taps by conv1d in the time domain; an FFT does it far faster.",
    "lines": ["return F.conv1d(padded, taps, groups=len(clips))[0]", "wet = self.room(clips, self.response)", "taps = response.flip(-1)[:, None]"],
    "says": ["conv1d", "convol", "impulse response", "filter (of|with)", "long (filter|kernel)", "kernel size", "direct", "time domain", "taps"],
    "remedy": ["fft", "frequency domain", "fftconvolve", "overlap[- ]add", "spectr"],
}


class Augment:
    def __init__(self, taps=3000, seed=0):
        gen = torch.Generator().manual_seed(seed)
        decay = torch.exp(-torch.arange(taps) / 500.0)
        self.response = torch.randn(4, taps, generator=gen) * decay
        self.response = self.response / self.response.norm(dim=1, keepdim=True)
        self.hiss = 0.003 * torch.randn(4, 8000, generator=gen)

    def room(self, clips, response):
        padded = F.pad(clips, (response.shape[1] - 1, 0))[None]
        taps = response.flip(-1)[:, None]
        return F.conv1d(padded, taps, groups=len(clips))[0]

    def __call__(self, clips):
        wet = self.room(clips, self.response)
        mixed = 0.7 * clips + 0.3 * wet + self.hiss
        return mixed / mixed.abs().amax(1, keepdim=True).clamp_min(1e-3)


class SpectralAugment(Augment):
    def room(self, clips, response):
        size = clips.shape[1] + response.shape[1] - 1
        size = 1 << (size - 1).bit_length()
        product = torch.fft.rfft(clips, size) * torch.fft.rfft(response, size)
        return torch.fft.irfft(product, size)[:, :clips.shape[1]]


def build(kind):
    gen = torch.Generator().manual_seed(1)
    time = torch.arange(8000) / 16000
    pitch = 100 + 200 * torch.rand(4, 1, generator=gen)
    clips = torch.sin(6.2832 * pitch * time) * torch.sin(12 * time).square()
    augment = kind()
    window = torch.hann_window(400)

    def step():
        wet = augment(clips)
        spec = torch.stft(wet, 400, 160, window=window, return_complex=True).abs()
        return wet, spec.clamp_min(1e-2).log().mean(2)
    return step


def make_step():
    return build(Augment)


def make_step_fixed():
    return build(SpectralAugment)
