"""The command lines of `vllm-console throttle`, `pause` and `resume`; light, as every start of the console reads it."""

from __future__ import annotations

import argparse
from typing import Any

from console.argument_types import Number, OrNone, Span, Whole, limit_name, seen_limit
from console.commands.change_options import add_expect, add_json, add_reason, add_span, add_timeout
from console.commands.profiles_parser import AddCommand

MOST = 1_000_000_000
QUEUE_MOST = 1_000_000
LEAST_RATE = 0.001
DAY_S = 86_400.0
_MODES = ("off", "observe", "on")
"""Of `AutoMode`."""


def add_throttle(commands: Any, add_command: AddCommand) -> None:
    throttle = add_command(
        commands,
        "throttle",
        "the limits at the gate: show, set, clear, auto",
        'throttle show\nthrottle set --max-inflight 16 --for 10m --reason "KV pressure"\nthrottle clear',
    )
    actions = throttle.add_subparsers(dest="action", metavar="ACTION", required=True)
    shown = add_command(
        actions,
        "show",
        "what is in force, since when, by whom, until when, why; and what the gate has done",
        "throttle show\nthrottle show --json | jq .counts.refused_by_reason",
    )
    shown.add_argument("--json", action="store_true", help="print it as one JSON object")
    _add_set(actions, add_command)
    clear = add_command(
        actions,
        "clear",
        "back to what the profile says",
        "throttle clear\nthrottle clear max_inflight request_rate\nthrottle clear auto",
    )
    clear.add_argument(
        "names",
        nargs="*",
        type=limit_name,
        metavar="NAME",
        help="limits as `throttle show` names them, or auto; default: all that was set by hand",
    )
    add_expect(clear, seen_limit)
    _common(clear, has_span=False)
    auto = add_command(
        actions,
        "auto",
        "automatic throttling: off, observe (says what it would do), on",
        "throttle auto observe\nthrottle auto on --for 1h --reason trying\nthrottle auto off --expect on",
    )
    auto.add_argument("mode", choices=_MODES)
    auto.add_argument("--expect", choices=_MODES, metavar="MODE", help="refuse unless this is the mode in force")
    _common(auto)
    pause = add_command(
        commands,
        "pause",
        "hold every new request at the gate; those in flight go on",
        'pause --for 2m --reason "driver check"\npause --expect paused=no --json',
    )
    add_expect(pause, seen_limit)
    _common(pause)
    resume = add_command(
        commands, "resume", "end a pause, and a drain of the gate", "resume\nresume --expect draining=no --json"
    )
    add_expect(resume, seen_limit)
    _common(resume, has_span=False)


def _add_set(actions: Any, add_command: AddCommand) -> None:
    chosen = add_command(
        actions,
        "set",
        "set limits at the gate, over those of the profile",
        'throttle set --max-inflight 16 --for 10m --reason "KV pressure"\n'
        "throttle set --request-rate 5 --request-burst 10 --min-class normal\n"
        "throttle set --max-inflight none\nthrottle set --drain --for 30m\n"
        "throttle set --max-inflight 16 --expect max_inflight=64 --json",
    )
    count, rate = OrNone(Whole(1, MOST)), OrNone(Number(LEAST_RATE, float(MOST)))
    for option, kind, metavar, text in (
        ("--max-inflight", count, "N", "choices in flight; a request with n = 4 counts as four"),
        ("--request-rate", rate, "R", "choices a second"),
        ("--request-burst", count, "N", "choices at once before the rate counts"),
        ("--prompt-token-rate", rate, "R", "prompt tokens a second"),
        ("--prompt-token-burst", count, "N", "prompt tokens at once before the rate counts"),
        ("--min-class", OrNone(str), "NAME", "refuse requests of a lower priority class"),
    ):
        chosen.add_argument(
            option, type=kind, default=argparse.SUPPRESS, metavar=metavar, help=f"{text}; none: no such limit"
        )
    chosen.add_argument(
        "--hold-queue",
        type=Whole(0, QUEUE_MOST),
        default=argparse.SUPPRESS,
        metavar="N",
        help="requests that may wait at the gate; 0: none waits",
    )
    chosen.add_argument(
        "--hold-deadline",
        dest="hold_deadline_s",
        type=Span(0.0, DAY_S),
        default=argparse.SUPPRESS,
        metavar="SPAN",
        help="how long each may wait: 20s, 2m",
    )
    for option, name, text in (
        ("--pause", "paused", "hold every new request"),
        ("--drain", "draining", "refuse every new request with 503; those in flight go on"),
    ):
        chosen.add_argument(
            option, dest=name, action="store_const", const=True, default=argparse.SUPPRESS, help=f"{text}; see resume"
        )
    add_expect(chosen, seen_limit)
    _common(chosen)


def _common(command: argparse.ArgumentParser, *, has_span: bool = True) -> None:
    if has_span:
        add_span(command)
    add_reason(command, "the sheet and the audit log")
    add_timeout(command)
    add_json(command)
