"""Imports of command lines: every way to write an option, older names, what a shell would have done with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine_host.profiles.importer import import_text, import_words
from engine_host.protocol.errors import OperatorError

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}


def engine(command: str) -> dict[str, Any]:
    """The engine's arguments of a command line that needs no translation, without its model."""
    found = import_text(command)
    assert found.notices == []
    assert found.tables["engine"].pop("model") == "org/m"
    return found.tables["engine"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {}),
        ("--max-num-seqs 8", {"max_num_seqs": 8}),
        ("--max_num_seqs 8", {"max_num_seqs": 8}),
        ("--max-num-seqs=8", {"max_num_seqs": 8}),
        ("--max-model-len 32k", {"max_model_len": 32_000}),
        ("--max-model-len 32K", {"max_model_len": 32_768}),
        ("--max-model-len 25.6k", {"max_model_len": 25_600}),
        ("--max-model-len -1", {"max_model_len": -1}),
        ("--max-model-len auto", {"max_model_len": -1}),
        ("-tp 8", {"tensor_parallel_size": 8}),
        ("-tp=8", {"tensor_parallel_size": 8}),
        ("-tp8", {"tensor_parallel_size": 8}),
        ("-tp 8 -pp 2 -q awq", {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "quantization": "awq"}),
        ("-O3", {"optimization_level": 3}),
        ("-O 3", {"optimization_level": 3}),
        ("-O=3", {"optimization_level": 3}),
        ("--enable-prefix-caching", {"enable_prefix_caching": True}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--no_enable_prefix_caching", {"enable_prefix_caching": False}),
        ("--gpu-memory-utilization .9", {"gpu_memory_utilization": 0.9}),
        ("--device-memory-utilization 1", {"gpu_memory_utilization": 1.0}),
        ("--served-model-name a b --seed 1", {"served_model_name": ["a", "b"], "seed": 1}),
        ("--served-model-name 'a b'", {"served_model_name": ["a b"]}),
        ("--cudagraph-capture-sizes 1 2 4", {"cudagraph_capture_sizes": [1, 2, 4]}),
        ("--revision 1234", {"revision": "1234"}),
        (f"--speculative-config '{json.dumps(NGRAM)}'", {"speculative_config": NGRAM}),
        (f"-sc '{json.dumps(NGRAM)}'", {"speculative_config": NGRAM}),
        ("--speculative-config.method ngram", {"speculative_config": {"method": "ngram"}}),
        ("--speculative-config.num_speculative_tokens=5", {"speculative_config": {"num_speculative_tokens": 5}}),
        ("-cc.pass_config.fuse_norm_quant true", {"compilation_config": {"pass_config": {"fuse_norm_quant": True}}}),
        ("-cc.splitting_ops+ a,b", {"compilation_config": {"splitting_ops": ["a", "b"]}}),
        ('--hf-overrides \'{"a": {"b": 1}}\'', {"hf_overrides": {"a": {"b": 1}}}),
        ("--hf-overrides name.of.function", {"hf_overrides": "name.of.function"}),
        ("--max-num-seqs 8 \\\n  --seed 1", {"max_num_seqs": 8, "seed": 1}),
        ("--max-num-seqs 8 # a comment", {"max_num_seqs": 8}),
    ],
)
def test_the_ways_to_write_an_option(options: str, expected: dict[str, Any]) -> None:
    assert engine(f"vllm serve org/m {options}") == expected


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve org/m",
        "vllm serve --model org/m",
        "vllm serve --model=org/m",
        "/opt/venv/bin/vllm serve 'org/m'",
        "python -m vllm.entrypoints.openai.api_server --model org/m",
        "python3 -m vllm.entrypoints.openai.api_server --model org/m",
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.9.1 --model org/m",
        "#!/bin/sh\nset -e\nexec vllm serve org/m",
    ],
)
def test_the_ways_to_start_vllm(command: str) -> None:
    assert import_text(command).tables["engine"] == {"model": "org/m"}


def test_words_that_a_shell_has_split_are_read_as_they_are() -> None:
    found = import_words(["vllm", "serve", "org/m", "--served-model-name", "a b; c", "--port", "9"])
    assert found.tables["engine"]["served_model_name"] == ["a b; c"]
    assert found.tables["server"] == {"port": 9}


def test_front_end_arguments_come_into_their_own_table() -> None:
    found = import_text("vllm serve org/m --port 9000 --tool-call-parser hermes --allowed-origins '[\"*\"]'")
    assert found.tables["server"] == {"port": 9000, "tool_call_parser": "hermes", "allowed_origins": ["*"]}


def test_an_option_that_may_be_repeated_collects() -> None:
    assert import_text("vllm serve m --middleware a.b --middleware c.d").tables["server"] == {
        "middleware": ["a.b", "c.d"]
    }


def test_dotted_options_add_to_a_mapping() -> None:
    found = import_text(
        f"vllm serve org/m -sc '{json.dumps(NGRAM)}' --speculative-config.num_speculative_tokens 2 "
        "--speculative-config.prompt_lookup_min 1"
    )
    assert found.notices == ["speculative_config.num_speculative_tokens: given more than once; the last one counts"]
    assert found.tables["engine"]["speculative_config"] == {
        **NGRAM,
        "num_speculative_tokens": 2,
        "prompt_lookup_min": 1,
    }


@pytest.mark.parametrize(
    ("options", "table", "expected", "notice"),
    [
        (
            "--speculative-model org/d --num-speculative-tokens 5 --speculative-max-model-len 4096",
            "speculative_config",
            {"model": "org/d", "num_speculative_tokens": 5, "max_model_len": 4096},
            "is called speculative_config.model today",
        ),
        (
            "--speculative-model '[ngram]' --ngram-prompt-lookup-max 4",
            "speculative_config",
            {"method": "ngram", "prompt_lookup_max": 4},
            'speculative_config.method = "ngram"',
        ),
        ("--swap-space 16", "kv_offloading_size", 16.0, "kv_offloading_size offloads KV blocks"),
        ("--swap-space 0", "kv_offloading_size", None, "0 is none"),
        ("--worker-use-ray", "distributed_executor_backend", "ray", "distributed_executor_backend"),
        ("--cuda-graph-sizes 1 2", "cudagraph_capture_sizes", [1, 2], "is called cudagraph_capture_sizes"),
        ("--disable-log-requests", "disable_log_requests", None, "is the default today"),
        ("--num-scheduler-steps 8", "num_scheduler_steps", None, "multi-step scheduling is gone"),
        ("--enable-chunked-prefill False", "enable_chunked_prefill", False, 'takes no value; "False" read as false'),
        ("--enable-chunked-prefill=true", "enable_chunked_prefill", True, 'takes no value; "true" read as true'),
        ("--quantization None", "quantization", None, "not set"),
        ("--api-server-count 4", "api_server_count", None, "concerns `vllm serve` itself"),
        ("--headless", "headless", None, "concerns `vllm serve` itself"),
        ("--max-num-seq 8", "max_num_seq", 8, 'did you mean "max_num_seqs"?'),
        ("--frobnicate", "frobnicate", True, "no such argument"),
        ("--seed 1 --seed 2", "seed", 2, "given more than once; the last one counts"),
        ("stray", "stray", None, "belongs to no option"),
        ("| tee log", "tee", None, "the command ends here"),
        ("2>&1", "2", None, "the command ends here"),
        (
            """--speculative-config '{"ngram_prompt_lookup_max": 4, "disable_by_batch_size": 8}'""",
            "speculative_config",
            {"prompt_lookup_max": 4},
            "disable_by_batch_size has no effect any more",
        ),
    ],
)
def test_each_translation_is_told(options: str, table: str, expected: object, notice: str) -> None:
    found = import_text(f"vllm serve org/m {options}")
    assert found.tables["engine"].get(table) == expected
    assert any(notice in said for said in found.notices), found.notices


@pytest.mark.parametrize(
    "options",
    [
        """--speculative-model z -sc '{"method": "draft_model"}'""",
        """-sc '{"method": "draft_model"}' --speculative-model z""",
    ],
)
def test_so_they_are_on_a_command_line(options: str) -> None:
    found = import_text(f"vllm serve org/m {options}")
    assert found.tables["engine"]["speculative_config"] == {"method": "draft_model", "model": "z"}


@pytest.mark.parametrize("options", ["--swap-space 16 -tp 4 -pp 2", "-pp 2 -tp 4 --swap-space 16"])
def test_swap_space_of_each_gpu_becomes_the_total_of_all_and_both_figures_are_told(options: str) -> None:
    found = import_text(f"vllm serve org/m {options}")
    assert found.tables["engine"]["kv_offloading_size"] == 128.0
    assert any("16 GiB for each GPU" in said and "128 GiB over the 8 GPUs" in said for said in found.notices)


def test_todays_name_for_the_total_counts_as_it_is() -> None:
    found = import_text("vllm serve org/m --swap-space 16 -tp 4 --kv-offloading-size 20")
    assert found.tables["engine"]["kv_offloading_size"] == 20.0
    assert import_text("vllm serve org/m --swap-space None -tp 4").tables["engine"].get("kv_offloading_size") is None


@pytest.mark.parametrize("written", ["')'", '")"', "\\)", "'&&'", "'|'"])
def test_a_quoted_bracket_is_a_value_and_a_bare_one_ends_the_command(written: str) -> None:
    found = import_text(f"vllm serve org/m --revision {written} --seed 2 ) --seed 3")
    assert found.tables["engine"]["revision"] in written and found.tables["engine"]["seed"] == 2
    assert [said for said in found.notices if "the command ends here" in said] == [
        "): the command ends here; what follows is not read"
    ]


def test_the_classic_command_of_a_large_deployment() -> None:
    found = import_text(
        "VLLM_SCHEDULER_POLICY=fcfs vllm serve Qwen/Qwen2.5-72B-Instruct --tensor-parallel-size 8 --max-model-len 8192 "
        "--block-size 16 --enable-prefix-caching --max-num-batched-tokens 32768 --max-num-seqs 256 --swap-space 16 "
        "--speculative-model Qwen/Qwen2.5-7B-Instruct --num-speculative-tokens 5 --speculative-max-model-len 4096"
    )
    assert found.tables["engine"] == {
        "scheduling_policy": "fcfs",
        "model": "Qwen/Qwen2.5-72B-Instruct",
        "tensor_parallel_size": 8,
        "max_model_len": 8192,
        "block_size": 16,
        "enable_prefix_caching": True,
        "max_num_batched_tokens": 32768,
        "max_num_seqs": 256,
        "kv_offloading_size": 128.0,
        "speculative_config": {
            "model": "Qwen/Qwen2.5-7B-Instruct",
            "num_speculative_tokens": 5,
            "max_model_len": 4096,
        },
    }
    assert len(found.notices) == 6


def test_variables_in_front_become_arguments_or_are_told() -> None:
    found = import_text("VLLM_SCHEDULER_POLICY=PRIORITY HF_TOKEN=hf_very vllm serve org/m")
    assert found.tables["engine"]["scheduling_policy"] == "priority"
    assert any(said.startswith("HF_TOKEN: an environment variable is no part") for said in found.notices)
    assert "hf_very" not in "".join(found.notices)


def test_a_secret_is_told_and_not_shown() -> None:
    found = import_text("vllm serve org/m --api-key sk-very")
    assert found.tables["server"]["api_key"] == ["sk-very"]
    assert any("secret" in said for said in found.notices)
    assert "sk-very" not in "".join(found.notices)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("${TP:-2}", "${TP:-2} is a variable of the shell, 2 where it is not set: write the number itself"),
        ("$TP", "$TP is a variable of the shell, which a profile has none of"),
        ("two", "write a number such as"),
    ],
)
def test_a_variable_of_the_shell_in_place_of_a_number_is_told_as_such(word: str, said: str) -> None:
    for option in ("-tp", "--gpu-memory-utilization"):
        with pytest.raises(OperatorError) as caught:
            import_text(f"vllm serve org/m {option} {word}")
        assert said in caught.value.remedy
