"""Lightning's Trainer: mixed precision, logged metrics, a scheduler, gradient clipping, validation; a GRU."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, place):
        return torch.randn(64, 40), torch.randint(12, (1,)).squeeze()


class Speech(L.LightningModule):
    def __init__(self, width=256):
        super().__init__()
        self.save_hyperparameters()
        self.front = nn.Conv1d(40, width, 5, padding=2)
        self.gru = nn.GRU(width, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 12)

    def forward(self, x):
        x = F.relu(self.front(x.transpose(1, 2))).transpose(1, 2)
        return self.head(self.gru(x)[0].mean(1))

    def training_step(self, batch, number):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_acc", (logits.argmax(-1) == y).float().mean(), on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, number):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


L.seed_everything(1)
trainer = L.Trainer(
    accelerator="gpu", devices=1, precision="bf16-mixed", max_epochs=1, max_steps=8, gradient_clip_val=1.0,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, num_sanity_val_steps=1, log_every_n_steps=1,
)  # fmt: skip
trainer.fit(Speech(), DataLoader(Noise(), 32), DataLoader(Noise(), 64))
print("trained to step", trainer.global_step, {name: float(value) for name, value in trainer.callback_metrics.items()})
