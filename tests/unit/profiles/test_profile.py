"""Profiles: what is read, what is refused, and what the operator is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.profiles import (
    MAX_PROFILE_BYTES,
    Profile,
    ValidNames,
    build_profile,
    check_files,
    check_keys,
    digest_of,
    find_profile,
    load_profile,
)
from engine_host.protocol.errors import EXIT_INVALID, OperatorError

VALID = ValidNames(
    engine={"model", "tokenizer", "max_num_seqs", "max_model_len", "speculative_config"},
    server={"api_key", "root_path"},
    nested={"speculative_config": {"model", "method", "num_speculative_tokens", "prompt_lookup_max"}},
)
MINIMAL = 'schema = 1\n[engine]\nmodel = "org/name"\n'


def write(directory: Path, text: str, name: str = "demo.toml") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def load(directory: Path, text: str) -> Profile:
    return load_profile(write(directory, text))


def refused(directory: Path, text: str) -> OperatorError:
    path = write(directory, text)
    with pytest.raises(OperatorError) as caught:
        profile = load_profile(path)
        check_files(profile)
        check_keys(profile, VALID)
    assert str(path) in caught.value.fact
    assert caught.value.remedy
    assert caught.value.exit_code == EXIT_INVALID
    return caught.value


def test_a_minimal_profile_has_defaults(tmp_path: Path) -> None:
    profile = load(tmp_path, MINIMAL)
    assert (profile.name, profile.model, profile.path) == ("demo", "org/name", tmp_path / "demo.toml")
    assert profile.switch.drain_timeout_s == 30.0
    assert len(profile.digest) == 12


def test_a_full_profile_gives_the_engine_its_arguments(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        MINIMAL
        + 'max_num_seqs = 8\n[engine.speculative_config]\nmethod = "ngram"\nnum_speculative_tokens = 5\n'
        + '[server]\nroot_path = "/v"\n[switch]\ndrain_timeout_s = 5\n',
    )
    check_keys(profile, VALID)
    arguments = profile.to_arguments()
    assert arguments.engine["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 5}
    assert arguments.server == {"root_path": "/v"}
    assert profile.switch.drain_timeout_s == 5.0


def test_the_engine_gets_a_copy(tmp_path: Path) -> None:
    profile = load(tmp_path, MINIMAL + "[engine.speculative_config]\nnum_speculative_tokens = 5\n")
    profile.to_arguments().engine["speculative_config"].clear()
    assert profile.engine["speculative_config"] == {"num_speculative_tokens": 5}


def test_a_profile_is_frozen(tmp_path: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load(tmp_path, MINIMAL).name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "fact", "remedy"),
    [
        ("", 'no "schema"', "schema = 1"),
        ('[engine]\nmodel = "a/b"\n', 'no "schema"', "schema = 1"),
        (MINIMAL.replace("1", "2", 1), "schema is 2", "schema = 1"),
        (MINIMAL.replace("1", "true", 1), "schema is True", "schema = 1"),
        (MINIMAL.replace("1", '"1"', 1), "schema is '1'", "schema = 1"),
        (MINIMAL + "[throtle]\n", "unknown table [throtle]", 'did you mean "throttle"?'),
        ("engin = 1\n" + MINIMAL, 'unknown key "engin"', 'did you mean "engine"?'),
        ("server = 1\n" + MINIMAL, "server is a number, expected a table", "[server]"),
        (MINIMAL + "[switch]\ndrain_timeout = 3\n", "switch.drain_timeout", 'did you mean "drain_timeout_s"?'),
        (MINIMAL + "[switch]\ndrain_timeout_s = -1\n", "switch.drain_timeout_s = -1", "default"),
        (MINIMAL + '[switch]\ndrain_timeout_s = "3"\n', "switch.drain_timeout_s = '3'", "default"),
        (MINIMAL + "[switch]\ndrain_timeout_s = true\n", "switch.drain_timeout_s = true", "default"),
        (MINIMAL + "[switch]\ndrain_timeout_s = nan\n", "switch.drain_timeout_s = nan", "write a number"),
        (MINIMAL + "[alerts]\nkv_usage = 0.9\n", "unknown key alerts.kv_usage", "takes no keys"),
        ("schema = 1\n", "engine.model is missing", "model ="),
        ("schema = 1\n[engine]\nmodel = 3\n", "engine.model is 3", "model ="),
        ('schema = 1\n[engine]\nmodel = " "\n', "engine.model is ' '", "model ="),
        (MINIMAL + "max_num_seq = 3\n", "engine.max_num_seq", 'did you mean "max_num_seqs"?'),
        (MINIMAL + "max-num-seqs = 3\n", "engine.max-num-seqs", 'did you mean "max_num_seqs"?'),
        (MINIMAL + "quite_other = 3\n", "engine.quite_other", "no such argument"),
        (MINIMAL + "[server]\napikey = 3\n", "server.apikey", 'did you mean "api_key"?'),
        (
            MINIMAL + "[engine.speculative_config]\nngram_prompt_lookup_max = 3\n",
            "engine.speculative_config.ngram_prompt_lookup_max",
            'did you mean "prompt_lookup_max"?',
        ),
        (
            MINIMAL + 'speculative_config = "ngram"\n',
            "engine.speculative_config is a text",
            "[engine.speculative_config]",
        ),
        (MINIMAL.replace("org/name", "/no/such/dir"), "engine.model: /no/such/dir does not exist", "ls /"),
        (MINIMAL.replace("org/name", "./no-such"), "engine.model: ./no-such does not exist", "ls "),
        (MINIMAL.replace("org/name", "~no-such-user/x"), "engine.model: ~no-such-user/x does not exist", "ls "),
        (MINIMAL.replace("org/name", "$NO_SUCH_VAR/x"), "environment variable NO_SUCH_VAR", "export NO_SUCH_VAR"),
        (MINIMAL.replace("org/name", "${NO_SUCH_VAR}/x"), "environment variable NO_SUCH_VAR", "export NO_SUCH_VAR"),
        (MINIMAL + 'tokenizer = "/no/such"\n', "engine.tokenizer: /no/such does not exist", "ls /"),
        (
            MINIMAL + '[engine.speculative_config]\nmodel = "/no/such"\n',
            "engine.speculative_config.model: /no/such does not exist",
            "ls /",
        ),
        (MINIMAL + "revision = 2024-01-01\n", "engine.revision = 2024-01-01 is a date", "quotes"),
        (MINIMAL + "seed = 99999999999999999999\n", "engine.seed has a number of more than 64 bits", "smaller"),
        (MINIMAL + "hf_overrides = {a = [{b = inf}]}\n", "engine.hf_overrides.a.b = inf is no finite number", "number"),
        ('description = """\na\nb"""\n' + MINIMAL, "description is not one line", "say it in a line"),
        ("description = 3\n" + MINIMAL, "description is a number", "description ="),
        ("schema = 1\n[engine\n", "line 2", "mend"),
        (MINIMAL + 'model = "twice"\n', "line 4", "mend"),
        ("a" * (MAX_PROFILE_BYTES + 1), "bytes, no profile", "profile file"),
        ("x = " + "[" * 100_000, "not", "give the path"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(tmp_path: Path, text: str, fact: str, remedy: str) -> None:
    error = refused(tmp_path, text)
    assert fact in error.fact
    assert remedy in error.remedy


def test_all_unknown_keys_are_named_at_once(tmp_path: Path) -> None:
    error = refused(tmp_path, MINIMAL + "max_num_seq = 1\nmax_model_length = 2\n")
    assert "engine.max_num_seq, engine.max_model_length" in error.fact
    assert '"max_num_seqs"' in error.remedy
    assert '"max_model_len"' in error.remedy


def test_a_file_that_is_not_there_is_refused_with_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "latency.toml")
    with pytest.raises(OperatorError) as caught:
        load_profile(tmp_path / "latncy.toml")
    assert f"did you mean {tmp_path / 'latency.toml'}?" in caught.value.remedy


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="is a directory"):
        load_profile(tmp_path)


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated, because root may read everything."""
    path = write(tmp_path, MINIMAL)

    def denied(*arguments: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(OperatorError, match="may not be read") as caught:
        load_profile(path)
    assert f"ls -l {path}" in caught.value.remedy


def test_a_file_that_is_not_utf8_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "demo.toml"
    path.write_bytes(b"schema = 1\n# caf\xe9\n")
    with pytest.raises(OperatorError, match="0xe9 in line 2"):
        load_profile(path)


def test_paths_are_expanded_where_paths_may_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "big").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MODELS", str(tmp_path / "models"))
    profile = load(
        tmp_path,
        'schema = 1\n[engine]\nmodel = "~/models/big"\ntokenizer = "$MODELS/big"\n'
        '[engine.speculative_config]\nmodel = "${MODELS}/big"\nmethod = "$MODELS"\n',
    )
    big = str(tmp_path / "models" / "big")
    assert (profile.model, profile.engine["tokenizer"]) == (big, big)
    assert profile.engine["speculative_config"] == {"model": big, "method": "$MODELS"}


def test_a_relative_path_stays_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load(tmp_path, MINIMAL.replace("org/name", "./model")).model == "./model"


def test_the_digest_is_of_what_is_in_force_not_of_how_it_is_written(tmp_path: Path) -> None:
    plain = load(tmp_path, MINIMAL + "max_num_seqs = 8\nmax_model_len = 9\n")
    other_words = load(
        tmp_path,
        '# a comment\nschema = 1\nengine = {max_model_len = 9, max_num_seqs = 8, model = "org/name"}\n'
        "[switch]\ndrain_timeout_s = 30\n[server]\n",
    )
    different = load(tmp_path, MINIMAL + "max_num_seqs = 9\nmax_model_len = 9\n")
    assert plain.digest == other_words.digest
    assert plain.digest != different.digest


values = st.recursive(
    st.integers(-(1 << 60), 1 << 60) | st.booleans() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(table=st.dictionaries(st.text(max_size=6), values, max_size=5), data=st.data())
def test_the_digest_does_not_depend_on_the_order_of_keys(table: dict[str, object], data: st.DataObject) -> None:
    shuffled = dict(data.draw(st.permutations(list(table.items()))))
    assert digest_of({"engine": table}) == digest_of({"engine": shuffled})


@given(
    document=st.dictionaries(
        st.sampled_from(["schema", "engine", "switch", "server", "x", "extends", "unset", "description"]), values
    )
)
def test_any_document_is_a_profile_or_an_operator_error(document: dict[str, object]) -> None:
    try:
        profile = build_profile(document, Path("p.toml"))
        check_keys(profile, VALID)
    except OperatorError as error:
        assert error.fact.startswith("p.toml")
        assert error.remedy
    else:
        assert profile.model


def test_a_name_is_looked_up_in_the_profiles_directory(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL, "latency.toml")
    assert find_profile("latency", tmp_path) == path
    assert find_profile("latency.toml", tmp_path) == path
    assert find_profile(str(path), Path("elsewhere")) == path


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "latency.toml")
    with pytest.raises(OperatorError) as caught:
        find_profile("latncy", tmp_path)
    assert caught.value.remedy == 'did you mean "latency"?'
    with pytest.raises(OperatorError) as caught:
        find_profile("zzz", tmp_path)
    assert caught.value.remedy == "valid: latency"


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_without_profiles_is_told_as_such(tmp_path: Path, exists: bool) -> None:
    directory = tmp_path if exists else tmp_path / "none"
    with pytest.raises(OperatorError, match="there are no profiles in") as caught:
        find_profile("demo", directory)
    assert "--profiles-dir" in caught.value.remedy


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ({"model": "org/name"}, "name"),
        ({"model": "/models/Qwen/"}, "Qwen"),
        ({"model": "org/name", "served_model_name": "chat"}, "chat"),
        ({"model": "org/name", "served_model_name": ["chat", "other"]}, "chat"),
    ],
)
def test_a_profile_names_its_model_as_it_is_served(engine: dict[str, object], name: str) -> None:
    assert build_profile({"schema": 1, "engine": engine}, Path("p.toml")).served_name == name


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(MINIMAL, encoding="utf-8-sig")
    assert load_profile(path).model == "org/name"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode() + b"# \xff\n")
    with pytest.raises(OperatorError, match="byte 0xff in line"):
        load_profile(path)


def test_all_that_is_wrong_with_a_file_is_told_at_once_each_with_its_remedy(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'schema = 1\nextends = "a/b"\ndescription = 3\n[engin]\nx = 1\n[engine]\nseed = 2024-01-01\ndtype = nan\n'
        '[switch]\ndrain_timeout = 5\nhold_deadline_s = "long"\n',
    )
    with pytest.raises(OperatorError) as caught:
        load_profile(path)
    said, remedies = caught.value.fact, caught.value.remedy.splitlines()
    parts = [
        "(1) unknown table [engin]",
        "(2) engine.seed = 2024-01-01 is a date or time",
        "(3) engine.dtype = nan is no finite number",
        "(4) extends is 'a/b'",
        "(5) description is a number",
        "(6) unknown key switch.drain_timeout",
        "(7) switch.hold_deadline_s = 'long'",
    ]
    assert said.startswith(f"{path}: (1)") and said.count(str(path)) == 1
    assert [said.index(part) for part in parts] == sorted(said.index(part) for part in parts)
    assert len(remedies) == len(parts) and "(8)" not in said, "no model is named, and [engin] may be why"
    assert 'did you mean "engine"?' in remedies[0] and 'did you mean "drain_timeout_s"?' in remedies[5]


def test_what_a_base_has_wrong_is_told_beside_the_faults_of_its_heir(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL + "[switch]\ndrain = 1\n", "base.toml")
    heir = write(tmp_path, 'schema = 1\nextends = "base"\n[dials]\nlimit = 3\n')
    with pytest.raises(OperatorError) as caught:
        load_profile(heir)
    assert f"(1) {tmp_path / 'base.toml'}: unknown key switch.drain; (2) unknown key dials.limit" in caught.value.fact
