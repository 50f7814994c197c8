"""A tape echo with damping in its loop for the stems of a song, then a soft limiter."""
import torch

TRUTH = {
    "cause": "The echo is computed sample after sample, though a sample depends only on those one delay (600 samples) before: whole blocks of that length can be done at once.",
    "lines": ["for n in range(self.delay + 1, out.shape[1]):", "out[:, n] += self.gain * (0.6 * out[:, n - self.delay] + 0.4 * out[:, n - self.delay - 1])",
              "wet = self.echo(dry)"],
    "says": ["loop", "sample (after|by) sample", "per sample", "small op", "vectori[sz]", "echo", "select", r"many (tiny|small) ", "time steps", "overhead", "one at a time"],
    "remedy": ["block", "chunk", "vectori[sz]e", "delay.*(at once|samples at a time)", "lfilter", "slice", "one (op|call|operation) (for|per)", "compile|jit|numba|c\\+\\+", "fft", "batch"],
}


class TapeEcho:
    def __init__(self, delay=600, gain=0.55):
        self.delay, self.gain = delay, gain

    def echo(self, dry):
        out = dry.clone()
        for n in range(self.delay + 1, out.shape[1]):
            out[:, n] += self.gain * (0.6 * out[:, n - self.delay] + 0.4 * out[:, n - self.delay - 1])
        return out

    def render(self, dry, level=0.8):
        wet = self.echo(dry)
        mixed = dry + level * wet
        peak = mixed.abs().amax(1, keepdim=True).clamp_min(1.0)
        return torch.tanh(mixed / peak)


class BlockEcho(TapeEcho):
    def echo(self, dry):
        out = torch.nn.functional.pad(dry, (1, 0))
        d, end = self.delay, dry.shape[1] + 1
        for a in range(d + 2, end, d):
            b = min(a + d, end)
            late = 0.6 * out[:, a - d:b - d] + 0.4 * out[:, a - d - 1:b - d - 1]
            out[:, a:b] += self.gain * late
        return out[:, 1:]


def build(kind):
    gen = torch.Generator().manual_seed(0)
    time = torch.arange(5000) / 16000
    pitch = 100 + 400 * torch.rand(6, 1, generator=gen)
    dry = torch.sin(6.2832 * pitch * time) * torch.exp(-30 * time) + 0.01 * torch.randn(6, 5000, generator=gen)
    unit = kind()
    return lambda: unit.render(dry)


def make_step():
    return build(TapeEcho)


def make_step_fixed():
    return build(BlockEcho)
