# SPDX-License-Identifier: Apache-2.0
"""How the tensors of a rank lie on the mesh of its side: read from DTensors or from Megatron's attributes, without a
collective.

The ranks of a side stand on one mesh, row by row. A DTensor brings its own mesh, which is that one or some of its
dimensions. Megatron marks a parameter with ``tensor_model_parallel`` and ``partition_dim``; its mesh is stated, with a
dimension ``"tp"``. Everything else is whole on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import UnsupportedLayout

REPLICATE: dict[str, Any] = {"_tag": "Replicate"}
#: Contributions whose sum is the tensor; of senders only.
partial_sum: dict[str, Any] = {"_tag": "Partial", "op": "sum"}
_OPS = {"sum", "avg", "max", "min", "product"}


@dataclass(frozen=True)
class Mesh:
    """Lengths of the dimensions of a side, outermost first, and their names where they have some."""

    shape: tuple[int, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Laid:
    """What a rank holds of a tensor, and where on the mesh that lies."""

    local: Any
    placements: tuple[dict[str, Any], ...]


def shard(dim: int) -> dict[str, Any]:
    """Consecutive chunks along a dimension of the tensor."""
    return {"_tag": "Shard", "dim": dim}


def _is_dtensor(value: Any) -> bool:
    return hasattr(value, "device_mesh") and hasattr(value, "placements") and hasattr(value, "to_local")


def _placement(name: str, placement: Any) -> dict[str, Any]:
    kind = type(placement).__name__
    if kind == "_StridedShard":
        factor = int(placement.split_factor)
        return {"_tag": "StridedShard", "dim": int(placement.dim), "splitFactor": factor, "uneven": "ceil-of-ceil"}
    if kind == "Shard":
        return shard(int(placement.dim))
    if kind == "Replicate":
        return REPLICATE
    if kind in ("Partial", "_Partial") and placement.reduce_op in _OPS:
        return {"_tag": "Partial", "op": placement.reduce_op}
    raise UnsupportedLayout(
        f"{name} has the placement {placement!r}, which agents do not know.",
        remedy="Redistribute it to Shard or Replicate.",
    )


def _mesh_of(device_mesh: Any) -> Mesh:
    shape = tuple(int(length) for length in device_mesh.mesh.shape)
    return Mesh(shape, tuple(device_mesh.mesh_dim_names or ()))


def side_mesh(tensors: Mapping[str, Any], world: int, stated: Mapping[str, int] | None) -> Mesh:
    """The mesh of a side: the stated one, else the largest of the DTensors' that has all ranks, else a row of ranks."""
    if stated is not None:
        mesh = Mesh(tuple(stated.values()), tuple(stated))
        if math.prod(mesh.shape) != world:
            raise UnsupportedLayout(
                f"The mesh {dict(stated)} has {math.prod(mesh.shape)} ranks, and the side has {world}.",
                remedy="State lengths whose product is the number of ranks.",
            )
        return mesh
    for name, tensor in tensors.items():
        if not _is_dtensor(tensor) or tensor.device_mesh.size() != world:
            continue
        ranks = [int(rank) for rank in tensor.device_mesh.mesh.flatten().tolist()]
        if ranks != list(range(world)):
            raise UnsupportedLayout(
                f"The mesh of {name} has the ranks {ranks}, and a side has its ranks in ascending order.",
                remedy="Make the mesh by init_device_mesh.",
            )
        return _mesh_of(tensor.device_mesh)
    return Mesh((world,))


def lay(name: str, tensor: Any, mesh: Mesh) -> Laid:
    """What this rank holds of a tensor. Raises :class:`UnsupportedLayout` where it cannot be stated on the mesh."""
    if _is_dtensor(tensor):
        own = _mesh_of(tensor.device_mesh)
        found = [_placement(name, placement) for placement in tensor.placements]
        return Laid(tensor.to_local(), _on(name, own, found, mesh))
    if getattr(tensor, "tensor_model_parallel", False):
        return Laid(tensor, _megatron(name, tensor, mesh))
    return Laid(tensor, (REPLICATE,) * len(mesh.shape))


def _on(name: str, own: Mesh, found: list[dict[str, Any]], mesh: Mesh) -> tuple[dict[str, Any], ...]:
    if own.shape == mesh.shape:
        return tuple(found)
    if not own.names or not set(own.names) <= set(mesh.names):
        raise UnsupportedLayout(
            f"{name} lies on a mesh {list(own.shape)} that is no part of the mesh {list(mesh.shape)} of its side.",
            remedy="Name the dimensions of the meshes, and take meshes of parts of the model from the whole one.",
        )
    by_name = dict(zip(own.names, found, strict=True))
    return tuple(by_name.get(dim, REPLICATE) for dim in mesh.names)


def _megatron(name: str, tensor: Any, mesh: Mesh) -> tuple[dict[str, Any], ...]:
    stride = int(getattr(tensor, "partition_stride", 1))
    dims = mesh.names or (("tp",) if len(mesh.shape) == 1 else ())
    if "tp" not in dims:
        raise UnsupportedLayout(
            f"{name} is cut among tensor-parallel ranks, and the mesh of its side has no dimension 'tp'.",
            remedy="State the mesh, as mesh={'dp': 2, 'tp': 4}.",
        )
    if stride != 1:
        raise UnsupportedLayout(
            f"{name} has partition_stride {stride}: it joins {stride} tensors, and each is cut by itself.",
            remedy='Register by the names of the system: convention="megatron", model=PATH.',
        )
    return tuple(shard(int(tensor.partition_dim)) if dim == "tp" else REPLICATE for dim in dims)


def named_side(convention: str, tensors: Mapping[str, Any], world: int) -> str:
    """A convention with the degrees of the side: as stated, else read from the tensors, else one dimension of ranks."""
    if ":" in convention:
        return convention
    if world == 1:
        return f"{convention}:"
    sharded = [(name, tensor) for name, tensor in tensors.items() if _is_dtensor(tensor)]
    if not sharded:
        return f"{convention}:tp={world}"
    for name, tensor in sharded:
        placements = [_placement(name, placement) for placement in tensor.placements]
        if placements != [shard(0)] or tensor.device_mesh.size() != world:
            raise UnsupportedLayout(
                f"{name} has the placements {placements}; by names, every tensor is cut along its rows over all ranks.",
                remedy="Leave `convention` out where both sides use the same names, or state degrees, as fsdp2:tp=2.",
            )
    rows = {"hf": "fsdp2-hf", "transformers": "fsdp2"}.get(convention, convention)
    return f"{rows}:tp={world}"
