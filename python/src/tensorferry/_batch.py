# SPDX-License-Identifier: Apache-2.0
"""What is registered under one name: this rank's tensors, how they lie, and the command that states them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ._layout import Laid, Mesh
from ._memory import Plain, Shared, Sharer, is_torch, own_payload
from .errors import InvalidCommand

Direction = Literal["send", "recv"]


@dataclass(frozen=True)
class Names:
    """How a side names, joins and cuts a model: fields of the command ``RegisterModel``."""

    model: str
    names: str
    rules: str | None
    placement: str | None
    preset: str | None


@dataclass
class Batch:
    """Tensors that move together, over a pair of sides whose mesh on this side is ``mesh``."""

    name: str
    pair: str
    mesh: Mesh
    laid: Mapping[str, Laid]
    shared: Mapping[str, Shared]
    names: Names | None = None
    #: Bytes for copies, where transfers move only what changed.
    changes: int | None = None
    #: The quantized form of tensors whose scales are beside them.
    form: str | None = None
    version: int | None = None
    last: Direction | None = None
    byte_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.byte_length = sum(shared.byte_length for shared in self.shared.values())

    def command(self) -> tuple[str, dict[str, Any]]:
        """The command that registers it, and its fields."""
        stated: dict[str, Any] = {"bucket_size": None}
        if self.changes is not None:
            stated["changes_bytes"] = self.changes
        if self.form is not None:
            stated["form"] = self.form
        if self.names is not None:
            tensors = [(name, shared.payload) for name, shared in self.shared.items()]
            return "RegisterModel", {**vars(self.names), "pair_name": self.pair, "tensors": tensors, **stated}
        payloads = []
        for name, shared in self.shared.items():
            placements = list(self.laid[name].placements)
            payload = {"_tag": "NamedTensor", "name": name, "placements": placements, "payload": shared.payload}
            payloads.append((self.pair, own_payload(payload)))
        return "RegisterTensors", {"tensors": payloads, **stated}

    def copy_in(self) -> None:
        """Brings what agents see up to date, where that is a copy."""
        for shared in self.shared.values():
            if shared.staged is not None:
                shared.staged.copy_in()

    def copy_out(self) -> None:
        """Brings this process's buffers up to date, where agents fill a copy."""
        for shared in self.shared.values():
            if shared.staged is not None:
                shared.staged.copy_out()

    def synchronize(self) -> None:
        """Waits for the GPUs: an agent cannot see what this process has them do."""
        devices = {s.held.device for s in self.shared.values() if is_torch(s.held) and s.held.device.type == "cuda"}
        if devices:
            import torch

            for device in devices:
                torch.cuda.synchronize(device)

    def close(self) -> None:
        """Frees copies; tensors are their owner's."""
        for shared in self.shared.values():
            if shared.staged is not None:
                shared.staged.close()


def make_batch(
    sharer: Sharer,
    name: str,
    pair: str,
    mesh: Mesh,
    laid: Mapping[str, Laid],
    names: Names | None = None,
    changes: int | None = None,
    form: str | None = None,
) -> Batch:
    """Shares the tensors. Raises :class:`UnsupportedTensor` where one cannot be, and frees the copies of the others."""
    shared: dict[str, Shared] = {}
    try:
        for each, part in laid.items():
            shared[each] = sharer.share(each, part.local)
    except BaseException:
        Batch(name, pair, mesh, laid, shared).close()
        raise
    return Batch(name, pair, mesh, laid, shared, names, changes, form)


def named_tensors(tensors: Any) -> dict[str, Any]:
    """A module, a state dict or pairs of name and tensor, by name. A module brings what its ``state_dict`` holds."""
    if callable(getattr(tensors, "state_dict", None)):
        # Of the parameters themselves, not of detached ones: what is marked on them counts.
        found = tensors.state_dict(keep_vars=True)
    elif isinstance(tensors, (Mapping, Iterable)):
        found = tensors
    else:
        raise InvalidCommand(
            f"A {type(tensors).__name__} is neither a module, a state dict nor pairs of name and tensor.",
            remedy="Register model, model.state_dict() or model.named_parameters().",
        )
    named: dict[str, Any] = {}
    for name, tensor in found.items() if isinstance(found, Mapping) else found:
        if not isinstance(name, str) or not name or name in named:
            raise InvalidCommand(f"{name!r} is no name, or a name twice.", remedy="Give each tensor a name of its own.")
        # What modules keep beside tensors, as `_extra_state`, is not weights.
        if tensor is not None and not name.endswith("_extra_state"):
            named[name] = tensor if is_torch(tensor) else Plain.of(name, tensor)
    if not named:
        raise InvalidCommand("There are no tensors.", remedy="Register at least one.")
    return named


def aliases(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Further names of memory, as a tied head, each with the name that came first."""
    seen: dict[tuple[Any, ...], str] = {}
    found: dict[str, str] = {}
    for name, tensor in tensors.items():
        if is_torch(tensor) and tensor.numel() > 0:
            place = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
            first = seen.setdefault(place, name)
            if first != name:
                found[name] = first
    return found


def without_aliases(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors without further names of memory that came before."""
    further = aliases(tensors)
    return {name: tensor for name, tensor in tensors.items() if name not in further}


def scratch_like(local: Any) -> Any:
    """Memory of the same form, with other contents."""
    if is_torch(local):
        import torch

        return torch.empty_like(local.detach(), memory_format=torch.preserve_format)
    assert isinstance(local, Plain)
    return local.scratch()


def is_equal(a: Any, b: Any) -> bool:
    """Whether two tensors of one form hold the same bits: NaNs of one payload are equal, zeros of two signs are not."""
    if is_torch(a):
        import torch

        flat = [each.detach().reshape(-1) for each in (a, b)]
        return flat[0].numel() == 0 or torch.equal(*(each.view(torch.uint8) for each in flat))
    return bool(a.data == b.data)
