# SPDX-License-Identifier: Apache-2.0
"""Contracts of vLLM's weight transfer: engines of workers and of trainers, sources, and what both are told."""

import abc
import dataclasses


@dataclasses.dataclass
class WeightTransferInitInfo(abc.ABC):  # noqa: B024
    pass


@dataclasses.dataclass
class WeightTransferUpdateInfo(abc.ABC):  # noqa: B024
    pass


@dataclasses.dataclass
class TrainerInitInfo(WeightTransferInitInfo):
    rank: int = dataclasses.field(kw_only=True)


@dataclasses.dataclass(frozen=True)
class ParamMeta:
    name: str
    dtype: object
    shape: tuple


class WeightSource(abc.ABC):
    @abc.abstractmethod
    def metadata(self): ...

    @abc.abstractmethod
    def __iter__(self): ...


class WeightTransferEngine(abc.ABC):
    init_info_cls: type
    update_info_cls: type
    supports_draft_weight_update = True

    def __init__(self, config, vllm_config, device, model):
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.parallel_config, self.model_config = vllm_config.parallel_config, vllm_config.model_config

    def _parse(self, kind, given):
        # A surplus key is an error, not a hint.
        try:
            return kind(**given)
        except TypeError as error:
            raise ValueError(str(error)) from error

    def parse_init_info(self, given):
        return self._parse(self.init_info_cls, given)

    def update_weights(self, given):
        self.receive_weights(self._parse(self.update_info_cls, given))

    @abc.abstractmethod
    def init_transfer_engine(self, init_info): ...

    @abc.abstractmethod
    def start_weight_update(self): ...

    @abc.abstractmethod
    def finish_weight_update(self): ...

    @abc.abstractmethod
    def receive_weights(self, update_info): ...

    @abc.abstractmethod
    def shutdown(self): ...

    @staticmethod
    @abc.abstractmethod
    def trainer_send_weights(iterator, trainer_args): ...


class TrainerWeightTransferEngine(abc.ABC):
    init_info_cls: type

    @classmethod
    @abc.abstractmethod
    def trainer_init(cls, init_info, *, client, source=None): ...

    @abc.abstractmethod
    def send_weights(self): ...
