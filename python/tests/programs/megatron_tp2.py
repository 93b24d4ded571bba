# SPDX-License-Identifier: Apache-2.0
"""One of two tensor-parallel ranks that hold a llama as Megatron-Core does: names, fusions and attributes of parameters.

The parameters are made here from a checkpoint of transformers, by Megatron's rules: a rank has half of the query groups,
each as its queries, keys and values, and half of gate and half of up in one. Usage: megatron_tp2.py MODEL RANK
"""

import sys

import torch
import transformers

import tensorferry

RANKS = 2


def parameter(tensor: torch.Tensor, dim: int | None = None, stride: int = 1) -> torch.nn.Parameter:
    made = torch.nn.Parameter(tensor.clone())
    if dim is not None:
        made.tensor_model_parallel, made.partition_dim, made.partition_stride = True, dim, stride
    return made


def megatron(model: torch.nn.Module, rank: int) -> dict[str, torch.nn.Parameter]:
    config, weights = model.config, model.state_dict()
    width, groups = config.head_dim, config.num_key_value_heads
    queries = config.num_attention_heads // groups

    def half(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return tensor.chunk(RANKS, dim)[rank]

    made = {
        "embedding.word_embeddings.weight": parameter(half(weights["model.embed_tokens.weight"], 0), 0),
        "decoder.final_layernorm.weight": parameter(weights["model.norm.weight"]),
        "output_layer.weight": parameter(half(weights["lm_head.weight"], 0), 0),
    }
    for layer in range(config.num_hidden_layers):
        source, target = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        q, k, v = (weights[f"{source}self_attn.{kind}_proj.weight"] for kind in "qkv")
        hidden = q.shape[1]
        by_group = torch.cat(
            [
                q.reshape(groups, queries * width, hidden),
                k.reshape(groups, width, hidden),
                v.reshape(groups, width, hidden),
            ],
            dim=1,
        )
        qkv = half(by_group, 0).reshape(-1, hidden)
        gate, up = (half(weights[f"{source}mlp.{kind}_proj.weight"], 0) for kind in ("gate", "up"))
        made[f"{target}self_attention.linear_qkv.weight"] = parameter(qkv, 0)
        made[f"{target}self_attention.linear_qkv.layer_norm_weight"] = parameter(weights[f"{source}input_layernorm.weight"])
        made[f"{target}self_attention.linear_proj.weight"] = parameter(
            half(weights[f"{source}self_attn.o_proj.weight"], 1), 1
        )
        made[f"{target}mlp.linear_fc1.weight"] = parameter(torch.cat([gate, up]), 0, stride=2)
        made[f"{target}mlp.linear_fc1.layer_norm_weight"] = parameter(weights[f"{source}post_attention_layernorm.weight"])
        made[f"{target}mlp.linear_fc2.weight"] = parameter(half(weights[f"{source}mlp.down_proj.weight"], 1), 1)
    return made


def main(model: str, rank: int) -> None:
    source = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with tensorferry.connect("job", side="train", rank=rank, world=RANKS, timeout=120) as ferry:
        ferry.register(megatron(source, rank), convention="megatron", model=model)
        ferry.push(1)
        ferry.verify()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
