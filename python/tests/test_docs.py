# SPDX-License-Identifier: Apache-2.0
"""The quick start of the documentation, as it stands there."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from .conftest import ROOT

pytest.importorskip("torch")


def test_the_quick_start_runs_as_it_stands(tmp_path: pathlib.Path) -> None:
    page = (ROOT / "docs/python.md").read_text()
    programs = re.findall(r"```python file=(\S+)\n(.*?)```", page, re.DOTALL)
    assert [name for name, _ in programs] == ["trainer.py", "engine.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python/src")}
    started = []
    for name, text in programs:
        (tmp_path / name).write_text(text)
        command = [sys.executable, str(tmp_path / name)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=environment, text=True, **pipes))
    try:
        said = [program.communicate(timeout=200) for program in started]
    finally:
        for program in started:
            program.kill()
    assert said[0][0] == "pushed, verified\n", said[0][1]
    assert said[1][0] == "version 0\nversion 1\nversion 2\npulled, verified\n", said[1][1]
