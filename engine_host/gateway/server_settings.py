"""The `[server]` keys that concern the HTTP server itself, read and tried before anything is started.

The table is vLLM's: most of its keys go to vLLM's app as they are. Those here are applied by this package; what
`vllm serve` applies in its own launcher and this server does not is refused, because a key that is accepted and then
ignored is worse than one that is refused. An error names the key as it stands in the profile, `server.port`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from engine_host.decoder_words import fault
from engine_host.protocol.errors import OperatorError

_LoadableText = Annotated[str, msgspec.Meta(min_length=1)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]

_SECRET = ("api_key",)
"""Keys whose values no message repeats: messages end up in logs."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's names; its defaults too, except for `host`: vLLM listens on every address, this host on its own."""

    host: _LoadableText = "127.0.0.1"
    port: Port = 8000
    ssl_keyfile: _LoadableText | None = None
    ssl_certfile: _LoadableText | None = None
    ssl_ca_certs: _LoadableText | None = None
    ssl_cert_reqs: Annotated[int, msgspec.Meta(ge=0, le=2)] = 0
    """0: a client shows no certificate; 1: it may; 2: it must."""
    ssl_ciphers: _LoadableText | None = None
    uvicorn_log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = "info"
    disable_uvicorn_access_log: bool = False
    h11_max_incomplete_event_size: Annotated[int, msgspec.Meta(ge=1024)] = 4 << 20
    """Limit of a request's head in bytes: LoRA and tool requests carry long ones."""
    # Applied by vLLM's app. A text where it expects a list is taken letter by letter: each letter would be an API key.
    api_key: list[_LoadableText] | None = None
    allowed_origins: list[str] = []
    allowed_methods: list[str] = []
    allowed_headers: list[str] = []
    middleware: list[str] = []


NOT_APPLIED: dict[str, str] = {
    "uds": "leave it out: this version serves the API on a TCP port; put a proxy in front for a Unix socket",
    "enable_ssl_refresh": "leave it out, and restart the host when its certificate has changed",
    "h11_max_header_count": "leave it out; h11_max_incomplete_event_size limits a request's head",
    "disable_access_log_for_endpoints": "leave it out, or write: disable_uvicorn_access_log = true",
    "log_config_file": "leave it out; uvicorn_log_level and VLLM_LOGGING_CONFIG_PATH set what is logged",
    "grpc_port": "leave it out: this version serves HTTP only",
    "data_parallel_supervisor_port": "leave it out: this version runs one API server",
    "dp_supervisor_probe_interval_s": "leave it out: this version runs one API server",
    "dp_supervisor_probe_timeout_s": "leave it out: this version runs one API server",
    "dp_supervisor_probe_failure_threshold": "leave it out: this version runs one API server",
}
"""Key -> what to do instead. Done by `vllm serve` around its app, which this host does not use."""


def read_server_settings(table: Mapping[str, Any]) -> ServerSettings:
    """The settings in `[server]`; keys of vLLM's app pass by unread. Raises `OperatorError`."""
    for key, remedy in NOT_APPLIED.items():
        if table.get(key, False) is not False:
            raise OperatorError(f"server.{key} = {table[key]!r} is not supported by engine-host", remedy)
    ours = {key: table[key] for key in ServerSettings.__struct_fields__ if key in table}
    for key, value in ours.items():
        try:
            msgspec.convert({key: value}, ServerSettings)
        except msgspec.ValidationError as error:
            shown = f"server.{key}" if key in _SECRET else f"server.{key} = {value!r}"
            raise OperatorError(f"{shown}: {fault(error)}", _remedy(key, value)) from None
    settings = msgspec.convert(ours, ServerSettings)
    _try_tls(settings)
    return settings


def _remedy(key: str, value: Any) -> str:
    if key == "uvicorn_log_level":
        return "write one of: critical, error, warning, info, debug, trace"
    if key == "host":
        return 'give an address of this machine, for example host = "127.0.0.1", or "0.0.0.0" for all of them'
    if key == "api_key" and isinstance(value, str):
        return 'write a list: api_key = ["..."]'
    return f"mend server.{key}, or leave it out for its default"


def _try_tls(settings: ServerSettings) -> None:
    """Load what the server will load: a wrong file is told now, not when the engine is up."""
    files = {key: getattr(settings, key) for key in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs")}
    for key, path in files.items():
        if path is None:
            continue
        try:
            with open(path, "rb"):  # noqa: PTH123 - as the ssl module opens it
                pass
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise OperatorError(
                f"server.{key} = {path!r} cannot be read: {why}", "give the path of a PEM file that this user may read"
            ) from None
    if settings.ssl_certfile is None:
        if settings.ssl_keyfile is not None:
            raise OperatorError(
                "server.ssl_keyfile is given without server.ssl_certfile", "give both, or neither for plain HTTP"
            )
        if settings.ssl_ca_certs or settings.ssl_ciphers or settings.ssl_cert_reqs:
            key = next(k for k in ("ssl_ca_certs", "ssl_ciphers", "ssl_cert_reqs") if getattr(settings, k))
            raise OperatorError(
                f"server.{key} is given without server.ssl_certfile: the API would be plain HTTP",
                "give server.ssl_certfile and server.ssl_keyfile, or leave it out",
            )
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, _no_password)
    except (ssl.SSLError, OSError) as error:
        raise OperatorError(
            f"server.ssl_certfile and server.ssl_keyfile cannot be used together: {_ssl_reason(error)}",
            "give a certificate and its own key, both PEM; see: openssl x509 -noout -text -in CERTIFICATE",
        ) from None
    if settings.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(settings.ssl_ca_certs)
        except (ssl.SSLError, OSError) as error:
            raise OperatorError(
                f"server.ssl_ca_certs = {settings.ssl_ca_certs!r}: {_ssl_reason(error)}",
                "give a file of PEM certificates",
            ) from None
    if settings.ssl_ciphers is not None:
        try:
            context.set_ciphers(settings.ssl_ciphers)
        except ssl.SSLError as error:
            raise OperatorError(
                f"server.ssl_ciphers = {settings.ssl_ciphers!r}: {_ssl_reason(error)}", "see: openssl ciphers"
            ) from None


def _no_password() -> str:
    """OpenSSL would ask on the terminal, in the middle of a start that nobody watches."""
    raise OperatorError(
        "server.ssl_keyfile is encrypted, and there is nowhere to give its password",
        "decrypt it: openssl pkey -in KEY -out KEY.plain && chmod 600 KEY.plain",
    )


def _ssl_reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error).replace("_", " ").lower()
