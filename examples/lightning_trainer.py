"""The ``Trainer`` of Lightning, tracked by a callback, with gradient accumulation and validation in between.

python examples/lightning_trainer.py
python examples/lightning_trainer.py --steps 100 --interval 50 --tensorboard-dir runs/lightning
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from rooflight.tracking.callbacks.lightning import SolCallback

CLASSES = 10
WIDTH = 256
BATCH = 32


class Classifier(LightningModule):
    """Says which of its first features is the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.LayerNorm(4 * WIDTH), nn.Linear(4 * WIDTH, CLASSES)
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        features, labels = batch
        loss = cross_entropy(self(features), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], _index: int) -> None:
        features, labels = batch
        self.log("valid/loss", cross_entropy(self(features), labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def make_data(batches: int) -> DataLoader:
    features = torch.randn(batches * BATCH, WIDTH)
    return DataLoader(TensorDataset(features, features[:, :CLASSES].argmax(1)), batch_size=BATCH)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--interval", type=int, default=10, help="steps from one report to the next, 0 for never")
    parser.add_argument("--tensorboard-dir", metavar="DIR")
    parser.add_argument("--rl-sol-device", metavar="NAME", help="bound for this device [default: this one]")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as root:
        trainer = Trainer(
            max_steps=args.steps,
            accumulate_grad_batches=2,
            val_check_interval=max(2, args.steps),
            gradient_clip_val=1.0,
            logger=TensorBoardLogger(args.tensorboard_dir, name=None, version="") if args.tensorboard_dir else False,
            callbacks=[SolCallback(interval=args.interval, device=args.rl_sol_device)],
            default_root_dir=root,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
        )
        trainer.fit(Classifier(), make_data(2 * args.steps), make_data(2))


if __name__ == "__main__":
    main()
