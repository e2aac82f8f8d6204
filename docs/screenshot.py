"""Takes the README's picture: the overview of a live host, after watching it for some seconds.

python docs/screenshot.py docs/overview.svg [--size 100x30] [--seconds 20] [-t TARGET]
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from console.connect import resolve
from console.tui.app import ConsoleApp


async def _shoot(target: str | None, size: tuple[int, int], seconds: float) -> str:
    app = ConsoleApp(resolve(target))
    async with app.run_test(size=size) as pilot:
        await pilot.pause(seconds)
        return app.export_screenshot(title="vllm-console")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("-t", "--target")
    parser.add_argument("--size", default="100x30")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    width, height = (int(part) for part in arguments.size.split("x"))
    arguments.path.write_text(asyncio.run(_shoot(arguments.target, (width, height), arguments.seconds)))


if __name__ == "__main__":
    main()
