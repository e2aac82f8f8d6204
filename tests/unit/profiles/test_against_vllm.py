"""The shipped profiles, the exports and the kept list of arguments against the vLLM that is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine_host.engine.vllm.releases import installed_version
from engine_host.profiles.arguments import catalogue

ROOT = Path(__file__).parents[3]
PROFILES = sorted((ROOT / "profiles").glob("*.toml"))

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        installed_version() != catalogue().vllm_version,
        reason=f"vLLM {catalogue().vllm_version}, whose arguments are kept, is not installed here",
    ),
]

EVERY_KIND = """
schema = 1
[engine]
model = "org/m"
enable_prefix_caching = false
enforce_eager = true
disable_log_stats = true
max_model_len = 32000
gpu_memory_utilization = 0.5
revision = "1234"
served_model_name = ["a", "b c"]
cudagraph_capture_sizes = [1, 2]
kv_cache_dtype_skip_layers = ["0", "1"]
hf_overrides = {a = {b = 1}}
quantization = "awq"
[engine.speculative_config]
method = "ngram"
num_speculative_tokens = 5
[engine.compilation_config]
backend = "inductor"
[server]
port = 9000
api_key = ["k"]
allowed_origins = ["https://a b"]
middleware = ["a.b"]
chat_template = "{{ 'quote' }} $x"
"""


def ask(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[subprocess.CompletedProcess[str]]:
    """vLLM is imported once for all profiles, and once for the tool, beside one another."""
    kinds = tmp_path_factory.mktemp("profiles") / "every-kind.toml"
    kinds.write_text(EVERY_KIND)
    about_profiles = ["-m", "tests.unit.profiles.against_vllm", *map(str, [*PROFILES, kinds])]
    with ThreadPoolExecutor() as threads:
        return list(threads.map(ask, [about_profiles, ["tools/vllm_arguments.py", "--check"]]))


@pytest.fixture(scope="module")
def answers(asked: list[subprocess.CompletedProcess[str]]) -> dict[str, Any]:
    ended = asked[0]
    assert ended.returncode == 0, ended.stderr[-2000:]
    return {Path(file).stem: answer for file, answer in json.loads(ended.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("name", [path.stem for path in PROFILES])
def test_the_installed_vllm_knows_every_key_of_a_shipped_profile(answers: dict[str, Any], name: str) -> None:
    assert answers[name]["refused"] is None


@pytest.mark.parametrize("name", [*(path.stem for path in PROFILES), "every-kind"])
def test_vllm_reads_an_exported_command_line_as_the_profile(answers: dict[str, Any], name: str) -> None:
    assert answers[name]["command"] == []


@pytest.mark.parametrize("name", [*(path.stem for path in PROFILES), "every-kind"])
def test_vllm_reads_exported_yaml_as_the_profile(answers: dict[str, Any], name: str) -> None:
    assert answers[name]["yaml"] == []


def test_the_kept_arguments_are_those_of_the_installed_vllm(asked: list[subprocess.CompletedProcess[str]]) -> None:
    ended = asked[1]
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
