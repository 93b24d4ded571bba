# SPDX-License-Identifier: Apache-2.0
"""The folder of a job: nobody else's, one number per side, one process that serves the store."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tensorferry import errors
from tensorferry._job import Store, StoreSeat, job_folder, side_number


def test_a_folder_that_others_can_use_is_refused(folder: pathlib.Path) -> None:
    assert os.stat(job_folder("a")).st_mode & 0o777 == 0o700
    os.chmod(folder / "a", 0o755)
    with pytest.raises(errors.UnsafeFolder, match="no folder of this user alone"):
        job_folder("a")
    os.symlink(folder, folder / "b")
    with pytest.raises(errors.UnsafeFolder):
        job_folder("b")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", ".hidden", "x" * 65])
def test_names_that_are_no_part_of_a_path_are_refused(name: str) -> None:
    with pytest.raises(errors.InvalidCommand, match="is no name of a job"):
        job_folder(name)


def test_sides_keep_their_numbers() -> None:
    folder = job_folder("a")
    assert [side_number(folder, side) for side in ("train", "engine", "train", "other")] == [0, 1, 0, 2]


def test_one_process_at_a_time_serves_the_store() -> None:
    folder = job_folder("a")
    program = (
        "import sys; from tensorferry._job import Store, StoreSeat; seat = StoreSeat(sys.argv[1]);"
        "taken = seat.take(); taken and seat.announce(Store('127.0.0.1:7', 'secret')); print(taken, flush=True); input()"
    )
    source = str(pathlib.Path(__file__).resolve().parents[1] / "src")
    with subprocess.Popen(
        [sys.executable, "-c", program, folder],
        env={**os.environ, "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "True\n"
        seat = StoreSeat(folder)
        assert not seat.take()
        assert seat.find(5) == Store("127.0.0.1:7", "secret")
        first.kill()
        first.wait()
        # Its successor serves at the same place, with the same secret.
        assert seat.find(5) is None
        assert seat.last() == Store("127.0.0.1:7", "secret")
        assert not StoreSeat(folder).take()
        seat.give_back()
        again = StoreSeat(folder)
        assert again.take()
        again.give_back()
