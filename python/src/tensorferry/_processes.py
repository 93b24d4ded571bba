# SPDX-License-Identifier: Apache-2.0
"""Processes of this host, each told from a later one of the same number by when it started. Reads ``/proc``."""

from __future__ import annotations


def process_start(pid: int | str = "self") -> str | None:
    """Clock ticks from boot to the start of a process, as text; nothing where there is none that still runs."""
    try:
        with open(f"/proc/{pid}/stat", encoding="latin1") as file:
            text = file.read()
    except OSError:
        return None
    # The name before may hold anything, closing brackets too. Fields 3 (the state) to 22 follow it.
    fields = text[text.rindex(")") + 2 :].split(" ")
    return None if fields[0] in "ZX" else fields[19]
