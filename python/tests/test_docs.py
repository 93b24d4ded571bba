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


def run(folder: pathlib.Path, *names: str) -> list[str]:
    """What these programs print, side by side."""
    started = [start(folder, name) for name in names]
    try:
        ended = [program.communicate(timeout=200) for program in started]
    finally:
        for program in started:
            program.kill()
    assert [program.returncode for program in started] == [0] * len(names), ended
    return [said for said, _ in ended]


def test_every_program_of_the_page_is_run() -> None:
    assert list(programs()) == ["trainer.py", "engine.py", "load.py", "quantized_engine.py", "quantized_trainer.py"]


def test_the_quick_start_runs_as_it_stands(tmp_path: pathlib.Path) -> None:
    said = run(tmp_path, "trainer.py", "engine.py")
    assert said == ["pushed, verified\n", "version 0\nversion 1\nversion 2\npulled, verified\n"]


def test_an_engine_that_is_quantized_runs_as_it_stands(tmp_path: pathlib.Path) -> None:
    said = run(tmp_path, "quantized_trainer.py", "quantized_engine.py")
    assert said == ["", "version 0 with 8 scales, verified\n"]


def test_a_model_is_loaded_as_it_stands(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("transformers")
    printed = re.findall(r"It prints `(.*?)`", (ROOT / "docs/python.md").read_text())
    assert run(tmp_path, "load.py") == [f"{line}\n" for line in printed]
