"""What the words on each page mean, as its help tells them. A figure that has a look-alike says which one it is."""

from __future__ import annotations

_UNKNOWN = ("–", "unknown, never 0;  dim values, ? after the state: old")
_K = ("K", "tokens drafted a request and step; max: as it was started")
_TOKENS_FIT = ("tokens fit", "as vLLM counts: with the one block that it keeps for itself")

_OVERVIEW: tuple[tuple[str, str], ...] = (
    ("KV cache", "holds the tokens of requests; full: some are put back to wait"),
    _TOKENS_FIT,
    ("wasted", "room in held blocks without a token: the ends of the requests"),
    ("held", "waits at the gate, before vLLM; waiting: in vLLM's own queue"),
    ("preempted", "lost its blocks when they ran out; begins again later"),
    ("acceptance", "share of the guessed (draft) tokens that the model kept"),
    ("mean length", "tokens one step yields, the model's own included"),
    ("position", "kept there, of all drafts that long (not of those kept so far)"),
    _K,
    ("between tokens", "of a stream, per engine step: several tokens with drafts (ITL)"),
    ("p95", "95 of 100 were faster; (1 min): the window it is measured over"),
    ("cap", "the most in flight at once; (maria): who set it; auto: itself"),
    ("2 set", "other limits that are not the profile's; 6 shows them"),
    _UNKNOWN,
)

_KV: tuple[tuple[str, str], ...] = (
    ("block", "the unit in which the cache is given out"),
    ("held", "by requests; shared: by more than one, as a common prefix is"),
    ("cached", "by no request, but can still be hit; taken when room is needed"),
    ("partly held", "less than half of the blocks of the cell are held"),
    ("waste", "room in held blocks without a token: the ends of the requests"),
    ("hit rate", "share of the prompt tokens looked up that were found cached"),
    _TOKENS_FIT,
    _UNKNOWN,
)

_QUEUE: tuple[tuple[str, str], ...] = (
    ("waiting", "for a slot, for blocks, or for room in a step"),
    ("deferred", "waits for something else: a grammar, a transfer, a LoRA slot"),
    ("preempted", "lost its blocks when they ran out; begins again later"),
    ("waited", "from its arrival to its first step, or until now"),
    ("gen", "tokens generated;  cached: of the prompt, found in the cache"),
    ("pre", "how often it was preempted;  prio: lower comes first"),
    ("acc", "share of its own draft tokens that the model kept"),
    ("hung", "runs, and no token comes"),
    ("stuck", "waits, and nothing will ever start it"),
    ("ended", "the host has it no more; stays while the cursor is on it"),
    _UNKNOWN,
)

_SPECULATION: tuple[tuple[str, str], ...] = (
    _K,
    ("accepted", "share of the guessed (draft) tokens that the model kept"),
    ("mean length", "tokens one step yields, the model's own included"),
    ("position", "kept there, of all drafts that long (not of those kept so far)"),
    ("drafts", "verified in the window; each is up to K tokens long"),
    ("speed-up", "tokens/s against no drafts at all, from measured step times"),
    ("tokens/step", "of one request, the model's own included"),
    ("inferred", "no step at this K was measured; from those at other K"),
    ("to now", "tokens/s against those at the K in force"),
    _UNKNOWN,
)

_EVENTS: tuple[tuple[str, str], ...] = (
    ("number", "of the event, since the host was started"),
    ("·  ▲  ×", "told;  worth a look;  something failed"),
    ("(maria)", "who asked for it; without a name: the host by itself"),
    ("newer", "came since the page was moved; home shows them"),
    ("missed", "while this console was away; the host has them no more"),
)

_DIALS: tuple[tuple[str, str], ...] = (
    ("value", "in force now; bold where it is not the start value"),
    ("range", "what this engine takes"),
    ("start", "what the profile started it with, and what r returns it to"),
    ("left", "until the former value returns by itself"),
    ("10 s", "before a move against after it: tokens/s of all requests"),
    ("load", "requests that run; for max_active_seqs those that wait as well"),
    ("no comparison", "the load differs by over 20 %, or another dial moved as well"),
    _UNKNOWN,
)

_PROFILES: tuple[tuple[str, str], ...] = (
    ("tier", "how a change reaches the engine; the gentlest is taken"),
    ("carried", "goes on in the new engine where it was; its stream only pauses"),
    ("drained", "cannot be carried: gets some time to finish in the old engine"),
    ("begun again", "had sent nothing yet: the new engine takes it from the start"),
    ("gate", "where requests wait that come during the switch"),
    ("preflight", "checks, before anything is touched"),
    ("hold, release", "the gate closes; it opens again, and who waited goes in"),
    ("prepare", "what a start needs no device for; the old engine still serves"),
    ("probe", "the new engine's first token, before anybody is let in"),
    ("warm", "computes ahead what will be carried"),
    ("digest", "of the effective values: the same digest is the same profile"),
)

_THROTTLE: tuple[tuple[str, str], ...] = (
    ("in force", "what the gate goes by; bold: not the profile's"),
    ("held", "waits at the gate, before vLLM; vLLM knows nothing of it yet"),
    ("refused", "by the gate, with 429 or 503; what vLLM refuses is not counted"),
    ("gone", "clients that hung up while they waited"),
    ("shed", "gave its place in the queue to a request of a higher class"),
    ("choice", "one answer; a request with n = 4 asks for four"),
    ("burst", "what may come at once before the rate counts"),
    ("auto", "brings max_inflight down under pressure, up again after it"),
    ("cap", "the controller's own; a max_inflight set by hand wins over it"),
    ("wait, preempt", "vLLM's queue, preemptions/s: what auto watches, as kv and ttft"),
    ("too long", "prompts beyond the context: cut, or answered in windows"),
    _UNKNOWN,
)

_BY_PAGE = {
    "events": _EVENTS,
    "kv": _KV,
    "queue": _QUEUE,
    "speculation": _SPECULATION,
    "dials": _DIALS,
    "throttle": _THROTTLE,
    "profiles": _PROFILES,
}


def words(page: str) -> tuple[tuple[str, str], ...]:
    """(word, meaning) in the order in which they stand on the page."""
    return _BY_PAGE.get(page, _OVERVIEW)
