"""Prepares excerpts of long field recordings: gain, a band-pass, a log spectrum around a call that was marked."""
import torch
import torch.nn.functional as F

TRUTH = {
    "cause": "The whole recording is filtered and transformed, and then only a short excerpt of the spectrum is kept; cutting comes too late.",
    "lines": ["spec = self.spectrum(self.filtered(recording))", "return spec[:, :, first:first + self.frames]", "views = [self.excerpt(r, m) for r, m in zip(self.recordings, self.marks)]"],
    "says": ["sliced? (away|off)", "crop", "excerpt", "whole recording", "most of .*(unread|unused|thrown|discard|not used)", "unread", "kept|discard|thrown away", "stft|conv1d|spectr", r"only .*(part|slice|fraction)"],
    "remedy": ["(crop|cut|slice|trim|narrow|select|take).*(first|before|earlier|only)", "before (the )?(filter|stft|transform|spectr)", "only the (part|excerpt|needed|window|slice|frames)",
               "first (cut|crop|slice)", "slice .*input"],
}


class Front:
    frames, fft, hop, taps = 40, 512, 128, 101

    def __init__(self):
        gen = torch.Generator().manual_seed(0)
        self.recordings = 0.1 * torch.randn(3, 1, 100000, generator=gen)
        self.marks = [90, 301, 512]
        t = torch.arange(self.taps) - self.taps // 2
        band = 0.4 * torch.sinc(0.4 * t) - 0.05 * torch.sinc(0.05 * t)
        self.band = (band * torch.hamming_window(self.taps, periodic=False))[None, None]
        self.window = torch.hann_window(self.fft)

    def filtered(self, wave):
        return F.conv1d(wave[None], self.band, padding=self.taps // 2)[0]

    def spectrum(self, wave):
        spec = torch.stft(wave, self.fft, self.hop, window=self.window, center=False, return_complex=True)
        return (spec.abs() + 1e-3).log()

    def excerpt(self, recording, first):
        spec = self.spectrum(self.filtered(recording))
        return spec[:, :, first:first + self.frames]

    def step(self):
        views = [self.excerpt(r, m) for r, m in zip(self.recordings, self.marks)]
        batch = torch.stack(views)
        return (batch - batch.mean((2, 3), keepdim=True)) / batch.std((2, 3), keepdim=True)


class EarlyFront(Front):
    def excerpt(self, recording, first):
        half = self.taps // 2
        start, length = first * self.hop, (self.frames - 1) * self.hop + self.fft
        piece = recording[:, start - half:start + length + half]
        return self.spectrum(F.conv1d(piece[None], self.band)[0])


def make_step():
    return Front().step


def make_step_fixed():
    return EarlyFront().step
