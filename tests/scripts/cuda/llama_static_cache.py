"""transformers' Llama writes: sampled, top-k and top-p, with a static cache, until an end token or so many."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=4
)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
prompt = torch.randint(32000, (4, 64), device=model.device)
for round in range(2):
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=12,
        do_sample=True,
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        repetition_penalty=1.1,
        cache_implementation="static",
        pad_token_id=0,
    )
    new = out[0, prompt.shape[1] :].tolist()
    print(f"round {round}: {len(new)} tokens")
