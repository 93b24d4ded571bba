# SPDX-License-Identifier: Apache-2.0
"""Gloo's side of the two-process bench: this process receives, a second one that it starts sends.

Protocol, one JSON document per line: {"case": BYTES} makes the tensors, {"run": true} moves once and answers the
receiver's seconds from after a barrier until the bytes are there. The first argument is a folder for the rendezvous.
"""
import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

FOLDER, RANK = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
CHILD = subprocess.Popen([sys.executable, __file__, FOLDER, "1"]) if RANK == 0 else None
torch.set_num_threads(2)
dist.init_process_group("gloo", init_method=f"file://{os.path.join(FOLDER, 'store')}", rank=RANK, world_size=2)


def move(tensor):
    dist.barrier()
    begun = time.perf_counter()
    if RANK == 0:
        dist.recv(tensor, 1)
    else:
        dist.send(tensor, 0)
    return time.perf_counter() - begun


def announce(length):
    """Rank 0 says how long the next tensor is, or 0 to move once more, or -1 to end."""
    order = torch.tensor([length], dtype=torch.int64)
    dist.broadcast(order, 0)
    return int(order[0])


tensor = None
if RANK == 1:
    while (order := announce(0)) >= 0:
        if order > 0:
            tensor = torch.ones(order, dtype=torch.uint8)
        else:
            move(tensor)
else:
    print(json.dumps({"version": torch.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "case" in request:
            announce(request["case"])
            tensor = torch.zeros(request["case"], dtype=torch.uint8)
            print(json.dumps({"ready": request["case"]}), flush=True)
        else:
            announce(0)
            print(json.dumps({"seconds": move(tensor)}), flush=True)
    announce(-1)
    CHILD.wait()
