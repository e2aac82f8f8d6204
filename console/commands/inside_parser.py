"""The command lines of `vllm-console dial` and `requests`; light, as every start of the console reads it."""

from __future__ import annotations

from typing import Any

from console.argument_types import Number, Whole, dial_value, seen_value
from console.commands.change_options import add_expect, add_json, add_reason, add_span, add_timeout
from console.commands.profiles_parser import AddCommand


def add_dial(commands: Any, add_command: AddCommand) -> None:
    dial = add_command(
        commands,
        "dial",
        "the live limits of the scheduler: show, set",
        "dial\ndial speculative_tokens=2 --for 10m --reason trying\n"
        "dial max_active_seqs=64 --expect max_active_seqs=256\ndial speculative_tokens=start --json",
    )
    dial.add_argument(
        "values",
        nargs="*",
        type=dial_value,
        metavar="NAME=VALUE",
        help="a dial and its new value, or NAME=start; without any, the dials are shown with their range",
    )
    add_span(dial)
    add_expect(dial, seen_value)
    add_reason(dial)
    dial.add_argument(
        "--timeout", type=Number(0.1, 3600.0), metavar="S", help="how long to wait for the outcome; default: 75"
    )
    dial.add_argument("--json", action="store_true", help="print the dials, or the outcome, as one JSON object")


def add_requests(commands: Any, add_command: AddCommand) -> None:
    requests = add_command(
        commands,
        "requests",
        "the unfinished requests: list, abort",
        "requests list --sort blocks --limit 10\nrequests abort chatcmpl-1f0c",
    )
    actions = requests.add_subparsers(dest="action", metavar="ACTION", required=True)
    listed = add_command(
        actions,
        "list",
        "the unfinished requests, oldest first",
        "requests list\nrequests list --state waiting --sort waited --limit 10\nrequests list --match batch- --json",
    )
    listed.add_argument(
        "--sort",
        choices=["age", "waited", "blocks", "prompt", "generated", "preemptions"],
        default="age",
        help="largest first; default: age",
    )
    listed.add_argument("--state", choices=["running", "waiting", "deferred", "preempted"], help="only those in it")
    listed.add_argument("--match", default="", metavar="TEXT", help="only those whose id contains it")
    listed.add_argument(
        "--limit", type=Whole(1, 2_000), default=50, metavar="N", help="at most so many (1 to 2,000; default: 50)"
    )
    listed.add_argument("--json", action="store_true", help="print the list as one JSON object")
    abort = add_command(
        actions,
        "abort",
        "end one request with an error",
        'requests abort chatcmpl-1f0c --reason "runaway output"\nrequests abort chatcmpl-1f0c --yes --json',
    )
    abort.add_argument("id", metavar="ID", help="its id, or as much of it as no other request begins with")
    add_reason(abort)
    abort.add_argument("--yes", action="store_true", help="do not ask; needed without a terminal")
    add_timeout(abort)
    add_json(abort)
