# SPDX-License-Identifier: Apache-2.0
"""One side of the bus check with PyTorch: shares tensors of its device, moves them both ways many times with changed
contents, and proves that PyTorch's counts and memory are what they were before.

  bus_torch.py STEM SIDE REMOTE DEVICE BATCHES ROUNDS MEGABYTES

Prints a line of JSON per fact; ends with 1 where anything is wrong.
"""
import gc
import glob
import json
import os
import pickle
import struct
import sys
import time

from bus_client import Client
from weights import dump
import torch
import torch.multiprocessing as multiprocessing
from torch.distributed.tensor.placement_types import Replicate

multiprocessing.set_sharing_strategy("file_system")
HEADER = 64


def tell(**facts):
    print(json.dumps(facts), flush=True)


def counts():
    """Sum of what consumers still hold, over the files of this process."""
    total = 0
    for path in glob.glob("/dev/shm/torch_%d_*" % os.getpid()):
        with open(path, "rb") as file:
            data = file.read()
        total += sum(struct.unpack("%dq" % ((len(data) - HEADER) // 8), data[HEADER:]))
    return total


def views(device, megabytes):
    """Tensors of several kinds: whole ones, a transposed one, a slice of a larger one, one long one."""
    wide = torch.empty(300, 700, dtype=torch.float32, device=device)
    base = torch.empty(500, 64, dtype=torch.int32, device=device)
    return [
        torch.empty(257, 129, dtype=torch.bfloat16, device=device),
        wide.t(),
        base[100:400, 8:40],
        torch.empty(megabytes * 2**18, dtype=torch.float32, device=device),
    ]


def wanted(tensor, round_number, at):
    """Whole numbers that all types in use hold exactly."""
    numbers = torch.arange(tensor.numel(), device=tensor.device, dtype=torch.int64)
    return ((numbers * (3 + 2 * at) + 31 * round_number) % 251).reshape(tensor.shape).to(tensor.dtype)


def join_pair(stem, side, remote):
    """A function that sends a command to the agent and ends the process where it fails; the pair is made."""
    client = Client(stem + "_command.lmdb", stem + "_state.lmdb")

    def call(kind, **fields):
        reply = client.call(kind, 120, **fields)
        if reply is None or b"Ok" not in reply:
            raise SystemExit("%s: %r" % (kind, reply))

    call(
        "InitPair", pair_name="p", local_name=side, expected_world_size=1, remote_name=remote,
        mesh_shape_payload=pickle.dumps((1,), 4), placements_payload=pickle.dumps((Replicate(),), 4),
    )  # fmt: skip
    return call


def main(stem, side, remote, device, batches, rounds, megabytes):
    is_gpu = device != "cpu"
    settle = torch.cuda.synchronize if is_gpu else lambda: None
    if is_gpu:
        torch.cuda.set_device(torch.device(device))
        torch.empty(1, device=device)
    call = join_pair(stem, side, remote)
    allocated = torch.cuda.memory_allocated() if is_gpu else 0
    wrong, times, moved = 0, [], 0
    for batch in range(int(batches)):
        name = "batch %d" % batch
        tensors = views(device, int(megabytes))
        moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if is_gpu:
            torch.cuda._sleep(500_000_000)  # the agent has to wait for the event behind this
        for at, tensor in enumerate(tensors):
            tensor.copy_(wanted(tensor, 1000 + batch, at) if side == "a" else torch.full_like(tensor, -1))
        payloads = [("p", dump(tensor)) for tensor in tensors]
        call("RegisterTensors", batch_id=name, tensors=payloads, bucket_size=None)
        for round_number in range(int(rounds)):
            sends = (round_number % 2 == 0) == (side == "a")
            number = 1000 + batch if round_number == 0 else round_number
            if round_number > 0:
                for at, tensor in enumerate(tensors):
                    tensor.copy_(wanted(tensor, number, at) if sends else torch.full_like(tensor, -1))
                settle()
            begin = time.perf_counter()
            call("Transfer", batch_id=name, transfer_type="send" if sends else "recv")
            times.append(time.perf_counter() - begin)
            if not sends:
                wrong += sum(int((tensor != wanted(tensor, number, at)).sum()) for at, tensor in enumerate(tensors))
        if is_gpu and counts() != len(tensors):
            tell(event="fault", what="%d counts are held while %d tensors are registered" % (counts(), len(tensors)))
            wrong += 1
        call("CleanupBatch", batch_id=name)
        del tensors, tensor
        gc.collect()
    if is_gpu:
        torch.cuda.ipc_collect()
        left, held = counts(), torch.cuda.memory_allocated() - allocated
        tell(event="counts", left=left, bytes=held, files=len(glob.glob("/dev/shm/torch_%d_*" % os.getpid())))
        wrong += int(left != 0) + int(held != 0)
    times.sort()
    tell(event="done", side=side, torch=torch.__version__, transfers=len(times), wrong=wrong,
         medianMs=1000 * times[len(times) // 2], bytes=moved)  # fmt: skip
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
