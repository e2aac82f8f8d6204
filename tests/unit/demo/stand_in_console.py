"""A scripted console: prints a status, or stays open until the file that `STAND_IN_QUITS_AT` names exists."""

import os
import sys
import time
from pathlib import Path

arguments = sys.argv[1:]
assert arguments[0] == "-t"
if arguments[2:]:
    assert arguments[2:] == ["status", "--json"]
    print('{"state": "serving"}')
    sys.exit(0)
(Path(os.environ["XDG_STATE_HOME"]).parent / "told").write_text(os.environ.get("VLLM_CONSOLE_QUIT_STOPS_HOST", ""))
until = Path(os.environ["STAND_IN_QUITS_AT"])
deadline = time.monotonic() + 30
while not until.exists():
    assert time.monotonic() < deadline, f"{until} did not appear"
    time.sleep(0.02)
