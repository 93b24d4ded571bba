# SPDX-License-Identifier: Apache-2.0
"""Adapters of engines and frameworks. Where the framework cannot be installed, a stand-in has its contract (`standins`);
agents, torch and ZeroMQ are real.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import pathlib
import sys
import types
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

import tensorferry  # noqa: E402
from tensorferry import errors  # noqa: E402

STANDINS = pathlib.Path(__file__).resolve().parent / "standins"
ADAPTERS = ("verl", "nemo", "trl", "vllm", "vllm_engine")


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], types.ModuleType]]:
    """Imports an adapter over the stand-ins; everything of them is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(STANDINS))
    yield importlib.import_module
    for name in list(sys.modules):
        if name.split(".")[0] in ("vllm", "verl", "nemo_rl") or name in [f"tensorferry.{each}" for each in ADAPTERS]:
            del sys.modules[name]


def weights(seed: int) -> dict[str, object]:
    """Tensors of sizes and types that leave buckets full, nearly full, split and empty."""
    chance = torch.Generator().manual_seed(seed)
    made = {
        "large": torch.randn(300, 101, generator=chance),
        "odd": torch.randn(333, generator=chance).to(torch.bfloat16),
        "bytes": torch.randint(0, 255, (77,), dtype=torch.uint8, generator=chance),
        "scalar": torch.randn((), generator=chance, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "columns": torch.randn(20, 30, generator=chance).t(),
        "fp8": torch.randn(8, 8, generator=chance).to(torch.float8_e4m3fn),
    }
    made |= {f"layer.{at}": torch.randn(64, 60, generator=chance) for at in range(9)}
    return made


def same(a: object, b: object) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:  # type: ignore[attr-defined]
        return False
    flat = [each.detach().contiguous().reshape(-1) for each in (a, b)]  # type: ignore[attr-defined]
    return flat[0].numel() == 0 or torch.equal(*(each.view(torch.uint8) for each in flat))


def test_a_stream_carries_whole_tensors_of_every_size() -> None:
    from tensorferry._stream import Receiver, Sender

    bucket = 1 << 16

    def send() -> list[int]:
        with tensorferry.connect("job", side="train", timeout=60) as ferry:
            sender = Sender(ferry, bucket)
            return [asyncio.run(sender.send(weights(version).items(), version)) for version in range(3)]

    async def take(receiver: object, version: int) -> dict[str, object]:
        return {name: tensor.clone() async for named in receiver.receive(version) for name, tensor in named}

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send)
        with tensorferry.connect("job", side="engine", timeout=60) as ferry:
            receiver = Receiver(ferry, bucket)
            for version in range(3):
                came = asyncio.run(take(receiver, version))
                wanted = weights(version)
                assert list(came) == list(wanted)
                assert [name for name in wanted if not same(wanted[name], came[name])] == []
            total = sum(tensor.numel() * tensor.element_size() for tensor in wanted.values())
            assert sent.result(60) == [total] * 3


def llama(tmp_path: pathlib.Path) -> object:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    return model


def vllm_shard(weights_: dict[str, object], rank: int) -> dict[str, object]:
    """What a worker of vLLM holds of a llama with two tensor-parallel ranks: by its rules, made here by slicing."""

    def half(name: str, dim: int) -> object:
        return weights_[name].chunk(2, dim)[rank]  # type: ignore[attr-defined]

    held = {
        "model.embed_tokens.weight": half("model.embed_tokens.weight", 0),
        "lm_head.weight": half("lm_head.weight", 0),
        "model.norm.weight": weights_["model.norm.weight"],
    }
    for layer in range(2):
        at = f"model.layers.{layer}."
        q, k, v = (half(f"{at}self_attn.{kind}_proj.weight", 0) for kind in "qkv")
        held[f"{at}self_attn.qkv_proj.weight"] = torch.cat([q, k, v])
        held[f"{at}self_attn.o_proj.weight"] = half(f"{at}self_attn.o_proj.weight", 1)
        held[f"{at}mlp.gate_up_proj.weight"] = torch.cat([half(f"{at}mlp.{kind}_proj.weight", 0) for kind in ("gate", "up")])
        held[f"{at}mlp.down_proj.weight"] = half(f"{at}mlp.down_proj.weight", 1)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            held[f"{at}{norm}.weight"] = weights_[f"{at}{norm}.weight"]
    return held


class Holder:
    """A module as engines use it: named parameters, and `load_weights`."""

    def __init__(self, tensors: dict[str, object]) -> None:
        self.tensors = {
            name: torch.nn.Parameter(torch.zeros_like(tensor), requires_grad=False) for name, tensor in tensors.items()
        }
        self.loaded: list[str] = []

    def named_parameters(self) -> Iterator[tuple[str, object]]:
        return iter(self.tensors.items())

    def parameters(self) -> Iterator[object]:
        return iter(self.tensors.values())

    def load_weights(self, named: list[tuple[str, object]]) -> None:
        for name, tensor in named:
            self.loaded.append(name)
            self.tensors[name].data.copy_(tensor)


def workers_of(engines: types.ModuleType, models: list[Holder], **model_config: object) -> list[object]:
    made = []
    for rank, model in enumerate(models):
        parallel = types.SimpleNamespace(
            tensor_parallel_size=len(models), pipeline_parallel_size=1, data_parallel_index=0, rank=rank
        )
        config = types.SimpleNamespace(
            parallel_config=parallel, model_config=types.SimpleNamespace(**{"quantization": None, **model_config})
        )
        made.append(engines.TensorferryEngine(None, config, torch.device("cpu"), model))
    return made


def test_vllm_by_names_fills_the_live_shards(standin: Callable[[str], types.ModuleType], tmp_path: pathlib.Path) -> None:
    engines, server = standin("tensorferry.vllm_engine"), standin("vllm.server")
    source = llama(tmp_path)
    models = [Holder(vllm_shard(source.state_dict(), rank)) for rank in range(2)]
    addresses = [tensor.data_ptr() for tensor in models[0].parameters()]
    workers = workers_of(engines, models, model=str(tmp_path))
    client = server.Server(workers)
    info = engines.TensorferryTrainerInitInfo(
        rank=0, world_size=1, engine_world_size=2, job="job", convention="transformers", model=str(tmp_path), timeout=60
    )
    trainer = engines.TensorferryTrainerEngine.trainer_init(info, client=client, source=engines.ShardedSource(source))
    for step in range(2):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.add_(step + 0.25)
        trainer.send_weights()
        for rank, model in enumerate(models):
            wanted = vllm_shard(source.state_dict(), rank)
            assert [name for name in wanted if not same(wanted[name], model.tensors[name])] == []
    assert client.log == ["init", *["start", "update", "finish"] * 2]
    assert [model.loaded for model in models] == [[], []]
    # The memory was moved to where agents see it when it was registered; from then on graphs may hold it.
    assert len(set(addresses)) == len(addresses)
    trainer.shutdown()
    for worker in workers:
        worker.shutdown()


def test_vllm_streams_through_layerwise_reload(standin: Callable[[str], types.ModuleType]) -> None:
    engines, server = standin("tensorferry.vllm_engine"), standin("vllm.server")
    reload = standin("vllm.model_executor.model_loader.reload")
    models = [Holder(weights(0)) for _ in range(2)]
    workers = workers_of(engines, models, quantization="fp8")
    client = server.Server(workers)
    base = {"engine_world_size": 2, "job": "job", "bucket_size": 1 << 16, "timeout": 60}
    drained: list[str] = []

    class Source(engines.ShardedSource):
        def __iter__(self) -> Iterator[tuple[str, object]]:
            for name, tensor in weights(3).items():
                drained.append(name)
                yield name, tensor

    first = engines.TensorferryTrainerInitInfo(rank=0, world_size=2, **base)
    trainer = engines.TensorferryTrainerEngine.trainer_init(first, client=client, source=Source(None))
    second = engines.TensorferryTrainerInitInfo(rank=1, world_size=2, **base)
    other = engines.TensorferryTrainerEngine.trainer_init(second, client=None, source=Source(None))
    trainer.send_weights()
    # A rank that does not send walks the source all the same.
    count = len(drained)
    other.send_weights()
    assert drained[count:] == drained[:count] == list(weights(3))
    for model in models:
        assert [name for name, tensor in weights(3).items() if not same(tensor, model.tensors[name])] == []
    assert [what for what, _ in reload.calls] == ["initialize"] * 2 + ["finalize"] * 2
    with pytest.raises(errors.InvalidCommand, match="quantised"):
        workers[0].init_transfer_engine(engines.TensorferryInitInfo("job", 2, by_names=True))
    with pytest.raises(ValueError, match="unexpected"):
        workers[0].parse_init_info({"job": "job", "world_size": 2, "surplus": 1})
    trainer.shutdown()
    for worker in workers:
        worker.shutdown()


def test_a_refusal_of_vllm_ends_the_send(standin: Callable[[str], types.ModuleType]) -> None:
    engines, server = standin("tensorferry.vllm_engine"), standin("vllm.server")
    client = server.Server(workers_of(engines, [Holder(weights(0))]))
    info = engines.TensorferryTrainerInitInfo(
        rank=0, world_size=1, engine_world_size=1, job="job", bucket_size=1 << 16, timeout=120
    )
    trainer = engines.TensorferryTrainerEngine.trainer_init(info, client=client, source=list(weights(1).items()))

    def refuse(_: object) -> None:
        raise RuntimeError("500: out of memory")

    client.update_weights = refuse
    with concurrent.futures.ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="out of memory"):
        pool.submit(trainer.send_weights).result(60)
    for worker in client.workers:
        worker.shutdown()


def test_vllm_finds_the_engines_by_name(standin: Callable[[str], types.ModuleType]) -> None:
    plugin, factory = standin("tensorferry.vllm"), standin("vllm.distributed.weight_transfer.factory")
    plugin.register()
    plugin.register()
    engines = standin("tensorferry.vllm_engine")
    assert factory.WeightTransferEngineFactory.get("tensorferry") is engines.TensorferryEngine
    assert factory.WeightTransferTrainerFactory.get("tensorferry") is engines.TensorferryTrainerEngine
    text = (STANDINS.parents[1] / "pyproject.toml").read_text()
    assert '[project.entry-points."vllm.general_plugins"]\ntensorferry = "tensorferry.vllm:register"' in text


def test_trl_sends_between_pause_and_resume(standin: Callable[[str], types.ModuleType]) -> None:
    engines, server, trl = (standin(f"tensorferry.{name}") for name in ("vllm_engine", "vllm", "trl"))
    server = standin("vllm.server")
    model = Holder(weights(0))
    workers = workers_of(engines, [model])
    client = server.Server(workers)
    transfer = trl.WeightTransfer(client, job="job", engine_world_size=1, bucket_size=1 << 16, timeout=60)
    transfer.init_weight_transfer()
    for seed in (1, 2):
        transfer.pause()
        transfer.send_weights(iter(weights(seed).items()))
        transfer.resume()
        assert [name for name, tensor in weights(seed).items() if not same(tensor, model.tensors[name])] == []
    assert client.log == ["init", *["pause", "start", "update", "finish", "resume"] * 2]
    transfer.destroy()
    workers[0].shutdown()


def test_verl_updates_every_rollout_worker(standin: Callable[[str], types.ModuleType]) -> None:
    verl, base = standin("tensorferry.verl"), standin("verl.checkpoint_engine.base")
    kind = base.CheckpointEngineRegistry.engines["tensorferry"]
    assert kind is verl.TensorferryCheckpointEngine
    trainers = [kind(bucket_size=1 << 16, is_master=at == 0, timeout=60) for at in range(2)]
    rollouts = [kind(bucket_size=1 << 16, timeout=60) for _ in range(2)]
    for step in (1, 2):
        came: list[dict[str, object]] = [{}, {}]
        drained = [0, 0]

        def gather(at: int, step: int = step, drained: list[int] = drained) -> Iterator[tuple[str, object]]:
            for named in weights(step).items():
                drained[at] += 1
                yield named

        def load(at: int, name: str, tensor: object, came: list[dict[str, object]] = came) -> None:
            came[at][name] = tensor.clone()  # type: ignore[attr-defined]

        sent = base.update_weights("tensorferry", trainers, rollouts, gather, step, load)
        assert sent[0]["bytes"] > 0 and sent[1]["bytes"] == 0
        assert drained == [len(weights(step))] * 2
        for each in came:
            assert [name for name, tensor in weights(step).items() if not same(tensor, each[name])] == []
    for worker in [*trainers, *rollouts]:
        worker._worker.close()


def test_nemo_refits_every_rollout_worker(standin: Callable[[str], types.ModuleType]) -> None:
    nemo = standin("tensorferry.nemo")
    settings = {"timeout": 60, "release_after_refit": True, "something_else": 1}
    policy = [nemo.TensorferryCheckpointEngine(bucket_size=1 << 16, **settings) for _ in range(2)]
    rollouts = [nemo.TensorferryCheckpointEngine(bucket_size=1 << 16, **settings) for _ in range(2)]
    metadata = [each.prepare() for each in [*policy, *rollouts]]
    sizes = {"train_world_size": 2, "rollout_world_size": 2, "metadata": metadata}
    for at in range(2):
        policy[at].init_policy_process_group(worker_rank=at, **sizes)
        rollouts[at].init_rollout_process_group(rollout_rank=at, **sizes)

    async def receive(engine: object) -> dict[str, object]:
        return {name: tensor.clone() async for batch in engine.receive_weight_batches() for name, tensor in batch}

    for seed in (1, 2):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            sent = [pool.submit(lambda e=e: asyncio.run(e.send_weights(iter(weights(seed).items())))) for e in policy]  # noqa: B023
            came = [pool.submit(lambda e=e: asyncio.run(receive(e))) for e in rollouts]
            for each in came:
                got = each.result(120)
                assert [name for name, tensor in weights(seed).items() if not same(tensor, got[name])] == []
            for each in sent:
                each.result(60)
        for each in [*policy, *rollouts]:
            each.finalize()
