# SPDX-License-Identifier: Apache-2.0
"""A worker of an engine as checkpoint-engine has it: connects, opens the buffer, loads what it is told, and finishes.

`finishes` is 1 for versions that let go of the buffer and finish at one message, 2 for those that do it at two.
"""

import mmap
import os
import traceback

import torch
import zmq


def open_memory(path, length):
    """The buffer of a test on the CPU: the file of the sender's shared memory."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        return torch.frombuffer(mmap.mmap(descriptor, length), dtype=torch.uint8)
    finally:
        os.close(descriptor)


def export(buffer):
    buffer.share_memory_()
    descriptor, length = buffer.untyped_storage()._share_fd_cpu_()
    return open_memory, (f"/proc/{os.getpid()}/fd/{descriptor}", length)


def work(address, load, *, finishes=2, leaves_after=None):
    """Answers what the worker did, in order."""
    did = []
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        function, arguments = socket.recv_pyobj()
        buffer = function(*arguments)
        did.append(("buffer", buffer.numel()))
        socket.send(b"")
        left = finishes
        while left:
            payload = socket.recv_pyobj()
            if leaves_after is not None and len(did) > leaves_after:
                return did
            if payload is None:
                left -= 1
                did.append(("none", None))
                socket.send(b"")
            elif isinstance(payload, list):
                try:
                    for item in payload:
                        at, shape, dtype = item["offset"], torch.Size(item["shape"]), item["dtype"]
                        length = dtype.itemsize * shape.numel()
                        load(item["name"], buffer[at : at + length].view(dtype).view(shape))
                    did.append(("load", payload[0]["offset"]))
                    socket.send(b"")
                except Exception as error:
                    socket.send_string("".join(traceback.format_exception(error)))
            else:
                raise payload
    return did
