"""Callbacks of Hugging Face's and Lightning's trainers: what is an iteration, and that nothing is left behind.

Both train the same model, which opens a phase of its own when it is not training, so that an evaluation that was taken
for a part of an iteration shows.
"""

import gc
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader
from torch_state import torch_state
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback

import rooflight as rl
from rooflight.studies.tracking.callbacks import hf, lightning

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),  # lightning 2.6 on torch 2.13
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),  # where slurm-wlm is installed
]

DEVICE = "H100-SXM5-80GB"
WIDTH, BATCH, ACCUMULATION = 8, 4, 3
# one micro-batch: [4, 8] @ [8, 8] forward and, as the input needs no gradient, [8, 4] @ [4, 8] backward
FLOPS = ACCUMULATION * (2 * BATCH * WIDTH * WIDTH) * 2


class Model(nn.Module):
    def __init__(self, raises_in: int = 0) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.calls, self.raises_in = 0, raises_in

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if not self.training:
            with rl.phase("evaluating"):
                return {"loss": self.layer(x).square().mean()}
        self.calls += 1
        out = self.layer(x)
        if self.calls == self.raises_in:
            raise ValueError("out of ideas")
        return {"loss": out.square().mean()}


class Module(LightningModule):
    def __init__(self, raises_in: int = 0) -> None:
        super().__init__()
        self.model = Model(raises_in)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model(**batch)["loss"]

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        self.model(**batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Writer:
    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}

    def log(self, scalars: dict[str, float], step: int) -> None:
        self.steps.setdefault(step, {}).update(scalars)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.log({name: value}, step)

    def add_text(self, *_: Any) -> None:
        pass

    def flush(self) -> None:
        pass

    close = flush


class Scalars(CSVLogger):
    """A logger of Lightning's that keeps what it is given."""

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.writer = Writer()

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.writer.log({name: value for name, value in metrics.items() if name.startswith("sol")}, step or 0)

    def save(self) -> None:
        pass


def data(batches: int, size: int = 1) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return [{"x": torch.randn(*([BATCH] if size > 1 else []), WIDTH)} for _ in range(batches)]


def hf_trainer(
    tmp_path: Any,
    *,
    steps: int = 4,
    raises_in: int = 0,
    callbacks: Any = (),
    model: nn.Module | None = None,
    **more: Any,
) -> Trainer:
    arguments = {
        "max_steps": steps,
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "max_grad_norm": 0.0,
        "optim": "sgd",
        **more,
    }
    return Trainer(
        model=model or Model(raises_in),
        args=TrainingArguments(output_dir=str(tmp_path / "out"), **arguments),
        train_dataset=data(steps * ACCUMULATION * BATCH),
        eval_dataset=data(5 * BATCH),
        callbacks=list(callbacks),
    )


def fit(
    tmp_path: Any,
    callback: lightning.SolCallback,
    *,
    steps: int = 4,
    raises_in: int = 0,
    more: Any = (),
    module: Module | None = None,
    **settings: Any,
) -> tuple[Writer, Module]:
    logger, module = Scalars(tmp_path), module or Module(raises_in)
    trainer = LightningTrainer(
        **{
            "max_steps": steps,
            "accumulate_grad_batches": ACCUMULATION,
            "accelerator": "cpu",
            "logger": logger,
            "callbacks": [callback, *more],
            "default_root_dir": tmp_path,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "log_every_n_steps": 1,
            **settings,
        }
    )
    loaders = [DataLoader(data(count, BATCH), batch_size=None) for count in (steps * ACCUMULATION, 5)]
    trainer.fit(module, *loaders)
    return logger.writer, module


def sol() -> lightning.SolCallback:
    return lightning.SolCallback(device=DEVICE, interval=0)


def hooks_on(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def check_iterations(steps: dict[int, dict[str, float]], numbers: list[int]) -> None:
    assert list(steps) == numbers
    for scalars in steps.values():
        assert scalars["sol/iteration_s"] > 0
        assert scalars["sol/matrix_flops"] == FLOPS
        assert not [name for name in scalars if "evaluating" in name]


# -- Hugging Face ------------------------------------------------------------------------------------------------------


def test_hf_an_iteration_is_an_optimizer_step(tmp_path):
    writer = Writer()
    callback = hf.SolCallback(writer=writer, device=DEVICE, interval=0)
    trainer = hf_trainer(tmp_path, callbacks=[callback])
    trainer.train()
    check_iterations(writer.steps, [1, 2, 3, 4])
    assert {"sol_phase/forward/seconds", "sol_phase/backward/seconds", "sol_phase/optimizer/seconds"} <= set(
        writer.steps[4]
    )
    assert [scalars["sol/recorded"] for scalars in writer.steps.values()] == [1, 1, 0, 0]
    assert hooks_on(trainer.model) == 0
    assert not callback.tracker.running


@pytest.mark.parametrize("every", [1, 2])
def test_hf_evaluation_is_no_part_of_an_iteration(tmp_path, every):
    writer = Writer()
    trainer = hf_trainer(tmp_path, eval_strategy="steps", eval_steps=every, eval_on_start=True)
    with hf.SolCallback(trainer, writer=writer, device=DEVICE, interval=0):
        trainer.train()
    check_iterations(writer.steps, [1, 2, 3, 4])
    # the iteration after an evaluation is recorded if it was to be, and only then
    assert [scalars["sol/recorded"] for scalars in writer.steps.values()] == [1, 1, 0, 0]


def test_hf_evaluation_and_checkpoint_at_the_end_of_an_epoch(tmp_path):
    writer = Writer()
    callback = hf.SolCallback(writer=writer, device=DEVICE, interval=0)
    settings = {"eval_strategy": "epoch", "save_strategy": "epoch", "max_steps": -1, "num_train_epochs": 2}
    hf_trainer(tmp_path, steps=3, callbacks=[callback], **settings).train()
    check_iterations(writer.steps, [1, 2, 3, 4, 5, 6])


@pytest.mark.slow
def test_hf_an_evaluation_nobody_announced_costs_its_iteration(tmp_path):
    class Curious(TrainerCallback):
        def on_substep_end(self, args, state, control, **_):
            if state.global_step == 2 and not self.asked:
                self.asked = True
                self.trainer.evaluate()

    writer, curious = Writer(), Curious()
    trainer = hf_trainer(tmp_path, callbacks=[curious])
    curious.trainer, curious.asked = trainer, False
    with hf.SolCallback(trainer, writer=writer, device=DEVICE, interval=0):
        trainer.train()
    check_iterations(writer.steps, [1, 2, 4])


@pytest.mark.parametrize("call", [2, 8])  # in an iteration that is recorded, in one that is timed
def test_hf_an_exception_leaves_torch_clean(tmp_path, call):
    trainer = hf_trainer(tmp_path, raises_in=call)
    with pytest.raises(ValueError, match="out of ideas"), hf.SolCallback(trainer, device=DEVICE, interval=0):
        trainer.train()
    assert hooks_on(trainer.model) == 0


@pytest.mark.slow
def test_hf_the_next_training_ends_one_that_raised(tmp_path):
    before, writer = torch_state(), Writer()
    callback = hf.SolCallback(writer=writer, device=DEVICE, interval=0)
    trainer = hf_trainer(tmp_path, raises_in=2, callbacks=[callback])
    with pytest.raises(ValueError, match="out of ideas"):
        trainer.train()
    assert torch_state() != before  # transformers tells no callback
    trainer.train()
    check_iterations(writer.steps, [1, 2, 3, 4])
    assert hooks_on(trainer.model) == 0


@pytest.mark.slow
def test_hf_a_trainer_that_raised_and_is_thrown_away_leaves_nothing(tmp_path):
    model = Model(raises_in=2)
    trainer = hf_trainer(tmp_path, model=model, callbacks=[hf.SolCallback(device=DEVICE, interval=0)])
    with pytest.raises(ValueError, match="out of ideas"):
        trainer.train()
    del trainer
    gc.collect()
    assert hooks_on(model) == 0


@pytest.mark.slow
def test_hf_two_trainings(tmp_path):
    writer = Writer()
    trainer = hf_trainer(tmp_path)
    with hf.SolCallback(trainer, writer=writer, device=DEVICE, interval=0):
        trainer.train()
        check_iterations(writer.steps, [1, 2, 3, 4])
        writer.steps.clear()
        trainer.train()
        check_iterations(writer.steps, [1, 2, 3, 4])
    assert not any(isinstance(callback, hf.SolCallback) for callback in trainer.callback_handler.callbacks)


@pytest.mark.slow
def test_hf_the_trainers_own_board_and_run(tmp_path, monkeypatch):
    board, run = Writer(), SimpleNamespace(logged=[])
    run.log = run.logged.append
    trainer = hf_trainer(tmp_path, callbacks=[TensorBoardCallback(board)])
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    with hf.SolCallback(trainer, device=DEVICE, interval=0):
        trainer.train()
    ours = {step: {name: value for name, value in scalars.items() if name.startswith("sol")} for step, scalars in
            board.steps.items()}  # fmt: skip
    check_iterations(ours, [1, 2, 3, 4])
    assert [logged["train/global_step"] for logged in run.logged] == [1, 2, 3, 4]


def test_hf_an_error_of_ours_is_told_once_and_training_goes_on(tmp_path, monkeypatch, caplog):
    plain = hf_trainer(tmp_path, model=seeded()).train()
    monkeypatch.setattr("rooflight.studies.tracking.observer.analyze", broken)
    trainer = hf_trainer(tmp_path, model=seeded())
    with caplog.at_level(logging.WARNING, "rooflight"), hf.SolCallback(trainer, device=DEVICE, interval=1):
        tracked = trainer.train()
    assert tracked.training_loss == plain.training_loss
    assert [record.getMessage() for record in caplog.records] == [
        "rooflight: tracking ended after an error: RuntimeError: no roof"
    ]


def test_a_device_that_nobody_knows_is_refused_before_training():
    for callback in (hf.SolCallback, lightning.SolCallback):
        with pytest.raises(ValueError, match="unknown device"):
            callback(device="H300")
        with pytest.raises(ValueError, match="a report every -1 iterations"):
            callback(interval=-1)


def test_a_machine_that_cannot_be_measured_stops_no_training(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("rooflight.studies.tracking.loop.find_device", broken)
    with caplog.at_level(logging.WARNING, "rooflight"):
        fit(tmp_path, lightning.SolCallback(interval=0))
    assert "rooflight: nothing is tracked: RuntimeError: no roof" in caplog.text


def seeded() -> Model:
    torch.manual_seed(1)
    return Model()


def broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("no roof")


# -- Lightning ---------------------------------------------------------------------------------------------------------


def test_lightning_an_iteration_is_an_optimizer_step(tmp_path, capsys):
    callback = lightning.SolCallback(device=DEVICE, interval=3)
    writer, module = fit(tmp_path, callback)
    check_iterations(writer.steps, [1, 2, 3, 4])
    assert {name.split("/")[2] for name in writer.steps[4] if name.startswith("sol_phase")} == {
        "data",
        "forward",
        "backward",
        "optimizer",
    }
    assert capsys.readouterr().out.count("Speed of light: iteration") == 1
    assert hooks_on(module) == 0
    assert not callback.tracker.running


def test_lightning_validation_is_no_part_of_an_iteration(tmp_path):
    writer, _ = fit(tmp_path, sol(), val_check_interval=ACCUMULATION, num_sanity_val_steps=2)
    check_iterations(writer.steps, [1, 2, 3, 4])
    assert [scalars["sol/recorded"] for scalars in writer.steps.values()] == [1, 1, 0, 0]


def test_lightning_validation_between_micro_batches_costs_its_iteration(tmp_path):
    writer, _ = fit(tmp_path, sol(), val_check_interval=4)
    # 12 micro-batches, 3 a step; after the 4th (in step 2), the 8th (in step 3) and the 12th
    check_iterations(writer.steps, [1, 4])


def test_lightning_checkpoints_are_no_part_of_an_iteration(tmp_path):
    class Saver(Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.save_checkpoint(tmp_path / "kept.ckpt")

    writer, _ = fit(tmp_path, sol(), accumulate_grad_batches=1, more=[Saver()], steps=3)
    assert list(writer.steps) == [1, 2, 3]
    assert {scalars["sol/matrix_flops"] for scalars in writer.steps.values()} == {FLOPS / ACCUMULATION}


@pytest.mark.parametrize("call", [2, 8])
def test_lightning_an_exception_leaves_torch_clean(tmp_path, call):
    callback = sol()
    with pytest.raises(ValueError, match="out of ideas"):
        fit(tmp_path, callback, raises_in=call)
    assert not callback.tracker.running


def test_lightning_two_trainings_with_one_callback(tmp_path):
    callback = sol()
    for _ in range(2):
        writer, _ = fit(tmp_path, callback)
        check_iterations(writer.steps, [1, 2, 3, 4])


def test_lightning_an_error_of_ours_is_told_once_and_training_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("rooflight.studies.tracking.observer.analyze", broken)
    with caplog.at_level(logging.WARNING, "rooflight"):
        writer, module = fit(tmp_path, lightning.SolCallback(device=DEVICE, interval=1))
    assert module.model.calls == 4 * ACCUMULATION
    assert not writer.steps
    assert len([record for record in caplog.records if record.name == "rooflight"]) == 1


def test_lightning_manual_optimization(tmp_path):
    class Manual(Module):
        def training_step(self, batch):
            loss = super().training_step(batch)
            self.manual_backward(loss)
            self.optimizers().step()
            self.optimizers().zero_grad()

    module = Manual()
    module.automatic_optimization = False
    writer, _ = fit(tmp_path, sol(), steps=3, module=module, accumulate_grad_batches=1)
    assert list(writer.steps) == [1, 2, 3]
    assert {scalars["sol/matrix_flops"] for scalars in writer.steps.values()} == {FLOPS / ACCUMULATION}
