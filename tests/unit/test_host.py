"""What a host says of itself before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_host.host import EngineHost, HostOptions
from engine_host.profiles import build_profile


def host_on(address: str, directory: Path, **server: Any) -> EngineHost:
    profile = build_profile({"schema": 1, "engine": {"model": "org/name"}, "server": server}, Path("demo.toml"))
    return EngineHost(
        HostOptions(
            profile=profile,
            http_host=address,
            http_port=8000,
            socket_path=directory / "host.sock",
            state_dir=directory,
            socket_group=None,
            profiles_dir=directory,
        )
    )


@pytest.mark.parametrize(
    ("address", "server", "url"),
    [
        ("127.0.0.1", {}, "http://127.0.0.1:8000"),
        ("::1", {}, "http://[::1]:8000"),
        ("127.0.0.1", {"ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem"}, "https://127.0.0.1:8000"),
    ],
)
def test_the_banner_and_the_snapshot_say_how_the_api_is_reached(
    tmp_path: Path, address: str, server: dict[str, Any], url: str
) -> None:
    host = host_on(address, tmp_path, **server)
    assert f"API on {url}\n" in host.banner
    assert host.snapshot().host.url == url
