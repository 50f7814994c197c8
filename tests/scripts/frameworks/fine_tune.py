"""The Trainer of transformers: accumulation of 2, gradient checkpointing, logging, a checkpoint at the end."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Texts(torch.utils.data.Dataset):
    def __init__(self):
        made = torch.Generator().manual_seed(9)
        self.rows = torch.randint(0, 128, (32, 16), generator=made)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def main(args):
    set_seed(42)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )
    arguments = TrainingArguments(
        output_dir=args.output_dir,
        max_steps=args.max_steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        gradient_checkpointing=True,
        logging_steps=2,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts())
    trainer.train()
    trainer.save_model(args.output_dir)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_steps", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--output_dir", default="out")
    main(parser.parse_args())
