# SPDX-License-Identifier: Apache-2.0
"""One side of a push between two processes of PyTorch: 1 GB in eight tensors, a line of JSON for each line read."""

import json
import sys
import time

import torch

import tensorferry

side, job, total = sys.argv[1], sys.argv[2], int(sys.argv[3])
print(json.dumps({"version": torch.__version__}), flush=True)
# Threads of OpenMP that have nothing to do still spin for a while, and there may be two cores.
torch.set_num_threads(1)
tensors = {f"w{at}": torch.full((total // 32,), -1.0) for at in range(8)}
with tensorferry.connect(job=job, side=side) as ferry:
    ferry.register(tensors)
    print(json.dumps({"registered": True}), flush=True)
    for line in sys.stdin:
        version = json.loads(line)["version"]
        if side == "train":
            for at, tensor in enumerate(tensors.values()):
                tensor.fill_(version + at)
        begun = time.perf_counter()
        if side == "train":
            ferry.push(version)
        else:
            ferry.pull()
        seconds = time.perf_counter() - begun
        wrong = [name for at, (name, tensor) in enumerate(tensors.items()) if not bool((tensor == version + at).all())]
        print(json.dumps({"seconds": seconds, "wrong": wrong}), flush=True)
