# SPDX-License-Identifier: Apache-2.0
"""One process's part in moving weights: it registers its tensors once, then pushes or pulls versions of them.

Every rank of both sides does the same, each for itself: nothing here is a collective of the program's own groups.
"""

from __future__ import annotations

import array
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from ._agent import ROUND_SECONDS, Agent
from ._batch import Batch, Direction, Names, is_equal, make_batch, named_tensors, scratch_like, without_aliases
from ._connection import Connection
from ._job import StoreSeat, check_name
from ._layout import REPLICATE, Laid, Mesh, lay, named_side, partial_sum, side_mesh
from ._memory import Plain, Sharer, own_payload
from ._msgpack import unpack
from .errors import (
    FerryError,
    InvalidCommand,
    NotRegistered,
    PairBroken,
    PairExists,
    RemoteMissing,
    UnknownBatch,
    VerifyFailed,
)

_log = logging.getLogger("tensorferry")

_LONGEST_VERSION = 2**53 - 1


def _path(model: str | os.PathLike[str]) -> str:
    path = os.fspath(model)
    return os.path.abspath(path) if os.path.exists(path) else path


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def _check_version(version: int) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= _LONGEST_VERSION:
        raise InvalidCommand(f"{version!r} is no version.", remedy="State a natural number.")


@dataclass(frozen=True)
class Progress:
    """What a call is about, for whoever shows it.

    ``phase`` is ``"waiting"`` while other ranks have not come, with ``message`` as the agent says who is missing, and
    ``"done"`` at the end, with the ``byte_length`` of this rank's tensors.
    """

    call: str
    phase: Literal["waiting", "done"]
    seconds: float
    byte_length: int = 0
    message: str = ""


@dataclass(frozen=True)
class Status:
    """What this process knows of its agent and its tensors."""

    job: str
    side: str
    rank: int
    world: int
    agent_pid: int
    is_connected: bool
    #: By name: the version that was moved last, or None before the first.
    versions: Mapping[str, int | None]
    #: By name: bytes of this rank's tensors.
    byte_lengths: Mapping[str, int]


class Ferry:
    """What this process has registered with its agent. Made by :func:`tensorferry.connect`; a context manager."""

    def __init__(
        self,
        job: str,
        side: str,
        remote: str,
        rank: int,
        world: int,
        connection: Connection,
        agent: Agent | None,
        seat: StoreSeat | None,
        timeout: float,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.job = job
        self.side = side
        self.remote = remote
        self.rank = rank
        self.world = world
        self.timeout = timeout
        self._progress = progress
        self._connection = connection
        self._agent = agent
        self._seat = seat
        self._sharer = Sharer()
        self._batches: dict[str, Batch] = {}
        self._pairs: dict[str, tuple[int, ...]] = {}

    # Registering

    def register(
        self,
        tensors: Any,
        *,
        name: str = "weights",
        convention: str | None = None,
        model: str | os.PathLike[str] | None = None,
        mesh: Mapping[str, int] | None = None,
        mapping: Mapping[str, Any] | None = None,
        placement: Mapping[str, Any] | None = None,
        preset: str | None = None,
        changes: int | None = None,
        form: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """States which tensors this rank holds. Ends when all ranks of both sides have done so.

        Without a convention both sides use the same names, and every tensor may lie in its own way on each side: DTensors
        bring mesh and placements, Megatron's parameters their attributes, and all else is whole on each rank. With one, a
        side states how its system names, joins and cuts the model, and the other side may use another system.

        The memory of tensors on the CPU is moved into shared memory in place. Tensors must keep their memory from now on:
        optimisers that work in place do, ``tensor.data = other`` does not. Register again after such a change, and after
        :class:`PairBroken` or :class:`BatchGone`.

        :param tensors: a module, a state dict, or pairs of name and tensor.
        :param name: what both sides call these tensors.
        :param convention: as ``"megatron"``, ``"vllm:tp=4"``, ``"fsdp2:tp=2"``, ``"transformers"``, ``"hf"``. Degrees are
            those of the whole side; without them they follow from the tensors and the number of ranks.
        :param model: with a convention, a folder with the model's ``config.json`` and a checkpoint under its own names, of
            which names and shapes are read.
        :param mesh: lengths of the mesh of this side by name, outermost first, where tensors do not bring it.
        :param mapping: with a convention, rules of this side's own in place of the convention's, as
            ``{"rules": [{"name": ..., "from": ...}], "others": "keep"}``.
        :param placement: with a convention, where this side puts layers, experts and vocabulary, as
            ``{"vocabulary": {"multipleOf": 128, "of": "share"}}``.
        :param preset: with a convention, the family of a model without a ``config.json``.
        :param changes: on all ranks of both sides or on none: pushes move only the elements that changed since the push
            before. The sender's agent keeps copies of at most so many bytes; what finds no room there is moved whole. Nobody
            but pulls may write to the tensors of the side that pulls. The first push moves everything.
        :param form: on the side that holds weights quantized, as ``"fp8-block"`` or ``"mxfp8:rceil"``: every tensor of codes
            has its scales beside it, named after it with ``_scale_inv`` or ``_scale``. The other side holds values; they are
            quantized where they arrive, and read back where they are pushed.
        :param timeout: seconds to wait for other ranks.
        :raises BatchMismatch: both sides registered different tensors; the message names tensor and rank.
        :raises RemoteMissing: ranks did not come in time; the message names them.
        """
        check_name("batch", name)
        if (convention is None) != (model is None):
            raise InvalidCommand("A convention needs the model, and a model a convention.", remedy="State both, or neither.")
        if changes is not None and (not isinstance(changes, int) or isinstance(changes, bool) or changes < 0):
            raise InvalidCommand(f"Copies of {changes!r} bytes are not possible.", remedy="State a number of bytes.")
        found = named_tensors(tensors)
        end = self._end_of(timeout)
        self._forget(name)
        pair = ":".join((name, *sorted((self.side, self.remote))))
        if model is None or convention is None:
            own = side_mesh(found, self.world, mesh)
            laid = {each: lay(each, found[each], own) for each in found}
            batch = make_batch(self._sharer, name, pair, own, laid, None, changes, form)
        else:
            side = named_side(convention, found, self.world)
            stated = Names(_path(model), side, _json(mapping), _json(placement), preset)
            held = {each: getattr(t, "to_local", lambda t=t: t)() for each, t in without_aliases(found).items()}
            laid = {each: Laid(local, (REPLICATE,)) for each, local in held.items()}
            batch = make_batch(self._sharer, name, pair, Mesh((self.world,)), laid, stated, changes, form)
        self._join(batch, end)
        self._batches[name] = batch
        _log.info("registered %d tensors of %d bytes as %s", len(batch.shared), batch.byte_length, name)

    def _end_of(self, timeout: float | None) -> float:
        return time.monotonic() + (self.timeout if timeout is None else timeout)

    def _join(self, batch: Batch, end: float) -> None:
        """Registers a batch, with its pair where that is missing or broken. A batch that fails is closed."""
        kind, fields = batch.command()
        try:
            while True:
                if self._pairs.get(batch.pair) != batch.mesh.shape:
                    self._meet(batch.pair, batch.mesh, end)
                try:
                    self._ask(f"register {batch.name}", kind, end, batch_id=batch.name, **fields)
                    return
                except PairBroken:
                    self._pairs.pop(batch.pair, None)
                    if time.monotonic() >= end:
                        raise
        except BaseException:
            batch.close()
            raise

    def _meet(self, pair: str, mesh: Mesh, end: float) -> None:
        self._pairs.pop(pair, None)
        fields = {
            "pair_name": pair,
            "local_name": self.side,
            "expected_world_size": self.world,
            "remote_name": self.remote,
            "mesh_shape_payload": own_payload({"type": "mesh", "shape": list(mesh.shape)}),
            "placements_payload": own_payload({"type": "placements", "placements": [REPLICATE] * len(mesh.shape)}),
        }
        while True:
            try:
                self._ask(f"meet {self.remote}", "InitPair", end, **fields)
                self._pairs[pair] = mesh.shape
                return
            except PairExists:
                # Of a process before this one, or of another mesh.
                self._connection.command("LeavePair", timeout=self.timeout, pair_name=pair)
            except PairBroken:
                # Another rank left while this one came: all meet again.
                if time.monotonic() >= end:
                    raise

    def _ask(self, call: str, kind: str, end: float, **fields: Any) -> None:
        """Sends a command, again as long as ranks are missing and there is time."""
        begin = time.monotonic()

        def waiting(message: str = "") -> None:
            seconds = time.monotonic() - begin
            _log.info("%s: waiting for %.0f s. %s", call, seconds, message)
            self._tell(Progress(call, "waiting", seconds, message=message))

        if kind != "Transfer":
            # All ranks must be there at once to meet, so each waits in one go.
            left = max(1.0, end - begin)
            self._connection.command(kind, timeout=left + ROUND_SECONDS, waiting=lambda _: waiting(), wait=left, **fields)
            return
        while True:
            try:
                self._connection.command(kind, timeout=self.timeout + ROUND_SECONDS, **fields)
                return
            except RemoteMissing as error:
                if time.monotonic() >= end:
                    raise
                waiting(str(error))

    def _tell(self, progress: Progress) -> None:
        if self._progress is not None:
            self._progress(progress)

    def _batch(self, name: str) -> Batch:
        batch = self._batches.get(name)
        if batch is None:
            raise NotRegistered(f"Nothing is registered as {name}.", remedy="Call register on all ranks first.")
        return batch

    def _forget(self, name: str) -> None:
        batch = self._batches.pop(name, None)
        if batch is not None:
            self._leave(batch)

    def _leave(self, batch: Batch) -> None:
        try:
            self._connection.command("CleanupBatch", timeout=self.timeout, batch_id=batch.name)
        except UnknownBatch:
            # The agent dropped it before, as the other side did.
            pass
        finally:
            batch.close()

    # Moving

    def push(self, version: int, *, name: str = "weights", timeout: float | None = None) -> None:
        """Sends this rank's tensors. Ends when the other side has them.

        :param version: which contents these are: a natural number that rises from push to push.
        :raises VersionMismatch: the other side pulls another version. Nothing was moved.
        :raises RemoteMissing: the other side did not pull in time; the message names the ranks.
        """
        batch = self._batch(name)
        _check_version(version)
        if batch.last == "send" and batch.version is not None and version <= batch.version:
            raise InvalidCommand(
                f"Version {version} of {name} does not follow version {batch.version}, which was pushed last.",
                remedy="Count versions up.",
            )
        self._move("push", batch, "send", self._end_of(timeout), version)

    def pull(self, version: int | None = None, *, name: str = "weights", timeout: float | None = None) -> int:
        """Fills this rank's tensors with what the other side pushes. Ends when they hold it.

        :param version: the version that is wanted; without one, whatever is pushed next.
        :returns: the version that came.
        :raises VersionMismatch: the other side pushes another version. Nothing was moved.
        :raises RemoteMissing: nothing was pushed in time.
        """
        batch = self._batch(name)
        if version is not None:
            _check_version(version)
        self._move("pull", batch, "recv", self._end_of(timeout), version)
        assert batch.version is not None
        return batch.version

    def _move(self, call: str, batch: Batch, direction: Direction, end: float, version: int | None) -> None:
        begin = time.monotonic()
        if direction == "send":
            batch.copy_in()
        batch.synchronize()
        fields: dict[str, Any] = {"batch_id": batch.name, "transfer_type": direction}
        if version is not None:
            fields["version"] = version
        self._ask(f"{call} {batch.name}", "Transfer", end, **fields)
        if direction == "recv":
            batch.copy_out()
        entry = self._connection.read(f"batch:{batch.name}/state:version")
        batch.version = unpack(entry) if entry is not None else version
        batch.last = direction
        seconds = time.monotonic() - begin
        _log.info("%s %s: version %s, %d bytes in %.3f s", call, batch.name, batch.version, batch.byte_length, seconds)
        self._tell(Progress(f"{call} {batch.name}", "done", seconds, batch.byte_length))

    def verify(self, *, name: str = "weights", timeout: float | None = None) -> None:
        """Proves that the receiver holds what the sender holds, bit by bit. Both sides call it, after a push and a pull.

        The sender's tensors are moved once more, into memory that the receiver has for that time, and compared with what
        the receiver holds. Types that differ are compared as they arrive. The verdict goes back to the sender.

        :raises VerifyFailed: they differ. On a receiver, the message names the tensors of its rank.
        """
        batch = self._batch(name)
        if batch.last is None:
            raise NotRegistered(f"Nothing was moved as {name} yet.", remedy="Push and pull first.")
        end = self._end_of(timeout)
        sends = batch.last == "send"
        wrong = self._compare(batch, sends, end)
        count = self._verdict(batch, len(wrong), sends, end)
        if sends and count:
            raise VerifyFailed(
                f"{count} tensors that {self.remote} holds as {name} differ from version {batch.version}.",
                remedy="Push again; the ranks of the other side name the tensors.",
                fields={"count": count},
            )
        if wrong:
            listed = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
            raise VerifyFailed(
                f"Version {batch.version} of {name} differs from what {self.remote} holds: {listed}.",
                remedy="These tensors were written after the pull, or the sender's after the push. Pull again.",
                fields={"names": wrong},
            )

    def _compare(self, batch: Batch, sends: bool, end: float) -> list[str]:
        """Moves once more; names of the tensors that a receiver holds otherwise."""
        laid = batch.laid
        if not sends:
            laid = {each: Laid(scratch_like(part.local), part.placements) for each, part in laid.items()}
        copy = make_batch(self._sharer, f"{batch.name}.proof", batch.pair, batch.mesh, laid, batch.names, form=batch.form)
        self._join(copy, end)
        try:
            self._move("verify", copy, "send" if sends else "recv", end, None)
            return [each for each, part in laid.items() if not is_equal(part.local, batch.laid[each].local)]
        finally:
            self._leave(copy)

    def _verdict(self, batch: Batch, wrong: int, sends: bool, end: float) -> int:
        """The number of tensors that differ on all receivers, as the senders get it: a sum over their ranks."""
        cell = array.array("i", [wrong])
        placement = REPLICATE if sends else partial_sum
        laid = {"wrong": Laid(Plain.of("wrong", cell), (placement,) * len(batch.mesh.shape))}
        verdict = make_batch(self._sharer, f"{batch.name}.verdict", batch.pair, batch.mesh, laid)
        self._join(verdict, end)
        try:
            self._move("verify", verdict, "recv" if sends else "send", end, None)
            return cell[0]
        finally:
            self._leave(verdict)

    # Ending

    def status(self) -> Status:
        """What is connected, registered and moved now. Asks the agent nothing."""
        return Status(
            self.job,
            self.side,
            self.rank,
            self.world,
            self._connection.pid,
            self._connection.is_open,
            {name: batch.version for name, batch in self._batches.items()},
            {name: batch.byte_length for name, batch in self._batches.items()},
        )

    def close(self) -> None:
        """Gives up what is registered, and ends the agent where this object started it. Other ranks learn of it."""
        batches, self._batches = self._batches, {}
        try:
            # An agent of this process's own gives up by itself what it has, and says why.
            if self._agent is None and self._connection.is_open:
                for name in batches:
                    self._connection.command("CleanupBatch", timeout=ROUND_SECONDS, batch_id=name)
                for pair in self._pairs:
                    self._connection.command("LeavePair", timeout=ROUND_SECONDS, pair_name=pair)
        except FerryError as error:
            _log.debug("closing: %s", error)
        finally:
            self._pairs.clear()
            self._connection.close()
            if self._agent is not None:
                self._agent.stop()
            if self._seat is not None:
                self._seat.give_back()
            for batch in batches.values():
                batch.close()
            self._sharer.close()

    def __enter__(self) -> Ferry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Ferry {self.job}: rank {self.rank} of {self.world} of {self.side}, agent {self._connection.rank}>"
