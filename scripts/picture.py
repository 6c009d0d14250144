"""Records the terminal picture of the README (docs/picture.svg) from a real run: its agent and its supervisor are killed.

    python scripts/picture.py --outlast target/debug/outlast
"""

import argparse
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import demo
from rich.console import Console
from rich.text import Text

TARGET = Path(__file__).resolve().parent.parent / "docs" / "picture.svg"
WIDTH = 100

# A picture that loads nothing: rich's own template asks a server for its font.
TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {terminal_width} {terminal_height}" role="img" aria-label="A run that is killed twice completes within its budget">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace; white-space: pre }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
<rect fill="#16181d" width="{terminal_width}" height="{terminal_height}" rx="8"/>
<g transform="translate(10, 8)" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


class Picture:
    """Lines of a terminal, as they are printed."""

    def __init__(self):
        self.console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)

    def typed(self, line: str) -> None:
        self.console.print(Text("$ ", "green") + Text(line, "bold"))

    def said(self, text: str) -> None:
        for line in text.rstrip().splitlines():
            self.console.print(Text(line))

    def happened(self, line: str) -> None:
        self.console.print(Text(f"✗ {line}", "bold red"))


class Paper(demo.Paper):
    """The demo's kills, drawn into the picture."""

    def __init__(self, picture: Picture):
        super().__init__()
        self.picture = picture

    def kill(self, what: str) -> None:
        self.picture.happened(f"kill -9  {what}")

    def did(self, what: str, detail: str) -> None:
        pass


def record(outlast: Path, picture: Picture) -> None:
    """Plays a run that is killed twice, and tells its story with `outlast show`."""
    shutil.rmtree(demo.PLACE, ignore_errors=True)
    stage = demo.Stage(outlast, Paper(picture))
    try:
        scene = stage.scene("report", "0.25")
        picture.typed("outlast run --name report --usd 0.25 -- python agent.py")
        scene.run()
        demo.kill_agent_in_call(scene, 4)
        demo.kill_supervisor_between_calls(scene, 11)
        picture.typed("outlast resume report")
        scene.wait()
        last = [line for line in scene.err.read_text().splitlines() if "completed" in line]
        picture.said(re.sub(r"run_[0-9a-f-]+", "report", last[-1]))
        picture.typed("outlast show report")
        asked = [outlast, "show", "report"]
        shown = subprocess.run(asked, cwd=demo.PLACE, env=stage.env, capture_output=True, text=True, check=True)
        # The path of whoever records the picture is nobody's business.
        picture.said(shown.stdout.replace(sys.executable, "python").replace(str(demo.AGENT), "agent.py"))
        picture.console.print()
    finally:
        stage.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outlast", type=Path, required=True, help="the program")
    picture = Picture()
    record(parser.parse_args().outlast.resolve(), picture)
    svg = picture.console.export_svg(code_format=TEMPLATE, unique_id="picture")
    TARGET.write_text(svg)
    print(f"{TARGET.name}: {len(svg)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
