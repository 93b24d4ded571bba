# SPDX-License-Identifier: Apache-2.0
"""One side of an update of a whole model between two PyTorch processes through two agents, on one device: a trainer (side a)
and an engine (side b) that hold the weights of an 8B model in 195 tensors of bfloat16.

  bus_weights.py STEM SIDE REMOTE DEVICE ROUNDS SHRINK FOLDER

The engine then does the same as PyTorch's users do without the bus: handles of every tensor, opened each time, and copies; and
copies alone, with the handles kept open. Prints a line of JSON per fact; ends with 1 where bytes are wrong.
"""
import os
import pickle
import sys
import time

from bus_torch import dump, join_pair, tell
from weights import fill, median, shapes
import torch


def meet(folder, side, name):
    """Both sides are here: each leaves a file and waits for the other's."""
    open(os.path.join(folder, name + side), "w").close()
    other = os.path.join(folder, name + ("b" if side == "a" else "a"))
    end = time.time() + 120
    while not os.path.exists(other):
        if time.time() > end:
            raise SystemExit("the other side did not come to " + name)
        time.sleep(0.0005)


def main(stem, side, remote, device, rounds, shrink, folder):
    settle = torch.cuda.synchronize if device != "cpu" else lambda: None
    if device != "cpu":
        torch.cuda.set_device(torch.device(device))
    else:
        torch.multiprocessing.set_sharing_strategy("file_system")
    call = join_pair(stem, side, remote)
    tensors = [torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in shapes(int(shrink))]
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    call("RegisterTensors", batch_id="weights", tensors=[("p", dump(tensor)) for tensor in tensors], bucket_size=None)
    times, wrong = [], 0
    for round_number in range(int(rounds)):
        for at, tensor in enumerate(tensors):
            fill(tensor, round_number, at) if side == "a" else tensor.fill_(-1)
        settle()
        meet(folder, side, "bus %d " % round_number)
        begin = time.perf_counter()
        call("Transfer", batch_id="weights", transfer_type="send" if side == "a" else "recv")
        times.append(time.perf_counter() - begin)
        if side == "b":
            for at, tensor in enumerate(tensors):
                expected = torch.empty_like(tensor)
                fill(expected, round_number, at)
                wrong += int((expected != tensor).sum())
        meet(folder, side, "checked %d " % round_number)
    handles = os.path.join(folder, "handles")
    ways = {"handles": [], "copies": []}
    if side == "a":
        for round_number in range(int(rounds)):
            with open(handles + str(round_number), "wb") as file:
                pickle.dump([dump(tensor) for tensor in tensors], file)
    meet(folder, side, "handles ")
    if side == "b":
        opened = []
        for round_number in range(int(rounds)):
            settle()
            begin = time.perf_counter()
            with open(handles + str(round_number), "rb") as file:
                opened = [pickle.loads(payload) for payload in pickle.load(file)]
            for target, source in zip(tensors, opened):
                target.copy_(source)
            settle()
            ways["handles"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            for target, source in zip(tensors, opened):
                target.copy_(source)
            settle()
            ways["copies"].append(time.perf_counter() - begin)
        del opened
    meet(folder, side, "ended ")
    tell(event="weights", side=side, torch=torch.__version__, bytes=moved, tensors=len(tensors), wrong=wrong,
         firstMs=1000 * times[0], medianMs=1000 * median(times[1:]), bestMs=1000 * min(times[1:]),
         **{name + "Ms": 1000 * median(taken) for name, taken in ways.items() if taken})  # fmt: skip
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
