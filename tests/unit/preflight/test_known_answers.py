"""The same question starts no process twice, unless something that its answer depends on has changed."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import engine_host.engine.vllm.releases
from engine_host.preflight import answer_keys, known_answers, preflight, questions
from engine_host.preflight.child import Ended
from engine_host.preflight.config import ProbeAnswer, Probed, ProbeNames
from engine_host.preflight.config_witness import ConfigWitness
from engine_host.preflight.devices import Device
from engine_host.preflight.findings import error, info
from engine_host.preflight.known_answers import ANSWERS_FILE, KnownAnswers
from engine_host.preflight.preflight import PreflightReport, run_preflight
from engine_host.preflight.tokenizer_process import Request, answer
from engine_host.profiles import Profile, load_profile
from engine_host.protocol.errors import OperatorError
from tests.unit.preflight.facts import GIB, facts
from tests.unit.preflight.models import ALPHABET, make_model

PROBE_NAMES = ProbeNames(
    engine=["model", "block_size", "speculative_config"],
    server=["port", "chat_template"],
    nested={"speculative_config": ["method", "model", "num_speculative_tokens", "prompt_lookup_max"]},
)
BUILT = facts(max_model_len=1600, speculation_method="draft_model")
ENVIRONMENT = {"HF_HOME": "/cache", "VLLM_USE_V1": "1", "TERM": "xterm"}
DRAFT = 'method = "draft_model"\nnum_speculative_tokens = 5\n'


class Processes:
    """Answers as the two child processes would, and counts them."""

    def __init__(self) -> None:
        self.probed = 0
        self.compared = 0
        self.outcome = Probed(
            answer=ProbeAnswer(vllm_version="0.32.0", names=PROBE_NAMES, facts=BUILT),
            findings=[info("config.notice", "vLLM says: as it is")],
        )
        self.on_probe: Callable[[], None] = lambda: None
        self.free = 16 * GIB

    @property
    def started(self) -> int:
        return self.probed + self.compared

    async def probe(self, engine: Any, server: Any, **how: Any) -> Probed:
        self.probed += 1
        self.on_probe()
        return self.outcome

    async def ask_child(self, command: Any, request: bytes, deadline_s: float, environment: Any) -> Ended:
        self.compared += 1
        return Ended(msgspec.json.encode(answer(msgspec.json.decode(request, type=Request))), [], 0)

    def read_devices(self, kind: str, count: int, own_pids: Any, engine_pids: Any) -> list[Device]:
        return [Device("this machine", 24 * GIB, self.free)]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    processes = Processes()
    monkeypatch.setattr(questions, "probe_config", processes.probe)
    monkeypatch.setattr(questions, "ask_child", processes.ask_child)
    monkeypatch.setattr(preflight, "read_devices", processes.read_devices)
    monkeypatch.setattr(engine_host.engine.vllm.releases, "installed_version", lambda: "0.32.0")
    return processes


class Place:
    """A profile with its models, and what the host has learned."""

    def __init__(self, directory: Path) -> None:
        self.target = make_model(directory / "target")
        self.draft = make_model(directory / "draft")
        self.template = directory / "chat.jinja"
        self.template.write_text("{{ messages }}")
        self.file = directory / "some.toml"
        self.state = directory / ANSWERS_FILE
        self.known = self.lives_again()
        self.write()

    def write(self, engine: str = "", speculation: str = "") -> None:
        self.file.write_text(
            f'schema = 1\n[engine]\nmodel = "{self.target}"\n{engine}\n'
            f'[engine.speculative_config]\nmodel = "{self.draft}"\n{DRAFT}{speculation}\n'
            f'[server]\nport = 1\nchat_template = "{self.template}"\n'
        )

    def profile(self) -> Profile:
        return load_profile(self.file)

    def lives_again(self, **environment: str) -> KnownAnswers:
        return KnownAnswers(self.state, {**ENVIRONMENT, **environment})

    def key(self) -> str | None:
        profile = self.profile()
        return answer_keys.config_key(profile.engine, profile.server, self.known.environment)

    async def check(self) -> PreflightReport:
        return await run_preflight(self.profile(), running_port=1, known=self.known)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def touch(path: Path) -> None:
    """As if written anew, with content of the same size."""
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(time.time_ns() + 5_000_000, time.time_ns() + 5_000_000))


async def test_a_switch_back_and_forth_starts_no_process_after_its_first_round(
    processes: Processes, place: Place
) -> None:
    place.write("block_size = 16")
    first = await place.check()
    place.write("block_size = 32")
    await place.check()
    assert (processes.probed, processes.compared) == (2, 1), "the tokenizers are the same in both"
    for _ in range(3):
        place.write("block_size = 16")
        again = await place.check()
        place.write("block_size = 32")
        await place.check()
    assert processes.started == 3
    assert again.wire == first.wire and again.facts == first.facts and again.vllm_version == first.vllm_version
    assert any(finding.id == "config.notice" for finding in again.wire.findings)


async def test_a_known_profile_is_checked_in_a_tenth_of_a_second(processes: Processes, place: Place) -> None:
    await place.check()
    took_s = []
    for _ in range(5):
        began = time.monotonic()
        await place.check()
        took_s.append(time.monotonic() - began)
    assert min(took_s) < 0.1


async def test_what_must_be_measured_is_measured_every_time(processes: Processes, place: Place) -> None:
    assert (await place.check()).ok
    processes.free = GIB // 2
    report = await place.check()
    assert processes.probed == 1
    assert not report.ok and [f.id for f in report.wire.findings if "memory" in f.id] == ["memory.short"]


async def test_a_file_that_breaks_after_a_check_is_found(processes: Processes, place: Place) -> None:
    await place.check()
    (place.target / "model.safetensors").write_bytes(b"short")
    report = await place.check()
    assert any(finding.id.startswith("weights.") for finding in report.wire.findings)


CHANGES: dict[str, Callable[[Place], Any]] = {
    "an engine key": lambda place: place.write("block_size = 64"),
    "a speculation key": lambda place: place.write(speculation="prompt_lookup_max = 3"),
    "the model's configuration": lambda place: touch(place.target / "config.json"),
    "the model's tokenizer": lambda place: touch(place.target / "tokenizer_config.json"),
    "the draft's configuration": lambda place: touch(place.draft / "config.json"),
    "a new file beside the model": lambda place: (place.target / "modeling.py").write_text("x"),
    "a file that a server key names": lambda place: touch(place.template),
    "an update in place by rename": lambda place: (place.target / "config.json").replace(place.target / "old.json"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_key_for_a_change_of(place: Place, what: str) -> None:
    before = place.key()
    assert before is not None and place.key() == before
    CHANGES[what](place)
    assert place.key() != before


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("VLLM_CPU_KVCACHE_SPACE", True),
        ("HF_HUB_OFFLINE", True),
        ("CUDA_VISIBLE_DEVICES", True),
        ("VLLM_CONSOLE_TARGET", False),
        ("COLUMNS", False),
    ],
)
def test_another_key_for_a_variable_that_vllm_looks_at(place: Place, name: str, counts: bool) -> None:
    before = place.key()
    place.known = place.lives_again(**{name: "1"})
    assert (place.key() != before) is counts


def test_another_key_for_other_packages_and_for_another_machine(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {place.key()}
    monkeypatch.setattr(answer_keys, "_boot_id", lambda: "another")
    seen.add(place.key())
    monkeypatch.setattr(answer_keys, "_packages", lambda: [("vllm", "0.33.0")])
    seen.add(place.key())
    assert len(seen) == 3 and None not in seen


def test_the_description_of_a_profile_and_unread_files_are_nothing_to_vllm(place: Place) -> None:
    before = place.key()
    place.file.write_text(place.file.read_text().replace("[engine]", 'description = "other"\n[engine]', 1))
    assert place.key() == before


def test_what_is_not_on_this_machine_is_asked_for_every_time(place: Place) -> None:
    place.draft.rename(place.draft.with_name("elsewhere"))
    assert place.key() is None


@pytest.mark.parametrize(
    "outcome",
    [
        Probed(findings=[error("config.timeout", "vLLM did not build the configuration within 120 s")]),
        Probed(findings=[error("config.crashed", "ended by signal 9")]),
        Probed(answer=ProbeAnswer(refusal="the Hub cannot be reached"), findings=[error("config.refused", "no")]),
    ],
)
async def test_what_went_wrong_may_heal(processes: Processes, place: Place, outcome: Probed) -> None:
    good, processes.outcome = processes.outcome, outcome
    assert not (await place.check()).ok
    processes.outcome = good
    assert (await place.check()).ok
    assert processes.probed == 2


async def test_a_tokenizer_that_was_found_broken_is_read_again_each_time(processes: Processes, place: Place) -> None:
    whole = (place.draft / "tokenizer.json").read_bytes()
    (place.draft / "tokenizer.json").write_text("{}")
    assert "tokenizer.draft_broken" in [finding.id for finding in (await place.check()).wire.findings]
    assert not (await place.check()).ok and processes.compared == 2
    (place.draft / "tokenizer.json").write_bytes(whole)
    assert (await place.check()).ok and processes.compared == 3


async def test_a_draft_that_is_exchanged_is_compared_again(processes: Processes, place: Place, tmp_path: Path) -> None:
    assert (await place.check()).ok
    other = make_model(tmp_path / "other", swap=(ALPHABET[3], ALPHABET[4]))
    (other / "tokenizer.json").replace(place.draft / "tokenizer.json")
    report = await place.check()
    assert "tokenizer.mismatch" in [finding.id for finding in report.wire.findings]


async def test_a_file_that_changes_while_vllm_reads_it_is_not_taken_for_read(
    processes: Processes, place: Place
) -> None:
    processes.on_probe = lambda: touch(place.target / "config.json")
    await place.check()
    processes.on_probe = lambda: None
    await place.check()
    assert processes.probed == 2
    await place.check()
    assert processes.probed == 2


async def test_the_hosts_next_life_knows_what_the_last_one_learned(processes: Processes, place: Place) -> None:
    first = await place.check()
    place.known = place.lives_again()
    assert (await place.check()).wire == first.wire
    assert processes.started == 2


@pytest.mark.parametrize(
    "content", [b"", b"no json", b'{"format": 0, "answers": {}}', b'{"format": 1, "answers": []}', b"[1, 2]"]
)
async def test_a_file_of_another_format_or_none_at_all_costs_one_process(
    processes: Processes, place: Place, content: bytes
) -> None:
    place.state.write_bytes(content)
    place.known = place.lives_again()
    await place.check()
    assert json.loads(place.state.read_bytes())["format"] == known_answers.FORMAT


async def test_an_answer_of_another_shape_is_asked_for_again(processes: Processes, place: Place) -> None:
    await place.check()
    content = json.loads(place.state.read_bytes())
    content["answers"] = {key: {"answer": {"facts": {"device": 3}}} for key in content["answers"]}
    place.state.write_text(json.dumps(content))
    place.known = place.lives_again()
    assert (await place.check()).ok
    assert processes.probed == 2


async def test_a_state_directory_that_cannot_be_written_costs_nothing_but_time(
    processes: Processes, place: Place, tmp_path: Path
) -> None:
    place.known = KnownAnswers(tmp_path / "nowhere" / "file.json", ENVIRONMENT)
    await place.check()
    await place.check()
    assert processes.probed == 1


def test_as_many_are_kept_as_a_node_needs_and_those_used_last(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_answers, "KEPT", 3)
    for number in range(3):
        place.known.keep(str(number), ProbeAnswer(refusal=str(number)))
    assert place.known.get("0", ProbeAnswer) is not None
    place.known.keep("3", ProbeAnswer())
    again = place.lives_again()
    kept = [key for key in "0123" if again.get(key, ProbeAnswer) is not None]
    assert kept == ["0", "2", "3"]


async def test_names_that_are_known_tell_a_wrong_key_without_a_process(processes: Processes, place: Place) -> None:
    await place.check()
    before = processes.started
    place.write("blok_size = 16")
    report = await place.check()
    assert [finding.id for finding in report.wire.findings] == ["names.unknown"]
    assert processes.probed + processes.compared == before


async def test_a_start_answers_the_check_of_its_profile(processes: Processes, place: Place) -> None:
    """The profile that a host was started with was never checked by a switch."""
    witness = ConfigWitness(place.profile(), place.known)
    witness.check_names(PROBE_NAMES.to_valid())
    found = {"vllm_version": "0.32.0", "facts": msgspec.to_builtins(BUILT), "warnings": []}
    await asyncio.to_thread(witness.on_config, found)
    report = await place.check()
    assert processes.probed == 0 and report.ok
    assert report.facts == BUILT and report.vllm_version == "0.32.0"


async def test_a_start_does_not_overwrite_what_a_check_has_told(processes: Processes, place: Place) -> None:
    """vLLM warns of some things only once in a process."""
    await place.check()
    witness = ConfigWitness(place.profile(), place.known)
    witness.check_names(PROBE_NAMES.to_valid())
    witness.on_config({"facts": msgspec.to_builtins(facts(max_model_len=800)), "warnings": []})
    assert (await place.check()).facts == BUILT


async def test_a_start_that_tells_what_cannot_be_read_teaches_nothing(processes: Processes, place: Place) -> None:
    witness = ConfigWitness(place.profile(), place.known)
    witness.check_names(PROBE_NAMES.to_valid())
    witness.on_config({"facts": {"device": "quantum"}, "warnings": []})
    await place.check()
    assert processes.probed == 1


def test_a_start_with_a_key_that_vllm_does_not_have_is_refused(place: Place) -> None:
    place.write("blok_size = 16")
    with pytest.raises(OperatorError, match="blok_size"):
        ConfigWitness(place.profile(), place.known).check_names(PROBE_NAMES.to_valid())
