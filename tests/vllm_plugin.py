"""Functions that vLLM calls in each of its processes: its own way for others to reach its engine core."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def offered(home: Path, name: str, function: str) -> Iterator[None]:
    """Let vLLM in the child processes of this one find `function` (`module:name`): through the metadata of a package
    that lies in the empty directory `home`."""
    package = home / f"{name.replace('-', '_')}-0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (package / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {function}\n")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(home), str(ROOT), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
