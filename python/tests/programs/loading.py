# SPDX-License-Identifier: Apache-2.0
"""One rank that loads its part of a checkpoint, and prints what of it is not as the whole model has it.

Usage: loading.py KIND CHECKPOINT, where KIND is "mesh" (DTensors in many ways on 2 x 2 ranks), or "fsdp" (a model of
transformers under FSDP2, by convention).
"""

import sys

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import tensorferry

PLACEMENTS = [[Shard(0), Replicate()], [Replicate(), Shard(1)], [Shard(0), Shard(1)], [Shard(0), Shard(0)]]


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def mesh(path: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], str | None]:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole = transformers.AutoModelForCausalLM.from_pretrained(path).state_dict()
    wanted = {}
    for at, (name, tensor) in enumerate(whole.items()):
        placements = PLACEMENTS[at % len(PLACEMENTS)] if tensor.ndim == 2 else [Replicate(), Shard(0)]
        wanted[name] = distribute_tensor(tensor, grid, placements)
    held = {
        name: DTensor.from_local(torch.zeros_like(local(tensor)), grid, tensor.placements) for name, tensor in wanted.items()
    }
    return held, wanted, None


def fsdp(path: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor], str | None]:
    def sharded(model: torch.nn.Module) -> torch.nn.Module:
        for layer in model.model.layers:
            fully_shard(layer)
        return fully_shard(model)

    wanted = sharded(transformers.AutoModelForCausalLM.from_pretrained(path)).state_dict()
    config = transformers.AutoConfig.from_pretrained(path)
    return sharded(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)), wanted, "transformers"


def main(kind: str, path: str) -> None:
    dist.init_process_group("gloo")
    held, wanted, convention = {"mesh": mesh, "fsdp": fsdp}[kind](path)
    loaded = tensorferry.load(held, path, convention=convention)
    tensors = held if isinstance(held, dict) else held.state_dict()
    for name, tensor in tensors.items():
        if not torch.equal(local(tensor), local(wanted[name])):
            print(f"{name} differs")
    own = sum(local(tensor).nbytes for tensor in wanted.values())
    print(f"{loaded.tensors} tensors, {loaded.byte_length - own} bytes more than this rank has")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
