"""Builds an engine's configuration in a process of its own and tells what came out, as JSON.

    python -m engine_host.engine.vllm.config_probe < request.json > answer.json

Importing vLLM and resolving a configuration takes seconds of CPU, may load a model's own code and may touch a device,
so it must not happen inside the host. No weights are loaded and no engine is started.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from engine_host.engine.vllm.one_line import one_line


def main() -> NoReturn:
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever vLLM prints is log, not answer
    request = json.load(sys.stdin)
    # Outlives no host: the default action of SIGALRM ends the process even while it hangs in C code.
    signal.alarm(int(request["deadline_s"]) + 5)
    gc.disable()  # the imports make a million objects that stay; looking through them took a fifth of the time
    with answer_to:
        json.dump(_answer(request), answer_to)
    # An interpreter full of torch takes a second to take itself apart, and nothing of it is needed any more.
    os._exit(0)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    try:
        from engine_host.engine.vllm import resolved
        from engine_host.engine.vllm.arguments import argument_names, engine_config
        from engine_host.engine.vllm.releases import installed_version

        answer["vllm_version"] = installed_version()
        names = argument_names()
        answer["names"] = {
            "engine": sorted(names.engine),
            "server": sorted(names.server),
            "nested": {table: sorted(keys) for table, keys in names.nested.items()},
        }
        if not _knows_all(names, request):
            return answer  # the caller says which, with the nearest valid ones
        with resolved.warnings_of_vllm() as answer["warnings"]:
            config = engine_config(request["engine"], request["server"])
        answer |= resolved.answer(config, answer["warnings"])
    except (Exception, SystemExit) as error:
        answer["refusal"] = _reason(error)
    return answer


def _knows_all(names: Any, request: Mapping[str, Any]) -> bool:
    engine = request["engine"]
    if not set(engine) <= set(names.engine) or not set(request["server"]) <= set(names.server):
        return False
    tables = [(engine.get(table), keys) for table, keys in names.nested.items()]
    return all(inner is None or (isinstance(inner, dict) and set(inner) <= set(keys)) for inner, keys in tables)


def _reason(error: BaseException) -> str:
    """The sentence in an error: a validation error of pydantic wraps it in the whole input."""
    details: Callable[[], list[dict[str, Any]]] | None = getattr(error, "errors", None)
    if callable(details):
        sentences = [
            ": ".join(
                [*(str(part) for part in detail.get("loc", ())), str(detail["msg"]).removeprefix("Value error, ")]
            )
            for detail in details()
        ]
        return "; ".join(sentences)
    return one_line(error)


if __name__ == "__main__":
    main()
