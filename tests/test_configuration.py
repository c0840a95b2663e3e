"""superkernel.config: an assigned value wins over the environment, wrong values are refused, variables are listed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import superkernel as sk
from superkernel.cache import default_directory
from superkernel.cache.location import size_limit
from superkernel.configuration import READ_VARIABLES, SETTINGS, config
from superkernel.targets.cpu.runtime import host_library, huge_pages

PACKAGE = Path(sk.__file__).parent
PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    with config.patch():
        yield


def test_an_assigned_value_wins_over_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "variable"))
    assert (default_directory(), config.source("cache")) == (tmp_path / "variable", "SUPERKERNEL_CACHE")
    sk.config.cache = tmp_path / "assigned"
    assert (default_directory(), config.source("cache")) == (tmp_path / "assigned", "assigned")
    sk.config.cache = None
    assert default_directory() == tmp_path / "variable"
    monkeypatch.delenv("SUPERKERNEL_CACHE")
    assert (config.cache, config.source("cache")) == (None, "default")


def test_every_setting_is_used(tmp_path: Path) -> None:
    assert {setting.name for setting in SETTINGS} == {"cache", "cache_limit", "dump", "team", "huge_pages"}
    with config.patch(cache=tmp_path, cache_limit="2K", team="never", huge_pages=False):
        assert default_directory() == tmp_path and size_limit() == 2048
        assert host_library._team_policy() == host_library._POLICIES.index("never")
        assert not huge_pages.wanted()
    with config.patch(cache_limit=0, huge_pages=True):
        assert size_limit() is None and huge_pages.wanted()


def test_the_back_end_dumps_where_the_setting_says(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from superkernel.frontend.settings import BackendSettings

    with config.patch(dump=tmp_path):
        assert BackendSettings().dump == str(tmp_path)
        assert BackendSettings.parse({"dump": "elsewhere"}).dump == "elsewhere"


def test_a_patch_ends_with_its_block_and_with_an_exception() -> None:
    config.team = "always"
    with pytest.raises(KeyError), config.patch(team="never", cache_limit="1G"):
        assert (config.team, config.cache_limit) == ("never", "1G")
        raise KeyError
    assert config.team == "always" and config.source("cache_limit") != "assigned"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("team", "sometimes"),
        ("cache_limit", "much"),
        ("huge_pages", 2),
        ("cache", ""),
        ("dump", b"x"),
        ("cache", "a\0b"),
    ],
)
def test_a_wrong_value_is_refused_and_changes_nothing(name: str, value: object) -> None:
    before = config.to_dict()
    with pytest.raises(sk.OptionError, match=rf"superkernel\.config\.{name} cannot be .*; allowed: "):
        setattr(config, name, value)
    assert config.to_dict() == before


def test_an_unknown_setting_names_the_nearest() -> None:
    for access in (lambda: config.cach, lambda: setattr(config, "cach", "x")):
        with pytest.raises(AttributeError, match="did you mean 'cache'"):
            access()


def test_the_printed_form_has_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPERKERNEL_TEAM", raising=False)
    config.cache_limit = "2G"
    lines = str(config).splitlines()
    assert [line.split()[0] for line in lines] == [setting.name for setting in SETTINGS]
    assert lines[1].endswith("2G  (assigned)") and lines[3].endswith("auto  (default)")


def test_every_variable_that_the_package_reads_is_listed() -> None:
    listed = {setting.variable for setting in SETTINGS}
    listed |= {name for read in READ_VARIABLES for name in read.variable.split(", ")}
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    named = {name for text in sources for name in re.findall(r'"(SUPERKERNEL_[A-Z_]+)"', text)}
    read = {name for text in sources for name in re.findall(r'environ(?:\.get\(|\[)"([A-Z_]+)"', text)} - {"PATH"}
    assert named | read <= listed, "add them to the tables of configuration.py"


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert code is not None
    exec(code[1], {})
    assert "cache_limit" in capsys.readouterr().out and config.source("cache_limit") != "assigned"
