# SPDX-License-Identifier: Apache-2.0
"""verl's contract of checkpoint engines, and the order in which its manager calls them."""

import abc
import asyncio
import concurrent.futures


class CheckpointEngineRegistry:
    engines = {}

    def register(backend):
        def wrapper(kind):
            CheckpointEngineRegistry.engines[backend] = kind
            return kind

        return wrapper


class CheckpointEngine(abc.ABC):
    wire_format = "named_tensors"

    @abc.abstractmethod
    def prepare(self): ...

    @classmethod
    @abc.abstractmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata): ...

    @abc.abstractmethod
    def init_process_group(self, **kwargs): ...

    @abc.abstractmethod
    def finalize(self): ...

    @abc.abstractmethod
    async def send_weights(self, weights, global_steps=None): ...

    @abc.abstractmethod
    async def receive_weights(self, global_steps=None): ...


def update_weights(backend, trainers, rollouts, weights, step, load):
    """One update: prepare on all, topology on the driver, groups on all, then send and receive at once, finalize on all.

    `weights` makes a trainer's generator, `load` takes what a rollout worker yields. Each worker is a thread, as each is a
    process there.
    """
    kind = CheckpointEngineRegistry.engines[backend]
    workers = [*trainers, *rollouts]
    metadata = [worker.prepare() for worker in workers]
    for own, group in zip(kind.build_topology(len(trainers), len(rollouts), metadata), (trainers, rollouts), strict=True):
        for values in own.values():
            assert len(values) == len(group)
        for at, worker in enumerate(group):
            worker.init_process_group(**{name: values[at] for name, values in own.items()})

    async def receive(at):
        async for name, tensor in rollouts[at].receive_weights(global_steps=step):
            load(at, name, tensor)

    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        sent = [
            pool.submit(lambda at=at: asyncio.run(trainers[at].send_weights(weights(at), global_steps=step)))
            for at in range(len(trainers))
        ]
        received = [pool.submit(lambda at=at: asyncio.run(receive(at))) for at in range(len(rollouts))]
        for each in [*received, *sent]:
            each.result()
    for worker in workers:
        worker.finalize()
    return [each.result() for each in sent]
