"""`vllm-console profiles`: on a directory without any host, and on a host when one is named."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import msgspec
import pytest

from engine_host.profiles import build_profile
from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED, EXIT_INVALID, EXIT_REFUSED, EXIT_UNREACHABLE
from engine_host.protocol.events import Severity
from engine_host.protocol.methods import ProfileName, Reloaded, Role
from engine_host.protocol.profiles import (
    Finding,
    KeyChange,
    Preflight,
    ProfileChanges,
    ProfileDetail,
    ProfileDiff,
    ProfileList,
    ProfileSummary,
    Tier,
)
from engine_host.protocol.snapshot import State
from tests.console import sample
from tests.console.scripted_host import ScriptedHost, scripted_host
from tests.console.test_cli import is_fact_and_remedy, run

SHIPPED = Path(__file__).parents[2] / "profiles"

BASE = 'schema = 1\ndescription = "the base"\n[engine]\nmodel = "org/name"\nmax_num_seqs = 8\n'
HEIR = 'schema = 1\nextends = "base"\n[engine]\nmax_num_seqs = 9\n[server]\napi_key = "sk-very"\n'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "profiles"
    place.mkdir()
    (place / "base.toml").write_text(BASE)
    (place / "heir.toml").write_text(HEIR)
    return place


async def profiles(directory: Path, *arguments: str, **options):
    return await run("profiles", *arguments, "--profiles-dir", str(directory), **options)


async def test_the_list_is_a_line_a_profile(directory):
    done = await profiles(directory, "list")
    assert (done.code, done.err) == (EXIT_DONE, "")
    first, second = done.out.splitlines()
    assert first.startswith("base") and first.endswith("the base")
    assert second.startswith("heir")


async def test_the_list_as_json_is_the_wire_type(directory):
    done = await profiles(directory, "list", "--json")
    listed = msgspec.json.decode(done.out, type=ProfileList)
    assert [one.name for one in listed.profiles] == ["base", "heir"]
    assert done.out.count("\n") == 1


async def test_a_refused_file_is_listed_with_its_reason(directory):
    (directory / "broken.toml").write_text("schema = 2\n")
    done = await profiles(directory, "list")
    assert done.code == EXIT_DONE
    assert "✗ refused" in done.out and "schema is 2" in done.out


async def test_no_host_is_asked_only_because_a_target_is_in_the_environment(directory, tmp_path):
    done = await profiles(directory, "list", env={"VLLM_CONSOLE_TARGET": str(tmp_path / "none.sock")})
    assert done.code == EXIT_DONE


async def test_a_directory_that_is_not_there_is_an_error(tmp_path):
    done = await profiles(tmp_path / "none", "list")
    assert done.code == EXIT_INVALID
    assert is_fact_and_remedy(done.err)


async def test_show_prints_a_profile_with_everything_inherited(directory):
    done = await profiles(directory, "show", "heir")
    assert done.code == EXIT_DONE
    shown = tomllib.loads(done.out)
    assert shown["engine"] == {"model": "org/name", "max_num_seqs": 9}
    assert "extends: heir -> base" in done.out
    assert "sk-very" not in done.out


async def test_show_leaves_out_what_is_not_set_as_toml_has_no_null(directory):
    shown = tomllib.loads((await profiles(directory, "show", "heir")).out)["throttle"]
    assert (shown["hold_queue"], shown["auto"]["mode"]) == (256, "off")
    assert "max_inflight" not in shown and "ttft_p95_enter_s" not in shown["auto"]
    build_profile({"schema": 1, "engine": {"model": "m"}, "throttle": shown}, Path("p.toml"))


async def test_show_as_json_is_the_wire_type(directory):
    done = await profiles(directory, "show", "heir", "--json")
    detail = msgspec.json.decode(done.out, type=ProfileDetail)
    assert detail.lineage == ["heir", "base"]
    assert detail.effective["switch"]["drain_timeout_s"] == 30.0


async def test_an_unknown_name_is_refused_with_the_nearest(directory):
    done = await profiles(directory, "show", "hair")
    assert done.code == EXIT_INVALID
    assert 'did you mean "heir"?' in done.err


async def test_diff_says_each_change_with_its_tier_and_no_secret(directory):
    done = await profiles(directory, "diff", "base", "heir")
    assert done.code == EXIT_DONE
    assert "overlap if both engines fit in memory, else reload" in done.out
    (row,) = [row for row in done.out.splitlines() if "engine.max_num_seqs" in row]
    assert row.split() == ["engine.max_num_seqs", "8", "->", "9", "overlap"]
    assert "sk-very" not in done.out


async def test_diff_as_json_is_the_wire_type(directory):
    done = await profiles(directory, "diff", "base", "heir", "--json")
    diff = msgspec.json.decode(done.out, type=ProfileDiff)
    assert (diff.before, diff.after, diff.tier) == ("base", "heir", Tier.OVERLAP)


async def test_diff_of_equals_says_so(directory):
    done = await profiles(directory, "diff", "base", "base")
    assert done.out == "base -> base: no difference\n"


async def test_diff_of_one_profile_needs_a_host(directory):
    done = await profiles(directory, "diff", "heir")
    assert done.code == EXIT_INVALID
    assert "diff running heir" in done.err


async def test_what_runs_is_named_first(directory):
    done = await profiles(directory, "diff", "heir", "running")
    assert done.code == EXIT_INVALID
    assert "named first" in done.err and "profiles diff running heir" in done.err


async def test_check_says_what_only_the_host_can_check(directory):
    done = await profiles(directory, "check", "heir")
    assert done.code == EXIT_DONE
    assert "✓ nothing wrong" in done.out
    assert "only the host can check" in done.out and "tokenizers" in done.out


async def test_check_without_names_checks_every_profile_and_fails_for_one(directory):
    (directory / "broken.toml").write_text(BASE + "[throtle]\n")
    done = await profiles(directory, "check", "--json")
    assert done.code == EXIT_INVALID
    results = [msgspec.json.decode(row, type=Preflight) for row in done.out.splitlines()]
    assert [(one.profile, one.ok) for one in results] == [("base", True), ("broken", False), ("heir", True)]
    assert results[1].findings[0].remedy == 'did you mean "throttle"?'


async def test_a_misspelt_key_is_invalid_without_a_host_too(directory):
    (directory / "typo.toml").write_text(BASE + "max_num_seq = 3\n")
    done = await profiles(directory, "check", "typo")
    assert done.code == EXIT_INVALID
    assert "✗ invalid" in done.out
    assert "engine.max_num_seq is no argument" in done.out and 'did you mean "max_num_seqs"?' in done.out


async def test_a_doubtful_key_is_a_warning_and_an_error_when_strict(directory):
    (directory / "newer.toml").write_text(BASE + "zebra = 3\n")
    lax = await profiles(directory, "check", "newer")
    strict = await profiles(directory, "check", "newer", "--strict")
    assert (lax.code, strict.code) == (EXIT_DONE, EXIT_INVALID)
    assert "▲ warning" in lax.out and "--on-host" in lax.out


async def test_every_shipped_profile_passes_the_strict_check():
    done = await profiles(SHIPPED, "check", "--strict")
    assert done.code == EXIT_DONE, done.out


async def test_import_prints_a_profile_and_tells_each_translation_on_standard_error():
    done = await run("profiles", "import", "--", "vllm", "serve", "org/m", "-tp", "8", "--swap-space", "4")
    assert done.code == EXIT_DONE
    assert tomllib.loads(done.out)["engine"] == {
        "model": "org/m",
        "tensor_parallel_size": 8,
        "kv_offloading_size": 32.0,
    }
    assert done.err.count("\n") == 2 and "4 GiB for each GPU are kv_offloading_size = 32 GiB" in done.err


async def test_import_reads_a_quoted_line_a_file_and_standard_input(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("model: org/m\nmax-num-seqs: 8\n")
    line = "vllm serve org/m --max-num-seqs 8"
    script = tmp_path / "start.sh"
    script.write_text(line)
    quoted = await run("profiles", "import", line)
    from_yaml = await run("profiles", "import", str(file))
    with script.open() as stdin:
        from_stdin = await run("profiles", "import", "-", stdin=stdin)
    assert quoted.out == from_yaml.out == from_stdin.out
    assert tomllib.loads(quoted.out)["engine"]["max_num_seqs"] == 8


async def test_import_as_json_has_the_content_the_digest_and_the_notices():
    done = await run("profiles", "import", "vllm serve org/m --swap-space 4", "--json")
    answer = json.loads(done.out)
    assert answer["profile"]["engine"]["kv_offloading_size"] == 4.0
    assert len(answer["notices"]) == 1
    assert len(answer["digest"]) == 12
    assert done.err == ""


async def test_import_writes_a_file_and_replaces_one_only_when_told(directory, tmp_path):
    output = tmp_path / "mine.toml"
    command = ("profiles", "import", "vllm serve org/m --api-key sk-very", "-o", str(output))
    first, again, forced = await run(*command), await run(*command), await run(*command, "--force")
    assert (first.code, again.code, forced.code) == (EXIT_DONE, EXIT_INVALID, EXIT_DONE)
    assert first.out == ""
    assert "--force" in again.err
    assert tomllib.loads(output.read_text())["server"] == {"api_key": ["sk-very"]}
    assert output.stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.toml", "profiles"]


async def test_what_cannot_be_imported_is_refused():
    done = await run("profiles", "import", "vllm serve org/m --seed x")
    assert done.code == EXIT_INVALID
    assert is_fact_and_remedy(done.err)
    assert done.out == ""


@pytest.mark.parametrize("form", ["command", "yaml"])
async def test_what_is_exported_is_imported_as_the_same(directory, form, tmp_path):
    exported = await profiles(directory, "export", "heir", "--format", form, "--json")
    answer = json.loads(exported.out)
    file = tmp_path / "exported"
    file.write_text(answer["text"])
    imported = await run("profiles", "import", str(file), "--json")
    assert json.loads(imported.out)["digest"] == answer["digest"]


class TestOnAHost:
    """A host is asked when it is named; what it says is printed like a local answer."""

    DIFF = ProfileDiff(
        before="demo",
        after="latency",
        tier=Tier.OVERLAP,
        changes=[KeyChange(key="engine.seed", before=None, after=1, tier=Tier.OVERLAP)],
    )

    async def test_list(self, host: ScriptedHost):
        one = ProfileSummary(name="demo\x1b[31m", path="/p/demo.toml", is_running=True, has_changed=True)
        host.answers["profiles.list"] = ProfileList(directory="/p", profiles=[one])
        done = await run("-t", str(host.path), "profiles", "list")
        assert done.code == EXIT_DONE
        assert "running, ▲ its file has changed since" in done.out
        assert "\x1b" not in done.out

    async def test_diff_with_what_runs(self, host: ScriptedHost):
        host.answers["profiles.diff"] = self.DIFF
        target = {"VLLM_CONSOLE_TARGET": str(host.path)}
        named = await run("profiles", "diff", "running", "latency", "--json", env=target)
        short = await run("profiles", "diff", "latency", "--on-host", "--json", env=target)
        assert named.out == short.out
        assert msgspec.json.decode(named.out, type=ProfileDiff) == self.DIFF
        asked = [params for method, params in host.asked if method == "profiles.diff"]
        assert asked == [{"before": None, "after": "latency"}] * 2

    async def test_an_invalid_profile_exits_with_2(self, host: ScriptedHost):
        finding = Finding(id="key.unknown", severity=Severity.ERROR, text="unknown key", remedy="remove it")
        host.answers["profiles.check"] = Preflight(profile="bad", ok=False, findings=[finding])
        done = await run("profiles", "check", "bad", "-t", str(host.path))
        assert done.code == EXIT_INVALID
        assert "✗ invalid" in done.out and "remove it" in done.out
        assert "only the host can check" not in done.out

    async def test_a_broken_file_does_not_keep_the_others_from_being_checked(self, host: ScriptedHost):
        def answer(params: ProfileName) -> Preflight | RpcError:
            if params.name == "bad":
                return RpcError(ErrorCode.INVALID_PARAMS, "/p/bad.toml is not TOML", {"remedy": "mend that line"})
            return Preflight(profile=params.name, ok=True, unchecked=["memory: the driver is away"])

        host.answers["profiles.check"] = answer
        host.answers["profiles.list"] = ProfileList(
            directory="/p", profiles=[ProfileSummary(name=name, path=f"/p/{name}.toml") for name in ("bad", "good")]
        )
        done = await run("profiles", "check", "-t", str(host.path))
        assert (done.code, done.err) == (EXIT_INVALID, "")
        assert "bad: ✗ invalid" in done.out and "/p/bad.toml is not TOML" in done.out and "mend that line" in done.out
        assert "good: ✓ nothing wrong" in done.out
        assert "not checked:" in done.out and "the driver is away" in done.out
        assert "only the host can check" not in done.out, "it was asked"
        printed = await run("profiles", "check", "bad", "good", "--json", "-t", str(host.path))
        results = [msgspec.json.decode(row, type=Preflight) for row in printed.out.splitlines()]
        assert [(one.profile, one.ok) for one in results] == [("bad", False), ("good", True)]
        assert [finding.id for finding in results[0].findings] == ["profile.refused"]

    async def test_a_host_that_fails_itself_is_no_finding(self, host: ScriptedHost):
        host.failing["profiles.check"] = RpcError(ErrorCode.INTERNAL, "it broke", {"remedy": "see its log"})
        done = await run("profiles", "check", "good", "-t", str(host.path))
        assert done.code == EXIT_FAILED and is_fact_and_remedy(done.err) and done.out == ""

    async def test_a_profile_file_called_running_is_told_apart_from_what_runs(
        self, host: ScriptedHost, directory: Path
    ):
        host.answers["profiles.diff"] = self.DIFF
        (directory / "running.toml").write_text(BASE)
        done = await profiles(directory, "diff", "running", "heir", "-t", str(host.path))
        assert done.code == EXIT_DONE and "what the host runs, not the profile" in done.err
        file = await profiles(directory, "diff", "running.toml", "heir")
        assert (file.code, file.err) == (EXIT_DONE, "") and "running -> heir" in file.out

    async def test_show(self, host: ScriptedHost):
        detail = ProfileDetail(
            name="demo",
            path="/p/demo.toml",
            digest="abc",
            lineage=["demo"],
            effective={"engine": {"model": "m", "later": None, "deep": {"list": [None]}}},
        )
        host.answers["profiles.get"] = detail
        done = await run("profiles", "show", "demo", "-t", str(host.path))
        assert done.code == EXIT_DONE
        assert tomllib.loads(done.out)["engine"]["model"] == "m"

    async def test_reload_tells_what_changed_and_what_is_refused(self, host: ScriptedHost):
        changes = ProfileChanges(
            directory="/p",
            since=1.0,
            added=["new"],
            broken={"bad": "no \x1b[31mmodel"},
            text="added: new; refused: bad",
        )
        host.answers["profiles.reload"] = Reloaded(
            state=State.SERVING, state_version=8, took_s=0.1, text=changes.text, changes=changes
        )
        target = {"VLLM_CONSOLE_TARGET": str(host.path)}
        done = await run("profiles", "reload", "--reason", "edited", env=target)
        assert done.code == EXIT_DONE
        assert done.out.splitlines() == ["added: new; refused: bad", "  ✗ bad: no \ufffd[31mmodel"]
        printed = await run("profiles", "reload", "--json", env=target)
        assert msgspec.json.decode(printed.out, type=Reloaded).changes == changes
        (first, second) = [params for method, params in host.asked if method == "profiles.reload"]
        assert first["reason"] == "edited" and first["idempotency_key"] != second["idempotency_key"]

    async def test_reload_asks_no_viewer(self, tmp_path: Path):
        async with scripted_host(tmp_path / "host.sock", hello=sample.hello(role=Role.VIEWER)) as host:
            done = await run("profiles", "reload", "-t", str(host.path))
            assert done.code == EXIT_REFUSED and is_fact_and_remedy(done.err)
            assert "profiles.reload" not in host.methods_asked()

    async def test_a_host_that_is_not_there(self, tmp_path: Path):
        done = await run("profiles", "list", "-t", str(tmp_path / "none.sock"))
        assert done.code == EXIT_UNREACHABLE
        assert is_fact_and_remedy(done.err)
