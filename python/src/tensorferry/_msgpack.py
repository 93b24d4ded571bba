# SPDX-License-Identifier: Apache-2.0
"""MessagePack, the part that agents speak: nil, bool, whole numbers, floats, text, bytes, lists and maps with text as keys.

Reading is total: bytes that are no such value raise ``ValueError``, and nothing is read beyond them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

_DEEPEST = 32


def _sized(value: int, short: tuple[int, int] | None, codes: tuple[int | None, int, int]) -> bytes:
    """The header of something of this length: within one byte, or with 8, 16 or 32 bits behind it."""
    if short is not None and value < short[1]:
        return bytes([short[0] | value])
    for code, limit, form in zip(codes, (1 << 8, 1 << 16, 1 << 32), (">BB", ">BH", ">BI"), strict=True):
        if code is not None and value < limit:
            return struct.pack(form, code, value)
    raise ValueError(f"{value} bytes or elements are too many")


def pack(value: Any) -> bytes:
    """The shortest form of a value."""
    out: list[bytes] = []
    _pack(value, out.append)
    return b"".join(out)


def _pack(value: Any, put: Callable[[bytes], None]) -> None:
    if value is None:
        put(b"\xc0")
    elif value is True or value is False:
        put(b"\xc3" if value else b"\xc2")
    elif isinstance(value, int):
        put(_int(value))
    elif isinstance(value, float):
        put(struct.pack(">Bd", 0xCB, value))
    elif isinstance(value, str):
        data = value.encode()
        put(_sized(len(data), (0xA0, 32), (0xD9, 0xDA, 0xDB)))
        put(data)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        put(_sized(len(value), None, (0xC4, 0xC5, 0xC6)))
        put(bytes(value))
    elif isinstance(value, (list, tuple)):
        put(_sized(len(value), (0x90, 16), (None, 0xDC, 0xDD)))
        for each in value:
            _pack(each, put)
    elif isinstance(value, Mapping):
        put(_sized(len(value), (0x80, 16), (None, 0xDE, 0xDF)))
        for key, each in value.items():
            _pack(str(key), put)
            _pack(each, put)
    else:
        raise TypeError(f"a {type(value).__name__} cannot be sent")


def _int(value: int) -> bytes:
    if 0 <= value < 128:
        return bytes([value])
    if -32 <= value < 0:
        return bytes([value + 256])
    forms = (
        ((0xCC, ">BB", 1 << 8), (0xCD, ">BH", 1 << 16), (0xCE, ">BI", 1 << 32), (0xCF, ">BQ", 1 << 64))
        if value > 0
        else ((0xD0, ">Bb", 1 << 7), (0xD1, ">Bh", 1 << 15), (0xD2, ">Bi", 1 << 31), (0xD3, ">Bq", 1 << 63))
    )
    for code, form, limit in forms:
        if value < limit and value >= -limit:
            return struct.pack(form, code, value)
    raise ValueError(f"{value} has more than 64 bits")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, length: int) -> bytes:
        if length > len(self.data) - self.at:
            raise ValueError("the input ends early")
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("values are nested too deeply")
        byte = self.take(1)[0]
        if byte < 0x80:
            return byte
        if byte >= 0xE0:
            return byte - 256
        if byte < 0x90:
            return self.map(byte & 15, depth)
        if byte < 0xA0:
            return self.list(byte & 15, depth)
        if byte < 0xC0:
            return self.take(byte & 31).decode()
        if byte in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[byte]
        if byte in _NUMBERS:
            return self.number(_NUMBERS[byte])
        if byte in _BYTES:
            return self.take(self.number(_BYTES[byte]))
        if byte in _TEXTS:
            return self.take(self.number(_TEXTS[byte])).decode()
        if byte in (0xDC, 0xDD):
            return self.list(self.number(">H" if byte == 0xDC else ">I"), depth)
        if byte in (0xDE, 0xDF):
            return self.map(self.number(">H" if byte == 0xDE else ">I"), depth)
        raise ValueError(f"0x{byte:02x} begins no value that is used here")

    def list(self, length: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(self.bounded(length))]

    def map(self, length: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(self.bounded(length)):
            key = self.value(depth + 1)
            if not isinstance(key, str):
                raise ValueError("a key is no text")
            found[key] = self.value(depth + 1)
        return found

    def bounded(self, length: int) -> int:
        """Each element takes a byte at least: a length that cannot be is refused before anything is made."""
        if length > len(self.data) - self.at:
            raise ValueError("the input ends early")
        return length


_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_BYTES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_TEXTS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}


def unpack(data: bytes) -> Any:
    """The value that these bytes are. Raises ``ValueError`` for anything else."""
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes follow the value")
    return value
