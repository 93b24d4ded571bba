# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of the CPU bench: makes the tensors of one case at a time and times single runs on request.

Protocol, one JSON document per line: {"case": NAME} makes the tensors, {"run": true} runs once and answers seconds.
"""
import json
import sys
import time

import torch

THREADS = int(sys.argv[1])
torch.set_num_threads(THREADS)


def filled(shape, dtype):
    count = 1
    for length in shape:
        count *= length
    return (torch.arange(count, dtype=torch.float32) % 251 / 16).to(dtype).reshape(shape)


def pairs(count, length):
    sources = [torch.full((length,), i % 251, dtype=torch.uint8) for i in range(count)]
    return sources, [torch.zeros(length, dtype=torch.uint8) for _ in range(count)]


def one(source, destination):
    return lambda: destination.copy_(source)


def many(count, length):
    sources, destinations = pairs(count, length)
    return lambda: torch._foreach_copy_(destinations, sources)


def cast(source, destination):
    return one(filled((8192, 8192), source), torch.zeros((8192, 8192), dtype=destination))


def weights():
    return ((torch.arange(8192 * 8192, dtype=torch.float32) % 251 - 125) / 4096).to(torch.bfloat16).reshape(8192, 8192)


def fp8_blocks():
    """One scale for 128 by 128 elements: amax / 448, values times its reciprocal."""
    blocks = weights().view(64, 128, 64, 128)

    def run():
        amax = blocks.abs().float().amax(dim=(1, 3), keepdim=True).clamp(1e-4)
        scale = amax / 448.0
        return (blocks * (1.0 / scale)).to(torch.float8_e4m3fn).view(8192, 8192), scale.view(64, 64)

    return run


def changes():
    """Every hundredth of 2^27 elements differs."""
    base = filled((2**27,), torch.bfloat16)
    current = base.clone()
    at = torch.arange(0, 2**27, 100)
    at += at * 40503 // 16 % 100
    bits = current.view(torch.int16)
    bits[at[at < 2**27]] ^= 1
    return lambda: (base != current).nonzero()


BOUNDS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def packed_float4(scaled, ties_to_even):
    codes = torch.searchsorted(BOUNDS, scaled.abs(), out_int32=True).to(torch.uint8)
    if ties_to_even:
        codes += (scaled.abs().unsqueeze(-1) == BOUNDS[[1, 3, 5]]).any(dim=-1)
    codes |= (scaled < 0).to(torch.uint8) << 3
    return codes[..., 1::2] << 4 | codes[..., 0::2]


def nvfp4():
    """A given global scale; scales of 16 elements in float8_e4m3fn."""
    groups, scale = weights().view(8192, 512, 16), torch.tensor(0.03 / 2688)

    def run():
        quotient = groups.abs().amax(dim=-1).float() / (6 * scale)
        quotient[quotient == 0] = 1.0
        scales = quotient.clamp(2**-9, 448).to(torch.float8_e4m3fn)
        scaled = (groups / (scales.float() * scale).unsqueeze(-1)).view(8192, 8192)
        return packed_float4(scaled, True), scales

    return run


def mxfp4():
    """A power of two for 32 elements; ties toward zero."""
    groups = weights().view(8192, 256, 32)

    def run():
        exponents = torch.ceil(torch.log2(groups.abs().amax(dim=-1, keepdim=True).float() / 6)).clamp(-127)
        scaled = (groups / torch.exp2(exponents)).view(8192, 8192)
        return packed_float4(scaled, False), (exponents + 127).to(torch.uint8)

    return run


CASES = {
    "contiguous": lambda: one(torch.ones(2**28, dtype=torch.uint8), torch.zeros(2**28, dtype=torch.uint8)),
    "half-columns": lambda: one(
        filled((8192, 16384), torch.bfloat16)[:, :8192], torch.zeros((8192, 8192), dtype=torch.bfloat16)
    ),
    "4096 x 256 KiB": lambda: many(4096, 256 * 1024),
    "20000 x 4 KiB": lambda: many(20000, 4096),
    "20000 x 4 KiB, new list": lambda: many(20000, 4096),
    "fp32->bf16": lambda: cast(torch.float32, torch.bfloat16),
    "bf16->fp32": lambda: cast(torch.bfloat16, torch.float32),
    "bf16->e4m3": lambda: cast(torch.bfloat16, torch.float8_e4m3fn),
    "bf16->mxfp8": lambda: cast(torch.bfloat16, torch.float8_e4m3fn),  # without scales: it has no block scaling
    "bf16->fp8 in blocks": fp8_blocks,
    "bf16->nvfp4": nvfp4,
    "bf16->mxfp4": mxfp4,
    "find changes, 1%": changes,
    "transpose": lambda: one(filled((8192, 8192), torch.bfloat16).t(), torch.zeros((8192, 8192), dtype=torch.bfloat16)),
}

print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads()}), flush=True)
run = None
for line in sys.stdin:
    request = json.loads(line)
    if "case" in request:
        run = None  # frees the tensors of the case before
        run = CASES[request["case"]]()
        print(json.dumps({"ready": request["case"]}), flush=True)
    else:
        begun = time.perf_counter()
        run()
        seconds = time.perf_counter() - begun
        time.sleep(0.02)  # its threads spin for a while after each run, which would slow down whoever runs next
        print(json.dumps({"seconds": seconds}), flush=True)
