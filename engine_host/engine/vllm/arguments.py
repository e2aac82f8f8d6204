"""A profile's settings as vLLM's own arguments: the names it takes, the namespace and the configuration it makes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from engine_host.engine.port import EngineArguments
from engine_host.engine.vllm.releases import cli_args
from engine_host.profiles import ValidNames

_LIST_ARGUMENTS = (
    "served_model_name",
    "api_key",
    "middleware",
    "allowed_origins",
    "allowed_methods",
    "allowed_headers",
)
"""Arguments that vLLM iterates over: a single string would be taken letter by letter, for keys as for names."""


def argument_names() -> ValidNames:
    """The names that the installed vLLM takes. Imports vLLM: takes seconds, call it in a thread."""
    from vllm.config import SpeculativeConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    def names(arguments: Any) -> frozenset[str]:
        return frozenset(field.name for field in fields(arguments) if field.init and not field.name.startswith("_"))

    return ValidNames(
        engine=names(AsyncEngineArgs),
        server=names(cli_args().FrontendArgs),
        nested={"speculative_config": names(SpeculativeConfig)},
    )


def serve_namespace(arguments: EngineArguments) -> Any:
    """The argument namespace that `vllm serve` would have built from the same settings."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments_module = cli_args()
    namespace = arguments_module.make_arg_parser(FlexibleArgumentParser()).parse_args([])
    for name, value in {**arguments.server, **arguments.engine}.items():
        setattr(namespace, name, value)
    namespace.model_tag = namespace.model
    for name in _LIST_ARGUMENTS:
        if isinstance(value := getattr(namespace, name, None), str):
            setattr(namespace, name, [value])
    _load_parser_plugins(namespace)
    arguments_module.validate_parsed_serve_args(namespace)
    return namespace


def _load_parser_plugins(namespace: Any) -> None:
    """As `vllm serve` does before it builds anything: the parsers that arguments may name live in these files."""
    if path := getattr(namespace, "tool_parser_plugin", None):
        from vllm.tool_parsers import ToolParserManager

        ToolParserManager.import_tool_parser(path)
    if path := getattr(namespace, "reasoning_parser_plugin", None):
        from vllm.reasoning import ReasoningParserManager

        ReasoningParserManager.import_reasoning_parser(path)


def engine_config(engine: dict[str, Any], server: dict[str, Any]) -> Any:
    """The `VllmConfig` that `VllmEngine` would start with; raises what vLLM raises. Takes seconds and may touch a
    device: for a process of its own (`config_probe`)."""
    return configuration(serve_namespace(EngineArguments(engine=engine, server=server)))[1]


def configuration(namespace: Any) -> tuple[Any, Any]:
    """`(AsyncEngineArgs, VllmConfig)` as `vllm serve` makes them: what is left out depends on who asks. On an H100 a
    server gets 8192 batched tokens and 1024 sequences, anybody else 2048 and 128."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    arguments = AsyncEngineArgs.from_cli_args(namespace)
    return arguments, arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
