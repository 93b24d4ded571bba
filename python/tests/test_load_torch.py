# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that are filled from what transformers saved: every bit is as its own loader has it."""

from __future__ import annotations

import os
import pathlib
import shlex
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tensorferry  # noqa: E402
from tensorferry import errors  # noqa: E402

from .conftest import Program, rendezvous  # noqa: E402

Start = Callable[..., Program]

SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}


def config(family: str, *, tied: bool = False) -> Any:
    if family == "llama":
        return transformers.LlamaConfig(**SIZES, **HEADS, tie_word_embeddings=tied)
    return transformers.Qwen3MoeConfig(**SIZES, **HEADS, **EXPERTS, tie_word_embeddings=tied)


def make(family: str, seed: int, *, tied: bool = False, dtype: Any = torch.bfloat16) -> Any:
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config(family, tied=tied), dtype=dtype)


@pytest.fixture(params=["llama", "qwen3_moe"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def save(model: Any, path: pathlib.Path, *, files: int = 1) -> pathlib.Path:
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    model.save_pretrained(path, max_shard_size=f"{size // 1000 // files + 1}KB" if files > 1 else "1GB")
    found = len(list(path.glob("*.safetensors")))
    assert (found > 1) == (files > 1)
    return path


def check_equal(model: Any, path: pathlib.Path) -> None:
    own = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    wanted, held = own.state_dict(), model.state_dict()
    assert list(wanted) == list(held)
    for name, tensor in wanted.items():
        assert held[name].dtype == tensor.dtype
        assert torch.equal(held[name].view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.mark.parametrize("files", [1, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_is_as_its_own_loader_has_it(
    family: str, tied: bool, files: int, tmp_path: pathlib.Path, reader: tensorferry.Ferry
) -> None:
    path = save(make(family, 1, tied=tied), tmp_path, files=files)
    model = make(family, 2, tied=tied)
    loaded = tensorferry.load(model, path, convention="transformers", ferry=reader)
    check_equal(model, path)
    assert (loaded.missing, loaded.unexpected, loaded.cast) == ((), (), ())
    parameters = list(model.parameters())
    assert loaded.tensors == len(parameters)
    assert loaded.byte_length == sum(parameter.nbytes for parameter in parameters)
    # The model computes with what was loaded, and what is tied still is.
    with torch.no_grad():
        tokens = torch.arange(2, 30)[None]
        wanted = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        assert torch.equal(model(tokens).logits, wanted(tokens).logits)
    assert (model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()) == tied


def test_names_of_the_checkpoint_need_no_convention(tmp_path: pathlib.Path) -> None:
    """Those of a llama are the same in memory, and a file is enough where there is no config."""
    for tied in (False, True):
        path = save(make("llama", 1, tied=tied), tmp_path / str(tied))
        (path / "config.json").rename(path / "config.txt")
        model = make("llama", 2, tied=tied)
        tensorferry.load(model, path / "model.safetensors")
        (path / "config.txt").rename(path / "config.json")
        check_equal(model, path)


def test_experts_that_are_stacked_need_the_convention(tmp_path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    path = save(make("qwen3_moe", 1), tmp_path)
    model = make("qwen3_moe", 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(errors.CheckpointMismatch, match=r"experts\.gate_up_proj is not in the checkpoint") as raised:
        tensorferry.load(model, path, ferry=reader)
    assert "convention" in raised.value.remedy
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_casts_are_those_of_torch(family: str, dtype: Any, tmp_path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    path = save(make(family, 1), tmp_path)
    model = make(family, 2, dtype=dtype)
    with pytest.raises(errors.CheckpointMismatch, match="is bfloat16 in the checkpoint"):
        tensorferry.load(model, path, convention="transformers", ferry=reader)
    loaded = tensorferry.load(model, path, convention="transformers", cast=True, ferry=reader)
    assert len(loaded.cast) == loaded.tensors
    wanted = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, wanted[name].to(dtype)), name


def test_narrower_types_round_as_torch_does(tmp_path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    path = save(make("llama", 1, dtype=torch.float32), tmp_path)
    model = make("llama", 2)
    tensorferry.load(model, path, cast=True, ferry=reader)
    wanted = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, wanted[name].to(torch.bfloat16)), name


def test_ranks_of_megatron_by_convention(tmp_path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    from .programs.megatron_tp2 import megatron

    path = save(make("llama", 1, dtype=torch.float32), tmp_path)
    source = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for rank in range(2):
        wanted = megatron(source, rank)
        held = {name: torch.nn.Parameter(torch.zeros_like(tensor)) for name, tensor in wanted.items()}
        loaded = tensorferry.load(held, path, convention="megatron", rank=rank, world=2, ferry=reader)
        assert loaded.byte_length == sum(tensor.nbytes for tensor in wanted.values())
        for name, tensor in wanted.items():
            assert torch.equal(held[name], tensor), f"{name} of rank {rank}"


def test_attributes_of_megatron_say_what_a_rank_holds(tmp_path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    path = save(make("llama", 1, dtype=torch.float32), tmp_path)
    whole = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
    for rank in range(2):
        held = {}
        for name, tensor in whole.items():
            dim = 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0
            cut = tensor.ndim == 2
            held[name] = torch.nn.Parameter(torch.zeros_like(tensor.chunk(2, dim)[rank] if cut else tensor))
            held[name].tensor_model_parallel, held[name].partition_dim = cut, dim
        tensorferry.load(held, path, rank=rank, world=2, ferry=reader)
        for name, tensor in whole.items():
            own = tensor.chunk(2, held[name].partition_dim)[rank] if held[name].tensor_model_parallel else tensor
            assert torch.equal(held[name], own), f"{name} of rank {rank}"


@pytest.mark.parametrize(("kind", "family", "ranks"), [("mesh", "llama", 4), ("fsdp", "llama", 2), ("fsdp", "qwen3_moe", 3)])
def test_dtensors_get_their_part(start: Start, kind: str, family: str, ranks: int, tmp_path: pathlib.Path) -> None:
    path = save(make(family, 1), tmp_path, files=3)
    started = [start("loading.py", kind, str(path), env=env) for env in rendezvous(ranks)]
    count = len(make(family, 1).state_dict())
    for rank in started:
        assert rank.end() == f"{count} tensors, 0 bytes more than this rank has\n"


def test_a_file_that_is_cut_short_leaves_the_model(family: str, tmp_path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    path = save(make(family, 1), tmp_path, files=3)
    last = sorted(path.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-2])
    model = make(family, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(errors.CheckpointDamaged, match=last.name) as raised:
        tensorferry.load(model, path, convention="transformers", ferry=reader)
    assert raised.value.fields["file"] == str(last)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_another_model_is_refused_by_tensor(tmp_path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    path = save(make("llama", 1), tmp_path)
    sizes = {**SIZES, "intermediate_size": 64}
    other = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **HEADS)).to(torch.bfloat16)
    for convention in (None, "transformers"):
        with pytest.raises(errors.CheckpointMismatch, match=r"mlp\.\w+_proj\.weight is \[\d+,\d+\]"):
            tensorferry.load(other, path, convention=convention, ferry=reader)
    with pytest.raises(errors.UnsupportedTensor, match="lies on meta"):
        tensorferry.load(other.to("meta"), path, ferry=reader)


@pytest.mark.parametrize("side", ["vllm:tp=2", "megatron:tp=1"])
def test_files_under_the_names_of_a_system(family: str, side: str, tmp_path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    """What the command writes for ranks of one system fills a model of another; it notes the model's own names."""
    path = save(make(family, 1), tmp_path / "model")
    command = [*shlex.split(os.environ["TENSORFERRY_COMMAND"]), "convert", str(path), "--to", side]
    subprocess.run([*command, "--out", str(tmp_path / "files")], check=True, capture_output=True)
    for like in (path, None):
        model = make(family, 2)
        tensorferry.load(model, tmp_path / "files", convention="transformers", stored=side, like=like, ferry=reader)
        check_equal(model, path)
    with pytest.raises(errors.InvalidCommand, match=r"It holds files of \d ranks, 3 are stated") as raised:
        tensorferry.load(make(family, 2), tmp_path / "files", convention="transformers", stored="vllm:tp=3", ferry=reader)
    assert "--" not in raised.value.remedy


def test_views_of_memory_are_filled_where_they_lie(tmp_path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    from safetensors.torch import save_file

    whole = torch.arange(24.0).reshape(4, 6)
    save_file({"w": whole, "v": whole[0].clone()}, tmp_path / "model.safetensors")
    flat = torch.zeros(6, 8)
    tensorferry.load({"w": flat[:, 1:5].t(), "v": flat[:, 7]}, tmp_path, ferry=reader)
    assert torch.equal(flat[:, 1:5].t(), whole) and torch.equal(flat[:, 7], whole[0])
    assert not flat[:, 0].any() and not flat[:, 5:7].any()
    with pytest.raises(errors.UnsupportedTensor, match="Elements of w share memory"):
        tensorferry.load({"w": torch.zeros(6).expand(4, 6), "v": flat[0]}, tmp_path, strict=False, ferry=reader)
