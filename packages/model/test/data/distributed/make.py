# SPDX-License-Identifier: Apache-2.0
"""Writes small checkpoints with PyTorch itself, for the tests of their readers.

    python make.py OUT [KIND ...]

Kinds: `fsdp` (fully_shard over two processes, rows that do not divide), `mesh` (DTensors on a 2x2 mesh, cut along two
dimensions), `state` (plain tensors: views, every element type, objects beside them), `megatron` (keys and leading axes as
Megatron-Core writes its distributed checkpoints) and `bin` (files of torch.save). Beside each folder stands
`NAME.safetensors` with the same tensors whole.
"""
import json
import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def whole_file(path, tensors):
    """A safetensors file written by hand, so that only PyTorch is needed."""
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64",
             torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
             torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64"}
    header, blobs, at = {}, [], 0
    for name, tensor in tensors.items():
        dense = tensor.detach().contiguous()
        blob = bytes(dense.reshape(-1).view(torch.uint8).numpy().tobytes()) if dense.numel() else b""
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def block():
    """The shapes of a tiny llama, with an odd vocabulary."""
    torch.manual_seed(5)
    shapes = {
        "model.embed_tokens.weight": (11, 8),
        "model.layers.0.self_attn.q_proj.weight": (8, 8),
        "model.layers.0.self_attn.k_proj.weight": (4, 8),
        "model.layers.0.mlp.down_proj.weight": (8, 12),
        "model.layers.0.input_layernorm.weight": (8,),
        "model.norm.weight": (8,),
    }
    return {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embed = torch.nn.Embedding(11, 8)
        self.up = torch.nn.Linear(8, 13)
        self.down = torch.nn.Linear(13, 8, bias=False)
        self.register_buffer("steps", torch.tensor(7, dtype=torch.int64))

    def forward(self, x):
        return self.down(self.up(self.embed(x)))


def fsdp(rank, out):
    from torch.distributed.fsdp import fully_shard

    model = Tiny()
    if rank == 0:
        whole_file(out / "fsdp.safetensors", {f"model.{name}": value for name, value in model.state_dict().items()})
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model, mesh=mesh)
    dcp.save({"model": get_model_state_dict(model), "step": 3}, checkpoint_id=out / "fsdp")


def mesh(rank, out):
    tensors = block()
    if rank == 0:
        whole_file(out / "mesh.safetensors", tensors)
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    cut = {2: [Shard(0), Shard(1)], 1: [Replicate(), Shard(0)]}
    dcp.save({name: distribute_tensor(value, grid, cut[value.dim()]) for name, value in tensors.items()},
             checkpoint_id=out / "mesh")


def state(rank, out):
    torch.manual_seed(9)
    base = torch.arange(40, dtype=torch.float32).reshape(5, 8)
    tensors = {
        "view": base[1:4, 2:7],
        "turned": base.t(),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "half": torch.randn(3, 5).half(),
        "flags": torch.tensor([True, False, True]),
        "codes": torch.randn(4, 4).to(torch.float8_e4m3fn),
        "wide": torch.randn(2, 2, dtype=torch.complex64),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "numbers": torch.tensor([-3, 2**40], dtype=torch.int64),
    }
    whole_file(out / "state.safetensors", tensors)
    dcp.save({**tensors, "epoch": 3, "arguments": {"lr": 1e-3, "name": "x"}}, checkpoint_id=out / "state", no_dist=True)


def megatron(rank, out):
    """Keys and shapes of a dist_ckpt of format torch_dist: layers lie along a leading axis, ranks write their own part."""
    from torch.distributed.tensor import DTensor

    torch.manual_seed(11)
    layers, hidden, rows = 4, 8, 12
    whole = {
        "embedding.word_embeddings.weight": torch.randn(16, hidden, dtype=torch.bfloat16),
        "decoder.layers.self_attention.linear_qkv.weight": torch.randn(layers, rows, hidden, dtype=torch.bfloat16),
        "decoder.layers.mlp.linear_fc2.weight": torch.randn(layers, hidden, rows, dtype=torch.bfloat16),
        "decoder.layers.mlp.linear_fc1.layer_norm_weight": torch.randn(layers, hidden, dtype=torch.bfloat16),
        "decoder.final_layernorm.weight": torch.randn(hidden, dtype=torch.bfloat16),
    }
    if rank == 0:
        parts = {}
        for name, value in whole.items():
            if value.dim() > 1 and ".layers." in name:
                for layer in range(layers):
                    parts[name.replace(".layers.", f".layers.{layer}.")] = value[layer]
            else:
                parts[name] = value
        whole_file(out / "megatron.safetensors", parts)
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    cut = {
        "embedding.word_embeddings.weight": [Replicate(), Shard(0)],
        "decoder.layers.self_attention.linear_qkv.weight": [Shard(0), Shard(1)],
        "decoder.layers.mlp.linear_fc2.weight": [Shard(0), Shard(2)],
        "decoder.layers.mlp.linear_fc1.layer_norm_weight": [Shard(0), Replicate()],
        "decoder.final_layernorm.weight": [Replicate(), Replicate()],
    }
    sharded = {name: distribute_tensor(value, grid, cut[name]) for name, value in whole.items()}
    extra = {f"decoder.layers.{rank}.self_attention._extra_state/shard_{rank}_4": b"state"}
    dcp.save({**sharded, **extra}, checkpoint_id=out / "megatron")
    if rank == 0:
        torch.save({"iteration": 7, "checkpoint_version": 3.0}, out / "megatron" / "common.pt")
        text = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch",
                "common_backend_version": 1}
        (out / "megatron" / "metadata.json").write_text(json.dumps(text))


def bins(rank, out):
    tensors = block()
    whole_file(out / "bin.safetensors", tensors)
    folder = out / "bin"
    folder.mkdir()
    names = list(tensors)
    files = {"pytorch_model-00001-of-00002.bin": names[:3], "pytorch_model-00002-of-00002.bin": names[3:]}
    for file, part in files.items():
        module = torch.nn.Module()
        state_dict = module.state_dict()
        for name in part:
            state_dict[name] = torch.nn.Parameter(tensors[name]) if "norm" in name else tensors[name]
        torch.save(state_dict, folder / file)
    index = {"metadata": {"total_size": 0},
             "weight_map": {name: file for file, part in files.items() for name in part}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def run(rank, size, port, kind, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    {"fsdp": fsdp, "mesh": mesh, "megatron": megatron}[kind](rank, out)
    dist.destroy_process_group()


def free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for kind in sys.argv[2:] or ["fsdp", "mesh", "state", "megatron", "bin"]:
        shutil.rmtree(out / kind, ignore_errors=True)
        if kind in ("state", "bin"):
            {"state": state, "bin": bins}[kind](0, out)
        else:
            size = 2 if kind == "fsdp" else 4
            mp.spawn(run, (size, free_port(), kind, out), nprocs=size)
