# SPDX-License-Identifier: Apache-2.0
"""What checkpoint engines of verl and NeMo-RL share: a worker that sends or receives whole tensors, or only drains them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from ._connect import connect
from ._stream import Receiver, Sender
from .errors import InvalidCommand, NotRegistered
from .ferry import Ferry


class Worker:
    """A place in a job. It connects with its first tensors, and again after its place has changed."""

    def __init__(self, bucket_size: int, timeout: float, device: str | None) -> None:
        self.job: str | None = None
        self._bucket_size = bucket_size
        self._timeout = timeout
        self._device = device
        self._place: tuple[str, str | None, int, int] | None = None
        self._ferry: Ferry | None = None
        self._stream: Sender | Receiver | None = None
        self._version = -1

    def place(self, job: str, side: str | None, rank: int, world: int) -> None:
        """``side`` is ``"train"``, ``"engine"``, or nothing for a trainer rank that only drains."""
        place = (job, side, rank, world)
        if place != self._place:
            self.close()
            self.job, self._place = job, place

    def _connected(self) -> Sender | Receiver:
        if self._place is None:
            raise NotRegistered("This worker has no place yet.", remedy="Initialise the process group first.")
        if self._stream is None:
            job, side, rank, world = self._place
            assert side is not None
            self._ferry = connect(job, side=side, rank=rank, world=world, timeout=self._timeout)
            kind = Sender if side == "train" else Receiver
            self._stream = kind(self._ferry, self._bucket_size, self._device or _default_device())
        return self._stream

    async def send(self, weights: Iterable[tuple[str, Any]], version: int | None) -> int:
        """Answers the bytes that were sent: none by a rank that only drains."""
        if self._place is not None and self._place[1] is None:
            for _ in weights:
                pass
            return 0
        # Both sides come for this, so it must not hold up whoever else runs on this loop.
        sender = await asyncio.to_thread(self._connected)
        if not isinstance(sender, Sender):
            raise InvalidCommand("A rollout worker sends nothing.", remedy="Call receive_weights on it.")
        self._version = self._version + 1 if version is None else version
        return await sender.send(weights, self._version)

    async def receive(self, version: int | None) -> AsyncIterator[list[tuple[str, Any]]]:
        receiver = await asyncio.to_thread(self._connected)
        if not isinstance(receiver, Receiver):
            raise InvalidCommand("A trainer receives nothing.", remedy="Call send_weights on it.")
        async for bucket in receiver.receive(version):
            yield bucket

    def close(self) -> None:
        ferry, self._ferry, self._stream = self._ferry, None, None
        if ferry is not None:
            ferry.close()


def _default_device() -> str:
    import torch

    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
