# SPDX-License-Identifier: Apache-2.0
"""Examples that need a system which cannot be installed: the programs are real, and so are agents and tensors."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from .conftest import ROOT  # noqa: E402
from .test_engines import STANDINS, Holder, llama, same, standin, vllm_shard, workers_of  # noqa: E402, F401


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """Serves a stand-in's server by the routes of vLLM; what a worker raises is the body of an answer 500."""
    started: list[http.server.ThreadingHTTPServer] = []

    def begin(server: Any) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                call = getattr(server, self.path.removeprefix("/"))
                try:
                    # Each route takes one object by its name, or nothing.
                    call(*given.values())
                    status, said = 200, b"{}"
                except Exception as error:
                    status, said = 500, repr(error).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                pass

        made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        started.append(made)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{made.server_port}"

    yield begin
    for made in started:
        made.shutdown()
        made.server_close()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python/src"), str(STANDINS)])}
    command = [sys.executable, str(ROOT / "examples/vllm/trainer.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_a_trainer_beside_vllm(
    standin: Callable[[str], types.ModuleType],  # noqa: F811
    serve: Callable[[Any], str],
    tmp_path: pathlib.Path,
) -> None:
    transformers = pytest.importorskip("transformers")
    engines, server = standin("tensorferry.vllm_engine"), standin("vllm.server")
    source: Any = llama(tmp_path / "model")
    models = [Holder(vllm_shard(source.state_dict(), rank)) for rank in range(2)]
    workers = workers_of(engines, models, model=str(tmp_path / "model"))
    served = server.Server(workers)
    ended = run(serve(served), str(tmp_path / "model"), "2", "3", str(tmp_path / "trained"))
    promised = re.findall(r"```text\n(.*?)```", (ROOT / "examples/vllm/README.md").read_text(), re.DOTALL)
    assert [ended.stdout] == promised, ended.stderr
    assert served.log == ["init", *["start", "update", "finish"] * 3]
    trained = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "trained").state_dict()
    assert not torch.equal(trained["lm_head.weight"], source.state_dict()["lm_head.weight"])
    for rank, model in enumerate(models):
        wanted = vllm_shard(trained, rank)
        assert [name for name in wanted if not same(wanted[name], model.tensors[name])] == []
    for worker in workers:
        worker.shutdown()


def test_a_trainer_whose_server_refuses_says_what_it_said(
    standin: Callable[[str], types.ModuleType],  # noqa: F811
    serve: Callable[[Any], str],
    tmp_path: pathlib.Path,
) -> None:
    pytest.importorskip("transformers")
    engines, server = standin("tensorferry.vllm_engine"), standin("vllm.server")
    source: Any = llama(tmp_path / "model")
    workers = workers_of(engines, [Holder(vllm_shard(source.state_dict(), 0))], quantization="fp8")
    ended = run(serve(server.Server(workers)), str(tmp_path / "model"), "1", "1", str(tmp_path / "trained"))
    assert ended.returncode == 1
    assert "vLLM refuses init_weight_transfer_engine: 500" in ended.stderr
    assert "quantised" in ended.stderr
