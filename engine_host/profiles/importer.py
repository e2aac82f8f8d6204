"""From what people start vLLM with to a profile: a command line, a file that holds one, or a YAML configuration."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from engine_host.profiles.command_line import read_words, words_of
from engine_host.profiles.document import MAX_PROFILE_BYTES, neighbours
from engine_host.profiles.imported import Imported
from engine_host.profiles.profile import build_profile, expand_home
from engine_host.profiles.yaml_config import read_yaml
from engine_host.protocol.errors import OperatorError


def import_words(words: Sequence[str]) -> Imported:
    """A command line that a shell has split already."""
    for word in words:
        if not _is_text(word):
            raise OperatorError(f"{word!r} is not UTF-8", "write the command line in UTF-8")
    found = Imported()
    read_words(words, found, _read_config(Path()))
    return _complete(found)


def import_text(text: str, beside: Path = Path()) -> Imported:
    """A command line or YAML, whichever it is; a `--config` file is looked up from the directory `beside`."""
    found = Imported()
    if _is_yaml(text):
        read_yaml(text, found)
    else:
        read_words(words_of(text, found), found, _read_config(beside))
    return _complete(found)


def import_file(path: Path) -> Imported:
    return import_text(read_text(path), path.parent)


def read_text(path: Path) -> str:
    """Raises `OperatorError`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_PROFILE_BYTES + 1)
    except FileNotFoundError:
        raise OperatorError(f"there is no file {path}", neighbours(path)) from None
    except (OSError, ValueError) as error:
        raise OperatorError(f"{path} cannot be read: {error}", f"see: ls -l {path}") from None
    if len(content) > MAX_PROFILE_BYTES:
        raise OperatorError(f"{path} is over {MAX_PROFILE_BYTES} bytes, no configuration", "give a smaller file")
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError:
        raise OperatorError(f"{path} is not UTF-8", "save it as UTF-8") from None


def _read_config(beside: Path) -> Callable[[Path, Imported], None]:
    def read(path: Path, into: Imported) -> None:
        read_yaml(read_text(beside / expand_home(str(path))), into)

    return read


_STARTS_VLLM = re.compile(r"^[^#]*?((^|[\s/])vllm\s+serve\b|-m\s+vllm\.|vllm-openai)", re.MULTILINE)


def _is_yaml(text: str) -> bool:
    """Asked first for a command: many a command line happens to be YAML as well."""
    if _STARTS_VLLM.search(text):
        return False
    try:
        return isinstance(yaml.safe_load(text), dict)
    except (yaml.YAMLError, ValueError, RecursionError):
        return ":" in text


def _complete(found: Imported) -> Imported:
    """Whether it is a whole profile, told in the words of what was imported. Raises `OperatorError`."""
    found.finish()
    if "model" not in found.tables["engine"]:
        raise OperatorError("it names no model", "add one: vllm serve MODEL ..., or a line `model: MODEL` in the YAML")
    try:
        build_profile(found.content(), Path("imported.toml"))
    except RecursionError:
        raise OperatorError("it is nested too deeply", "a YAML alias may refer to itself") from None
    return found


def _is_text(word: str) -> bool:
    """Python lets bytes of other encodings through, in a form that cannot be written again."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
