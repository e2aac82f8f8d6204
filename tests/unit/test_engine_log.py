"""What is read out of vLLM's log: the reason of a failure, and the phase of a start."""

from pathlib import Path

import pytest

from engine_host.engine.log_file import LogFile, error_lines, last_lines, plain, root_reason
from engine_host.engine.start_progress import phase_of

LOGS = Path(__file__).parent / "logs"
FAILED_START = (LOGS / "start-failed.log").read_text().splitlines()

KILLED = (LOGS / "core-killed.log").read_text().splitlines()


def test_the_reason_is_the_engines_own_first_exception() -> None:
    reason = root_reason(FAILED_START)
    assert reason is not None and reason.startswith("ValueError: To serve at least one request")


def test_error_lines_leave_out_frames_wrappers_and_repetitions() -> None:
    assert error_lines(FAILED_START) == [root_reason(FAILED_START)]


def test_ordinary_lines_are_no_error_lines() -> None:
    assert root_reason(KILLED) is None
    said = [
        "INFO 11-29 23:46:10 [a.py:1] Loading weights took 0.8 s",
        'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
    ]
    assert error_lines(said) == []
    assert last_lines(said, 1) == ['INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK']


def test_a_line_is_shown_without_colour_prefix_and_time() -> None:
    assert plain("\x1b[1;36m(Worker pid=9)\x1b[0;0m INFO 11-29 23:46:10 [a.py:1] Loading weights took 0.8 s") == (
        "Loading weights took 0.8 s"
    )


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        (
            "(EngineCore pid=1) INFO 11-29 23:46:01 [core.py:1] Initializing a V1 LLM engine (v0)",
            "engine process",
        ),
        ("(Worker pid=1) INFO 11-29 23:46:10 [m.py:68] Starting to load model /m...", "loading weights"),
        (
            "Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:00<00:00]",
            "loading weights 40 %",
        ),
        ("(EngineCore pid=1) INFO 11-29 23:47:28 [kv.py:2] CPU KV cache size: 4,320 tokens", "allocating the KV cache"),
        ("(Worker pid=1) INFO 11-29 23:46:13 [m.py:87] Warming up model for the compilation...", "compiling"),
    ],
)
def test_log_lines_announce_the_phase_of_a_start(line: str, phase: str) -> None:
    found = phase_of(line)
    assert found is not None and phase in found


def test_a_line_about_what_is_switched_off_announces_nothing() -> None:
    assert phase_of("WARNING 11-29 [v.py:1] Enforce eager set, disabling torch.compile and CUDAGraphs.") is None


def test_an_ordinary_line_announces_nothing() -> None:
    assert phase_of('INFO:     127.0.0.1:41312 - "GET /v1/models HTTP/1.1" 200 OK') is None


def test_lines_after_a_mark_are_found_and_earlier_ones_are_not(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "engine.log")
    log._take("ValueError: an old failure")
    mark = log.mark()
    assert log.since(mark) == []
    log._take("RuntimeError: the new one")
    assert log.errors_since(mark) == ("RuntimeError: the new one", ["RuntimeError: the new one"])
