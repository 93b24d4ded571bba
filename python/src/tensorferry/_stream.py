# SPDX-License-Identifier: Apache-2.0
"""Whole tensors as a stream of buckets: for frameworks that hand out gathered tensors one by one, and take them so.

One sender and any number of receivers register two buckets, which take turns: one is filled or read while the other moves.
A bucket begins with what is in it, so that receivers need to know no names before. Tensors begin at multiples of 256 bytes;
one that is longer than a bucket travels in pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from ._msgpack import pack, unpack
from .errors import InvalidCommand, ProtocolError
from .ferry import Ferry

_HEADER = 1 << 20
# What an entry of the header takes beside its name and shape, at most.
_ENTRY = 64
_ALIGN = 256
_LEAST = 1 << 16


def _make(ferry: Ferry, bucket_size: int, device: Any) -> list[Any]:
    import torch

    if bucket_size < _LEAST:
        raise InvalidCommand(f"A bucket of {bucket_size} bytes is too small.", remedy=f"Take {_LEAST} bytes or more.")
    buckets = []
    for half in range(2):
        bucket = torch.zeros(_HEADER + bucket_size, dtype=torch.uint8, device=device)
        ferry.register({"bucket": bucket}, name=f"stream.{half}")
        buckets.append(bucket)
    return buckets


class Sender:
    """The only rank of the sending side."""

    def __init__(self, ferry: Ferry, bucket_size: int, device: Any = "cpu") -> None:
        self._ferry = ferry
        self._size = bucket_size
        self._buckets = _make(ferry, bucket_size, device)
        self._count = 0

    async def send(self, weights: Iterable[tuple[str, Any]], version: int) -> int:
        """Sends all tensors as one version; answers their bytes. The next is taken while the last ones move."""
        total, moving = 0, None
        for entries, length, is_last in self._fill(weights, version):
            if moving is not None:
                await moving
            half = self._count % 2
            header = pack({"version": version, "entries": entries, "last": is_last})
            self._write_header(half, header)
            total += length
            moving = asyncio.create_task(asyncio.to_thread(self._ferry.push, self._count // 2, name=f"stream.{half}"))
            self._count += 1
            # Lets the push begin before the next tensor is made.
            await asyncio.sleep(0)
        if moving is not None:
            await moving
        return total

    def _write_header(self, half: int, header: bytes) -> None:
        import torch

        framed = len(header).to_bytes(4, "little") + header
        self._buckets[half][: len(framed)].copy_(torch.frombuffer(bytearray(framed), dtype=torch.uint8))

    def _fill(self, weights: Iterable[tuple[str, Any]], version: int) -> Iterator[tuple[list[Any], int, bool]]:
        """Buckets as they are full: what is in each, its bytes, and whether it is the last."""
        import torch

        entries: list[Any] = []
        used = header = length = 0
        for name, tensor in weights:
            dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            cost = _ENTRY + len(name.encode()) + 10 * len(shape)
            if cost > _HEADER // 4:
                raise InvalidCommand(f"The name {name[:80]!r} is too long.", remedy="Shorten it.")
            start = 0
            while True:
                at = -(-used // _ALIGN) * _ALIGN
                if entries and (at >= self._size or header + cost > _HEADER - 64):
                    yield entries, length, False
                    entries, used, header, length = [], 0, 0, 0
                    continue
                piece = min(flat.numel() - start, self._size - at)
                if entries and 0 < piece < flat.numel() <= self._size:
                    # It fits a bucket of its own in one piece.
                    yield entries, length, False
                    entries, used, header, length = [], 0, 0, 0
                    continue
                bucket = self._buckets[self._count % 2]
                bucket[_HEADER + at : _HEADER + at + piece].copy_(flat[start : start + piece])
                entries.append([name, dtype, shape, at, start, piece])
                used, header, length = at + piece, header + cost, length + piece
                start += piece
                if start >= flat.numel():
                    break
        yield entries, length, True


class Receiver:
    """One rank of the receiving side; each gets everything."""

    def __init__(self, ferry: Ferry, bucket_size: int, device: Any = "cpu") -> None:
        self._ferry = ferry
        self._buckets = _make(ferry, bucket_size, device)
        self._count = 0

    async def receive(self, version: int | None = None) -> AsyncIterator[list[tuple[str, Any]]]:
        """Names and tensors, a bucket at a time. They are views that hold until the next bucket but one is asked for."""
        whole: dict[str, Any] = {}
        while True:
            half = self._count % 2
            await asyncio.to_thread(self._ferry.pull, name=f"stream.{half}")
            self._count += 1
            header = self._read_header(half)
            if version is not None and header["version"] != version:
                raise ProtocolError(
                    f"Version {header['version']} came where version {version} was asked for.",
                    remedy="Let both sides count alike.",
                )
            named = [each for entry in header["entries"] if (each := self._take(half, entry, whole)) is not None]
            if named:
                yield named
            if header["last"]:
                return

    def _read_header(self, half: int) -> dict[str, Any]:
        bucket = self._buckets[half]
        length = int.from_bytes(bytes(bucket[:4].cpu().tolist()), "little")
        if not 0 < length <= _HEADER - 4:
            raise ProtocolError("A bucket does not say what is in it.", remedy="Use one version on both sides.")
        try:
            header = unpack(bucket[4 : 4 + length].cpu().numpy().tobytes())
            assert isinstance(header["entries"], list) and isinstance(header["last"], bool)
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise ProtocolError(f"A bucket cannot be read: {error}.", remedy="Use one version on both sides.") from None
        return dict(header)

    def _take(self, half: int, entry: list[Any], whole: dict[str, Any]) -> tuple[str, Any] | None:
        import torch

        name, kind, shape, at, start, piece = entry
        dtype = getattr(torch, kind)
        data = self._buckets[half][_HEADER + at : _HEADER + at + piece]
        length = torch.Size(shape).numel() * dtype.itemsize
        if piece == length:
            return name, data.view(dtype).view(shape)
        if start == 0:
            whole[name] = torch.empty(length, dtype=torch.uint8, device=data.device)
        whole[name][start : start + piece].copy_(data)
        return (name, whole.pop(name).view(dtype).view(shape)) if start + piece == length else None
