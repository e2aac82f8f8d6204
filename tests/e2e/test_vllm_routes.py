"""The routes of vLLM's app, built without an engine, against those that its source shows."""

from __future__ import annotations

import pytest

from engine_host.gateway.inference_paths import INFERENCE_PATHS, INFERENCE_SOCKETS
from tests.unit.gateway.test_inference_paths import NEVER_THROTTLED


def test_an_app_of_vllm_has_no_route_that_is_not_classified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    pytest.importorskip("vllm")
    from vllm.tasks import GENERATION_TASKS, POOLING_TASKS
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from engine_host.engine.vllm.releases import api_builders, cli_args

    builder, _ = api_builders()
    namespace = cli_args().make_arg_parser(FlexibleArgumentParser()).parse_args([])
    app = builder.build_app(namespace, (*GENERATION_TASKS, *POOLING_TASKS), None)
    shown = {route.path for route in app.routes}
    assert "/v1/chat/completions" in shown
    assert not shown - NEVER_THROTTLED - set(INFERENCE_PATHS) - INFERENCE_SOCKETS
