# SPDX-License-Identifier: Apache-2.0
"""MessagePack against the bytes of its specification, and against bytes that are none."""

from __future__ import annotations

import contextlib
import random

import pytest

from tensorferry._msgpack import pack, unpack

# From the specification's table of formats.
KNOWN = [
    (None, "c0"),
    (False, "c2"),
    (True, "c3"),
    (0, "00"),
    (127, "7f"),
    (128, "cc80"),
    (255, "ccff"),
    (256, "cd0100"),
    (65535, "cdffff"),
    (65536, "ce00010000"),
    (2**32, "cf0000000100000000"),
    (2**64 - 1, "cfffffffffffffffff"),
    (-1, "ff"),
    (-32, "e0"),
    (-33, "d0df"),
    (-128, "d080"),
    (-129, "d1ff7f"),
    (-32769, "d2ffff7fff"),
    (-(2**31) - 1, "d3ffffffff7fffffff"),
    (-(2**63), "d38000000000000000"),
    (1.5, "cb3ff8000000000000"),
    ("", "a0"),
    ("a" * 31, "bf" + "61" * 31),
    ("a" * 32, "d920" + "61" * 32),
    ("a" * 256, "da0100" + "61" * 256),
    ("é", "a2c3a9"),
    (b"", "c400"),
    (b"\x01" * 256, "c50100" + "01" * 256),
    ([], "90"),
    ([1] * 16, "dc0010" + "01" * 16),
    ({}, "80"),
    ({"a": [1, {"b": None}]}, "81a1619201 81a162c0".replace(" ", "")),
]


@pytest.mark.parametrize(("value", "written"), KNOWN, ids=[written[:12] for _, written in KNOWN])
def test_values_are_written_and_read_as_specified(value: object, written: str) -> None:
    assert pack(value).hex() == written
    assert unpack(bytes.fromhex(written)) == value


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_numbers_of_more_than_64_bits_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match="more than 64 bits"):
        pack(value)


def test_bytes_that_are_no_value_are_refused_in_bounded_memory() -> None:
    hostile = ["", "c1", "ddffffffff", "dfffffffff", "c6ffffffff00", "a5", "a1ff", "8101c0", "c0c0", "91" * 40, "d4"]
    for written in hostile:
        with pytest.raises(ValueError):
            unpack(bytes.fromhex(written))


def test_damaged_bytes_raise_nothing_else() -> None:
    chance = random.Random(7)
    samples = [bytes.fromhex(written) for _, written in KNOWN]
    for _ in range(20_000):
        damaged = bytearray(chance.choice(samples) + chance.choice(samples))
        for _ in range(chance.randrange(4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        with contextlib.suppress(ValueError):
            unpack(bytes(damaged[: chance.randrange(len(damaged) + 1)]))
