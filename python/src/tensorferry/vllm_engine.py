# SPDX-License-Identifier: Apache-2.0
"""The two ends of vLLM's weight transfer: an engine in each worker, and one on each trainer rank.

By names (``convention`` stated on the trainer) every worker receives its own shards straight into the live parameters, and
no trainer rank gathers anything. Without, the first trainer rank streams whole tensors of the checkpoint's names, which go
through ``load_weights`` with layerwise reload: for quantised models, and for families that are not listed under names.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from vllm.distributed.weight_transfer import base

from ._connect import DEFAULT_TIMEOUT, connect
from ._stream import Receiver, Sender
from .errors import AgentGone, FerryError, InvalidCommand
from .ferry import Ferry
from .vllm import BACKEND

_BUCKET = 1 << 30


@dataclass
class TensorferryInitInfo(base.WeightTransferInitInfo):  # type: ignore[misc]
    """What a worker is told once: the job, and the number of workers of all replicas."""

    job: str
    world_size: int
    #: Whether this worker's shards come by names; else whole tensors are streamed.
    by_names: bool = False
    #: As the worker's own model is named and cut, where vLLM's parallel configuration does not say it.
    convention: str | None = None
    #: A folder with the model's config and checkpoint; by default the model that is served.
    model: str | None = None
    bucket_size: int = _BUCKET
    timeout: float = DEFAULT_TIMEOUT


@dataclass
class TensorferryUpdateInfo(base.WeightTransferUpdateInfo):  # type: ignore[misc]
    """Which version is to be received."""

    version: int


class TensorferryEngine(base.WeightTransferEngine):  # type: ignore[misc]
    """Receives in a worker. Constructors of vLLM 0.22 and of 0.27 and later are taken."""

    init_info_cls = TensorferryInitInfo
    update_info_cls = TensorferryUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_or_parallel_config: Any, *rest: Any) -> None:
        super().__init__(config, vllm_or_parallel_config, *rest)
        self.model = rest[-1]
        self._parallel = getattr(vllm_or_parallel_config, "parallel_config", vllm_or_parallel_config)
        self._model_config = getattr(vllm_or_parallel_config, "model_config", None)
        self._device = rest[0] if len(rest) > 1 else next(self.model.parameters()).device
        self._info: TensorferryInitInfo | None = None
        self._ferry: Ferry | None = None
        self._receiver: Receiver | None = None
        self._is_registered = False

    def init_transfer_engine(self, init_info: TensorferryInitInfo) -> None:
        if init_info.by_names and getattr(self._model_config, "quantization", None):
            raise InvalidCommand(
                "The parameters of a quantised model are not those of its names.",
                remedy="Stream whole tensors: leave `convention` out on the trainer.",
            )
        self.shutdown()
        parallel = self._parallel
        replica = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        index = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0))
        self._info = init_info
        self._ferry = connect(
            init_info.job,
            side="engine",
            rank=index * replica + parallel.rank,
            world=init_info.world_size,
            timeout=init_info.timeout,
        )

    def _connected(self) -> tuple[Ferry, TensorferryInitInfo]:
        if self._ferry is None or self._info is None:
            raise InvalidCommand("The engine is not initialised.", remedy="Call init_weight_transfer_engine first.")
        return self._ferry, self._info

    def start_weight_update(self) -> None:
        _, info = self._connected()
        if not info.by_names:
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: TensorferryUpdateInfo) -> None:
        """The first call registers too: the trainer does it at the same time."""
        ferry, info = self._connected()
        if info.by_names:
            if not self._is_registered:
                ferry.register(
                    dict(self.model.named_parameters()),
                    convention=info.convention or self._convention(info),
                    model=info.model or getattr(self._model_config, "model", None),
                )
                self._is_registered = True
            ferry.pull(update_info.version)
            return
        if self._receiver is None:
            self._receiver = Receiver(ferry, info.bucket_size, self._device)
        asyncio.run(self._load(self._receiver, update_info.version))

    async def _load(self, receiver: Receiver, version: int) -> None:
        async for named in receiver.receive(version):
            self.model.load_weights(named)

    def _convention(self, info: TensorferryInitInfo) -> str:
        tp, pp = self._parallel.tensor_parallel_size, self._parallel.pipeline_parallel_size
        degrees = {"tp": tp, "pp": pp, "dp": info.world_size // (tp * pp)}
        stated = ",".join(f"{name}={degree}" for name, degree in degrees.items() if degree > 1)
        return f"vllm:{stated or 'tp=1'}"

    def finish_weight_update(self) -> None:
        _, info = self._connected()
        if not info.by_names:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(self.model, self._model_config)

    def shutdown(self) -> None:
        ferry, self._ferry, self._receiver, self._is_registered = self._ferry, None, None, False
        if ferry is not None:
            ferry.close()

    @staticmethod
    def trainer_send_weights(iterator: Iterator[Any], trainer_args: Any) -> None:
        """Of vLLM before 0.28, which has no engine on the trainer's side."""
        raise InvalidCommand(
            "Trainers send by TensorferryTrainerEngine.", remedy="Make one by trainer_init on each trainer rank."
        )


_TrainerInfo: Any = getattr(base, "TrainerInitInfo", object)
_TrainerBase: Any = getattr(base, "TrainerWeightTransferEngine", object)
_Source: Any = getattr(base, "WeightSource", object)


@dataclass(kw_only=True)
class TensorferryTrainerInitInfo(_TrainerInfo):  # type: ignore[misc]
    """What a trainer rank is told: its place, and how its tensors are named where they are not gathered."""

    backend: ClassVar[str] = BACKEND
    rank: int
    #: Ranks of the trainer, and workers of all servers.
    world_size: int
    engine_world_size: int
    job: str
    #: With a convention and a model nothing is gathered: each rank sends its shards by these names.
    convention: str | None = None
    model: str | None = None
    bucket_size: int = _BUCKET
    timeout: float = DEFAULT_TIMEOUT


class ShardedSource(_Source):  # type: ignore[misc]
    """A module's tensors as each rank holds them. Iterating gathers nothing; by names, that is what is sent."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def metadata(self) -> list[Any]:
        return [base.ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.module.state_dict(keep_vars=True).items())


class TensorferryTrainerEngine(_TrainerBase):  # type: ignore[misc]
    """Sends on each trainer rank; the first one talks to vLLM. Made by :meth:`trainer_init`."""

    init_info_cls = TensorferryTrainerInitInfo

    def __init__(self, info: TensorferryTrainerInitInfo, client: Any, source: Any) -> None:
        self.info, self.client, self.source = info, client, source
        self.is_sender = info.rank == 0
        self._by_names = info.convention is not None
        self._version = -1
        self._sender: Sender | None = None
        self._is_registered = False
        self._ferry: Ferry | None = None
        if self._by_names or self.is_sender:
            world = info.world_size if self._by_names else 1
            self._ferry = connect(info.job, side="train", rank=info.rank, world=world, timeout=info.timeout)

    @classmethod
    def trainer_init(cls, *given: Any, client: Any, source: Any = None) -> TensorferryTrainerEngine:
        """Called on every trainer rank, with the init info last. Versions of vLLM differ in what stands before it."""
        info: TensorferryTrainerInitInfo = given[-1]
        engine = cls(info, client, source)
        if engine.is_sender:
            client.init_weight_transfer_engine(
                {
                    "job": info.job,
                    "world_size": info.engine_world_size,
                    "by_names": engine._by_names,
                    "bucket_size": info.bucket_size,
                    "timeout": info.timeout,
                }
            )
        return engine

    def send_weights(self) -> None:
        """Sends the source as the next version. Every rank calls it."""
        self._version += 1
        if not self.is_sender:
            self._send()
            return
        self.client.start_weight_update()
        self._beside(lambda: self.client.update_weights({"version": self._version}), self._send)
        self.client.finish_weight_update()

    def _beside(self, ask: Callable[[], None], send: Callable[[], None]) -> None:
        """vLLM answers when its workers have received: both run at once, and a refusal ends the send."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            asked, sent = pool.submit(ask), pool.submit(send)
            done, _ = concurrent.futures.wait([asked, sent], return_when=concurrent.futures.FIRST_EXCEPTION)
            if asked in done and asked.exception() is not None and not sent.done():
                self.shutdown()
            error = asked.exception() or sent.exception()
            if isinstance(sent.exception(), FerryError) and not isinstance(sent.exception(), AgentGone):
                error = sent.exception()
            if error is not None:
                raise error

    def _send(self) -> None:
        ferry, info = self._ferry, self.info
        if self._by_names:
            assert ferry is not None
            if not self._is_registered:
                ferry.register(getattr(self.source, "module", self.source), convention=info.convention, model=info.model)
                self._is_registered = True
            ferry.push(self._version)
        elif ferry is None:
            # Gathering is collective: every rank walks the source.
            for _ in self.source:
                pass
        else:
            if self._sender is None:
                self._sender = Sender(ferry, info.bucket_size, _device_of(self.source))
            asyncio.run(self._sender.send(iter(self.source), self._version))

    def shutdown(self) -> None:
        ferry, self._ferry = self._ferry, None
        if ferry is not None:
            ferry.close()


def _device_of(source: Any) -> Any:
    """Where the first tensor of a source lies; metadata says it of none."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
