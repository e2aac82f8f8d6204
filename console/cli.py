"""`vllm-console`: the command line, a contract that scripts depend on.

Standard output carries the answer and nothing else; what went wrong goes to standard error as a fact and a remedy,
with the exit code that says which kind it was. Only the command that runs is imported: `status` in a cron job must
not pay for a terminal toolkit, and the TUI must draw its first screen within a second.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from console.argument_types import Number, Whole
from console.commands.inside_parser import add_dial, add_requests
from console.commands.profiles_parser import add_profiles
from console.commands.throttle_parser import add_throttle
from console.display import write_what_can_be_shown
from engine_host import __version__
from engine_host.protocol.errors import EXIT_DONE, OperatorError

EXIT_INTERRUPTED = 130
"""128 + SIGINT, what a shell expects of a program ended by ctrl-C."""

_HELP = argparse.RawDescriptionHelpFormatter

_TARGET_HELP = (
    "control socket of the engine host; default: $VLLM_CONSOLE_TARGET, else the one socket in the runtime directory"
)

_EPILOG = """\
without a command: the full-screen console

examples:
  vllm-console                               watch the engine host on this machine
  vllm-console status --json | jq .kv.usage  one figure for a script
  vllm-console watch --interval 5            a line every five seconds
  vllm-console events --follow               what happens, as it happens
  vllm-console profiles diff running latency what a switch to "latency" would change
  vllm-console switch throughput --dry-run   what changing the profile would do
  vllm-console dial speculative_tokens=2     draft two tokens a step from the next one on
  vllm-console requests list --sort waited   the requests, those that wait longest first
  vllm-console throttle set --max-inflight 16 --for 10m
                                             let fewer requests in, for ten minutes
  vllm-console stop --drain 60               let requests finish for a minute, then stop

exit codes: 0 done; 1 failed or rolled back; 2 usage or invalid input; 3 cannot connect; 4 refused;
            5 timed out, outcome unknown
"""


def main(argv: Sequence[str] | None = None) -> int:
    write_what_can_be_shown()
    arguments = parser().parse_args(argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except OperatorError as error:
        return _report(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    return code


def _run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case None:
            from console.tui.terminal import run

            return run(arguments.target)
        case "status":
            from console.commands.status import status

            return status(arguments.target, as_json=arguments.json)
        case "watch":
            from console.commands.status import watch

            return watch(arguments.target, interval_s=arguments.interval, count=arguments.count, as_json=arguments.json)
        case "events":
            from console.commands.events import events

            return events(
                arguments.target,
                after=arguments.after,
                limit=arguments.limit,
                follow=arguments.follow,
                as_json=arguments.json,
            )
        case "profiles":
            from console.commands.profiles import run as profiles

            return profiles(arguments)
        case "switch":
            return _switch(arguments)
        case "dial":
            from console.commands.dial import dial

            return dial(arguments)
        case "requests":
            from console.commands.requests import requests

            return requests(arguments)
        case "throttle" | "pause" | "resume":
            from console.commands.throttle import throttle

            return throttle(arguments)
        case _:
            from console.commands.change import change

            return change(
                arguments.target,
                arguments.method,
                drain_s=arguments.drain,
                reason=arguments.reason,
                agreed=arguments.yes,
                timeout_s=arguments.timeout,
                as_json=arguments.json,
            )


def _switch(arguments: argparse.Namespace) -> int:
    from console.commands import switch
    from engine_host.protocol.profiles import Tier

    if (arguments.profile is None) != (arguments.status or arguments.cancel):
        raise OperatorError(
            "switch wants the name of a profile, or one of --status and --cancel.", "See: vllm-console switch --help"
        )
    tier = Tier(arguments.tier) if arguments.tier is not None else None
    if arguments.status:
        return switch.status(arguments.target, as_json=arguments.json)
    if arguments.cancel:
        return switch.cancel(arguments.target, arguments.reason, arguments.timeout, as_json=arguments.json)
    if arguments.dry_run:
        return switch.forecast(arguments.target, arguments.profile, tier, as_json=arguments.json)
    wanted = switch.Wanted(
        profile=arguments.profile,
        tier=tier,
        drain_s=arguments.drain,
        reason=arguments.reason,
        agreed=arguments.yes,
        waits=not arguments.no_wait,
        timeout_s=arguments.timeout,
    )
    return switch.switch(arguments.target, wanted, as_json=arguments.json)


def _report(error: OperatorError) -> int:
    from console.format import clean

    # A line at a time: part of it may be a host's own words.
    for row in f"vllm-console: {error}".split("\n"):
        print(clean(row), file=sys.stderr)
    return error.exit_code


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="vllm-console",
        description="Operations console for vLLM: KV cache, queue, speculation, latency, and what to do about them.",
        epilog=_EPILOG,
        formatter_class=_HELP,
    )
    top.add_argument("--version", action="version", version=f"vllm-console {__version__}")
    top.add_argument("-t", "--target", metavar="TARGET", help=_TARGET_HELP)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_CommandParser)

    one = _command(commands, "status", "one snapshot", "status\nstatus --json | jq .queue.waiting")
    _json(one, "print the snapshot as one JSON object")

    stream = _command(commands, "watch", "a snapshot a line", "watch\nwatch --interval 5 --count 12 --json")
    stream.add_argument(
        "--interval", type=Number(0.1, 60.0), default=1.0, metavar="S", help="seconds between lines (0.1 to 60)"
    )
    stream.add_argument("--count", type=Whole(1, None), metavar="N", help="end after so many lines")
    _json(stream, "print each snapshot as one line of JSON")

    log = _command(commands, "events", "what happened", "events --limit 50\nevents --follow\nevents --after 120 --json")
    log.add_argument("--follow", action="store_true", help="go on with new events as they happen")
    log.add_argument("--after", type=Whole(0, None), default=0, metavar="SEQ", help="only events after this number")
    log.add_argument(
        "--limit", type=Whole(1, 10_000), default=200, metavar="N", help="at most so many past ones, the newest"
    )
    _json(log, "print each event as one line of JSON")

    add_profiles(commands, _command)

    restart = _command(
        commands,
        "restart",
        "drain, stop and start the engine",
        'restart --reason "driver updated"\nrestart --drain 0 --yes',
    )
    restart.set_defaults(method="engine.restart")
    stop = _command(
        commands,
        "stop",
        "drain, stop the engine and end the host",
        'stop --reason "node maintenance"\nstop --drain 120 --yes --json',
    )
    stop.set_defaults(method="host.stop")
    for changing in (restart, stop):
        changing.add_argument(
            "--drain",
            type=Number(0.0, 86_400.0),
            metavar="S",
            help="seconds that running requests may take to finish; default: the host's own setting",
        )
        changing.add_argument("--reason", default="", metavar="TEXT", help="why, for the audit log")
        changing.add_argument("--yes", action="store_true", help="do not ask; needed without a terminal")
        changing.add_argument(
            "--timeout",
            type=Number(0.1, 86_400.0),
            metavar="S",
            help="how long to wait for the outcome; default: the drain time and what a start or stop may take",
        )
        _json(changing, "print the outcome as one JSON object")
    _switch_parser(commands)
    add_dial(commands, _command)
    add_requests(commands, _command)
    add_throttle(commands, _command)
    return top


def _switch_parser(commands: argparse._SubParsersAction[Any]) -> None:
    switch = _command(
        commands,
        "switch",
        "change to another profile",
        "switch throughput --dry-run\nswitch throughput\nswitch throughput --drain 60 --yes --json\n"
        "switch throughput --no-wait --yes\nswitch --status\nswitch --cancel",
    )
    switch.add_argument("profile", nargs="?", metavar="NAME", help="the profile to change to")
    what = switch.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="print what it would do and touch nothing; 1 if refused")
    what.add_argument("--status", action="store_true", help="show the switch under way and the last one")
    what.add_argument("--cancel", action="store_true", help="go back to the former profile while that is possible")
    what.add_argument("--no-wait", action="store_true", help="return once the switch is under way")
    switch.add_argument(
        "--tier",
        choices=["live", "standby", "overlap", "reload"],
        help="how to do it; default: the gentlest that the change and the memory allow",
    )
    switch.add_argument(
        "--drain",
        type=Number(0.0, 86_400.0),
        metavar="S",
        help="seconds for requests that cannot be carried over; default: the running profile's own",
    )
    switch.add_argument("--reason", default="", metavar="TEXT", help="why, for the audit log")
    switch.add_argument("--yes", action="store_true", help="do not ask; needed without a terminal")
    switch.add_argument(
        "--timeout",
        type=Number(0.1, 86_400.0),
        metavar="S",
        help="how long to wait for the outcome; default: the expected time and room for the way back",
    )
    _json(switch, "print the answer as one JSON object")


class _CommandParser(argparse.ArgumentParser):
    """Takes options between the values too, `dial A=1 --for 10m B=2`: argparse by itself refuses what comes after."""

    _is_within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # It comes back here for the options and for the values. Only where there may be any number of values, or none,
        # are they taken too early; and where some may begin with a dash, they are to be left alone.
        if self._is_within or not any(action.nargs == "*" for action in self._get_positional_actions()):
            return super().parse_known_args(args, namespace)
        self._is_within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_within = False


def _command(
    commands: argparse._SubParsersAction[Any], name: str, summary: str, examples: str
) -> argparse.ArgumentParser:
    shown = "".join(f"\n  vllm-console {example}" for example in examples.splitlines())
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary, epilog=f"examples:{shown}", formatter_class=_HELP
    )
    # SUPPRESS: without it the subcommand's default would overwrite a -t given before the subcommand.
    command.add_argument("-t", "--target", metavar="TARGET", default=argparse.SUPPRESS, help=_TARGET_HELP)
    return command


def _json(command: argparse.ArgumentParser, help_: str) -> None:
    command.add_argument("--json", action="store_true", help=help_)


if __name__ == "__main__":
    sys.exit(main())
