# SPDX-License-Identifier: Apache-2.0
"""Memory of this process as an agent opens it: payloads of tensors, and what must live as long as they are used.

Torch is imported only where a tensor of it comes. Memory of the CPU is moved into shared memory once, in place: every
view of it stays valid, and later changes are seen by the agent without a copy. What has a buffer without being a tensor
of torch, as an array of numpy, is copied at each push and pull instead, since its memory cannot be shared in place.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import math
import mmap
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._msgpack import pack
from ._processes import process_start
from .errors import UnsupportedTensor

_BUFFER_TYPES = {
    ("?", 1): "bool",
    ("B", 1): "uint8",
    ("b", 1): "int8",
    ("H", 2): "uint16",
    ("h", 2): "int16",
    ("I", 4): "uint32",
    ("i", 4): "int32",
    ("L", 8): "uint64",
    ("l", 8): "int64",
    ("Q", 8): "uint64",
    ("q", 8): "int64",
    ("e", 2): "float16",
    ("f", 4): "float32",
    ("d", 8): "float64",
}


def own_payload(value: dict[str, Any]) -> bytes:
    """A payload of this project: a mark, a version, a map."""
    return b"TFBP\x01" + pack(value)


def is_torch(value: Any) -> bool:
    """Whether a value is a tensor of torch, without importing it."""
    return any(kind.__module__.split(".")[0] == "torch" and kind.__name__ == "Tensor" for kind in type(value).__mro__)


@dataclass(frozen=True)
class Plain:
    """Elements in a buffer of this process, dense and in the order of rows: what an array of numpy holds."""

    data: memoryview
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, value: Any) -> Plain:
        """Raises :class:`UnsupportedTensor` for what is no writable, dense buffer of numbers."""
        try:
            view = memoryview(value)
        except TypeError:
            raise UnsupportedTensor(
                f"{name} is a {type(value).__name__}, neither a tensor of torch nor a buffer.",
                remedy="Register tensors, or arrays whose memory can be written.",
            ) from None
        dtype = _BUFFER_TYPES.get((view.format.lstrip("@=<"), view.itemsize))
        if dtype is None or view.readonly or not view.c_contiguous:
            raise UnsupportedTensor(
                f"{name} has elements {view.format!r}, is read-only or lies scattered.",
                remedy="Register a writable, C-contiguous array of numbers.",
            )
        # Of any format, which `cast` of a memory view is not.
        data = memoryview((ctypes.c_char * view.nbytes).from_buffer(value)) if view.nbytes else memoryview(b"")
        return cls(data.cast("B"), dtype, tuple(view.shape or ()))

    def scratch(self) -> Plain:
        """Memory of the same form, with other contents."""
        return Plain(memoryview(bytearray(self.data.nbytes)), self.dtype, self.shape)


class Staged:
    """A buffer of this process and its copy in shared memory."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.descriptor = os.memfd_create("tensorferry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, max(1, data.nbytes))
        # Agents map only what can never become shorter.
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._map = mmap.mmap(self.descriptor, max(1, data.nbytes))

    def copy_in(self) -> None:
        self._map[: self._data.nbytes] = self._data

    def copy_out(self) -> None:
        if self._data.nbytes:
            with memoryview(self._map) as arrived:
                self._data[:] = arrived[: self._data.nbytes]

    def close(self) -> None:
        self._map.close()
        os.close(self.descriptor)


@dataclass(frozen=True)
class Shared:
    """A tensor that agents can open. ``held`` is kept alive with it."""

    payload: bytes
    byte_length: int
    held: Any
    staged: Staged | None = None


class Sharer:
    """Makes payloads, each storage of memory shared once."""

    def __init__(self) -> None:
        self._start = process_start() or "0"
        self._files: dict[int, tuple[int, int]] = {}
        self._empty: int | None = None

    def share(self, name: str, value: Any) -> Shared:
        """Raises :class:`UnsupportedTensor` for what no agent can open."""
        return self._plain(value) if isinstance(value, Plain) else self._tensor(name, value)

    def _peer(
        self, dtype: str, shape: Sequence[int], strides: Sequence[int], offset: int, descriptor: int, length: int
    ) -> bytes:
        return own_payload(
            {
                "_tag": "PeerTensor",
                "dtype": dtype,
                "shape": list(shape),
                "strides": list(strides),
                "byteOffset": offset,
                "pid": os.getpid(),
                "processStart": self._start,
                "descriptor": descriptor,
                "inode": str(os.fstat(descriptor).st_ino),
                "byteLength": length,
            }
        )

    def _plain(self, plain: Plain) -> Shared:
        staged = Staged(plain.data)
        strides = [math.prod(plain.shape[at + 1 :]) for at in range(len(plain.shape))]
        payload = self._peer(plain.dtype, plain.shape, strides, 0, staged.descriptor, plain.data.nbytes)
        return Shared(payload, plain.data.nbytes, plain, staged)

    def _tensor(self, name: str, tensor: Any) -> Shared:
        import torch

        tensor = tensor.detach()
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        nbytes = tensor.numel() * tensor.element_size()
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            raise UnsupportedTensor(f"{name} is no plain strided tensor.", remedy="Register plain tensors.")
        if tensor.device.type == "cuda":
            return Shared(_pickled(name, tensor), nbytes, tensor)
        if tensor.device.type != "cpu":
            raise UnsupportedTensor(
                f"{name} lies on {tensor.device}, which agents do not open.",
                remedy="Materialise it on the CPU or on CUDA first.",
            )
        if nbytes == 0:
            strides = [int(stride) for stride in tensor.stride()]
            return Shared(self._peer(dtype, shape, strides, 0, self._nothing(), 0), 0, tensor)
        if tensor.is_shared() and _shares_by_name():
            return Shared(_pickled(name, tensor), nbytes, tensor)
        storage = tensor.untyped_storage()
        descriptor, length = self._file_of(name, storage)
        payload = self._peer(
            dtype,
            shape,
            tensor.stride(),
            tensor.storage_offset() * tensor.element_size(),
            descriptor,
            length,
        )
        return Shared(payload, nbytes, tensor)

    def _file_of(self, name: str, storage: Any) -> tuple[int, int]:
        known = self._files.get(storage.data_ptr())
        if known is not None:
            return known
        _raise_file_limit()
        try:
            # Moves the bytes into shared memory unless they are there: in place, for all views of the storage.
            descriptor, length = storage._share_fd_cpu_()
        except RuntimeError as error:
            raise UnsupportedTensor(
                f"The memory of {name} cannot be shared: {error}.",
                remedy="Give /dev/shm room for the tensors (docker: --shm-size), and raise the limit of open files.",
            ) from None
        self._files[storage.data_ptr()] = (descriptor, length)
        return descriptor, length

    def _nothing(self) -> int:
        if self._empty is None:
            self._empty = os.memfd_create("tensorferry-empty", os.MFD_CLOEXEC)
        return self._empty

    def close(self) -> None:
        if self._empty is not None:
            os.close(self._empty)
            self._empty = None


def _shares_by_name() -> bool:
    """Whether this process told torch to share memory of the CPU by the names of files."""
    from torch import multiprocessing

    return bool(multiprocessing.get_sharing_strategy() == "file_system")  # type: ignore[no-untyped-call]


def _pickled(name: str, tensor: Any) -> bytes:
    """As torch hands a tensor to another process: an IPC handle, or the name of shared memory."""
    from multiprocessing.reduction import ForkingPickler

    # Teaches the pickler what tensors are.
    import torch.multiprocessing  # noqa: F401

    buffer = io.BytesIO()
    try:
        ForkingPickler(buffer, 4).dump(tensor)
    except RuntimeError as error:
        raise UnsupportedTensor(
            f"The memory of {name} cannot be shared: {error}.",
            remedy="Run without expandable_segments in PYTORCH_ALLOC_CONF.",
        ) from None
    return buffer.getvalue()


def _raise_file_limit() -> None:
    """Each storage of the CPU is an open file: take all that the system allows to this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
