# SPDX-License-Identifier: Apache-2.0
"""The programs of the documentation, as they stand there."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from .conftest import ROOT

pytest.importorskip("torch")


def programs() -> dict[str, str]:
    page = (ROOT / "docs/python.md").read_text()
    return dict(re.findall(r"```python file=(\S+)\n(.*?)```", page, re.DOTALL))


def start(folder: pathlib.Path, name: str) -> subprocess.Popen[str]:
    (folder / name).write_text(programs()[name])
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python/src")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, str(folder / name)], cwd=folder, env=environment, text=True, **pipes)


def test_the_quick_start_runs_as_it_stands(tmp_path: pathlib.Path) -> None:
    assert list(programs()) == ["trainer.py", "engine.py", "load.py"]
    started = [start(tmp_path, name) for name in ("trainer.py", "engine.py")]
    try:
        said = [program.communicate(timeout=200) for program in started]
    finally:
        for program in started:
            program.kill()
    assert said[0][0] == "pushed, verified\n", said[0][1]
    assert said[1][0] == "version 0\nversion 1\nversion 2\npulled, verified\n", said[1][1]


def test_a_model_is_loaded_as_it_stands(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("transformers")
    program = start(tmp_path, "load.py")
    said = program.communicate(timeout=200)
    printed = re.findall(r"It prints `(.*?)`", (ROOT / "docs/python.md").read_text())
    assert [said[0]] == [f"{line}\n" for line in printed], said[1]
