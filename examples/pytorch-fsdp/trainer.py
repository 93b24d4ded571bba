# SPDX-License-Identifier: Apache-2.0
"""One rank of a trainer with FSDP2: trains a few steps, pushes the weights after each, and writes its logits.

Usage: trainer.py FAMILY STEPS OUT, under RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

import logging
import os
import sys

import torch
import torch.distributed as dist
from models import batch, make_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tensorferry


def main(family: str, steps: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = make_model(family, seed=1)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    with tensorferry.connect(job=os.environ["JOB"], side="train") as ferry:
        ferry.register(model)
        for step in range(steps):
            tokens = batch(step)
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ferry.push(step)
            with torch.no_grad():
                logits = model(input_ids=batch(1000)).logits
            if dist.get_rank() == 0:
                torch.save(logits, os.path.join(out, f"trainer-{step}.pt"))
        ferry.verify()
    dist.destroy_process_group()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
