"""What the demo's clients ask: a seeded stream of requests of a few kinds, none larger than the context.

The kinds are chosen so that every number on the console has a reason to move: a system prompt that all chats share
(prefix-cache hits), text that the model copies (n-gram speculation accepts long drafts), free text (it does not),
short and long answers (queue and KV occupancy), streamed and not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

HANDBOOK = """\
You are the assistant of a small harbour office. Answer in plain English and only from the handbook below.
Handbook. Ships report by radio one hour before they arrive. The harbour master gives every ship a berth by length and
draught: berths one to four take ships up to forty metres, berths five and six up to ninety metres, and berth seven is
kept free for the rescue boat. Fresh water is at every berth; shore power only at berths two, three and five. The crane
works from seven in the morning to eight in the evening and lifts eleven tonnes. Fuel is ordered a day ahead. Waste is
collected on Mondays and Thursdays. When the wind is above eighteen metres a second, the gate closes and no ship moves.
A ship that stays longer than three days pays half the fee from the fourth day on. Fishing boats of the town pay once
a year. Lost things are kept in the office for ninety days. The office is open every day, also at night, and whoever
is on watch writes every arrival, departure and complaint into the log, with the time and the name."""
"""The system prompt of every chat. Long enough for several full KV blocks, which all chats then share."""

QUESTIONS = (
    "Which berths have shore power?",
    "A ship of sixty metres arrives at noon. Where can it lie?",
    "When is the waste collected?",
    "What happens when the wind is twenty metres a second?",
    "How heavy a load can the crane lift, and until when?",
    "What does a ship pay that stays for five days?",
    "I lost my jacket here last month. Is it still in the office?",
    "Write a friendly radio message that tells a captain which berth to take.",
    "List the rules of the harbour in order of importance and explain each.",
    "Who keeps berth seven free, and why?",
)

TOPICS = (
    "the way bread is made, from the field to the table",
    "a long day in the life of a lighthouse keeper",
    "the reason why the sky is blue and the evening sky is red",
    "the history of a bridge over a wide river",
    "the story of a small town that learned to share its water",
    "the advice of an old clockmaker to her two apprentices",
)

PASSAGES = (
    "The morning ferry leaves the island at six, calls at the mill and the market, and reaches the town before eight. "
    "The evening ferry leaves the town at seven, calls at the market and the mill, and is back on the island by nine. "
    "On Sundays there is only one ferry, and it does not call at the mill. ",
    "First open the valve on the left, then read the gauge, then write the pressure into the log. If the pressure is "
    "above four, close the valve on the left and open the valve on the right. If the pressure is below two, call the "
    "engineer, and write the time and the name into the log. ",
    '{"berth": 1, "length_m": 40, "water": true, "power": false}\n{"berth": 2, "length_m": 40, "water": true, '
    '"power": true}\n{"berth": 3, "length_m": 40, "water": true, "power": true}\n{"berth": 4, "length_m": 40, "water": '
    'true, "power": false}\n',
)

LONGEST_ANSWER_TOKENS = 384


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request, without the model's name."""

    kind: str
    path: str
    body: dict[str, Any]

    @property
    def is_streamed(self) -> bool:
        return bool(self.body.get("stream"))


def prompts(seed: int) -> Iterator[Prompt]:
    """An endless stream of requests, the same for the same seed."""
    dice = random.Random(seed)
    kinds = (_ask, _ask, _quote, _quote, _quote, _tell, _complete)
    while True:
        yield dice.choice(kinds)(dice)


def _ask(dice: random.Random) -> Prompt:
    """A question about the shared handbook."""
    messages = [{"role": "system", "content": HANDBOOK}, {"role": "user", "content": dice.choice(QUESTIONS)}]
    return _chat("ask", messages, dice.randint(48, 160), stream=dice.random() < 0.7)


def _tell(dice: random.Random) -> Prompt:
    """A short prompt with a long answer: KV blocks grow while it is written."""
    messages = [{"role": "user", "content": f"Tell me about {dice.choice(TOPICS)}."}]
    return _chat("tell", messages, dice.randint(160, LONGEST_ANSWER_TOKENS), stream=True)


def _quote(dice: random.Random) -> Prompt:
    """Text that has to be copied on: what n-gram speculation is good at."""
    passage = dice.choice(PASSAGES)
    # No trailing space: it would stand apart from the next word's token, and the model would start something else.
    prompt = (passage * 3).rstrip()
    return _completion("quote", prompt, dice.randint(96, 288), stream=dice.random() < 0.7)


def _complete(dice: random.Random) -> Prompt:
    """The beginning of a text, continued: short, not streamed."""
    return _completion("complete", f"This is {dice.choice(TOPICS)}.", dice.randint(16, 64), stream=False)


def _chat(kind: str, messages: list[dict[str, str]], max_tokens: int, *, stream: bool) -> Prompt:
    return Prompt(kind, "/v1/chat/completions", {"messages": messages, **_sampling(max_tokens, stream)})


def _completion(kind: str, prompt: str, max_tokens: int, *, stream: bool) -> Prompt:
    return Prompt(kind, "/v1/completions", {"prompt": prompt, **_sampling(max_tokens, stream)})


def _sampling(max_tokens: int, stream: bool) -> dict[str, Any]:
    """Greedy, always: with a temperature, vLLM 0.32 on CPU accepts no n-gram draft and writes gibberish."""
    sampling: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0.0}
    return sampling | {"stream": True, "stream_options": {"include_usage": True}} if stream else sampling
