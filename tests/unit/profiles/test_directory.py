"""A directory of profiles: the list, one profile, and what must not be reached through it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_host.profiles import ProfileDirectory, load_profile
from engine_host.profiles.shape import HIDDEN
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.profiles import Tier

MINIMAL = 'schema = 1\ndescription = "small"\n[engine]\nmodel = "org/name"\n'


def write(directory: Path, name: str, text: str = MINIMAL) -> Path:
    path = directory / f"{name}.toml"
    path.write_text(text)
    return path


def test_the_list_is_by_name_and_says_why_a_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "b")
    write(tmp_path, "a", MINIMAL + "[throtle]\n")
    (tmp_path / "notes.txt").write_text("no profile")
    broken, good = ProfileDirectory(tmp_path).list().profiles
    assert (broken.name, broken.digest) == ("a", None)
    assert broken.error is not None and "[throtle]" in broken.error
    assert (good.name, good.description, good.error) == ("b", "small", None)
    assert good.digest == load_profile(tmp_path / "b.toml").digest


def test_the_running_profile_is_marked_and_its_change_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, "a")
    write(tmp_path, "b")
    running = load_profile(path)
    marks = [(one.is_running, one.has_changed) for one in ProfileDirectory(tmp_path).list(running).profiles]
    assert marks == [(True, False), (False, False)]
    write(tmp_path, "a", MINIMAL + "seed = 1\n")
    marks = [(one.is_running, one.has_changed) for one in ProfileDirectory(tmp_path).list(running).profiles]
    assert marks == [(True, True), (False, False)]


def test_a_change_of_a_base_is_a_change_of_the_heir(tmp_path: Path) -> None:
    write(tmp_path, "base")
    running = load_profile(write(tmp_path, "heir", 'schema = 1\nextends = "base"\n'))
    write(tmp_path, "base", MINIMAL + "seed = 1\n")
    assert [one.has_changed for one in ProfileDirectory(tmp_path).list(running).profiles] == [False, True]


def test_a_profile_from_elsewhere_can_be_added(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    elsewhere = write(tmp_path, "own")
    directory = ProfileDirectory(tmp_path / "profiles", also=[elsewhere])
    running = load_profile(elsewhere)
    assert [(one.name, one.is_running) for one in directory.list(running).profiles] == [("own", True)]
    assert directory.load("own").digest == running.digest


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "outside.toml", "", "."])
def test_nothing_outside_the_directory_is_read_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "profiles").mkdir()
    write(tmp_path, "outside")
    write(tmp_path / "profiles", "inside")
    with pytest.raises(OperatorError, match="no profile"):
        ProfileDirectory(tmp_path / "profiles").load(name)


def test_the_detail_has_effective_values_and_the_lineage(tmp_path: Path) -> None:
    write(tmp_path, "base", MINIMAL + "[switch]\ndrain_timeout_s = 5\n")
    write(tmp_path, "heir", 'schema = 1\nextends = "base"\n[engine]\nserved_model_name = "x"\n')
    detail = ProfileDirectory(tmp_path).detail("heir")
    assert detail.lineage == ["heir", "base"]
    assert detail.effective["engine"] == {"model": "org/name", "served_model_name": ["x"]}
    assert detail.effective["switch"] == {
        "drain_timeout_s": 5.0,
        "start_deadline_s": 600.0,
        "hold_deadline_s": 600.0,
        "standby": False,
    }


def test_the_detail_shows_no_secret(tmp_path: Path) -> None:
    write(tmp_path, "a", MINIMAL + 'hf_token = "hf_very"\n[server]\napi_key = ["sk-very"]\n')
    effective = ProfileDirectory(tmp_path).detail("a").effective
    assert (effective["engine"]["hf_token"], effective["server"]["api_key"]) == (HIDDEN, HIDDEN)


def test_two_names_or_a_profile_and_a_name_are_compared(tmp_path: Path) -> None:
    running = load_profile(write(tmp_path, "a"))
    write(tmp_path, "b", MINIMAL + "seed = 1\n")
    directory = ProfileDirectory(tmp_path)
    assert directory.diff(running, "b") == directory.diff("a", "b")
    assert directory.diff("a", "b").tier is Tier.OVERLAP
