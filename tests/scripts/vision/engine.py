"""An engine with events runs the step in a function of its own; evaluators are engines too."""

import argparse

import torch
import torch.nn.functional as F
from images import Digits, Normalize
from torch import nn, optim
from tqdm import tqdm


class Engine:
    def __init__(self, process):
        self.process, self.handlers, self.iteration, self.output = process, {}, 0, None

    def on(self, event):
        return lambda function: self.handlers.setdefault(event, []).append(function) or function

    def fire(self, event):
        for handler in self.handlers.get(event, []):
            handler(self)

    def run(self, loader, max_epochs=1):
        for _ in range(max_epochs):
            for batch in loader:
                self.iteration += 1
                self.output = self.process(self, batch)
                self.fire("iteration")
            self.fire("epoch")


def create_supervised_trainer(model, optimizer, loss_fn):
    def update(engine, batch):
        model.train()
        optimizer.zero_grad()
        x, y = batch
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Engine(update)


def create_supervised_evaluator(model, losses):
    def inference(engine, batch):
        model.eval()
        with torch.no_grad():
            losses.append(nn.functional.nll_loss(model(batch[0]), batch[1]).item())

    return Engine(inference)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5, 4)
        self.fc = nn.Linear(144, 10)

    def forward(self, x):
        return F.log_softmax(self.fc(F.dropout(F.relu(self.conv(x)).flatten(1), training=self.training)), dim=-1)


def run(epochs):
    transform = Normalize(0.1307, 0.3081)
    train_loader = torch.utils.data.DataLoader(Digits(320, transform=transform), batch_size=16, shuffle=True)
    val_loader = torch.utils.data.DataLoader(Digits(64, transform=transform, seed=6), batch_size=32)
    model = Net()
    trainer = create_supervised_trainer(model, optim.SGD(model.parameters(), lr=0.01, momentum=0.5), nn.NLLLoss())
    losses = []
    evaluator = create_supervised_evaluator(model, losses)
    pbar = tqdm(initial=0, leave=False, total=len(train_loader), desc="ITERATION")

    @trainer.on("iteration")
    def log_training_loss(engine):
        if engine.iteration % 10 == 0:
            pbar.desc = f"ITERATION - loss: {engine.output:.2f}"
            pbar.update(10)

    @trainer.on("epoch")
    def log_results(engine):
        for name, loader in (("Training", train_loader), ("Validation", val_loader)):
            losses.clear()
            evaluator.run(loader)
            tqdm.write(f"{name} Results - Avg loss: {sum(losses) / len(losses):.4f}")
        pbar.n = pbar.last_print_n = 0

    trainer.run(train_loader, max_epochs=epochs)
    pbar.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    run(parser.parse_args().epochs)
