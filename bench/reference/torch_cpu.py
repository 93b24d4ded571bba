# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of the CPU bench: makes the tensors of one case at a time and times single runs on request.

Protocol, one JSON document per line: {"case": NAME} makes the tensors, {"run": true} runs once and answers seconds.
"""
import json
import sys
import time

import torch

THREADS = int(sys.argv[1])
torch.set_num_threads(THREADS)


def filled(shape, dtype):
    count = 1
    for length in shape:
        count *= length
    return (torch.arange(count, dtype=torch.float32) % 251 / 16).to(dtype).reshape(shape)


def pairs(count, length):
    sources = [torch.full((length,), i % 251, dtype=torch.uint8) for i in range(count)]
    return sources, [torch.zeros(length, dtype=torch.uint8) for _ in range(count)]


def one(source, destination):
    return lambda: destination.copy_(source)


def many(count, length):
    sources, destinations = pairs(count, length)
    return lambda: torch._foreach_copy_(destinations, sources)


def cast(source, destination):
    return one(filled((8192, 8192), source), torch.zeros((8192, 8192), dtype=destination))


CASES = {
    "contiguous": lambda: one(torch.ones(2**28, dtype=torch.uint8), torch.zeros(2**28, dtype=torch.uint8)),
    "half-columns": lambda: one(
        filled((8192, 16384), torch.bfloat16)[:, :8192], torch.zeros((8192, 8192), dtype=torch.bfloat16)
    ),
    "4096 x 256 KiB": lambda: many(4096, 256 * 1024),
    "20000 x 4 KiB": lambda: many(20000, 4096),
    "20000 x 4 KiB, new list": lambda: many(20000, 4096),
    "fp32->bf16": lambda: cast(torch.float32, torch.bfloat16),
    "bf16->fp32": lambda: cast(torch.bfloat16, torch.float32),
    "bf16->e4m3": lambda: cast(torch.bfloat16, torch.float8_e4m3fn),
    "bf16->mxfp8": lambda: cast(torch.bfloat16, torch.float8_e4m3fn),  # without scales: it has no block scaling
    "transpose": lambda: one(filled((8192, 8192), torch.bfloat16).t(), torch.zeros((8192, 8192), dtype=torch.bfloat16)),
}

print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads()}), flush=True)
run = None
for line in sys.stdin:
    request = json.loads(line)
    if "case" in request:
        run = None  # frees the tensors of the case before
        run = CASES[request["case"]]()
        print(json.dumps({"ready": request["case"]}), flush=True)
    else:
        begun = time.perf_counter()
        run()
        seconds = time.perf_counter() - begun
        time.sleep(0.02)  # its threads spin for a while after each run, which would slow down whoever runs next
        print(json.dumps({"seconds": seconds}), flush=True)
