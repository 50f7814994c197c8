"""A small GRPO loop on real transformers models, tracked: how far is each iteration from the speed of light?

    python examples/grpo_loop.py --rl-enable-sol-tracking --rl-sol-report-interval 4
    python examples/grpo_loop.py --rl-enable-sol-tracking --tensorboard-dir runs/grpo --rl-sol-device H100-SXM5-80GB

The policy learns to prefer even tokens: each prompt is completed several times, a completion's advantage is its reward
against the others of its group, the policy moves by a clipped ratio and a KL penalty keeps it near the reference.
Four lines track it: ``add_sol_arguments``, ``initialize_sol``, ``log_training_sol`` and ``sol_nvtx_range`` for phases.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from rooflight.tracking import (
    add_sol_arguments,
    initialize_sol,
    log_training_sol,
    shutdown_sol,
    sol_nvtx_range,
)

VOCABULARY = 512
CLIP = 0.2
KL_WEIGHT = 0.04
LEARNING_RATE = 3e-4


@dataclass(frozen=True)
class Rollouts:
    """Tokens are [prompts * group, prompt + completion]; the others have a column for each token of the completion."""

    tokens: Tensor
    advantages: Tensor
    old_logprobs: Tensor
    reference_logprobs: Tensor


def make_model(args: argparse.Namespace) -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=args.prompt_length + args.completion_length,
        n_layer=args.layers,
        n_embd=args.width,
        n_head=args.width // 32,
        bos_token_id=None,
        eos_token_id=None,  # every completion has the same length
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return GPT2LMHeadModel(config)


def completion_logprobs(model: PreTrainedModel, tokens: Tensor, length: int) -> Tensor:
    """Log probability of each of the last ``length`` tokens, given those before it."""
    logits = model(input_ids=tokens, use_cache=False, logits_to_keep=length + 1).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, tokens[:, -length:, None]).squeeze(-1)


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """KL divergence from the reference at each token: never negative, and its mean over samples is right."""
    difference = reference_logprobs - logprobs
    return difference.exp() - difference - 1


def group_normalized(rewards: Tensor, group: int) -> Tensor:
    """How much better each completion is than the others of the same prompt, in standard deviations."""
    groups = rewards.view(-1, group)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()


@torch.no_grad()
def prepare_data_for_update(
    policy: PreTrainedModel, reference: PreTrainedModel, args: argparse.Namespace
) -> tuple[Rollouts, dict[str, float]]:
    length = args.completion_length
    policy.eval()
    with sol_nvtx_range("rl/rollout"):
        prompts = torch.randint(0, VOCABULARY, (args.prompts, args.prompt_length), device=policy.device)
        tokens = policy.generate(
            prompts.repeat_interleave(args.group, dim=0),
            attention_mask=torch.ones_like(prompts).repeat_interleave(args.group, dim=0),
            do_sample=True,
            max_new_tokens=length,
            pad_token_id=0,
        )
        rewards = (tokens[:, -length:] % 2 == 0).float().mean(1)
    with sol_nvtx_range("rl/compute-logprobs"):
        old_logprobs = completion_logprobs(policy, tokens, length)
        reference_logprobs = completion_logprobs(reference, tokens, length)
    with sol_nvtx_range("rl/kl-estimation"):
        kl = kl_estimate(old_logprobs, reference_logprobs).mean()
    policy.train()
    rollouts = Rollouts(tokens, group_normalized(rewards, args.group), old_logprobs, reference_logprobs)
    return rollouts, {"reward": rewards.mean().item(), "kl": kl.item()}


def grpo_loss(logprobs: Tensor, rollouts: Rollouts) -> Tensor:
    ratio = (logprobs - rollouts.old_logprobs).exp()
    advantages = rollouts.advantages[:, None]
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return (KL_WEIGHT * kl_estimate(logprobs, rollouts.reference_logprobs) - gain).mean()


def train_step(policy: PreTrainedModel, optimizer: torch.optim.Optimizer, rollouts: Rollouts) -> float:
    with sol_nvtx_range("rl/train/forward"):
        logprobs = completion_logprobs(policy, rollouts.tokens, rollouts.old_logprobs.shape[1])
    with sol_nvtx_range("rl/train/grpo-loss"):
        loss = grpo_loss(logprobs, rollouts)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def open_writers(args: argparse.Namespace) -> list[Any]:
    """Where the scalars go; ``log_training_sol`` takes one writer, a list of them, or None."""
    writers: list[Any] = []
    if args.tensorboard_dir:
        from torch.utils.tensorboard import SummaryWriter

        writers.append(SummaryWriter(args.tensorboard_dir))
    if args.wandb:
        import wandb

        writers.append(wandb.init(project="rooflight-grpo", config=vars(args)))  # WANDB_MODE=offline needs no account
    return writers


def close_writers(writers: list[Any]) -> None:
    for writer in writers:
        writer.finish() if hasattr(writer, "finish") else writer.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8, help="completions of each prompt")
    parser.add_argument("--prompt-length", type=int, default=16)
    parser.add_argument("--completion-length", type=int, default=16)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--updates", type=int, default=2, help="optimizer steps on each batch of rollouts")
    parser.add_argument("--tensorboard-dir", metavar="DIR")
    parser.add_argument("--wandb", action="store_true")
    return add_sol_arguments(parser).parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy, reference = make_model(args).to(device), make_model(args).to(device)
    reference.load_state_dict(policy.state_dict())
    reference.eval().requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE)
    writers = open_writers(args)

    initialize_sol({"policy": policy, "reference": reference}, args)
    for iteration in range(1, args.steps + 1):
        rollouts, figures = prepare_data_for_update(policy, reference, args)
        for _ in range(args.updates):
            loss = train_step(policy, optimizer, rollouts)
        print(f"{iteration:4}  reward {figures['reward']:.3f}  kl {figures['kl']:.4f}  loss {loss:+.4f}", flush=True)
        log_training_sol(iteration, writers)
    shutdown_sol()
    close_writers(writers)


if __name__ == "__main__":
    main()
