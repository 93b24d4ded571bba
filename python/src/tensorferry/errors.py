# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions. Each names what failed, and says what to do about it.

An agent's errors keep their reason across the border of languages: the class is named after it. A reason that this
version does not know is a plain :class:`FerryError` with the reason in ``tag``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class FerryError(Exception):
    """Base of all errors of this package.

    :ivar tag: the reason, as ``"RemoteMissing"``.
    :ivar remedy: what to do about it.
    :ivar retryable: whether the same call may succeed later without a change.
    :ivar fields: what the agent said beside the message, as ``peer``, the agent that is to blame.
    """

    def __init__(
        self, message: str, *, remedy: str = "", retryable: bool = False, fields: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.tag = type(self).__name__
        self.remedy = remedy
        self.retryable = retryable
        self.fields = dict(fields or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (type(self), str(self), self.tag, self.remedy, self.retryable, self.fields))


def _restore(
    kind: type[FerryError], message: str, tag: str, remedy: str, retryable: bool, fields: dict[str, Any]
) -> FerryError:
    error = kind(message, remedy=remedy, retryable=retryable, fields=fields)
    error.tag = tag
    return error


class AgentUnavailable(FerryError):
    """No agent could be started or reached; the message says what was tried."""


class AgentGone(FerryError):
    """The agent has ended, or its connection is lost. Connect again, then register again."""


class ProtocolError(FerryError):
    """The agent speaks another version, or its answer cannot be read."""


class UnsafeFolder(FerryError):
    """The folder of the job belongs to another user, or others can write it."""


class NotRegistered(FerryError):
    """Nothing is registered under this name: call ``register`` first."""


class UnsupportedLayout(FerryError):
    """A tensor lies in a way that cannot be stated to an agent; the message names the tensor."""


class VerifyFailed(FerryError):
    """The receiver does not hold what the sender holds. ``fields["names"]`` lists tensors where this rank has them."""


class InvalidCommand(FerryError):
    """A name, a number or a combination that a call cannot have."""


class InvalidPayload(FerryError):
    """The agent cannot read what describes a tensor."""


class UnsupportedTensor(FerryError):
    """The agent cannot move this tensor; the message says why."""


class MemoryUnavailable(FerryError):
    """The agent cannot open a tensor's memory. It must run as the same user, in the same container."""


class PairExists(FerryError):
    """The agent has this pair of sides already."""


class UnknownPair(FerryError):
    """The agent has no such pair of sides."""


class PairMismatch(FerryError):
    """Ranks describe the sides differently; the message names the rank."""


class HostsDiffer(FerryError):
    """Agents of one pair run on different hosts."""


class PairBroken(FerryError):
    """An agent of the pair has gone or started again. Register again on all ranks of both sides."""


class BatchExists(FerryError):
    """The name is registered already."""


class UnknownBatch(FerryError):
    """The agent knows nothing under this name."""


class BatchGone(FerryError):
    """A rank of the other side dropped the tensors; the message says why. Register again on all ranks."""


class BatchMismatch(FerryError):
    """Ranks registered different tensors; the message names the tensor and the rank."""


class VersionMismatch(FerryError):
    """Both sides moved at the same time, but different versions. Nothing was moved."""


class PartialTarget(FerryError):
    """The receiving side holds unreduced contributions."""


class RemoteMissing(FerryError):
    """Ranks did not come in time; the message names them."""


class TransferFailed(FerryError):
    """The bytes did not arrive. What the receiver holds now is undefined: push again."""


class CheckpointUnreadable(FerryError):
    """The checkpoint is not there, or the agent may not or cannot read it. ``fields["file"]`` names the file."""


class CheckpointDamaged(FerryError):
    """Files of the checkpoint are cut short, damaged, or contradict each other. ``fields["file"]`` names the file."""


class CheckpointMismatch(FerryError):
    """The checkpoint has other names, shapes or types than the tensors; the message names them. Nothing was written."""


class Stopping(FerryError):
    """The agent stops."""


class DeadlineExceeded(FerryError):
    """The call took longer than its timeout."""


class ServiceFailed(FerryError):
    """The agent failed; its log says more."""


_kinds: dict[str, type[FerryError]] = {kind.__name__: kind for kind in FerryError.__subclasses__()}


def from_reply(tag: str, message: str, fields: Mapping[str, Any]) -> FerryError:
    """The exception for an agent's answer."""
    kind = _kinds.get(tag, FerryError)
    error = kind(
        message,
        remedy=str(fields.get("remedy", "")),
        retryable=fields.get("isRetryable") is True,
        fields=fields,
    )
    error.tag = tag
    return error
