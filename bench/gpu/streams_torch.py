# SPDX-License-Identifier: Apache-2.0
"""How PyTorch's users load a checkpoint to a GPU and save one from it: safetensors; and how fast the files can be read and
written by threads that do nothing else. Prints a line of JSON.

  streams_torch.py FILE SAVED ROUNDS
"""
import json
import os
import sys
import time

from big_model import THREADS, by_threads
import torch
from safetensors.torch import load_file, save_file


def plain(file, saved):
    length = os.path.getsize(file)
    memory = memoryview(bytearray(length))
    source = os.open(file, os.O_RDONLY)
    read = lambda start, size: os.preadv(source, [memory[start : start + size]], start)
    reads = [by_threads(read, length) for _ in range(3)]
    writes = []
    for _ in range(3):
        if os.path.exists(saved):
            os.remove(saved)
        target = os.open(saved, os.O_WRONLY | os.O_CREAT, 0o600)
        writes.append(by_threads(lambda start, size: os.pwrite(target, memory[start : start + size], start), length))
        os.close(target)
    os.close(source)
    return reads[1:], writes[1:]


def main(file, saved, rounds):
    reads, writes = plain(file, saved)
    loads, saves = [], []
    tensors = None
    for at in range(-1, int(rounds)):
        tensors = None
        torch.cuda.synchronize()
        begin = time.perf_counter()
        tensors = load_file(file, device="cuda:0")
        torch.cuda.synchronize()
        if at >= 0:
            loads.append(time.perf_counter() - begin)
    for _ in range(2):
        if os.path.exists(saved):
            os.remove(saved)
        begin = time.perf_counter()
        save_file(tensors, saved)
        saves.append(time.perf_counter() - begin)
    print(json.dumps([
        {"case": "checkpoint to the device, safetensors load_file (reference)", "seconds": loads},
        {"case": "device to a file in memory, safetensors save_file (reference)", "seconds": saves},
        {"case": "the file read by %d threads into host memory (reference)" % THREADS, "seconds": reads},
        {"case": "a file written by %d threads from host memory (reference)" % THREADS, "seconds": writes},
    ]))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
