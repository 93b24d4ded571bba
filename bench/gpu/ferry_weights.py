# SPDX-License-Identifier: Apache-2.0
"""One side of updates through the Python package: a trainer and an engine that hold the weights of an 8B model in 195 tensors
of bfloat16 on one device.

  ferry_weights.py SIDE DEVICE ROUNDS SHRINK FOLDER

First whole versions, then versions of which 1% of the elements changed, then what PyTorch's users do without the package in
the same two processes: handles of every tensor, opened each time, and copies; and a bucket of 1 GiB that both share, filled and
emptied as often as the model needs. Prints a line of JSON; ends with 1 where bytes are wrong.
"""
import json
import os
import pickle
import socket
import sys
import time

from weights import dump, fill, median, shapes
import torch

import tensorferry

BUCKET = 2**30


class Meeting:
    """Both sides are here: a byte each way over a socket of the folder."""

    def __init__(self, folder, side):
        path = os.path.join(folder, "meeting")
        if side == "train":
            server = socket.socket(socket.AF_UNIX)
            server.bind(path + ".made")
            server.listen(1)
            os.rename(path + ".made", path)
            server.settimeout(120)
            self.peer, _ = server.accept()
        else:
            self.peer = socket.socket(socket.AF_UNIX)
            end = time.time() + 120
            while not os.path.exists(path):
                if time.time() > end:
                    raise SystemExit("the trainer did not come")
                time.sleep(0.01)
            self.peer.connect(path)
        self.peer.settimeout(120)

    def __call__(self):
        self.tell()
        self.hear()

    def tell(self):
        self.peer.sendall(b".")

    def hear(self):
        if self.peer.recv(1) != b".":
            raise SystemExit("the other side has ended")


def change(tensors, round_number):
    """Another value for every hundredth element, at other places each round."""
    for tensor in tensors:
        words = tensor.view(-1).view(torch.int16)
        words[round_number % 100 :: 100] ^= 1 + round_number


def wrong_of(tensors, expected):
    return sum(int((expected(at) != tensor).sum()) for at, tensor in enumerate(tensors))


def timed(work, settle):
    settle()
    begin = time.perf_counter()
    work()
    settle()
    return time.perf_counter() - begin


def update(ferry, name, side, version):
    ferry.push(version, name=name) if side == "train" else ferry.pull(version, name=name)


def main(side, device, rounds, shrink, folder):
    rounds, is_trainer = int(rounds), side == "train"
    settle = torch.cuda.synchronize if device != "cpu" else lambda: None
    if device != "cpu":
        torch.cuda.set_device(torch.device(device))
    else:
        torch.multiprocessing.set_sharing_strategy("file_system")
    meet = Meeting(folder, side)
    tensors = [torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in shapes(int(shrink))]
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    named = [("p%d" % at, tensor) for at, tensor in enumerate(tensors)]
    facts, wrong = {}, 0

    def expected_of(round_number):
        def one(at):
            expected = torch.empty_like(tensors[at])
            fill(expected, round_number, at)
            return expected

        return one

    with tensorferry.connect(job="weights", side=side, timeout=120) as ferry:
        ferry.register(named, name="whole")
        whole = []
        for round_number in range(rounds):
            for at, tensor in enumerate(tensors):
                fill(tensor, round_number, at) if is_trainer else tensor.fill_(-1)
            settle()
            meet()
            whole.append(timed(lambda: update(ferry, "whole", side, round_number), lambda: None))
            if not is_trainer:
                wrong += wrong_of(tensors, expected_of(round_number))
        facts["whole"] = whole
        ferry.register(named, name="changing", changes=2 * moved)
        reference = [] if is_trainer else [expected_of(rounds - 1)(at) for at in range(len(tensors))]
        changing = []
        for round_number in range(rounds):
            if round_number > 0:
                change(tensors if is_trainer else reference, round_number)
            settle()
            meet()
            changing.append(timed(lambda: update(ferry, "changing", side, round_number), lambda: None))
            if not is_trainer:
                wrong += wrong_of(tensors, lambda at: reference[at])
        facts["changed 1%"] = changing
        del reference
    handles = os.path.join(folder, "handles")
    if is_trainer:
        bucket = torch.empty(BUCKET // int(shrink), dtype=torch.uint8, device=device)
        for round_number in range(rounds):
            with open(handles + str(round_number), "wb") as file:
                pickle.dump([dump(tensor) for tensor in tensors], file)
        with open(handles + "bucket", "wb") as file:
            pickle.dump(dump(bucket), file)
    meet()
    if not is_trainer:
        taken = []
        for round_number in range(rounds):

            def by_handles():
                with open(handles + str(round_number), "rb") as file:
                    opened = [pickle.loads(payload) for payload in pickle.load(file)]
                for target, source in zip(tensors, opened):
                    target.copy_(source)
                settle()

            taken.append(timed(by_handles, settle))
        facts["handles"] = taken
        with open(handles + "bucket", "rb") as file:
            bucket = pickle.loads(pickle.load(file))
    meet()
    taken = []
    for _ in range(rounds):
        meet()
        taken.append(timed(lambda: by_bucket(meet, is_trainer, tensors, bucket, settle), settle))
    facts["buckets of 1 GiB"] = taken
    meet()
    print(json.dumps({
        "side": side, "torch": torch.__version__, "bytes": moved, "tensors": len(tensors), "wrong": wrong,
        "ms": {name: {"first": 1000 * times[0], "median": 1000 * median(times[1:]), "best": 1000 * min(times[1:])} for name, times in facts.items()},
    }), flush=True)  # fmt: skip
    sys.exit(1 if wrong else 0)


def by_bucket(meet, is_trainer, tensors, bucket, settle):
    """Parts of tensors, one behind the other, as many as fit; then the other side takes them out."""
    parts, room = [[]], bucket.numel()
    for tensor in tensors:
        flat = tensor.view(-1).view(torch.uint8)
        at = 0
        while at < flat.numel():
            if room == 0:
                parts.append([])
                room = bucket.numel()
            length = min(room, flat.numel() - at)
            parts[-1].append((flat[at : at + length], bucket.numel() - room))
            at += length
            room -= length
    for part in parts:
        if not is_trainer:
            meet.hear()
        for piece, start in part:
            held = bucket[start : start + piece.numel()]
            held.copy_(piece) if is_trainer else piece.copy_(held)
        settle()
        meet.tell()
        if is_trainer:
            meet.hear()


if __name__ == "__main__":
    main(*sys.argv[1:])
