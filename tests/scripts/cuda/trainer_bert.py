"""transformers' Trainer: bf16, fused AdamW, gradient accumulation, a data set with a collator."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, place):
        ids = torch.randint(1000, 30000, (128,), generator=torch.Generator().manual_seed(place))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(place % 2)}


model = BertForSequenceClassification(BertConfig(num_hidden_layers=4))
arguments = TrainingArguments(
    "out", per_device_train_batch_size=16, gradient_accumulation_steps=2, max_steps=5, bf16=True, optim="adamw_torch_fused",
    logging_steps=1, save_strategy="no", report_to=[], dataloader_num_workers=0, warmup_steps=1,
)  # fmt: skip
print(arguments.device, arguments.n_gpu)
Trainer(model, arguments, train_dataset=Pairs()).train()
