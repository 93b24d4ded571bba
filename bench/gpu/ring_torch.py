# SPDX-License-Identifier: Apache-2.0
"""How PyTorch's users draw batches from rows on a GPU, and send rows there. Prints a line of JSON.

  ring_torch.py CAPACITY BATCH WIDTH NEW
"""
import json
import sys
import time

import torch


def median_of(work):
    taken = []
    for at in range(-20, 200):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if at >= 0:
            taken.append(1000 * (time.perf_counter() - begin))
    return sorted(taken)[len(taken) // 2]


def main(capacity, batch, width, new):
    rows = torch.empty(capacity, width, device="cuda:0").normal_()
    drawn = torch.randint(0, capacity, (batch,), device="cuda:0")
    into = torch.empty(batch, width, device="cuda:0")
    sent = torch.empty(batch, width).pin_memory()
    added = torch.empty(new, width).pin_memory()
    print(json.dumps([
        {"case": "draw and gather the batch on the device",
         "ms": median_of(lambda: torch.index_select(rows, 0, torch.randint(0, capacity, (batch,), device="cuda:0"), out=into))},
        {"case": "gather alone", "ms": median_of(lambda: torch.index_select(rows, 0, drawn, out=into))},
        {"case": "send the batch", "ms": median_of(lambda: into.copy_(sent, non_blocking=True))},
        {"case": "send the new rows", "ms": median_of(lambda: rows[:new].copy_(added, non_blocking=True))},
    ]))  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
