"""`engine-host`: the command line on the GPU node.

Start-up stays light: vLLM is imported by the engine's worker thread, never here, since multiprocessing imports this
module again in every child that it spawns.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from engine_host import __version__
from engine_host.protocol.errors import EXIT_DONE, EXIT_INVALID, OperatorError

_EXAMPLES = """examples:
  engine-host serve profiles/demo.toml
  engine-host serve latency --profiles-dir /etc/vllm-console/profiles --port 8001
  engine-host check profiles/demo.toml --json
"""


_PROFILES_DIR = Path("profiles")
"""Where a bare profile name is looked up."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    return _exit_code(lambda: int(arguments.run(arguments)))


def _exit_code(run: Callable[[], int]) -> int:
    """What `run` returns, or that of the error which it is told on the terminal."""
    try:
        return run()
    except OperatorError as error:
        print(f"engine-host: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="engine-host",
        description="Runs vLLM and exposes a control socket for vllm-console.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"engine-host {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="start the engine of a profile and serve its API")
    _profile_arguments(serve)
    serve.add_argument("--socket", type=Path, help="control socket (default: in the runtime directory)")
    serve.add_argument("--socket-group", metavar="GROUP", help="Unix group that may view through the socket")
    serve.add_argument("--host", help="address of the API (default: the profile's, else 127.0.0.1)")
    serve.add_argument("--port", type=_port, help="port of the API (default: the profile's, else 8000)")
    serve.add_argument("--state-dir", type=Path, help="log, audit log and forecasts (default: ~/.local/state/...)")
    serve.set_defaults(run=_serve)

    check = commands.add_parser("check", help="check a profile, start nothing")
    _profile_arguments(check)
    check.add_argument("--json", action="store_true", help="one JSON object on standard output")
    check.set_defaults(run=_check)
    return parser


def _profile_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", metavar="PROFILE", help="a profile file, or a name in the profiles directory")
    parser.add_argument("--profiles-dir", type=Path, help="where names are looked up (default: ./profiles)")


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: expected 1 to 65535")
    return int(text)


def _serve(arguments: argparse.Namespace) -> int:
    from engine_host.scratch_dir import make_scratch_dir
    from engine_host.supervisor import become_host, leave

    scratch_dir = make_scratch_dir()
    exit_code = become_host(scratch_dir)
    if exit_code is None:
        leave(_exit_code(lambda: _run_host(arguments, scratch_dir)))
    return exit_code


def _run_host(arguments: argparse.Namespace, scratch_dir: Path | None) -> int:
    from engine_host.engine.vllm.releases import require_vllm
    from engine_host.gateway.http_server import raise_descriptor_limit
    from engine_host.gateway.server_settings import read_server_settings
    from engine_host.host import HostOptions, run_host
    from engine_host.profiles import check_files, find_profile, load_profile
    from engine_host.protocol.sockets import default_socket
    from engine_host.state_dir import claimed_state_dir

    profile = load_profile(find_profile(arguments.profile, arguments.profiles_dir or _PROFILES_DIR))
    check_files(profile)
    server = read_server_settings(profile.server)
    require_vllm()
    raise_descriptor_limit()
    host = arguments.host or server.host
    port = arguments.port or server.port
    with claimed_state_dir(arguments.state_dir, port, f"profile {profile.name}, port {port}") as state_dir:
        return run_host(
            HostOptions(
                profile=profile,
                http_host=host,
                http_port=port,
                socket_path=(arguments.socket or default_socket(port)).absolute(),
                state_dir=state_dir,
                socket_group=arguments.socket_group,
                profiles_dir=(arguments.profiles_dir or profile.path.parent).absolute(),
                scratch_dir=scratch_dir,
            )
        )


def _check(arguments: argparse.Namespace) -> int:
    """Everything that can be known without starting: what `switch` checks before it touches anything, and what the HTTP
    server will load."""
    from engine_host.gateway.server_settings import read_server_settings
    from engine_host.preflight.preflight import run_preflight
    from engine_host.preflight.report import as_json, as_text
    from engine_host.profiles import find_profile, load_profile

    try:
        profile = load_profile(find_profile(arguments.profile, arguments.profiles_dir or _PROFILES_DIR))
        read_server_settings(profile.server)
    except OperatorError as error:
        if not arguments.json:
            raise
        print(json.dumps({"ok": False, "error": error.fact, "remedy": error.remedy}))
        return EXIT_INVALID
    report = asyncio.run(run_preflight(profile))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # it quotes paths and tokens, in whatever script they are
    print(as_json(report) if arguments.json else as_text(report))
    return EXIT_DONE if report.ok else EXIT_INVALID


if __name__ == "__main__":
    sys.exit(main())
