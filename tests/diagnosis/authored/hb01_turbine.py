"""Rolls a reduced-order model of a turbine's wake forward in time for an ensemble of winds."""
import sys
import time
import torch

TRUTH = {"healthy": True}


class Wake:
    def __init__(self, modes=1600, inputs=64, members=224, seed=0):
        gen = torch.Generator().manual_seed(seed)
        step = torch.randn(modes, modes, generator=gen) / modes ** 0.5
        self.step_t = (0.97 * step).contiguous()
        self.push_t = 0.1 * torch.randn(inputs, modes, generator=gen)
        self.probes = torch.randint(modes, (32,), generator=gen)
        self.phase = 6.2832 * torch.rand(members, inputs, generator=gen)
        self.state = torch.zeros(members, modes)
        self.next = torch.empty_like(self.state)

    @torch.inference_mode()
    def advance(self, moment):
        wind = torch.sin(self.phase + 0.05 * moment)
        torch.addmm(wind @ self.push_t, self.state, self.step_t, out=self.next)
        self.next.tanh_()
        self.state, self.next = self.next, self.state
        return self.state


def main():
    torch.manual_seed(0)
    wake, steps = Wake(), 400
    readings = torch.empty(steps, 224, 32)
    start = time.time()
    for moment in range(steps):
        state = wake.advance(moment)
        readings[moment] = state[:, wake.probes]
        if moment % 100 == 99:
            print(f"step {moment + 1}: energy {state.square().sum(1).mean().item():.4f}")
    print(f"probes: mean {readings.mean().item():.5f}, spread over members {readings.std(1).mean().item():.4f}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
