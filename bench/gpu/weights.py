# SPDX-License-Identifier: Apache-2.0
"""What the measurements with the weights of an 8B model share: shapes, values, handles."""
import io
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing  # Its reducers are those that make handles.


def dump(value):
    """A handle of a tensor, as PyTorch sends them between processes."""
    buffer = io.BytesIO()
    ForkingPickler(buffer, 4).dump(value)
    return buffer.getvalue()


def shapes(shrink):
    """Of 195 tensors; `shrink` divides long dimensions."""
    long = lambda length: max(8, length // shrink)
    layer = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (4096,), (4096,)]
    every = [(128256, 4096)] + layer * 32 + [(4096,), (128256, 4096)]
    return [tuple(long(length) for length in shape) for shape in every]


def fill(tensor, round_number, at):
    """Values that differ by tensor, row and round, and are exact in bfloat16."""
    rows = torch.arange(tensor.shape[0], device=tensor.device) * 7 + at * 31 + round_number * 13
    tensor.copy_((rows % 251).to(tensor.dtype).reshape(-1, *[1] * (tensor.dim() - 1)).expand_as(tensor))


def median(values):
    return sorted(values)[len(values) // 2]
