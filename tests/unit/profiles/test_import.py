"""Imports: what people start vLLM with, read as it was meant, with a notice for each translation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.profiles.arguments import catalogue
from engine_host.profiles.imported import Imported
from engine_host.profiles.importer import import_file, import_text, import_words
from engine_host.profiles.older_names import ENVIRONMENT, OLDER, OLDER_NESTED
from engine_host.protocol.errors import OperatorError

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}


def engine(command: str) -> dict[str, Any]:
    """The engine's arguments of a command line that needs no translation, without its model."""
    found = import_text(command)
    assert found.notices == []
    assert found.tables["engine"].pop("model") == "org/m"
    return found.tables["engine"]


def from_yaml(body: str) -> Imported:
    return import_text(f"model: org/m\n{body}\n")


def yaml_engine(body: str) -> dict[str, Any]:
    table = from_yaml(body).tables["engine"]
    assert table.pop("model") == "org/m"
    return table


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


ORDERS = [
    "speculative_model: z\nspeculative-config: {method: draft_model}",
    "speculative-config: {method: draft_model}\nspeculative_model: z",
    "speculative-config.model: z\nspeculative-config: {method: draft_model}",
]


@pytest.mark.parametrize("body", ORDERS)
def test_a_mapping_and_an_older_name_for_a_key_of_it_are_one_mapping(body: str) -> None:
    found = from_yaml(body)
    assert found.tables["engine"]["speculative_config"] == {"method": "draft_model", "model": "z"}
    assert not any("more than once" in said for said in found.notices)


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


@pytest.mark.parametrize(
    ("body", "model"),
    [
        ("speculative_model: z\nspeculative-config: {model: y}", "y"),
        ("speculative-config: {model: y}\nspeculative_model: z", "z"),
    ],
)
def test_the_later_of_two_values_for_one_key_of_a_mapping_counts_and_is_told(body: str, model: str) -> None:
    found = from_yaml(body)
    assert found.tables["engine"]["speculative_config"] == {"model": model}
    assert "speculative_config.model: given more than once; the last one counts" in found.notices


def test_a_whole_mapping_that_takes_the_place_of_the_files_says_what_goes(tmp_path: Path) -> None:
    """vLLM takes the last one as it is."""
    (tmp_path / "c.yaml").write_text("speculative-config: {method: ngram, prompt_lookup_max: 4}\n")
    (tmp_path / "start.sh").write_text("""vllm serve org/m --config c.yaml -sc '{"method": "suffix"}'\n""")
    found = import_file(tmp_path / "start.sh")
    assert found.tables["engine"]["speculative_config"] == {"method": "suffix"}
    assert any("speculative_config.prompt_lookup_max of the YAML is left out" in said for said in found.notices)


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ("seed: 1\nseed: 2", "seed"),
        ("speculative-config:\n  method: ngram\n  method: suffix", "speculative-config.method"),
        ("hf-overrides: {a: [{b: 1, b: {c: 2}}]}", "hf-overrides.a.b"),
    ],
)
def test_a_key_that_yaml_has_twice_is_told(body: str, key: str) -> None:
    assert from_yaml(body).notices == [f"{key}: given more than once; the last one counts"]


def test_a_key_laid_over_a_merged_one_or_given_twice_alike_is_no_loss() -> None:
    merged = from_yaml("hf-overrides: {a: &base {c: 1}, b: {<<: *base, c: 2}}\nseed: 1\nseed: 1")
    assert merged.notices == []
    assert merged.tables["engine"]["hf_overrides"] == {"a": {"c": 1}, "b": {"c": 2}}


@pytest.mark.parametrize(
    "text",
    [
        "model: org/m\nspeculative-config: {num-speculative-tokens: 5}",
        "model: org/m\nspeculative-config.num-speculative-tokens: 5",
        """vllm serve org/m -sc '{"num-speculative-tokens": 5}'""",
    ],
)
def test_dashes_inside_a_mapping_are_told_and_become_vllms_names(text: str) -> None:
    found = import_text(text)
    assert found.tables["engine"]["speculative_config"] == {"num_speculative_tokens": 5}
    assert any("num-speculative-tokens is called num_speculative_tokens" in said for said in found.notices)


def test_dashes_in_keys_that_are_not_vllms_stay() -> None:
    assert yaml_engine("hf-overrides: {some-key: 1}") == {"hf_overrides": {"some-key": 1}}


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
    ("body", "expected"),
    [
        ("max-model-len: 8192", {"max_model_len": 8192}),
        ("max_model_len: 8192", {"max_model_len": 8192}),
        ("--max-model-len: 8192", {"max_model_len": 8192}),
        ("max-model-len: 8k", {"max_model_len": 8000}),
        ("max-model-len: '8192'", {"max_model_len": 8192}),
        ("enforce-eager: true", {"enforce_eager": True}),
        ("enable-prefix-caching: false", {"enable_prefix_caching": False}),
        ("enable_prefix_caching: false", {"enable_prefix_caching": False}),
        ("no-enable-prefix-caching: true", {"enable_prefix_caching": False}),
        ("no_enable_prefix_caching: true", {"enable_prefix_caching": False}),
        ("no-enable-prefix-caching: false", {}),
        ("enforce-eager: 'true'", {"enforce_eager": True}),
        ("quantization: null", {}),
        ("quantization:", {}),
        ("revision: null", {}),
        ("served-model-name: a", {"served_model_name": ["a"]}),
        ("served-model-name: [a, b]", {"served_model_name": ["a", "b"]}),
        ("kv-cache-dtype-skip-layers: []", {}),
        ("revision: 1234", {"revision": "1234"}),
        ("gpu-memory-utilization: 1", {"gpu_memory_utilization": 1.0}),
        (f"speculative-config: '{json.dumps(NGRAM)}'", {"speculative_config": NGRAM}),
        (f"speculative_config: {json.dumps(NGRAM)}", {"speculative_config": NGRAM}),
        ("speculative-config:\n  method: ngram\n  model: null", {"speculative_config": {"method": "ngram"}}),
        ("speculative-config.method: ngram", {"speculative_config": {"method": "ngram"}}),
        (
            "speculative_config.num_speculative_tokens: 5\nspeculative_config.method: ngram",
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}},
        ),
        ("compilation-config:\n  pass_config: {a: true}", {"compilation_config": {"pass_config": {"a": True}}}),
        ("swap-space: 16", {"kv_offloading_size": 16.0}),
        ("speculative_model: org/d", {"speculative_config": {"model": "org/d"}}),
        ("VLLM_SCHEDULER_POLICY: priority", {"scheduling_policy": "priority"}),
        ("disable-log-requests: true", {}),
        ("load-format: yes", {}),
    ],
)
def test_the_ways_to_write_yaml(body: str, expected: dict[str, Any]) -> None:
    assert yaml_engine(body) == expected


@pytest.mark.parametrize(
    ("body", "notice"),
    [
        ("enable_prefix_caching: false", "vLLM drops a false"),
        ("quantization: null", "not set (null)"),
        ("no-enable-prefix-caching: false", "left out"),
        ("kv-cache-dtype-skip-layers: []", "an empty list"),
        ("load-format: yes", "YAML reads yes and no as that"),
        ("speculative-config: {method: ngram, model: null}", "model is not set (null)"),
        ("swap-space: 16", "kv_offloading_size"),
        ("VLLM_SCHEDULER_POLICY: priority", "is the argument scheduling_policy today"),
        ("max-num-seq: 1", 'did you mean "max_num_seqs"?'),
    ],
)
def test_what_yaml_would_have_lost_is_told(body: str, notice: str) -> None:
    assert any(notice in said for said in from_yaml(body).notices)


def test_dashes_and_json_and_mappings_mean_the_same() -> None:
    dashed = from_yaml("max-num-seqs: 8\nspeculative-config:\n  method: ngram\n  num_speculative_tokens: 5")
    underscored = from_yaml(
        """speculative_config: '{"num_speculative_tokens": 5, "method": "ngram"}'\nmax_num_seqs: "8" """
    )
    assert dashed.content() == underscored.content()


def test_options_count_more_than_the_file_of_config(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model: org/file\nseed: 1\nmax-num-seqs: 8\n")
    (tmp_path / "start.sh").write_text("vllm serve org/m --seed 2 --config c.yaml\n")
    found = import_file(tmp_path / "start.sh")
    assert found.tables["engine"] == {"model": "org/m", "seed": 2, "max_num_seqs": 8}
    assert found.notices == []


def test_the_model_may_stand_in_the_file_of_config(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model: org/file\n")
    assert import_words(["vllm", "serve", "--config", str(tmp_path / "c.yaml")]).tables["engine"]["model"] == "org/file"


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("vllm serve org/m --seed", "--seed has no value"),
        ("vllm serve org/m --seed --port 1", "--seed has no value"),
        ("vllm serve org/m --seed x", "'x' is not a whole number"),
        ("vllm serve org/m --gpu-memory-utilization x", "'x' is not a number"),
        ("vllm serve org/m --speculative-config '{method: ngram}'", "is not JSON"),
        ("vllm serve 'org/m", "cannot be split"),
        ("vllm serve --seed 1", "names no model"),
        ("vllm bench", "no `vllm serve` in"),
        ("", "no `vllm serve` in"),
        ("seed: 1", "names no model"),
        ("model: [a", "is not YAML"),
        ("model: m\ncompilation-config: {a: 2024-01-01}", "a date or time"),
        ("model: m\ncompilation-config: {a: !!binary aGk=}", "compilation_config.a is a bytes"),
        ("model: m\ncompilation-config: &a {a: *a}", "nested too deeply"),
        ("model: m\nhf-overrides: {a: [{b: .nan}]}", "no finite number"),
        ("model: m\nhf-overrides: {a: [{b: 99999999999999999999}]}", "more than 64 bits"),
        ("vllm serve org/m --enforce-eager=perhaps", "neither true nor false"),
        ("vllm serve org/m --config none.yaml", "there is no file none.yaml"),
        ("# vllm-console: what.ever = 1\nvllm serve org/m", "expected a key and a value"),
        ("# vllm-console: switch.drain_timeout_s = \nvllm serve org/m", "expected a key and a value"),
        ("# vllm-console: switch.drain_timeout = 1\nvllm serve org/m", "unknown key switch.drain_timeout"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_remedy(text: str, fact: str) -> None:
    with pytest.raises(OperatorError) as caught:
        import_text(text)
    assert fact in caught.value.fact
    assert caught.value.remedy


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="there is no file"):
        import_file(tmp_path / "none.yaml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(OperatorError, match="not UTF-8"):
        import_file(tmp_path / "bytes")


def test_words_in_another_encoding_are_refused() -> None:
    with pytest.raises(OperatorError, match="not UTF-8"):
        import_words(["vllm", "serve", "org/caf\udce9"])


def test_no_older_name_is_in_use_today() -> None:
    known = catalogue()
    assert not set(OLDER) & set(known.by_name)
    for table, keys in OLDER_NESTED.items():
        assert not set(keys) & set(known.nested[table])


def test_every_translation_leads_to_a_name_of_today() -> None:
    known = catalogue()
    targets = [older.target for older in OLDER.values() if older.target] + [name for name, _ in ENVIRONMENT.values()]
    for target in targets:
        head, _, inner = target.partition(".")
        assert head in known.by_name
        assert not inner or head not in known.nested or inner in known.nested[head]


words = st.one_of(
    st.sampled_from(
        ["vllm", "serve", "org/m", "--seed", "1", "-tp", "--", "-", "--x.y", "--x.y+", "=", "-O", "--config", "-sc"]
    ),
    st.sampled_from([flag for argument in catalogue().by_name.values() for flag in argument.flags]),
    st.text(max_size=8),
    st.builds("--{}={}".format, st.text(max_size=6), st.text(max_size=6)),
)


@given(given_words=st.lists(words, max_size=8))
def test_any_words_are_a_profile_or_an_operator_error(given_words: list[str]) -> None:
    try:
        found = import_words(["vllm", "serve", "org/m", *given_words])
    except OperatorError as error:
        assert error.remedy
    else:
        assert found.tables["engine"]["model"]
        assert found.toml()


@given(text=st.text() | st.builds("model: m\n{}: {}".format, st.text(max_size=9), st.text(max_size=9)))
def test_any_text_is_a_profile_or_an_operator_error(text: str) -> None:
    try:
        found = import_text(text)
    except OperatorError as error:
        assert error.remedy
    else:
        assert found.tables["engine"]["model"]


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


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text("vllm serve org/m\n", encoding="utf-8-sig")
    assert import_file(tmp_path / "start.sh").tables["engine"] == {"model": "org/m"}
