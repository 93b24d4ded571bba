# SPDX-License-Identifier: Apache-2.0
"""Both sides as threads of one process, with real agents: contents arrive, versions are kept, errors say what is wrong.

The tensors are arrays of the standard library: nothing here needs torch.
"""

from __future__ import annotations

import array
import concurrent.futures
import json
import os
import pathlib
import pickle
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

import tensorferry
from tensorferry import Ferry, errors


def both(a: Callable[[], object], b: Callable[[], object], timeout: float = 60) -> list[object]:
    """Both calls side by side; what each returned or raised."""

    def told(call: Callable[[], object]) -> object:
        try:
            return call()
        except errors.FerryError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [each.result(timeout) for each in [pool.submit(told, a), pool.submit(told, b)]]


@pytest.fixture
def sides() -> Iterator[tuple[Ferry, Ferry]]:
    with (
        tensorferry.connect("job", side="train", timeout=30) as train,
        tensorferry.connect("job", side="engine", timeout=30) as engine,
    ):
        yield train, engine


def floats(*values: float) -> array.array[float]:
    return array.array("f", values)


def register(sides: tuple[Ferry, Ferry], **tensors: tuple[object, object]) -> None:
    train, engine = sides
    told = both(
        lambda: train.register({name: pair[0] for name, pair in tensors.items()}),
        lambda: engine.register({name: pair[1] for name, pair in tensors.items()}),
    )
    assert told == [None, None]


def test_versions_arrive_one_after_the_other(sides: tuple[Ferry, Ferry]) -> None:
    train, engine = sides
    source, target = floats(1, 2, 3), floats(0, 0, 0)
    whole = (array.array("q", [2**40, -1]), array.array("q", [0, 0]))
    register(sides, weight=(source, target), steps=whole)
    for version in (0, 1, 7):
        source[1] = version + 0.5
        assert both(lambda v=version: train.push(v), lambda: engine.pull()) == [None, version]
        assert target == source
    assert whole[1] == whole[0]
    assert both(lambda: train.verify(), lambda: engine.verify()) == [None, None]
    assert engine.status().versions == {"weights": 7}
    assert train.status().byte_lengths == {"weights": 28}


def test_progress_tells_of_waits_and_ends() -> None:
    heard: list[tensorferry.Progress] = []
    with (
        tensorferry.connect("job", side="train", timeout=60, progress=heard.append) as train,
        tensorferry.connect("job", side="engine", timeout=60) as engine,
    ):
        register((train, engine), weight=(floats(1, 2), floats(0, 0)))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pushed = pool.submit(train.push, 0)
            end = time.monotonic() + 60
            # The agent says after a round of its own who is missing.
            while not any(each.phase == "waiting" for each in heard):
                assert time.monotonic() < end
                time.sleep(0.1)
            engine.pull()
            pushed.result(60)
    waits = [each for each in heard if each.phase == "waiting"]
    assert waits[0].call == "push weights" and "agent 1000000" in waits[0].message
    assert heard[-1].call == "push weights" and heard[-1].phase == "done" and heard[-1].byte_length == 8


def test_verify_finds_one_bit(sides: tuple[Ferry, Ferry]) -> None:
    train, engine = sides
    source, target = floats(1, 2, 3), floats(0, 0, 0)
    register(sides, good=(floats(1), floats(0)), bad=(source, target))
    both(lambda: train.push(1), lambda: engine.pull())
    target[2] = float.fromhex("0x1.800002p+1")
    sent, received = both(lambda: train.verify(), lambda: engine.verify())
    assert isinstance(sent, errors.VerifyFailed) and sent.fields == {"count": 1}
    assert isinstance(received, errors.VerifyFailed) and received.fields == {"names": ["bad"]}
    # The tensors themselves were left as they are.
    assert target[2] != source[2]


def test_versions_that_differ_move_nothing(sides: tuple[Ferry, Ferry]) -> None:
    train, engine = sides
    source, target = floats(1), floats(9)
    register(sides, weight=(source, target))
    told = both(lambda: train.push(4), lambda: engine.pull(5))
    for error in told:
        assert isinstance(error, errors.VersionMismatch)
        assert "version 4" in str(error) and "version 5" in str(error)
        assert error.remedy and error.retryable
    assert target == floats(9)
    assert both(lambda: train.push(5), lambda: engine.pull(5)) == [None, 5]
    assert target == source
    with pytest.raises(errors.InvalidCommand, match="does not follow version 5"):
        train.push(5)
    with pytest.raises(errors.InvalidCommand, match="is no version"):
        train.push(-1)


def test_tensors_that_only_one_side_has_are_named(sides: tuple[Ferry, Ferry]) -> None:
    train, engine = sides
    told = both(lambda: train.register({"a": floats(1)}), lambda: engine.register({"b": floats(1)}))
    for error in told:
        assert isinstance(error, errors.BatchMismatch)
        assert "alone has" in str(error)
    # What failed is gone: the same names can be registered rightly.
    told = both(lambda: train.register({"a": floats(1)}), lambda: engine.register({"a": floats(0, 0)}))
    assert all(isinstance(error, errors.BatchMismatch) for error in told)
    register(sides, a=(floats(1), floats(0)))


def test_whoever_waits_in_vain_is_told_for_whom() -> None:
    heard: list[tensorferry.Progress] = []
    with tensorferry.connect("job", side="train", timeout=6, progress=heard.append) as train:
        begin = time.monotonic()
        with pytest.raises(errors.RemoteMissing, match="0 of an unknown number of agents of side engine came") as raised:
            train.register({"a": floats(1)})
        assert raised.value.retryable
        assert time.monotonic() - begin < 30
        assert heard
        assert all(each.phase == "waiting" and each.call == "meet engine" for each in heard)
        with pytest.raises(errors.NotRegistered):
            train.push(0)


def test_what_is_no_tensor_is_refused_by_name(sides: tuple[Ferry, Ferry]) -> None:
    train, _ = sides
    for value, wanted in [
        ({"a": object()}, "a is a object, neither a tensor"),
        ({"a": memoryview(b"const")}, "is read-only"),
        ({"a": memoryview(bytearray(8))[::2]}, "lies scattered"),
        ({}, "no tensors"),
        ([("a", floats(1)), ("a", floats(2))], "a name twice"),
        (7, "neither a module, a state dict nor pairs"),
    ]:
        with pytest.raises(errors.FerryError, match=wanted):
            train.register(value)
    with pytest.raises(errors.InvalidCommand, match="needs the model"):
        train.register({"a": floats(1)}, convention="hf")


def test_a_second_agent_at_the_same_place_is_refused(sides: tuple[Ferry, Ferry]) -> None:
    with pytest.raises(errors.AgentUnavailable, match="Another agent serves"):
        tensorferry.connect("job", side="train")
    # The one that is there was left alone.
    register(sides, weight=(floats(1), floats(0)))
    with tensorferry.connect("job", side="train", agent=sides[0]._connection.path) as third:
        assert third.status().agent_pid == sides[0].status().agent_pid


def test_a_command_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORFERRY_COMMAND", "/nowhere/tensorferry")
    with pytest.raises(errors.AgentUnavailable, match="/nowhere/tensorferry agent"):
        tensorferry.connect("job", side="train")
    monkeypatch.setenv("TENSORFERRY_COMMAND", f"{sys.executable} -c 'import sys; sys.exit(\"no luck\")'")
    with pytest.raises(errors.AgentUnavailable, match="ended with 1: no luck"):
        tensorferry.connect("job", side="train")
    with pytest.raises(errors.AgentUnavailable, match="does not answer"):
        tensorferry.connect("job", side="train", agent="/nowhere.sock")


def test_why_no_agent_starts_is_said_in_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"ok": False, "errors": [{"message": "Unavailable: no addon. Build it."}]}, indent=2)
    monkeypatch.setenv("TENSORFERRY_COMMAND", shlex.join([sys.executable, "-c", f"print({said!r}); exit(1)"]))
    with pytest.raises(errors.AgentUnavailable, match="ended with 1: Unavailable: no addon. Build it.") as failed:
        tensorferry.connect("job", side="train")
    assert "{" not in str(failed.value).partition("ended with")[2]


def test_the_end_of_the_agent_is_noticed_at_once(sides: tuple[Ferry, Ferry]) -> None:
    train, engine = sides
    register(sides, weight=(floats(1), floats(0)))

    def pull() -> object:
        begin = time.monotonic()
        with pytest.raises(errors.AgentGone, match="exit -9"):
            engine.pull()
        return time.monotonic() - begin

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pulling = pool.submit(pull)
        os.kill(engine.status().agent_pid, signal.SIGKILL)
        assert pulling.result(10) < 5
    assert not engine.status().is_connected
    # The other side learns of it too, and by whom.
    with pytest.raises((errors.PairBroken, errors.BatchGone), match="agent 1000000"):
        train.push(0)


def test_nothing_is_left_of_a_side_that_closes(folder: pathlib.Path) -> None:
    with tensorferry.connect("job", side="train") as train:
        pid = train.status().agent_pid
        assert (folder / "job" / "train-0.sock").is_socket()
    assert not (folder / "job" / "train-0.sock").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, check=False).stdout == b""


def test_errors_survive_pickling() -> None:
    error = errors.from_reply("BatchMismatch", "a is missing", {"remedy": "add it", "isRetryable": True, "peer": 3})
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.BatchMismatch
    assert (str(again), again.remedy, again.retryable, again.fields["peer"]) == ("a is missing", "add it", True, 3)
    newer = errors.from_reply("SomethingNew", "x", {})
    assert type(newer) is errors.FerryError and newer.tag == "SomethingNew"
