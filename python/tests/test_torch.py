# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch: layouts of DTensors, attributes of Megatron, memory that is shared in place, and trainers that die."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import tensorferry  # noqa: E402
from tensorferry import errors  # noqa: E402

from .conftest import Program, rendezvous  # noqa: E402
from .test_ferry import both, register, sides  # noqa: E402, F401

Start = Callable[..., Program]
Sides = tuple[tensorferry.Ferry, tensorferry.Ferry]


def bits(tensor: object) -> object:
    return tensor.detach().reshape(-1).view(torch.uint8)  # type: ignore[attr-defined]


def test_every_type_arrives_bit_by_bit(sides: Sides) -> None:  # noqa: F811
    chance = torch.Generator().manual_seed(3)
    kinds = [
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
    ]

    def noise(kind: object) -> object:
        # Any bits: NaNs and zeros of both signs among them. A bool is one of two.
        if kind is torch.bool:
            return torch.randint(0, 2, (3, 5), generator=chance).to(torch.bool)
        size = torch.empty(0, dtype=kind).element_size()
        return torch.randint(0, 256, (3, 5 * size), dtype=torch.uint8, generator=chance).view(kind)

    pairs = {str(kind): (noise(kind), torch.zeros((3, 5), dtype=kind)) for kind in kinds}
    pairs["scalar"] = (torch.tensor(7.5), torch.tensor(0.0))
    pairs["empty"] = (torch.empty(0, 4), torch.empty(0, 4))
    register(sides, **pairs)
    train, engine = sides
    assert both(lambda: train.push(1), lambda: engine.pull()) == [None, 1]
    for name, (sent, came) in pairs.items():
        assert torch.equal(bits(sent), bits(came)), name
    assert both(lambda: train.verify(), lambda: engine.verify()) == [None, None]


def test_memory_is_shared_in_place(sides: Sides) -> None:  # noqa: F811
    """Views, ties and optimisers keep what they hold, and later changes travel without another registration."""
    layer, target = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    view = layer.weight.detach()[1]
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    train, engine = sides
    assert both(lambda: train.register(layer), lambda: engine.register(target)) == [None, None]
    for version in range(3):
        layer(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        assert both(lambda v=version: train.push(v), lambda: engine.pull()) == [None, version]
        assert torch.equal(target.weight, layer.weight) and torch.equal(target.bias, layer.bias)
    assert torch.equal(view, layer.weight[1])


def test_changes_move_alone(sides: Sides) -> None:  # noqa: F811
    """What did not change is not moved: what was written to it meanwhile, against the rules, stays."""
    chance = torch.Generator().manual_seed(5)
    source, target = torch.randn(400, 300, generator=chance).bfloat16(), torch.zeros(400, 300).bfloat16()
    train, engine = sides
    assert both(
        lambda: train.register({"w": source}, changes=2**30), lambda: engine.register({"w": target}, changes=2**30)
    ) == [None, None]
    assert both(lambda: train.push(1), lambda: engine.pull()) == [None, 1]
    assert torch.equal(bits(source), bits(target))
    for version in range(2, 6):
        target[0, 0] = -77.0
        rows = torch.randint(1, 400, (200,), generator=chance)
        source[rows, version] += 1
        assert both(lambda v=version: train.push(v), lambda: engine.pull()) == [None, version]
        assert torch.equal(bits(source[1:]), bits(target[1:]))
        assert target[0, 0] == -77.0
    error = both(lambda: train.verify(), lambda: engine.verify())[1]
    assert isinstance(error, errors.VerifyFailed) and "w" in str(error)


def test_changes_of_one_side_alone_are_refused(sides: Sides) -> None:  # noqa: F811
    train, engine = sides
    told = both(lambda: train.register({"w": torch.ones(3)}, changes=100), lambda: engine.register({"w": torch.ones(3)}))
    assert all(isinstance(each, errors.BatchMismatch) and "moves changes" in str(each) for each in told)
    with pytest.raises(errors.InvalidCommand, match="Copies of -1 bytes"):
        train.register({"w": torch.ones(3)}, changes=-1)


def test_part_of_a_storage_and_strides(sides: Sides) -> None:  # noqa: F811
    flat, target = torch.arange(24.0), torch.zeros(24)
    register(
        sides,
        middle=(flat[4:8], target[4:8]),
        columns=(flat.view(4, 6).t()[1:3], target.view(4, 6)[:, 1:3].t()),
    )
    train, engine = sides
    both(lambda: train.push(1), lambda: engine.pull())
    wanted = torch.zeros(24)
    wanted[4:8] = flat[4:8]
    wanted.view(4, 6)[:, 1:3] = flat.view(4, 6)[:, 1:3]
    assert torch.equal(target, wanted)


def test_types_that_differ_travel_as_the_narrower(sides: Sides) -> None:  # noqa: F811
    source, target = torch.randn(50, generator=torch.Generator().manual_seed(1)), torch.zeros(50, dtype=torch.bfloat16)
    register(sides, weight=(source, target))
    train, engine = sides
    both(lambda: train.push(1), lambda: engine.pull())
    assert torch.equal(target, source.to(torch.bfloat16))
    assert both(lambda: train.verify(), lambda: engine.verify()) == [None, None]


def test_memory_shared_by_name(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        source, target = torch.arange(9.0).share_memory_(), torch.zeros(9).share_memory_()
        register(sides, weight=(source, target))
        train, engine = sides
        both(lambda: train.push(1), lambda: engine.pull())
        assert torch.equal(source, target)
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


def test_what_cannot_be_stated_is_refused_by_name(sides: Sides) -> None:  # noqa: F811
    train, _ = sides
    fused = torch.nn.Parameter(torch.zeros(4, 2))
    fused.tensor_model_parallel, fused.partition_dim, fused.partition_stride = True, 0, 2
    with pytest.raises(errors.UnsupportedLayout, match=r"fc1 has partition_stride 2"):
        train.register({"fc1": fused})
    with pytest.raises(errors.UnsupportedTensor, match="lies on meta"):
        train.register({"w": torch.empty(2, device="meta")})
    with pytest.raises(errors.UnsupportedTensor, match="no plain strided tensor"):
        train.register({"w": torch.eye(3).to_sparse()})
    with pytest.raises(errors.UnsupportedLayout, match="has 6 ranks, and the side has 1"):
        train.register({"w": torch.zeros(1)}, mesh={"dp": 2, "tp": 3})


def test_dtensors_of_a_mesh_in_both_directions(start: Start) -> None:
    from .programs.dtensors import LAYOUTS, numbered

    ranks = [start("dtensors.py", env=env) for env in rendezvous(4)]
    with tensorferry.connect("job", side="engine", timeout=120) as engine:
        tensors = {name: torch.full(shape, -1.0) for name, (shape, _) in LAYOUTS.items()}
        tensors["plain"] = torch.full((2, 2), -1.0)
        engine.register(tensors)
        assert engine.pull() == 1
        for at, (name, (shape, _)) in enumerate(LAYOUTS.items()):
            assert torch.equal(tensors[name], numbered(shape, 100 * at)), name
        assert torch.equal(tensors["plain"], numbered((2, 2), 5000))
        engine.verify()
        for rank in ranks:
            assert rank.line() == "sent"
        for tensor in tensors.values():
            tensor += 0.5
        engine.push(2)
        for rank in ranks:
            assert rank.end() == ""


@pytest.mark.parametrize("serves", ["engine", "trainer"])
def test_a_killed_trainer_leaves_nothing_and_its_engine_knows(start: Start, folder: pathlib.Path, serves: str) -> None:
    """Whoever served the store: where it was the trainer, the next one takes its place."""
    shared = set(os.listdir("/dev/shm"))
    trainer = start("doomed.py")
    end = time.monotonic() + 60
    while serves == "trainer" and not (folder / "job" / "store").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    with tensorferry.connect("job", side="engine", timeout=60) as engine:
        weight = torch.zeros(6)
        engine.register({"weight": weight})
        assert engine.pull() == 1
        agent = int(trainer.line())
        trainer.process.kill()
        trainer.process.wait()
        begin = time.monotonic()
        with pytest.raises((errors.BatchGone, errors.PairBroken)) as raised:
            engine.pull(timeout=60)
        assert "agent 0" in str(raised.value) or "agent 1000000" in str(raised.value)
        assert time.monotonic() - begin < 20
        end = time.monotonic() + 20
        while os.path.exists(f"/proc/{agent}") and time.monotonic() < end:
            time.sleep(0.05)
        assert not os.path.exists(f"/proc/{agent}")
        # The next trainer meets the same engine.
        again = start("doomed.py")
        engine.register({"weight": weight}, timeout=60)
        weight.zero_()
        assert engine.pull() == 1
        assert torch.equal(weight, torch.arange(6.0))
        again.line()
        again.process.kill()
        again.process.wait()
    left = {name for name in set(os.listdir("/dev/shm")) - shared if name.startswith("torch_")}
    assert left == set()


def test_rules_of_a_side_rename_and_join(sides: Sides, tmp_path: pathlib.Path) -> None:  # noqa: F811
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    source = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    source.save_pretrained(tmp_path)
    layer = "{model...}.layers.{layer}"
    rules = [
        {"name": f"{layer}.attention.out", "from": f"{layer}.self_attn.o_proj.weight"},
        {"name": f"{layer}.mlp.in", "from": {"concat": [f"{layer}.mlp.{kind}_proj.weight" for kind in ("gate", "up")]}},
    ]
    wanted = {}
    for name, tensor in source.state_dict().items():
        if name.endswith("o_proj.weight"):
            wanted[name.replace("self_attn.o_proj.weight", "attention.out")] = tensor
        elif name.endswith("gate_proj.weight"):
            up = source.state_dict()[name.replace("gate", "up")]
            wanted[name.replace("mlp.gate_proj.weight", "mlp.in")] = torch.cat([tensor, up])
        elif not name.endswith("up_proj.weight"):
            wanted[name] = tensor
    target = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    train, engine = sides
    told = both(
        lambda: train.register(source, convention="hf", model=tmp_path),
        lambda: engine.register(
            target, convention="hf", model=tmp_path, mapping={"rules": rules, "others": "keep"}, placement={}
        ),
    )
    assert told == [None, None]
    assert both(lambda: train.push(1), lambda: engine.pull()) == [None, 1]
    assert [name for name, tensor in wanted.items() if not torch.equal(tensor, target[name])] == []
    # A rule of a tensor that the model lacks is named by both sides.
    wrong = {"rules": [{"name": "x", "from": "model.nothing"}], "others": "keep"}
    told = both(
        lambda: train.register(source, convention="hf", model=tmp_path),
        lambda: engine.register(target, convention="hf", model=tmp_path, mapping=wrong),
    )
    for error in told:
        assert isinstance(error, errors.BatchMismatch)


def test_megatron_by_names_to_transformers(start: Start, tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
    )
    source = transformers.LlamaForCausalLM(config).eval()
    source.save_pretrained(tmp_path)
    ranks = [start("megatron_tp2.py", str(tmp_path), str(rank)) for rank in range(2)]
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.arange(3, 40)[None]
    with tensorferry.connect("job", side="engine", timeout=120) as engine, torch.no_grad():
        assert not torch.equal(model(tokens).logits, source(tokens).logits)
        engine.register(model, convention="transformers", model=tmp_path)
        assert engine.pull() == 1
        engine.verify()
        assert torch.equal(model(tokens).logits, source(tokens).logits)
        for rank in ranks:
            rank.end()
