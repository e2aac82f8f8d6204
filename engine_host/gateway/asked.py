"""What one request asks of the engine: how many choices, in which priority class, with which prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from engine_host.engine.port import AsgiApp, Scope
from engine_host.gateway.inference_paths import INFERENCE_PATHS
from engine_host.gateway.refusals import Refusal

_MOST_CHOICES = 16_384
"""Of one prompt: vLLM refuses more itself (`VLLM_MAX_N_SEQUENCES`), so a number beyond is no reason to wait for."""

_RAW = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Asked:
    """Changed with `dataclasses.replace` by whoever prepares it for its admission."""

    scope: Scope
    path: str
    """Of `INFERENCE_PATHS` or `INFERENCE_SOCKETS`."""
    body: bytes
    """Whole, as the app is to get it; empty where it is not read ahead."""
    choices: int
    """Requests that the engine will run for it; 0: its body is none that vLLM will take, so it costs nothing."""
    class_rank: int
    """0 is the lowest."""
    class_name: str
    wants_prompt_tokens: bool = False
    """A limit on prompt tokens is in force."""
    prompt_tokens: int | None = None
    """Of all its prompts; None: not counted, which no limit on tokens holds up."""
    is_truncated: bool = False
    segments: int = 1
    """Windows in which its prompt is run, one after the other."""
    through: Callable[[AsgiApp], AsgiApp] | None = field(default=None, compare=False)
    """Makes, of the app that serves when the request is admitted, the one that answers it; None: that app itself."""


class Prepare(Protocol):
    async def __call__(self, app: AsgiApp, asked: Asked) -> Asked | Refusal:
        """Before `asked` waits or is admitted: count its prompt where that is wanted, deal with one that is too long.

        `app` is vLLM's, as it serves now; another one may serve when the request is admitted.
        """
        ...


class Fields(msgspec.Struct, frozen=True):
    """Of a body, what costs; left as it stands, so that a prompt is not read twice."""

    n: msgspec.Raw = _RAW
    priority: msgspec.Raw = _RAW
    sampling_params: msgspec.Raw = _RAW
    messages: msgspec.Raw = _RAW
    prompt: msgspec.Raw = _RAW
    input: msgspec.Raw = _RAW
    inputs: msgspec.Raw = _RAW
    texts: msgspec.Raw = _RAW
    images: msgspec.Raw = _RAW
    documents: msgspec.Raw = _RAW
    text_1: msgspec.Raw = _RAW
    text_2: msgspec.Raw = _RAW
    data_1: msgspec.Raw = _RAW
    data_2: msgspec.Raw = _RAW
    queries: msgspec.Raw = _RAW
    items: msgspec.Raw = _RAW


_FIELDS = msgspec.json.Decoder(Fields)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_IS_LIST, _IS_IDS = re.compile(rb"\s*\["), re.compile(rb"\s*\[\s*[-0-9]")
"""However much white space a client puts in: what is taken for one prompt is let in as one."""


TOO_DEEP = Refusal(
    "too_deep",
    "The body of this request is nested too deeply to be read.",
    status=400,
    error_type="invalid_request_error",
)
"""For what no decoder takes: vLLM says it in another form than OpenAI's, and some routes with a bare 500."""


def read_fields(body: bytes) -> Fields | None:
    """What of a body costs; None when it is no JSON object, which vLLM will say itself.

    It and what looks into its fields raise `RecursionError` for a body that is nested too deeply.
    """
    try:
        return _FIELDS.decode(body)
    except msgspec.DecodeError:
        pass
    try:  # as vLLM reads it: NaN, a lone surrogate, another encoding than UTF-8 must not be a way past the gate
        whole = json.loads(body)
    except ValueError:
        return None
    if not isinstance(whole, dict):
        return None
    kept = {name: whole[name] for name in Fields.__struct_fields__ if name in whole}
    return Fields(**{name: msgspec.Raw(json.dumps(_shape(value)).encode()) for name, value in kept.items()})


def _shape(value: Any) -> Any:
    """What counts of a field: of texts only how many there are."""
    if isinstance(value, list):
        return [0] if value and isinstance(value[0], int) else [None] * len(value)
    if isinstance(value, dict):
        return {"n": _shape(value.get("n"))}
    return value if isinstance(value, int | float) or (isinstance(value, str) and value.isascii()) else None


def choices_of(path: str, fields: Fields) -> int:
    """How many requests the engine will run: choices of each prompt, times prompts."""
    batches = INFERENCE_PATHS.get(path) or ()
    raw_n = fields.n
    if path == "/inference/v1/generate":
        raw_n = _n_of_sampling(fields.sampling_params)
    prompts = max((_length(getattr(fields, name)) for name in batches), default=1)
    return prompts * min(_MOST_CHOICES, max(1, _integer(raw_n, 1)))


def priority_of(fields: Fields) -> int:
    """vLLM's `priority`: the lower, the sooner."""
    return _integer(fields.priority, 0)


class _Sampling(msgspec.Struct, frozen=True):
    n: msgspec.Raw = _RAW


def _n_of_sampling(raw: msgspec.Raw) -> msgspec.Raw:
    try:
        return msgspec.json.decode(raw, type=_Sampling).n
    except msgspec.DecodeError:
        return _RAW


def _integer(raw: msgspec.Raw, otherwise: int) -> int:
    """As pydantic takes it: `"4"` and `4.0` are 4."""
    try:
        return int(float(bytes(raw).strip(b'"')))
    except (ValueError, OverflowError):
        return 1 if bytes(raw) == b"true" else otherwise


def _length(raw: msgspec.Raw) -> int:
    """Of a list of prompts; a text, or one prompt as token ids, is one."""
    if not _IS_LIST.match(raw) or _IS_IDS.match(raw):
        return 1
    try:
        return max(1, len(_LIST.decode(raw)))
    except msgspec.DecodeError:
        return 1
