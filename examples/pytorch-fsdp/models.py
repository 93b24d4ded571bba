# SPDX-License-Identifier: Apache-2.0
"""Tiny models of transformers, made from their configurations: the same on every process that states the same seed."""

import torch
import transformers

_COMMON = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {
    "qwen3_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 1,
    },
    "gpt_oss": {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 16},
}


def make_model(family: str, seed: int) -> torch.nn.Module:
    """A causal language model of this family, in float32, with values that follow from the seed."""
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(
        family, **{**_COMMON, **_EXPERTS.get(family, {})}
    )
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).to(torch.float32)


def batch(step: int) -> torch.Tensor:
    """Token ids of one step, the same everywhere."""
    return torch.randint(3, 96, (2, 24), generator=torch.Generator().manual_seed(step))
