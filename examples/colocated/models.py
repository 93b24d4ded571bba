# SPDX-License-Identifier: Apache-2.0
"""A tiny model of transformers, and where it is to lie: on the one GPU of both processes, or on the CPU where there is none."""

import torch
import transformers

CONFIG = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}


def device() -> torch.device:
    """The first GPU that this process sees; all processes of the example see the same ones."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def make_model(seed: int) -> torch.nn.Module:
    """A mixture of experts in bfloat16, with values that follow from the seed."""
    torch.manual_seed(seed)
    config = transformers.Qwen3MoeConfig(**CONFIG)
    made = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.bfloat16
    )
    return made.to(device())


def batch(step: int) -> torch.Tensor:
    """Token ids of one step, the same everywhere."""
    chance = torch.Generator().manual_seed(step)
    return torch.randint(3, 96, (2, 24), generator=chance).to(device())


def logits(model: torch.nn.Module) -> torch.Tensor:
    """What the model says of a prompt that nobody trains on."""
    with torch.no_grad():
        return model(input_ids=batch(1000)).logits.float().cpu()
