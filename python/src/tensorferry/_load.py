# SPDX-License-Identifier: Apache-2.0
"""Tensors filled from a checkpoint by an agent, which reads what this rank holds straight into them."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ._agent import ROUND_SECONDS, Agent
from ._batch import Batch, aliases, make_batch, named_tensors
from ._connect import side_position
from ._connection import Connection
from ._job import Store
from ._layout import REPLICATE, Laid, Mesh, lay, named_side, side_mesh
from ._memory import Sharer, own_payload
from .errors import InvalidCommand
from .ferry import Ferry

_log = logging.getLogger("tensorferry")


@dataclass(frozen=True)
class Loaded:
    """What a load filled."""

    #: How many tensors, those of one storage counted once.
    tensors: int
    #: Bytes of the tensors that were filled, in the types that the checkpoint has.
    byte_length: int
    seconds: float
    #: Tensors that keep their contents, since the checkpoint lacks them; only where ``strict`` is false.
    missing: tuple[str, ...]
    #: Tensors of the checkpoint that this rank has no place for; only where ``strict`` is false.
    unexpected: tuple[str, ...]
    #: Tensors whose values were converted; only where ``cast`` is true.
    cast: tuple[str, ...]


def load(
    tensors: Any,
    path: str | os.PathLike[str],
    *,
    convention: str | None = None,
    stored: str = "hf",
    like: str | os.PathLike[str] | None = None,
    mesh: Mapping[str, int] | None = None,
    mapping: Mapping[str, Any] | None = None,
    placement: Mapping[str, Any] | None = None,
    preset: str | None = None,
    strict: bool = True,
    cast: bool = False,
    rank: int | None = None,
    world: int | None = None,
    ferry: Ferry | None = None,
    agent_arguments: Iterable[str] = (),
    timeout: float | None = None,
) -> Loaded:
    """Fills this rank's tensors from a checkpoint. Only what the rank holds is read, and no other rank is waited for.

    Names, shapes and types are checked first: after :class:`CheckpointMismatch` the tensors are as they were. After any
    other failure their contents are unspecified. The memory of tensors on the CPU is moved into shared memory in place, and
    CUDA tensors are filled by their IPC handles.

    :param tensors: a module, a state dict, or pairs of name and tensor, as ``register`` takes them: DTensors bring mesh and
        placements, Megatron's parameters their attributes, and all else is whole on each rank.
    :param path: a file of safetensors, or a folder with one, with several and an index, or with another checkpoint that the
        command ``tensorferry`` reads.
    :param convention: how the tensors are named, joined and cut, as ``"transformers"`` or ``"vllm:tp=4"``. Without it they
        have the names of the checkpoint.
    :param stored: how the checkpoint is named; ``"hf"`` is its model's own names. Degrees are those of its files, as
        ``"vllm:tp=4"`` for a sharded state.
    :param like: where ``stored`` is not ``"hf"``, a checkpoint of the same model under its own names.
    :param mesh: lengths of the mesh of all ranks by name, outermost first, where tensors do not bring it.
    :param mapping: with a convention, rules of this side's own in place of the convention's.
    :param placement: with a convention, where this side puts layers, experts and vocabulary.
    :param preset: the family of a model without a ``config.json``.
    :param strict: tensors that the checkpoint lacks, and tensors of it that this rank lacks, are errors. Otherwise the answer
        lists them.
    :param cast: values are converted where types differ, as ``Tensor.copy_`` does it. Otherwise that is an error.
    :param rank: of this process among those that share the model; as ``torch.distributed`` or ``RANK`` says, else 0.
    :param world: how many there are; as ``torch.distributed`` or ``WORLD_SIZE`` says, else 1.
    :param ferry: whose agent reads; without it, an agent is started for this call.
    :param agent_arguments: more for the command of that agent, as ``("--device", "1")``.
    :param timeout: seconds for all of it. Without it each read of up to 16 MiB has 60 seconds, and their number no limit.
    :raises CheckpointMismatch: names, shapes or types do not fit; the message names the tensors.
    :raises CheckpointUnreadable: the checkpoint is not there, or may not be read.
    :raises CheckpointDamaged: a file is cut short, or is not what its format allows.
    """
    begin = time.monotonic()
    own, size = side_position(rank, world)
    _check(convention, mapping, placement, stored, like, timeout)
    found = named_tensors(tensors)
    fields: dict[str, Any] = {"path": os.path.abspath(os.fspath(path)), "side_rank": own}
    if convention is None:
        lengths = side_mesh(found, size, mesh)
        laid = {name: lay(name, tensor, lengths) for name, tensor in found.items()}
    else:
        lengths = Mesh((size,))
        laid = {name: Laid(getattr(t, "to_local", lambda t=t: t)(), (REPLICATE,)) for name, t in found.items()}
        fields["names"] = named_side(convention, found, size)
    further = aliases({name: part.local for name, part in laid.items()})
    laid = {name: part for name, part in laid.items() if name not in further}
    stated = {
        "aliases": json.dumps(further) if further else None,
        "rules": None if mapping is None else json.dumps(mapping),
        "placement": None if placement is None else json.dumps(placement),
        "preset": preset,
        "stored_names": None if stored in ("hf", "hf:") else _with_degrees(stored),
        "model": None if like is None else os.path.abspath(os.fspath(like)),
        "allows_cast": cast or None,
        "allows_missing": not strict or None,
        "allows_unexpected": not strict or None,
    }
    fields.update({name: value for name, value in stated.items() if value is not None})
    fields["mesh_shape_payload"] = own_payload({"type": "mesh", "shape": list(lengths.shape)})
    sharer = Sharer()
    try:
        batch = make_batch(sharer, "load", "load", lengths, laid)
        try:
            with _connection(ferry, tuple(agent_arguments)) as connection:
                answer = _fill(connection, batch, fields, timeout)
        finally:
            batch.close()
    finally:
        sharer.close()
    names = {kind: tuple(answer[kind]) for kind in ("missing", "unexpected", "cast")}
    loaded = Loaded(int(answer["tensors"]), int(answer["bytes"]), time.monotonic() - begin, **names)
    _log.info("loaded %d tensors of %d bytes from %s in %.3f s", loaded.tensors, loaded.byte_length, path, loaded.seconds)
    return loaded


def _check(
    convention: str | None, mapping: object, placement: object, stored: str, like: object, timeout: float | None
) -> None:
    if convention is None and (mapping is not None or placement is not None):
        raise InvalidCommand("A mapping or a placement needs a convention.", remedy="State the convention.")
    if stored in ("hf", "hf:") and like is not None:
        raise InvalidCommand("The checkpoint has its model's own names, so `like` says nothing.", remedy="Leave it out.")
    if timeout is not None and not 0 < timeout < math.inf:
        raise InvalidCommand(f"A load cannot take {timeout!r} seconds.", remedy="State more than 0, or nothing.")


def _with_degrees(side: str) -> str:
    return side if ":" in side else f"{side}:"


def _fill(connection: Connection, batch: Batch, fields: Mapping[str, Any], timeout: float | None) -> Mapping[str, Any]:
    """Sends the command, and waits until the agent has filled the tensors."""
    payloads = []
    for name, shared in batch.shared.items():
        stated = {"_tag": "NamedTensor", "name": name, "placements": list(batch.laid[name].placements)}
        payloads.append((name, own_payload({**stated, "payload": shared.payload})))
    batch.copy_in()
    batch.synchronize()

    def waiting(seconds: float) -> None:
        _log.info("load: the agent has read %s for %.0f s", fields["path"], seconds)

    # Each read of the agent has a deadline, and the end of the agent is noticed, so that this ends without one of its own.
    patience = math.inf if timeout is None else timeout + ROUND_SECONDS
    answer = connection.command("LoadTensors", timeout=patience, waiting=waiting, wait=timeout, tensors=payloads, **fields)
    batch.copy_out()
    return answer if isinstance(answer, Mapping) else {}


@contextlib.contextmanager
def _connection(ferry: Ferry | None, arguments: tuple[str, ...]) -> Iterator[Connection]:
    if ferry is not None:
        yield ferry._connection
        return
    with tempfile.TemporaryDirectory(prefix="tensorferry-load-") as folder:
        socket = os.path.join(folder, "agent.sock")
        # It meets no other agent, so nobody else is told of its store.
        store = Store("127.0.0.1:0", secrets.token_hex(32))
        agent = Agent(0, socket, store, serves=True, deadline=ROUND_SECONDS, arguments=arguments)
        try:
            connection = Connection(socket, agent.last_words)
            try:
                yield connection
            finally:
                connection.close()
        finally:
            agent.stop()
