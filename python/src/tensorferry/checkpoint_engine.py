# SPDX-License-Identifier: Apache-2.0
"""checkpoint-engine's protocol, as a worker of vLLM or SGLang speaks it: this end is the parameter server of one GPU.

The engine runs unmodified, with ``pip install checkpoint-engine`` in its environment. For each GPU one process of this
package runs beside it, on the same GPU, which receives whole tensors and hands them on::

    python -m tensorferry.checkpoint_engine --job run7 --engine http://127.0.0.1:8000 --kind vllm

The trainer sends by :class:`tensorferry.checkpoint_engine.Trainer`. Needs pyzmq.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import json
import logging
import pickle
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ._connect import DEFAULT_TIMEOUT, connect
from ._stream import Receiver, Sender
from .errors import DeadlineExceeded, FerryError, InvalidCommand

_log = logging.getLogger("tensorferry.checkpoint_engine")
_ALIGN = 256
_SLICE_MS = 100
# How long a worker that is to end may still load.
_FAREWELL = 10.0
DEFAULT_BUCKET = 1 << 30

Notify = Callable[[dict[str, str]], None]
Export = Callable[[Any], tuple[Any, tuple[Any, ...]]]


class EngineFailed(FerryError):
    """The engine's worker could not load weights; the message is what it said."""


def http_notify(url: str, kind: str, timeout: float = DEFAULT_TIMEOUT) -> Notify:
    """Tells an engine where its workers find their sockets: ``kind`` is ``"vllm"`` or ``"sglang"``."""
    if kind not in ("vllm", "sglang"):
        raise InvalidCommand(f"There is no engine {kind!r}.", remedy='State "vllm" or "sglang".')

    def notify(sockets: dict[str, str]) -> None:
        path, body = (
            ("/collective_rpc", {"method": "update_weights_from_ipc", "args": [sockets], "timeout": timeout})
            if kind == "vllm"
            else ("/update_weights_from_ipc", {"zmq_handles": sockets, "flush_cache": True})
        )
        request = urllib.request.Request(
            url.rstrip("/") + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            answer.read()

    return notify


class _Socket:
    """One update's socket, on which the worker answers each message."""

    def __init__(self, address: str, timeout: float) -> None:
        import zmq

        self._zmq = zmq
        self._end = time.monotonic() + timeout
        self._socket: Any = zmq.Context.instance().socket(zmq.REQ)
        # The last word to a worker is still sent.
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._monitor: Any = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.bind(address)
        self.told: concurrent.futures.Future[None] | None = None
        #: Whether the worker owes an answer.
        self.is_asked = False

    def _ready(self, event: int) -> bool:
        """Whether the worker is there; not, once it has left, or its engine has answered without it."""
        while not self._socket.poll(_SLICE_MS, event):
            if self.told is not None and self.told.done():
                self.told.result()
                return bool(self._socket.poll(0, event))
            if self._monitor.poll(0):
                return bool(self._socket.poll(0, event))
            if time.monotonic() > self._end:
                raise DeadlineExceeded("The engine's worker does not answer.", remedy="See the engine's log.")
        return True

    def send(self, message: Any) -> bool:
        if not self._ready(self._zmq.POLLOUT):
            return False
        self._socket.send(pickle.dumps(message))
        self.is_asked = True
        return True

    def acknowledge(self) -> None:
        """What a worker waits for that could not begin."""
        self._socket.send(b"")

    def answer(self) -> str | None:
        """What the worker said: nothing where all is well. None where it has left."""
        if not self._ready(self._zmq.POLLIN):
            return None
        self.is_asked = False
        return str(self._socket.recv().decode(errors="replace"))

    def abandon(self, error: BaseException) -> None:
        """Ends a worker that still waits for weights: it raises the error in turn."""
        self._end = min(self._end, time.monotonic() + _FAREWELL)
        with contextlib.suppress(Exception):
            if not self.is_asked or self.answer() is not None:
                self.send(RuntimeError(str(error)))

    def close(self) -> None:
        self._socket.disable_monitor()
        self._socket.close()


def update(
    buckets: Iterable[list[tuple[str, Any]]],
    notify: Notify,
    *,
    device_ids: Sequence[str],
    rank: int = 0,
    bucket_size: int = DEFAULT_BUCKET,
    device: Any = None,
    counter: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    export: Export | None = None,
) -> None:
    """Hands tensors to the engine's worker on one GPU, half a buffer at a time: one is filled while the other loads.

    :param buckets: lists of name and tensor, each tensor used until the next list is asked for.
    :param notify: makes the engine call its workers; it returns when they are done. The first rank calls it.
    :param device_ids: all GPUs of the engine as its workers call them: ``GPU-`` and the uuid.
    :param rank: which of these is this process's.
    :param bucket_size: bytes of one half; no tensor may be longer.
    :param export: a function and its arguments by which the worker opens the buffer; by default as torch shares memory of
        a GPU.
    :param counter: equal on all ranks, and another for each update.
    :raises EngineFailed: the worker said why it cannot load a tensor, or has gone.
    """
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    export = export or reduce_tensor
    buffer = torch.zeros(2 * bucket_size, dtype=torch.uint8, device=device)
    addresses = {each: f"ipc://@checkpoint-engine-{each}-{counter}.sock" for each in device_ids}
    socket = _Socket(addresses[device_ids[rank]], timeout)
    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
        if rank == 0:
            socket.told = pool.submit(notify, addresses)
        socket.send(export(buffer))
        said = socket.answer()
        if said:
            socket.acknowledge()
        _check(said, "open the buffer")
        for described in _halves(buckets, buffer, bucket_size):
            _loaded(socket)
            if buffer.is_cuda:
                torch.cuda.synchronize(buffer.device)
            socket.send(described)
        _loaded(socket)
        # The first lets go of the buffer, the second finishes; workers of some versions do both at the first.
        for part in range(2):
            said = socket.answer() if socket.send(None) else None
            if part == 0 or said is not None:
                _check(said, "finish")
        if socket.told is not None:
            socket.told.result(timeout)
    except BaseException as error:
        socket.abandon(error)
        raise
    finally:
        socket.close()
        # The engine's call ends by itself, or never: nobody waits for it here.
        pool.shutdown(wait=False)


def _loaded(socket: _Socket) -> None:
    """Waits until the worker has loaded what it was sent last."""
    if socket.is_asked:
        _check(socket.answer(), "load weights")


def _check(said: str | None, what: str) -> None:
    if said is None:
        said = "it has gone"
    if said:
        raise EngineFailed(f"The engine's worker could not {what}: {said.strip()}", remedy="See the engine's log.")


def _halves(buckets: Iterable[list[tuple[str, Any]]], buffer: Any, size: int) -> Iterator[list[dict[str, Any]]]:
    """Copies tensors into one half after the other; yields what is in each, as the worker reads it."""
    import torch

    first, used = 0, 0
    described: list[dict[str, Any]] = []
    for name, tensor in (named for bucket in buckets for named in bucket):
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        length = -(-flat.numel() // _ALIGN) * _ALIGN
        if length > size:
            raise InvalidCommand(
                f"{name} has {flat.numel()} bytes and a bucket {size}.", remedy="State a larger bucket_size."
            )
        if used + length > size:
            yield described
            first, used, described = size - first, 0, []
        at = first + used
        buffer[at : at + flat.numel()].copy_(flat)
        described.append({"name": name, "dtype": tensor.dtype, "shape": tensor.shape, "offset": at})
        used += length
    if described:
        yield described


class Trainer:
    """The sending end, on the trainer's first rank: one call per version."""

    def __init__(
        self, job: str, *, bucket_size: int = DEFAULT_BUCKET, device: Any = "cpu", timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        self._ferry = connect(job, side="train", rank=0, world=1, timeout=timeout)
        self._given = (bucket_size, device)
        self._sender: Sender | None = None

    def update(self, version: int, weights: Iterable[tuple[str, Any]]) -> int:
        """Sends whole tensors; answers their bytes. Engines hold them when their ends have loaded them."""
        if self._sender is None:
            self._sender = Sender(self._ferry, *self._given)
        return asyncio.run(self._sender.send(weights, version))

    def close(self) -> None:
        self._ferry.close()


class Server:
    """The receiving end of one GPU: passes each version on to the engine's worker."""

    def __init__(
        self,
        job: str,
        *,
        notify: Notify,
        device_ids: Sequence[str],
        rank: int = 0,
        bucket_size: int = DEFAULT_BUCKET,
        device: Any = "cpu",
        timeout: float = DEFAULT_TIMEOUT,
        export: Export | None = None,
    ) -> None:
        self._export = export
        self._ferry = connect(job, side="engine", rank=rank, world=len(device_ids), timeout=timeout)
        self._notify, self._device_ids, self._rank, self._timeout = notify, device_ids, rank, timeout
        self._bucket_size, self._device = bucket_size, device
        self._receiver: Receiver | None = None
        self._counter = 0

    def serve_one(self) -> None:
        """Waits for a version, and ends when the engine has it."""
        if self._receiver is None:
            self._receiver = Receiver(self._ferry, self._bucket_size, self._device)
        loop = asyncio.new_event_loop()
        try:
            stream = self._receiver.receive()
            # The engine is called when there is something to load.
            first = loop.run_until_complete(_next(stream))

            def buckets() -> Iterator[list[tuple[str, Any]]]:
                bucket = first
                while bucket is not None:
                    yield bucket
                    bucket = loop.run_until_complete(_next(stream))

            update(
                buckets(),
                self._notify,
                device_ids=self._device_ids,
                rank=self._rank,
                bucket_size=self._bucket_size,
                device=self._device,
                counter=self._counter,
                timeout=self._timeout,
                export=self._export,
            )
        finally:
            loop.close()
        self._counter += 1

    def close(self) -> None:
        self._ferry.close()


async def _next(stream: Any) -> Any:
    """The next bucket; nothing at the end."""
    return await anext(stream, None)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(prog="tensorferry.checkpoint_engine", description="Feeds one GPU of an engine.")
    parser.add_argument("--job", required=True)
    parser.add_argument("--engine", required=True, help="URL of the engine's server")
    parser.add_argument("--kind", choices=["vllm", "sglang"], required=True)
    parser.add_argument("--rank", type=int, default=0, help="which of the engine's GPUs this is")
    parser.add_argument("--world", type=int, default=1, help="GPUs of the engine: the first ones that this process sees")
    parser.add_argument("--bucket-bytes", type=int, default=DEFAULT_BUCKET)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    server = Server(
        given.job,
        notify=http_notify(given.engine, given.kind),
        device_ids=[f"GPU-{torch.cuda.get_device_properties(each).uuid}" for each in range(given.world)],
        rank=given.rank,
        bucket_size=given.bucket_bytes,
        device=f"cuda:{given.rank}",
    )
    try:
        while True:
            server.serve_one()
            _log.info("the engine has version %d", server._counter - 1)
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


if __name__ == "__main__":
    main()
