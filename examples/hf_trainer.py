"""The ``Trainer`` of transformers, tracked by a callback, with gradient accumulation and evaluations in between.

python examples/hf_trainer.py
python examples/hf_trainer.py --steps 100 --interval 50 --tensorboard-dir runs/hf --rl-sol-device H100-SXM5-80GB
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from rooflight.tracking.callbacks.hf import SolCallback

VOCABULARY = 512
SEQUENCE = 64


class Counting(Dataset):
    """Sequences that count up from a random token."""

    def __init__(self, length: int) -> None:
        self._starts = torch.randint(0, VOCABULARY, (length,))

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (self._starts[index] + torch.arange(SEQUENCE)) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


def make_trainer(args: argparse.Namespace, output_dir: str) -> Trainer:
    if args.tensorboard_dir:
        os.environ["TENSORBOARD_LOGGING_DIR"] = args.tensorboard_dir
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=SEQUENCE,
    )
    return Trainer(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir=output_dir,
            max_steps=args.steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=max(1, args.steps // 2),
            logging_steps=max(1, args.steps // 2),
            save_strategy="no",
            report_to=["tensorboard"] if args.tensorboard_dir else [],
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=Counting(8 * args.steps),
        eval_dataset=Counting(16),
    )


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
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = make_trainer(args, output_dir)
        with SolCallback(trainer, interval=args.interval, device=args.rl_sol_device):
            trainer.train()


if __name__ == "__main__":
    main()
