"""Draws samples of molecules' latents with an ancestral diffusion sampler."""
import logging
import sys
import time
import torch
from torch import nn

TRUTH = {
    "cause": "A debug message formats all latents into a string in each sampling step, although the level of the logger throws it away.",
    "lines": ["log.debug(f\"step {i}: noise {eps.tolist()} latents {x.tolist()}\")", "x = self.reverse(x, i, noise)"],
    "says": ["log", "debug", "tolist", "format|f-string", "string", "message", "host"],
    "remedy": ["isEnabledFor", "lazy|lazily|%s", "only .*(if|when|where)", "remove|drop|delete|avoid|skip|no longer", "guard", "summary|mean|norm", "less often", "outside the loop"],
}
MENDED = "--mended" in sys.argv
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
log = logging.getLogger("sampler")


class Score(nn.Module):
    def __init__(self, width=24, hidden=128):
        super().__init__()
        self.time = nn.Embedding(1000, hidden)
        self.up, self.mid, self.down = nn.Linear(width, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, width)

    def forward(self, x, t):
        h = nn.functional.silu(self.up(x) + self.time(t))
        return self.down(h + nn.functional.silu(self.mid(h)))


class Sampler:
    def __init__(self, steps):
        self.net, self.steps = Score().eval(), steps
        betas = torch.linspace(1e-4, 0.05, steps)
        alphas = 1 - betas
        bar = alphas.cumprod(0)
        self.scale = alphas.rsqrt().tolist()
        self.weight = (betas / (1 - bar).sqrt()).tolist()
        self.sigma = betas.sqrt().tolist()

    def reverse(self, x, i, noise):
        eps = self.net(x, torch.full((len(x),), i))
        x = self.scale[i] * (x - self.weight[i] * eps) + self.sigma[i] * noise
        if MENDED:
            if log.isEnabledFor(logging.DEBUG):
                log.debug("step %d: noise %s latents %s", i, eps.tolist(), x.tolist())
        else:
            log.debug(f"step {i}: noise {eps.tolist()} latents {x.tolist()}")
        return x

    @torch.inference_mode()
    def sample(self, count):
        gen = torch.Generator().manual_seed(1)
        x = torch.randn(count, 24, generator=gen)
        for i in reversed(range(self.steps)):
            noise = torch.randn(x.shape, generator=gen) if i else torch.zeros_like(x)
            x = self.reverse(x, i, noise)
            if i % 50 == 0:
                log.info(f"{self.steps - i} of {self.steps} done, spread {x.std().item():.4f}")
        return x


def main():
    torch.manual_seed(0)
    sampler = Sampler(200)
    start = time.time()
    x = sampler.sample(1100)
    log.info(f"{len(x)} latents, mean norm {x.norm(dim=1).mean().item():.4f}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
