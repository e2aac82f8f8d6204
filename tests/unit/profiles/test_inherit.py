"""Profiles that extend others: what is taken over, what is refused, and which file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_host.profiles import Profile, ValidNames, check_keys, load_profile
from engine_host.protocol.errors import OperatorError

BASE = """
schema = 1
description = "the base"
[engine]
model = "org/name"
max_num_seqs = 8
[engine.speculative_config]
method = "ngram"
num_speculative_tokens = 5
[switch]
drain_timeout_s = 5
"""


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        (directory / f"{name}.toml").write_text(text)


def load(directory: Path, **files: str) -> Profile:
    """Writes the files and loads the last one."""
    write(directory, **files)
    return load_profile(directory / f"{list(files)[-1]}.toml")


def refused(directory: Path, **files: str) -> OperatorError:
    with pytest.raises(OperatorError) as caught:
        load(directory, **files)
    assert caught.value.remedy
    return caught.value


def heir(body: str = "", extends: str = "base", top: str = "") -> str:
    return f'schema = 1\nextends = "{extends}"\n{top}\n{body}'


def test_an_heir_has_the_values_of_its_base_and_its_own(tmp_path: Path) -> None:
    profile = load(tmp_path, base=BASE, heir=heir("[engine]\nmax_num_seqs = 9\n[server]\nport = 9000\n"))
    assert profile.model == "org/name"
    assert profile.engine["max_num_seqs"] == 9
    assert profile.server == {"port": 9000}
    assert profile.switch.drain_timeout_s == 5.0
    assert [path.stem for path in profile.lineage] == ["heir", "base"]


def test_nested_tables_are_merged_key_by_key(tmp_path: Path) -> None:
    profile = load(tmp_path, base=BASE, heir=heir("[engine.speculative_config]\nnum_speculative_tokens = 2\n"))
    assert profile.engine["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 2}


def test_a_base_in_json_is_merged_with_an_heir_in_tables(tmp_path: Path) -> None:
    base = 'schema = 1\n[engine]\nmodel = "m"\nspeculative_config = \'{"method": "ngram", "prompt_lookup_max": 4}\'\n'
    profile = load(tmp_path, base=base, heir=heir("[engine.speculative_config]\nprompt_lookup_max = 3\n"))
    assert profile.engine["speculative_config"] == {"method": "ngram", "prompt_lookup_max": 3}


def test_what_is_unset_is_not_taken_over(tmp_path: Path) -> None:
    top = 'unset = ["engine.speculative_config", "switch.drain_timeout_s"]'
    profile = load(tmp_path, base=BASE, heir=heir(top=top))
    assert "speculative_config" not in profile.engine
    assert profile.switch.drain_timeout_s == 30.0


def test_a_table_that_is_unset_can_be_written_anew(tmp_path: Path) -> None:
    top = 'unset = ["engine.speculative_config"]'
    body = '[engine.speculative_config]\nmodel = "org/draft"\n'
    profile = load(tmp_path, base=BASE, heir=heir(body, top=top))
    assert profile.engine["speculative_config"] == {"model": "org/draft"}


def test_levels_are_laid_over_each_other_from_the_base_upwards(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        base=BASE,
        middle=heir('[engine]\nmax_num_seqs = 9\nmodel = "org/middle"\n'),
        top=heir("[engine]\nmax_num_seqs = 10\n", extends="middle"),
    )
    assert (profile.model, profile.engine["max_num_seqs"]) == ("org/middle", 10)
    assert [path.stem for path in profile.lineage] == ["top", "middle", "base"]


def test_an_heir_means_the_same_as_the_file_written_out(tmp_path: Path) -> None:
    short = load(tmp_path, base=BASE, heir=heir("[engine]\nmax_num_seqs = 9\n"))
    long = load(tmp_path, long=BASE.replace("= 8", "= 9"))
    assert short.digest == long.digest


def test_the_description_is_not_inherited(tmp_path: Path) -> None:
    assert load(tmp_path, base=BASE).description == "the base"
    assert load(tmp_path, base=BASE, heir=heir()).description == ""


def test_a_base_need_not_be_complete(tmp_path: Path) -> None:
    profile = load(tmp_path, base="schema = 1\n[server]\nport = 1\n", heir=heir('[engine]\nmodel = "m"\n'))
    assert (profile.model, profile.server) == ("m", {"port": 1})


def test_the_name_of_a_base_may_carry_its_suffix(tmp_path: Path) -> None:
    assert load(tmp_path, base=BASE, heir=heir(extends="base.toml")).model == "org/name"


def test_a_circle_is_refused_with_the_chain(tmp_path: Path) -> None:
    error = refused(tmp_path, a=heir(extends="b"), b=heir(extends="c"), c=heir(extends="a"))
    assert "c -> a -> b -> c" in error.fact


def test_a_profile_does_not_extend_itself(tmp_path: Path) -> None:
    assert "a -> a" in refused(tmp_path, a=heir(extends="a")).fact


def test_a_circle_over_a_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "link.toml").symlink_to(tmp_path / "a.toml")
    assert "a -> link" in refused(tmp_path, a=heir(extends="link")).fact


def test_a_base_that_is_not_there_is_refused_with_the_chain_and_the_nearest(tmp_path: Path) -> None:
    error = refused(tmp_path, base=BASE, middle=heir(extends="bsae"), top=heir(extends="middle"))
    assert "top -> middle -> bsae" in error.fact
    assert str(tmp_path / "middle.toml") in error.fact
    assert error.remedy == 'did you mean "base"?'


@pytest.mark.parametrize("extends", ['"../base"', '""', '".base"', "3", '["base"]'])
def test_a_base_is_named_and_lies_beside_the_file(tmp_path: Path, extends: str) -> None:
    error = refused(tmp_path, base=BASE, heir=f"schema = 1\nextends = {extends}\n")
    assert "expected the name of a profile beside this file" in error.fact


@pytest.mark.parametrize(
    ("top", "fact"),
    [
        ('unset = ["engine.max_num_seq"]', "engine.max_num_seq is not inherited"),
        ('unset = ["engine"]', "engine is not inherited"),
        ('unset = ["engine.model.name"]', "engine.model.name is not inherited"),
        ('unset = "engine.model"', "expected a list of dotted keys"),
        ("unset = [3]", "expected a list of dotted keys"),
    ],
)
def test_only_what_is_inherited_can_be_unset(tmp_path: Path, top: str, fact: str) -> None:
    assert fact in refused(tmp_path, base=BASE, heir=heir(top=top)).fact


def test_unset_without_a_base_is_refused(tmp_path: Path) -> None:
    assert "extends none" in refused(tmp_path, a='schema = 1\nunset = ["engine.model"]\n').fact


def test_an_inherited_error_is_told_with_the_file_that_has_it(tmp_path: Path) -> None:
    assert str(tmp_path / "base.toml") in refused(tmp_path, base=BASE + "x = 1\n", heir=heir()).fact


def test_an_inherited_unknown_key_is_told_with_the_file_that_has_it(tmp_path: Path) -> None:
    profile = load(tmp_path, base=BASE.replace("max_num_seqs", "max_num_seq"), heir=heir("[server]\nprt = 1\n"))
    valid = ValidNames(
        engine={"model", "max_num_seqs", "speculative_config"},
        server={"port"},
        nested={"speculative_config": {"method", "num_speculative_tokens"}},
    )
    with pytest.raises(OperatorError) as caught:
        check_keys(profile, valid)
    assert f"{tmp_path / 'base.toml'}: unknown key engine.max_num_seq" in caught.value.fact
    assert f"{tmp_path / 'heir.toml'}: unknown key server.prt" in caught.value.fact
    assert 'did you mean "max_num_seqs"?' in caught.value.remedy
