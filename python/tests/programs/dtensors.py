# SPDX-License-Identifier: Apache-2.0
"""One of four ranks whose tensors lie on a mesh of 2 x 2 in many ways: sends numbered tensors, then gets others back.

Prints "sent", and at the end what it holds that it should not.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import tensorferry

LAYOUTS = {
    "rows of 5": ((5, 3), [Shard(0), Replicate()]),
    "columns": ((4, 6), [Replicate(), Shard(1)]),
    "both": ((7, 5), [Shard(0), Shard(1)]),
    "rows twice": ((9, 2), [Shard(0), Shard(0)]),
    "whole": ((3,), [Replicate(), Replicate()]),
    "fewer than ranks": ((1, 4), [Shard(0), Replicate()]),
    "part of the mesh": ((6, 2), [Shard(0)]),
}


def numbered(shape: tuple[int, ...], first: float) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + first


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tensors = {}
    for at, (name, (shape, placements)) in enumerate(LAYOUTS.items()):
        own = mesh["tp"] if len(placements) == 1 else mesh
        tensors[name] = distribute_tensor(numbered(shape, 100 * at), own, placements)
    # Not a DTensor: every rank has all of it.
    tensors["plain"] = numbered((2, 2), 5000)
    wanted = {name: (tensor.to_local() if hasattr(tensor, "to_local") else tensor) + 0.5 for name, tensor in tensors.items()}
    with tensorferry.connect("job", side="train", timeout=120) as ferry:
        ferry.register(tensors)
        ferry.push(1)
        ferry.verify()
        print("sent", flush=True)
        assert ferry.pull() == 2
        for name, tensor in tensors.items():
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if not torch.equal(local, wanted[name]):
                print(f"{name}: {local} is not {wanted[name]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
