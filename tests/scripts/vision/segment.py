"""Mixed precision with a GradScaler that wants CUDA and disables itself; nothing goes to standard output."""

import argparse
import logging
from pathlib import Path

import torch
import torch.nn.functional as F
from images import Digits
from torch import nn, optim
from tqdm import tqdm


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.middle, self.up = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(16, 2, 1),
        )

    def forward(self, x):
        a = F.relu(self.down(x))
        b = F.interpolate(F.relu(self.middle(F.max_pool2d(a, 2))), scale_factor=2.0)
        return self.up(torch.cat([a, b], dim=1))


def dice_loss(x, y):
    return 1 - (2 * (x * y).sum() + 1e-6) / (x.sum() + y.sum() + 1e-6)


@torch.inference_mode()
def evaluate(net, loader, amp):
    net.eval()
    with torch.autocast("cpu", enabled=amp):
        score = sum(1 - dice_loss(F.softmax(net(x), 1)[:, 1], (x.mean(1) > 0.5).float()) for x, _ in loader)
    net.train()
    return score / len(loader)


def train_model(model, epochs, batch_size, amp):
    loader = torch.utils.data.DataLoader(Digits(22, 24, 3), batch_size=batch_size, shuffle=True)
    val = torch.utils.data.DataLoader(Digits(4, 24, 3, seed=6), batch_size=batch_size)
    optimizer = optim.RMSprop(model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    grad_scaler = torch.amp.GradScaler("cuda", enabled=amp)
    criterion = nn.CrossEntropyLoss()
    global_step = 0
    for epoch in range(1, epochs + 1):
        model.train()
        with tqdm(total=22, desc=f"Epoch {epoch}/{epochs}", unit="img") as pbar:
            for images, _ in loader:
                true_masks = (images.mean(1) > 0.5).long()
                with torch.autocast("cpu", enabled=amp):
                    masks_pred = model(images)
                    loss = criterion(masks_pred, true_masks)
                    loss += dice_loss(F.softmax(masks_pred, dim=1).float()[:, 1], true_masks.float())
                optimizer.zero_grad(set_to_none=True)
                grad_scaler.scale(loss).backward()
                grad_scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                grad_scaler.step(optimizer)
                grad_scaler.update()
                pbar.update(images.shape[0])
                global_step += 1
                if global_step % 2 == 0:
                    histograms = {name: p.grad.histc() for name, p in model.named_parameters()}
                    val_score = evaluate(model, val, amp)
                    scheduler.step(val_score)
                    logging.info("Validation Dice score: %s of %d tensors", val_score.item(), len(histograms))
        Path("checkpoints").mkdir(exist_ok=True)
        torch.save(model.state_dict(), f"checkpoints/checkpoint_epoch{epoch}.pth")


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", "-e", type=int, default=5)
    parser.add_argument("--batch-size", "-b", dest="batch_size", type=int, default=1)
    parser.add_argument("--amp", action="store_true", default=False)
    return parser.parse_args()


if __name__ == "__main__":
    args = get_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    torch.manual_seed(0)
    model = UNet().to(memory_format=torch.channels_last)
    try:
        train_model(model, args.epochs, args.batch_size, args.amp)
    except torch.cuda.OutOfMemoryError:
        logging.error("Out of memory")
