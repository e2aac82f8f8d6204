"""Takes the README's picture: the overview of a live host, after watching it for some seconds.

    python docs/screenshot.py docs/overview.png [--size 100x30] [--seconds 20] [-t TARGET]

Draws the cells itself, with a font of this machine, so that the picture looks the same wherever it is shown. Needs
Pillow, which vLLM brings, and DejaVu Sans Mono or another font that has block glyphs.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from rich.cells import cell_len

from console.connect import resolve
from console.lines import STYLES, Line
from console.tui.app import ConsoleApp
from console.tui.widgets.board import Board

FONT_PX = 15
MARGIN_PX = 12
GROUND, PLAIN = "#1c1f24", "#c8ccd4"
COLOURS = {"bright_blue": "#61afef", "yellow": "#e5c07b"}
FAINT = "#7f848e"


async def _shoot(target: str | None, size: tuple[int, int], seconds: float) -> list[Line]:
    app = ConsoleApp(resolve(target))
    async with app.run_test(size=size) as pilot:
        await pilot.pause(seconds)
        return [row for board in app.screen.query(Board) for row in board.lines]


def picture(rows: list[Line], columns: int, font: str, bold_font: str) -> Image.Image:
    plain, bold = (ImageFont.truetype(name, FONT_PX) for name in (font, bold_font))
    width, height = round(plain.getlength("x")), round(FONT_PX * 1.25)
    shown = Image.new("RGB", (columns * width + 2 * MARGIN_PX, len(rows) * height + 2 * MARGIN_PX), GROUND)
    draw = ImageDraw.Draw(shown)
    for y, row in enumerate(rows):
        x = 0
        for text, tone in row:
            words = STYLES[tone].split()
            ink, ground = next((COLOURS[word] for word in words if word in COLOURS), PLAIN), GROUND
            ink = FAINT if "dim" in words else ink
            if "reverse" in words:
                ink, ground = ground, ink
            for character in text:
                left, top = MARGIN_PX + x * width, MARGIN_PX + y * height
                x += cell_len(character)
                if ground != GROUND:
                    draw.rectangle((left, top, left + width - 1, top + height - 1), fill=ground)
                draw.text((left, top), character, fill=ink, font=bold if "bold" in words else plain)
    return shown.quantize(256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("-t", "--target")
    parser.add_argument("--size", default="100x30")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--font", default="DejaVuSansMono.ttf")
    parser.add_argument("--bold-font", default="DejaVuSansMono-Bold.ttf")
    arguments = parser.parse_args()
    columns, height = (int(part) for part in arguments.size.split("x"))
    rows = asyncio.run(_shoot(arguments.target, (columns, height), arguments.seconds))
    picture(rows, columns, arguments.font, arguments.bold_font).save(arguments.path, optimize=True)


if __name__ == "__main__":
    main()
