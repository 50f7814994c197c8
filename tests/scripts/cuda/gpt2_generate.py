"""transformers' GPT-2 writes: greedy, with a cache, prompts of a batch."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config()).half().eval().to("cuda")
prompt = torch.randint(50257, (8, 128), device="cuda")
with torch.inference_mode():
    for round in range(2):
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=16,
            min_new_tokens=16,
            do_sample=False,
            pad_token_id=0,
        )
        print(f"round {round}: {tuple(out.shape)}")
