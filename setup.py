"""The long description of the package: README.md with absolute links. All other metadata is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def absolute_links(text: str, repository: str) -> str:
    """`text` with every relative link of Markdown replaced by the file's address in the repository."""

    def replace(link: re.Match[str]) -> str:
        address = f"{repository}/{'raw' if link[1] else 'blob'}/main/{link[3]}"
        return f"{link[1]}[{link[2]}]({address})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)", replace, text)


if __name__ == "__main__":
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=absolute_links(readme, PROJECT["urls"]["Repository"]),
        long_description_content_type="text/markdown",
    )
