"""Two small galaxies pass through each other; their orbits are kept for a film."""
import os
import sys
import tempfile
import time
import numpy as np
import torch

TRUTH = {
    "cause": "Each snapshot is formatted as text, number by number, by np.savetxt; a binary file takes a fraction of that.",
    "lines": ["np.savetxt(path, table, header=\"x y z vx vy vz\")", "table = torch.cat([pos, vel], 1).numpy()", "path += \".txt\""],
    "says": ["savetxt", "text", "snapshot", "format(ting)?", r"\bI/?O\b", "file (writ|i/o)", "writ(e|ing|es)", "disk", "host"],
    "remedy": ["binary", r"np\.save\b(?!txt)", r"torch\.save", "npy", "npz", "hdf5|h5py|zarr|memmap", "tofile|tobytes", "less often|every n|fewer", "thread|background|asynchron"],
}
MENDED = "--mended" in sys.argv


def accelerations(pos, centres, soft=0.2):
    total = torch.zeros_like(pos)
    for centre in centres:
        delta = centre - pos
        inv = (delta.square().sum(-1, keepdim=True) + soft ** 2).rsqrt()
        total = total + delta * inv ** 3
    return total


def disc(count, centre, drift, gen):
    radius = torch.rand(count, generator=gen).sqrt() + 0.05
    angle = 6.2832 * torch.rand(count, generator=gen)
    pos = torch.stack([radius * angle.cos(), radius * angle.sin(), 0.02 * torch.randn(count, generator=gen)], 1)
    speed = (radius / 1.05).sqrt() * 0.7
    vel = torch.stack([-speed * angle.sin(), speed * angle.cos(), torch.zeros(count)], 1)
    return pos + torch.tensor(centre), vel + torch.tensor(drift)


def save_snapshot(folder, step, pos, vel):
    path = os.path.join(folder, f"snap_{step:05d}")
    table = torch.cat([pos, vel], 1).numpy()
    if MENDED:
        np.save(path + ".npy", table)
    else:
        path += ".txt"
        np.savetxt(path, table, header="x y z vx vy vz")


def main():
    gen = torch.Generator().manual_seed(0)
    parts = [disc(1500, (-1.5, 0.3, 0.0), (0.4, 0.0, 0.0), gen), disc(1500, (1.5, -0.3, 0.0), (-0.4, 0.0, 0.0), gen)]
    pos, vel = (torch.cat(p) for p in zip(*parts))
    centres, drift = torch.tensor([[-1.5, 0.3, 0.0], [1.5, -0.3, 0.0]]), torch.tensor([[0.4, 0.0, 0.0], [-0.4, 0.0, 0.0]])
    dt, inner = 0.02, 10
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        for step in range(320):
            for _ in range(inner):
                vel = vel + dt / inner * accelerations(pos, centres)
                pos = pos + dt / inner * vel
                pull = accelerations(centres, centres.flip(0)[:1])
                drift = drift + dt / inner * torch.stack([pull[0], -pull[0]])
                centres = centres + dt / inner * drift
            save_snapshot(folder, step, pos, vel)
            if step % 80 == 79:
                print(f"step {step + 1}: kinetic energy {0.5 * vel.square().sum(1).mean().item():.5f}")
        print(len(os.listdir(folder)), "snapshots")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
