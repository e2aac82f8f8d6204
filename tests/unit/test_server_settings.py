"""`[server]`: what the HTTP server takes from it, and what is told of a mistake before anything is started."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine_host.gateway.server_settings import NOT_APPLIED, read_server_settings
from engine_host.protocol.errors import EXIT_INVALID, OperatorError


def refused(table: dict[str, Any]) -> OperatorError:
    with pytest.raises(OperatorError) as caught:
        read_server_settings(table)
    assert caught.value.exit_code == EXIT_INVALID
    assert caught.value.remedy
    return caught.value


def test_an_empty_table_gives_vllms_defaults_on_this_machine_only() -> None:
    settings = read_server_settings({})
    assert (settings.host, settings.port, settings.uvicorn_log_level) == ("127.0.0.1", 8000, "info")
    assert settings.h11_max_incomplete_event_size == 4 << 20


def test_what_is_given_is_taken_and_keys_of_vllms_app_pass_by() -> None:
    settings = read_server_settings({"port": 9000, "root_path": "/v", "h11_max_incomplete_event_size": 65_536})
    assert (settings.port, settings.h11_max_incomplete_event_size) == (9000, 65_536)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("port", "abc", "server.port = 'abc': expected a whole number, got a text"),
        ("port", 70_000, "server.port = 70000: expected a whole number of at most 65535"),
        ("port", 0, "server.port = 0: expected a whole number of at least 1"),
        ("port", True, "server.port = True: expected a whole number, got true or false"),
        ("host", 5, "server.host = 5: expected a text"),
        ("host", "", "server.host = ''"),
        ("uvicorn_log_level", "loud", "server.uvicorn_log_level = 'loud'"),
        ("disable_uvicorn_access_log", "no", "expected true or false, got a text"),
        ("h11_max_incomplete_event_size", -1, "server.h11_max_incomplete_event_size = -1"),
        ("ssl_cert_reqs", 3, "server.ssl_cert_reqs = 3"),
        ("allowed_origins", "*", "server.allowed_origins = '*': expected a list, got a text"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(key: str, value: Any, said: str) -> None:
    assert said in refused({key: value}).fact


def test_an_api_key_that_is_no_list_is_refused_and_not_repeated() -> None:
    """vLLM would take the text letter by letter, and each letter would open the API."""
    error = refused({"api_key": "sesame"})
    assert "server.api_key: expected a list" in error.fact
    assert 'api_key = ["..."]' in error.remedy
    assert "sesame" not in str(error)


@pytest.mark.parametrize("key", NOT_APPLIED)
def test_what_this_server_does_not_apply_is_refused_unless_it_is_off(key: str) -> None:
    error = refused({key: 3})
    assert f"server.{key} = 3 is not supported" in error.fact
    assert error.remedy.startswith("leave it out")
    read_server_settings({key: False})


@pytest.mark.parametrize("key", ["ssl_keyfile", "ssl_certfile", "ssl_ca_certs"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, key: str) -> None:
    error = refused({key: str(tmp_path / "none.pem")})
    assert f"server.{key} = " in error.fact
    assert "none.pem" in error.fact
    assert "No such file" in error.fact


def test_a_key_without_its_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("")
    assert "without server.ssl_certfile" in refused({"ssl_keyfile": str(tmp_path / "key.pem")}).fact


def test_tls_limits_without_a_certificate_are_refused() -> None:
    assert "would be plain HTTP" in refused({"ssl_cert_reqs": 2}).fact


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("not a certificate")
    error = refused({"ssl_certfile": str(tmp_path / "cert.pem"), "ssl_keyfile": str(tmp_path / "cert.pem")})
    assert "cannot be used together" in error.fact


def make_key(directory: Path, *options: str) -> dict[str, str]:
    files = {"ssl_keyfile": str(directory / "key.pem"), "ssl_certfile": str(directory / "cert.pem")}
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-subj", "/CN=localhost", *options]
    command += ["-keyout", files["ssl_keyfile"], "-out", files["ssl_certfile"]]
    subprocess.run(command, check=True, capture_output=True)
    return files


@pytest.mark.skipif(not shutil.which("openssl"), reason="makes a certificate with openssl")
def test_a_certificate_with_its_key_is_taken_and_an_encrypted_key_refused(tmp_path: Path) -> None:
    files = make_key(tmp_path, "-nodes")
    assert read_server_settings(files).ssl_keyfile == files["ssl_keyfile"]
    assert "server.ssl_ciphers = 'none such'" in refused({**files, "ssl_ciphers": "none such"}).fact
    assert "server.ssl_ca_certs" in refused({**files, "ssl_ca_certs": files["ssl_keyfile"]}).fact
    encrypted = make_key(tmp_path, "-passout", "pass:secret")
    error = refused(encrypted)
    assert "ssl_keyfile is encrypted" in error.fact
    assert "openssl pkey" in error.remedy
