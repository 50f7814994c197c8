"""accelerate: mixed precision, accumulation, metrics gathered over the processes, a scheduler."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTConfig, ViTForImageClassification, get_cosine_schedule_with_warmup

accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
model = ViTForImageClassification(ViTConfig(num_hidden_layers=4, num_labels=100))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = TensorDataset(torch.rand(128, 3, 224, 224), torch.randint(100, (128,)))
loader = DataLoader(data, 8, shuffle=True, drop_last=True)
scheduler = get_cosine_schedule_with_warmup(optimizer, 2, 100)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
accelerator.print(f"{accelerator.num_processes} processes, {accelerator.device}")
for epoch in range(8):
    for images, labels in loader:
        with accelerator.accumulate(model):
            out = model(pixel_values=images, labels=labels)
            accelerator.backward(out.loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    right, all_labels = accelerator.gather_for_metrics((out.logits.argmax(-1), labels))
    accelerator.print(f"epoch {epoch}: {(right == all_labels).float().mean().item():.3f} of {len(all_labels)}")
