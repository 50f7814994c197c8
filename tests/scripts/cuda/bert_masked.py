"""transformers' BERT classifies sentences of unequal length: masks, position ids, a schedule, evaluation."""

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(num_labels=2)).to(device)


def collate(rows):
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids[:, 0] % 2}


rows = [torch.randint(1, 30522, (128 if i % 16 == 0 else 40 + i % 64,)) for i in range(160)]
train, test = DataLoader(rows[:128], 16, collate_fn=collate), DataLoader(rows[128:], 16, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 16)
for epoch in range(2):
    model.train()
    for batch in train:
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    right = 0
    for batch in test:
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.no_grad():
            right += (model(**batch).logits.argmax(-1) == batch["labels"]).sum().item()
    print(f"epoch {epoch}: loss {loss.item():.3f}, {right} of 32 right")
