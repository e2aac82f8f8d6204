"""The phases of a switch on standard error while it is waited for: one live line on a terminal, else a line a phase."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import PurePath

import msgspec

from console import format as fmt
from console.client import decoded
from console.display import is_dumb
from engine_host.protocol.snapshot import Snapshot
from engine_host.protocol.switching import PhaseName, SwitchProgress

CLEAR = "\r\x1b[K"


class Phases:
    """Fed with the notifications of the connection that waits."""

    def __init__(self, profile: str) -> None:
        self._profile = profile
        self._is_live = not is_dumb(sys.stderr)
        self._told: set[PhaseName] = set()
        self._is_dirty = False
        self.is_sent = False
        """The call has gone out; before that, what is under way is not ours."""
        self.progress: SwitchProgress | None = None
        self.began = asyncio.Event()

    def heard(self, method: str, params: msgspec.Raw) -> None:
        if method != "telemetry" or not self.is_sent:
            return
        progress = decoded(params, Snapshot, "telemetry").engine.switch
        # A profile may be named by its file; a switch to another one is somebody else's, and ours will be refused.
        if progress is None or progress.to_profile not in {self._profile, PurePath(self._profile).stem}:
            return
        self.progress = progress
        self.began.set()
        if self._is_live:
            self._redraw(progress)
        else:
            self._tell(progress)

    def clear(self) -> None:
        if self._is_dirty:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()
            self._is_dirty = False

    def _redraw(self, progress: SwitchProgress) -> None:
        from console.switch_panels import live_line

        columns = shutil.get_terminal_size((80, 24)).columns
        sys.stderr.write(CLEAR + live_line(progress, columns - 1))
        sys.stderr.flush()
        self._is_dirty = True

    def _tell(self, progress: SwitchProgress) -> None:
        for phase in progress.phases:
            if phase.name in self._told:
                continue
            self._told.add(phase.name)
            about = f" (about {fmt.span(phase.expected_s)})" if phase.expected_s is not None else ""
            print(f"+{phase.at_s:.1f} s  {phase.name.value}{about}", file=sys.stderr, flush=True)
