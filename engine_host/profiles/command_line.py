"""Reads a `vllm serve` command line, as it stands in a shell script, a unit file or a container's definition.

Quoting, line continuations, variables set in front, `--flag=value`, `--no-flag`, `--a.b value`, `-tp 8` and `-tp8`,
the module form (`python -m vllm.entrypoints.openai.api_server`) and `docker run ... vllm/vllm-openai`.
"""

from __future__ import annotations

import io
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from engine_host.profiles.arguments import Takes, catalogue
from engine_host.profiles.imported import FALSE, OWN_COMMENT, TRUE, Imported
from engine_host.profiles.older_names import ENVIRONMENT, OLDER
from engine_host.protocol.errors import OperatorError

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_ENDS = re.compile(r"[;&|<>()]+")
_SHORT_WITH_NUMBER = re.compile(r"(-[a-z]+)(\d+)")
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")
_SOURCE = "command line"


def words_of(text: str, into: Imported) -> list[str]:
    """The words of the command in `text`; what an export left for itself in comments goes `into` the import."""
    for line in text.splitlines():
        if line.startswith(OWN_COMMENT):
            into.put_own(line.removeprefix(OWN_COMMENT))
    joined = re.sub(r"\\\r?\n", " ", text)
    source = io.StringIO(joined)
    lexer = shlex.shlex(source, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    read = 0
    try:
        for word in lexer:
            # The lexer takes quotes away and does not tell: a quoted bracket is a value.
            written, read = joined[read : source.tell()].lstrip(), source.tell()
            if _ENDS.fullmatch(word) and not written.startswith(("'", '"', "\\")) and _starts(words):
                if word[0] in "<>" and words[-1].isdigit():
                    words.pop()  # the 2 of "2>&1"
                into.notice(f"{word}: the command ends here; what follows is not read")
                break
            words.append(word)
    except ValueError as error:
        raise OperatorError(f"the command line cannot be split: {error}", "close every quote in it") from None
    return words


def read_words(words: Iterable[str], into: Imported, read_config: Callable[[Path, Imported], None]) -> None:
    """The command's words `into` the import; `read_config` reads the file that `--config` names.

    Raises `OperatorError`.
    """
    given = list(words)
    start = _starts(given)
    if not start:
        raise OperatorError(
            f"no `vllm serve` in: {shlex.join(given)[:200]}", "give a command that starts vLLM: vllm serve MODEL ..."
        )
    for word in given[:start]:
        _assignment(word, into)
    left = deque(given[start:])
    if config := _config(left):
        read_config(Path(config), into)
    if left and not left[0].startswith("-"):
        into.put("model", "model", left.popleft(), _SOURCE)
    while left:
        word = left.popleft()
        if not word.startswith("-") or word == "-":
            into.notice(f"{word}: a word that belongs to no option; left out")
        elif word != "--":
            _option(word, left, into)


def _starts(words: list[str]) -> int:
    """The index of the first word after the program; 0 when there is none."""
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        if word.rsplit("/", 1)[-1] == "vllm" and following == "serve":
            return index + 2
        if word == "-m" and following.startswith("vllm.entrypoints."):
            return index + 2
        if re.match(r"([\w.-]+/)*vllm-openai(:|@|$)", word):
            return index + 1
    return 0


def _assignment(word: str, into: Imported) -> None:
    if not (match := _ASSIGNMENT.fullmatch(word)) or word.startswith("-"):
        return
    variable, value = match.groups()
    if translated := ENVIRONMENT.get(variable):
        name, note = translated
        into.notice(f"{variable}: {note}")
        into.put(variable, name, value.lower() if name == "scheduling_policy" else value, _SOURCE)
    else:
        into.notice(f"{variable}: an environment variable is no part of a profile; set it where engine-host is started")


def _config(words: deque[str]) -> str | None:
    """Takes `--config FILE` out: the file counts less than the options, wherever it stands."""
    for index, word in enumerate(words):
        if word.startswith("--config="):
            del words[index]
            return word.partition("=")[2]
        if word == "--config" and index + 1 < len(words):
            file = words[index + 1]
            del words[index + 1], words[index]
            return file
    return None


def _option(word: str, left: deque[str], into: Imported) -> None:
    option, equals, attached = word.partition("=")
    if level := re.fullmatch(r"-O(\d?)", option):
        value = level[1] or (attached if equals else _value(option, left))
        into.put(option, "optimization_level", value, _SOURCE)
        return
    if not equals and (short := _SHORT_WITH_NUMBER.fullmatch(option)) and short[1] in catalogue().by_option:
        option, equals, attached = short[1], "=", short[2]
    head, dot, inner = option.partition(".")
    name, is_off = _name(head)
    if dot:
        into.put(option, f"{name}.{inner}", attached if equals else _value(option, left), _SOURCE)
        return
    takes = _takes(name, left)
    if is_off:
        into.put(head, name, False, _SOURCE)
    elif equals:
        into.put(head, name, attached, _SOURCE)
    elif takes == "none":
        # Older releases took a value here: --enable-chunked-prefill False.
        is_worded = bool(left) and left[0].lower() in (TRUE | FALSE) - {"0", "1"}
        into.put(head, name, left.popleft() if is_worded else True, _SOURCE)
    elif takes == "maybe":
        into.put(head, name, left.popleft() if left and not _is_option(left[0]) else True, _SOURCE)
    elif takes == "many":
        values = [_value(option, left)]
        while left and not _is_option(left[0]):
            values.append(left.popleft())
        into.put(head, name, values, _SOURCE)
    else:
        into.put(head, name, _value(option, left), _SOURCE)


def _name(head: str) -> tuple[str, bool]:
    """The argument that an option means, and whether it turns it off."""
    known = catalogue()
    option = "--" + head[2:].replace("_", "-") if head.startswith("--") else head
    if name := known.by_option.get(option):
        return name, option == known.by_name[name].off_flag
    plain = option.lstrip("-").replace("-", "_")
    off = plain.removeprefix("no_")
    if off != plain and (off in OLDER or off in known.by_name):
        return off, True
    return plain, False


def _takes(name: str, left: deque[str]) -> Takes:
    if argument := catalogue().by_name.get(name):
        return argument.takes
    if older := OLDER.get(name):
        return older.takes
    return "one" if left and not _is_option(left[0]) else "none"


def _value(option: str, left: deque[str]) -> str:
    if not left or _is_option(left[0]):
        raise OperatorError(f"{option} has no value", f"write {option} VALUE, or remove it")
    return left.popleft()


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NEGATIVE.fullmatch(word) and " " not in word
