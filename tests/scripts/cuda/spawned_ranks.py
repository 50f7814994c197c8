"""mp.spawn starts a process for each GPU; DDP over tcp://, SyncBatchNorm, a barrier, averaged metrics."""

import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dist-url", default="tcp://127.0.0.1:23456")
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()
    ngpus = torch.cuda.device_count()
    args.batch_size = args.batch_size // ngpus
    mp.spawn(worker, nprocs=ngpus, args=(ngpus, args))


def worker(gpu, ngpus, args):
    dist.init_process_group(backend="nccl", init_method=args.dist_url, world_size=ngpus, rank=gpu)
    torch.cuda.set_device(gpu)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 256, 3, 2, 1), nn.BatchNorm2d(256),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100),
    )  # fmt: skip
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda(gpu)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu], find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(6):
        images, labels = (
            torch.rand(args.batch_size, 3, 96, 96).cuda(gpu),
            torch.randint(100, (args.batch_size,)).cuda(gpu),
        )
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = torch.tensor([loss.item() * len(images), len(images)], dtype=torch.float32, device=gpu)
        dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
        if gpu == 0:
            print(f"step {step}: loss {total[0].item() / total[1].item():.3f} of {int(total[1])} images")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
