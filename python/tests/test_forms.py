# SPDX-License-Identifier: Apache-2.0
"""Engines that hold weights quantized: codes and scales are those that the published formulas give in torch."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tensorferry  # noqa: E402
from tensorferry import errors  # noqa: E402

from .test_ferry import both, sides  # noqa: E402, F401

Sides = tuple[tensorferry.Ferry, tensorferry.Ferry]


def blocks(weight: Any, high: int, wide: int) -> Any:
    """As [rows of blocks, columns of blocks, high, wide], with zeros behind the ends."""
    rows, columns = weight.shape
    padded = torch.zeros(math.ceil(rows / high) * high, math.ceil(columns / wide) * wide)
    padded[:rows, :columns] = weight.float()
    return padded.view(-1, high, padded.shape[1] // wide, wide).transpose(1, 2)


def fp8_block(weight: Any) -> tuple[Any, Any]:
    """DeepGEMM's per_block_cast_to_fp8: a scale of float32 for 128 x 128."""
    apart = blocks(weight, 128, 128)
    scale = apart.abs().amax((2, 3)).clamp(1e-4) / 448.0
    codes = (apart * (1.0 / scale)[..., None, None]).to(torch.float8_e4m3fn)
    whole = codes.transpose(1, 2).reshape(scale.shape[0] * 128, scale.shape[1] * 128)
    return whole[: weight.shape[0], : weight.shape[1]].contiguous(), scale


def mxfp8(weight: Any) -> tuple[Any, Any]:
    """The OCP's formula: a power of two for 32 columns, from the exponent of the largest magnitude."""
    apart = blocks(weight, 1, 32)
    exponent = torch.frexp(apart.abs().amax((2, 3)))[1] - 1 - 8
    codes = (apart / torch.exp2(exponent.float())[..., None, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.transpose(1, 2).reshape(weight.shape), (exponent + 127).to(torch.uint8)


def bits(tensor: Any) -> Any:
    return tensor.view(torch.uint8)


def normal(*shape: int, seed: int = 1) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FORMS = [("fp8-block", fp8_block, "_scale_inv"), ("mxfp8:ocp_floor", mxfp8, "_scale")]


@pytest.mark.parametrize(("form", "rule", "ending"), FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_each_push_quantizes_what_is_trained(sides: Sides, form: str, rule: Any, ending: str, dtype: Any) -> None:  # noqa: F811
    train, engine = sides
    shape = (300, 512)
    weights = {"w": normal(*shape).to(dtype), "norm": normal(64).to(dtype)}
    codes, scale = rule(weights["w"])
    held = {"w": torch.zeros_like(codes), f"w{ending}": torch.zeros_like(scale), "norm": torch.zeros(64, dtype=dtype)}
    told = both(lambda: train.register(weights), lambda: engine.register(held, form=form))
    assert told == [None, None]
    for version in range(3):
        weights["w"].mul_(1.5).add_(0.01)
        assert both(lambda v=version: train.push(v), lambda: engine.pull()) == [None, version]
        # What travels is bfloat16, whatever is trained.
        codes, scale = rule(weights["w"].to(torch.bfloat16))
        assert torch.equal(bits(held["w"]), bits(codes))
        assert torch.equal(held[f"w{ending}"], scale)
        assert torch.equal(held["norm"], weights["norm"])
    assert both(lambda: train.verify(), lambda: engine.verify()) == [None, None]
    bits(held["w"])[7, 7] ^= 1
    error = both(lambda: train.verify(), lambda: engine.verify())[1]
    assert isinstance(error, errors.VerifyFailed) and error.fields["names"] == ["w"]


def test_values_of_codes_come_back(sides: Sides) -> None:  # noqa: F811
    train, engine = sides
    codes, scale = fp8_block(normal(256, 256))
    target = {"w": torch.zeros(256, 256, dtype=torch.bfloat16)}
    held = {"w": codes, "w_scale_inv": scale}
    assert both(lambda: train.register(target), lambda: engine.register(held, form="fp8-block")) == [None, None]
    assert both(lambda: engine.push(1), lambda: train.pull()) == [None, 1]
    wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert torch.equal(target["w"], (codes.float() * wide).to(torch.bfloat16))


def test_a_model_under_the_names_of_an_engine(sides: Sides, tmp_path: pathlib.Path) -> None:  # noqa: F811
    """Weights that the engine joins are quantized as the joined ones: blocks of q, k and v, of gate and up."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    sizes = {"vocab_size": 128, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "head_dim": 64}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    trainer = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    trainer.save_pretrained(tmp_path)
    state = trainer.state_dict()
    wanted = {}
    for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        wanted[name] = state[name]
    for layer in (f"model.layers.{number}." for number in range(2)):
        joined = {
            "self_attn.qkv_proj": [state[f"{layer}self_attn.{kind}_proj.weight"] for kind in "qkv"],
            "self_attn.o_proj": [state[f"{layer}self_attn.o_proj.weight"]],
            "mlp.gate_up_proj": [state[f"{layer}mlp.{kind}_proj.weight"] for kind in ("gate", "up")],
            "mlp.down_proj": [state[f"{layer}mlp.down_proj.weight"]],
        }
        for name, parts in joined.items():
            codes, scale = fp8_block(torch.cat(parts))
            wanted[f"{layer}{name}.weight"], wanted[f"{layer}{name}.weight_scale_inv"] = codes, scale
        for norm in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            wanted[layer + norm] = state[layer + norm]
    held = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    train, engine = sides
    told = both(
        lambda: train.register(trainer, convention="transformers", model=tmp_path),
        lambda: engine.register(held, convention="vllm", model=tmp_path, form="fp8-block"),
    )
    assert told == [None, None]
    assert both(lambda: train.push(1), lambda: engine.pull()) == [None, 1]
    for name, tensor in wanted.items():
        assert torch.equal(bits(held[name]), bits(tensor)), name
    assert both(lambda: train.verify(), lambda: engine.verify()) == [None, None]


def shards(state: dict[str, Any], layers: int, rank: int) -> dict[str, Any]:
    """What one of two ranks of vLLM holds of a llama: cut by its rules, then quantized by the formula."""

    def half(name: str, dim: int) -> Any:
        return state[name].chunk(2, dim)[rank]

    held = {
        "model.embed_tokens.weight": half("model.embed_tokens.weight", 0),
        "lm_head.weight": half("lm_head.weight", 0),
        "model.norm.weight": state["model.norm.weight"],
    }
    for at in (f"model.layers.{number}." for number in range(layers)):
        parts = {
            "self_attn.qkv_proj": torch.cat([half(f"{at}self_attn.{kind}_proj.weight", 0) for kind in "qkv"]),
            "self_attn.o_proj": half(f"{at}self_attn.o_proj.weight", 1),
            "mlp.gate_up_proj": torch.cat([half(f"{at}mlp.{kind}_proj.weight", 0) for kind in ("gate", "up")]),
            "mlp.down_proj": half(f"{at}mlp.down_proj.weight", 1),
        }
        for name, part in parts.items():
            held[f"{at}{name}.weight"], held[f"{at}{name}.weight_scale_inv"] = fp8_block(part)
        for norm in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            held[at + norm] = state[at + norm]
    return held


@pytest.mark.parametrize(("kv_heads", "fits"), [(4, True), (2, False)])
def test_ranks_of_an_engine_hold_whole_blocks_or_are_refused(kv_heads: int, fits: bool, tmp_path: pathlib.Path) -> None:
    """With two key-value heads of 64 a rank's keys are half a block of the joined weight."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(6)
    sizes = {"vocab_size": 128, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "head_dim": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": kv_heads, "tie_word_embeddings": False}
    trainer = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).to(torch.bfloat16)
    trainer.save_pretrained(tmp_path)
    wanted = [shards(trainer.state_dict(), 1, rank) for rank in range(2)]
    held = [{name: torch.zeros_like(tensor) for name, tensor in own.items()} for own in wanted]
    with contextlib.ExitStack() as all_:
        train = all_.enter_context(tensorferry.connect("job", side="train", timeout=15))
        engines = [
            all_.enter_context(tensorferry.connect("job", side="engine", rank=rank, world=2, timeout=15)) for rank in range(2)
        ]

        def told(own: Any, engine: Any) -> list[object]:
            calls = [own, *[lambda rank=rank: engine(rank) for rank in range(2)]]
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                return [ended.exception() or ended.result() for ended in [pool.submit(call) for call in calls]]

        registered = told(
            lambda: train.register(trainer, convention="transformers", model=tmp_path),
            lambda rank: engines[rank].register(held[rank], convention="vllm:tp=2", model=tmp_path, form="fp8-block"),
        )
        if not fits:
            for error in registered[1:]:
                assert isinstance(error, errors.UnsupportedTensor) and "cuts a block of its scales" in str(error)
            return
        assert registered == [None, None, None]
        assert told(lambda: train.push(1), lambda rank: engines[rank].pull()) == [None, 1, 1]
        for rank, own in enumerate(wanted):
            for name, tensor in own.items():
                assert torch.equal(bits(held[rank][name]), bits(tensor)), f"{name} of rank {rank}"


def test_what_a_form_does_not_fit_is_named(sides: Sides) -> None:  # noqa: F811
    train, engine = sides
    codes, scale = fp8_block(normal(256, 256))
    weights = {"w": normal(256, 256).bfloat16()}
    for held, form, kind, words in (
        ({"w": codes}, "fp8-block", errors.UnsupportedTensor, "w has codes, and no scales"),
        ({"w": codes, "w_scale": scale[:1]}, "fp8-block", errors.UnsupportedTensor, "its scales are [1,2]"),
        ({"w": codes, "w_scale": scale}, "mxfp8", errors.UnsupportedTensor, "its scales are [2,2]"),
        ({"w": normal(4, 4)}, "fp8-block", errors.UnsupportedTensor, "no tensor has codes"),
        ({"w": codes, "w_scale": scale}, "fp9", errors.InvalidCommand, 'no form "fp9"'),
    ):
        told = both(lambda: train.register(weights, timeout=2), lambda h=held, f=form: engine.register(h, form=f, timeout=2))
        assert isinstance(told[0], errors.FerryError)
        assert isinstance(told[1], kind) and words in str(told[1]), told[1]
    # Without a form, codes are numbers like any, and their scales have to be on the other side too.
    told = both(lambda: train.register(weights), lambda: engine.register({"w": codes, "w_scale": scale}))
    assert all(isinstance(error, errors.BatchMismatch) and "w_scale" in str(error) for error in told)
