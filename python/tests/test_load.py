# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that fill buffers of this process, and what is refused: nothing here needs torch."""

from __future__ import annotations

import array
import json
import os
import pathlib
import signal
import struct
import threading

import pytest

import tensorferry
from tensorferry import errors

from .test_ferry import floats

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def write(path: pathlib.Path, tensors: Tensors) -> pathlib.Path:
    """A file of safetensors, as its format says: a length, a header of JSON, and the bytes."""
    header: dict[str, object] = {}
    end = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    return path


def f32(*values: float) -> tuple[str, tuple[int, ...], bytes]:
    return "F32", (len(values),), floats(*values).tobytes()


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return write(tmp_path / "model.safetensors", {"w": f32(1, 2, 3), "b": f32(4)})


def test_buffers_are_filled_and_the_answer_says_what(path: pathlib.Path) -> None:
    w, b = floats(0, 0, 0), floats(0)
    loaded = tensorferry.load({"w": w, "b": b}, path)
    assert (w, b) == (floats(1, 2, 3), floats(4))
    assert (loaded.tensors, loaded.byte_length) == (2, 16)
    assert (loaded.missing, loaded.unexpected, loaded.cast) == ((), (), ())
    assert loaded.seconds > 0


def test_several_files_with_an_index(tmp_path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    write(tmp_path / "model-00001-of-00002.safetensors", {"w": f32(1, 2, 3)})
    write(tmp_path / "model-00002-of-00002.safetensors", {"b": f32(4)})
    index = {
        "metadata": {},
        "weight_map": {f"{name}": f"model-0000{at}-of-00002.safetensors" for at, name in ((1, "w"), (2, "b"))},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    w, b = floats(0, 0, 0), floats(0)
    assert tensorferry.load({"w": w, "b": b}, tmp_path, ferry=reader).tensors == 2
    assert (w, b) == (floats(1, 2, 3), floats(4))


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"w": floats(7, 7, 7)}, "b is in the checkpoint and not here"),
        ({"w": floats(7, 7, 7), "b": floats(7), "c": floats(7)}, "c is not in the checkpoint"),
        ({"w": floats(7, 7), "b": floats(7)}, r"w is \[3\] in the checkpoint, and \[2\] here"),
        ({"w": array.array("d", [7] * 3), "b": floats(7)}, "w is float32 in the checkpoint and float64 here"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(
    path: pathlib.Path, held: dict[str, array.array[float]], words: str, reader: tensorferry.Ferry
) -> None:
    with pytest.raises(errors.CheckpointMismatch, match=words) as raised:
        tensorferry.load(held, path, ferry=reader)
    assert raised.value.remedy and raised.value.fields["file"] == str(path)
    assert all(set(values) == {7} for values in held.values())


def test_what_is_not_strict_is_listed(path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    w, c = floats(0, 0, 0), floats(7)
    loaded = tensorferry.load({"w": w, "c": c}, path, strict=False, ferry=reader)
    assert (loaded.tensors, loaded.missing, loaded.unexpected) == (1, ("c",), ("b",))
    assert (w, c) == (floats(1, 2, 3), floats(7))


def test_values_are_converted_only_when_asked(path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    w, b = array.array("d", [0] * 3), floats(0)
    loaded = tensorferry.load({"w": w, "b": b}, path, cast=True, ferry=reader)
    assert loaded.cast == ("w",)
    assert w == array.array("d", [1, 2, 3])


def test_files_that_are_damaged_or_gone(path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    held = {"w": floats(7, 7, 7), "b": floats(7)}
    whole = path.read_bytes()
    for spoiled in (whole[:-1], whole + b"x", whole[:5], b"\xff" * 100, b""):
        path.write_bytes(spoiled)
        with pytest.raises(errors.CheckpointDamaged, match=str(path)):
            tensorferry.load(held, path, ferry=reader)
    path.unlink()
    for missing in (path, path.parent, "/nowhere/at/all"):
        with pytest.raises(errors.CheckpointUnreadable) as raised:
            tensorferry.load(held, missing, ferry=reader)
        assert str(missing) in str(raised.value)
    assert all(set(values) == {7} for values in held.values())


def test_what_the_system_does_not_open(path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    """A link to itself, and what is no file, which nobody waits for. A mode keeps out everybody but root."""
    held = {"w": floats(7, 7, 7), "b": floats(7)}
    loop, pipe = path.parent / "loop.safetensors", path.parent / "pipe.safetensors"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    path.chmod(0)
    for closed in [loop, pipe] + ([path] if os.geteuid() != 0 else []):
        with pytest.raises(errors.CheckpointUnreadable) as raised:
            tensorferry.load(held, closed, ferry=reader)
        assert raised.value.fields["file"] == str(closed)


def test_commands_that_say_nothing(path: pathlib.Path, reader: tensorferry.Ferry) -> None:
    held = {"w": floats(7, 7, 7), "b": floats(7)}
    for wrong, words in (
        ({"placement": {}}, "needs a convention"),
        ({"mapping": {"rules": []}}, "needs a convention"),
        ({"like": path}, "`like` says nothing"),
        ({"timeout": 0}, "cannot take 0 seconds"),
        ({"rank": 2, "world": 2}, "Rank 2 of 2"),
        ({"convention": "vlm"}, "names no side"),
        ({"convention": "vllm"}, "nothing says the family"),
        ({"stored": "nobody"}, "names no side"),
    ):
        with pytest.raises(errors.InvalidCommand, match=words):
            tensorferry.load(held, path, **wrong, ferry=reader)  # type: ignore[arg-type]


def test_the_agent_of_a_ferry_reads_too(path: pathlib.Path) -> None:
    w, b = floats(0, 0, 0), floats(0)
    with tensorferry.connect("job", side="engine") as engine:
        for _ in range(2):
            w[0] = 0
            assert tensorferry.load({"w": w, "b": b}, path, ferry=engine).tensors == 2
            assert (w, b) == (floats(1, 2, 3), floats(4))
        # What goes wrong ends the load and nothing else.
        with pytest.raises(errors.CheckpointMismatch):
            tensorferry.load({"w": w}, path, ferry=engine)
        assert engine.status().is_connected


def test_an_agent_that_is_killed_is_noticed(path: pathlib.Path) -> None:
    """It is stopped first, so that it cannot have answered."""
    with tensorferry.connect("job", side="engine") as engine:
        pid = engine.status().agent_pid
        os.kill(pid, signal.SIGSTOP)
        killer = threading.Timer(0.3, lambda: os.kill(pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(errors.AgentGone):
            tensorferry.load({"w": floats(0, 0, 0), "b": floats(0)}, path, ferry=engine)
        killer.join()
