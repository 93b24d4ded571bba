# SPDX-License-Identifier: Apache-2.0
"""checkpoint-engine's protocol over real ZeroMQ, against a worker that is made from its description (`standins`)."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("zmq")

from tensorferry import checkpoint_engine, errors  # noqa: E402

from .test_engines import same, weights  # noqa: E402

STANDINS = pathlib.Path(__file__).resolve().parent / "standins"
BUCKET = 1 << 17


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.syspath_prepend(str(STANDINS))
    import checkpoint_worker

    yield checkpoint_worker


def buckets(named: dict[str, object]) -> Iterator[list[tuple[str, object]]]:
    listed = list(named.items())
    yield listed[:3]
    yield listed[3:]


def run(worker: object, load: Callable[[str, object], None], named: dict[str, object], **options: object) -> list[object]:
    """One update of one GPU; what the worker did."""
    did: list[object] = []
    own = f"GPU-{os.getpid()}-{time.monotonic_ns()}"

    def notify(sockets: dict[str, str]) -> None:
        assert sockets == {own: f"ipc://@checkpoint-engine-{own}-7.sock"}
        did.extend(worker.work(sockets[own], load, **options))  # type: ignore[attr-defined]

    checkpoint_engine.update(
        buckets(named),
        notify,
        device_ids=[own],
        bucket_size=BUCKET,
        counter=7,
        timeout=30,
        export=worker.export,  # type: ignore[attr-defined]
    )
    return did


@pytest.mark.parametrize("finishes", [1, 2])
def test_tensors_arrive_in_alternating_halves(worker: object, finishes: int) -> None:
    named = weights(4)
    came: dict[str, object] = {}
    did = run(worker, lambda name, tensor: came.update({name: tensor.clone()}), named, finishes=finishes)
    assert list(came) == list(named)
    assert [name for name in named if not same(named[name], came[name])] == []
    assert did[0] == ("buffer", 2 * BUCKET)
    offsets = [offset for what, offset in did if what == "load"]
    assert len(offsets) > 2
    assert offsets == [BUCKET * (at % 2) for at in range(len(offsets))]
    assert [what for what, _ in did[-finishes:]] == ["none"] * finishes


def test_what_the_worker_cannot_load_is_said(worker: object) -> None:
    def load(name: str, _: object) -> None:
        if name == "layer.3":
            raise KeyError("no parameter layer.3")

    with pytest.raises(checkpoint_engine.EngineFailed, match=r"(?s)could not load weights: .*no parameter layer.3"):
        run(worker, load, weights(4))


def test_a_worker_that_leaves_is_noticed(worker: object) -> None:
    begin = time.monotonic()
    with pytest.raises(checkpoint_engine.EngineFailed, match="it has gone"):
        run(worker, lambda *_: None, weights(4), leaves_after=1)
    assert time.monotonic() - begin < 10


def test_an_engine_that_refuses_ends_the_update() -> None:
    def notify(_: dict[str, str]) -> None:
        raise ConnectionRefusedError("no such server")

    with pytest.raises(ConnectionRefusedError):
        checkpoint_engine.update(buckets(weights(1)), notify, device_ids=["GPU-x"], bucket_size=BUCKET, timeout=30)


def test_a_tensor_that_is_longer_than_a_bucket_is_named(worker: object) -> None:
    with pytest.raises(errors.InvalidCommand, match=f"huge has {4 * BUCKET} bytes and a bucket {BUCKET}"):
        run(worker, lambda *_: None, {"huge": torch.zeros(BUCKET)})


@pytest.mark.parametrize(("kind", "path"), [("vllm", "/collective_rpc"), ("sglang", "/update_weights_from_ipc")])
def test_engines_are_told_over_http(kind: str, path: str) -> None:
    heard: list[tuple[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        checkpoint_engine.http_notify(f"http://127.0.0.1:{server.server_port}/", kind, timeout=9)({"GPU-1": "ipc://@a"})
        thread.join()
    body = (
        {"method": "update_weights_from_ipc", "args": [{"GPU-1": "ipc://@a"}], "timeout": 9}
        if kind == "vllm"
        else {"zmq_handles": {"GPU-1": "ipc://@a"}, "flush_cache": True}
    )
    assert heard == [(path, body)]


def test_a_trainer_feeds_an_engine_version_by_version(worker: object) -> None:
    came: dict[str, object] = {}
    own = f"GPU-{os.getpid()}"

    def notify(sockets: dict[str, str]) -> None:
        worker.work(sockets[own], lambda name, tensor: came.update({name: tensor.clone()}))  # type: ignore[attr-defined]

    def train() -> None:
        trainer = checkpoint_engine.Trainer("job", bucket_size=BUCKET, timeout=60)
        for version in range(2):
            trainer.update(version, weights(version).items())
            turn.wait(60)
            turn.reset()
        trainer.close()

    turn = threading.Barrier(2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        trained = pool.submit(train)
        server = checkpoint_engine.Server(
            "job",
            notify=notify,
            device_ids=[own],
            bucket_size=BUCKET,
            timeout=60,
            export=worker.export,  # type: ignore[attr-defined]
        )
        for version in range(2):
            server.serve_one()
            wanted = weights(version)
            assert [name for name in wanted if not same(wanted[name], came[name])] == []
            turn.wait(60)
        trained.result(60)
        server.close()
