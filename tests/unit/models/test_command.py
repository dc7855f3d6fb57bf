"""`strata models`: the list, a download by name against a stand-in hub, and what goes wrong in one sentence."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.__main__ import main
from appliance.errors import ExitCode
from appliance.models.command import Line
from appliance.models.download import Progress
from tests.builders.hub import Hub, hub

ROOT = Path(__file__).parents[3]
ONE = "office/Model-GGUF"
FILES = {
    ONE: {
        "Q4/m-Q4-00001-of-00002.gguf": b"first" * 1000,
        "Q4/m-Q4-00002-of-00002.gguf": b"second",
        "Q8/m-Q8.gguf": b"eight",
    }
}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub({name: dict(files) for name, files in FILES.items()}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def test_the_list_has_what_is_here_and_what_is_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(ROOT / "tests/oracle/base4/model.gguf", tmp_path / "small.gguf")
    (tmp_path / "big-00001-of-00002.gguf").write_bytes(b"GGUF")
    (tmp_path / "odd.gguf").write_bytes(b"no such thing")
    assert main(["models", "--folder", str(tmp_path)]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"in {tmp_path}:"
    (here,) = [line for line in lines if "small.gguf" in line]
    assert "odd" not in here
    assert "incomplete" not in here
    (cut,) = [line for line in lines if "big-00001" in line]
    assert "incomplete" in cut
    assert "missing big-00002-of-00002.gguf" in cut
    (odd,) = [line for line in lines if "odd.gguf" in line]
    assert "GGUF" in odd
    assert any(line.startswith("  iq3-xxs ") for line in lines)


def test_an_empty_folder_and_one_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        assert main(["models", "--folder", str(folder)]) == ExitCode.OK
        assert "  nothing" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("order", [["--folder", "{}", "get", "{name}"], ["get", "{name}", "--folder", "{}"]], ids=len)
def test_get_brings_a_set_and_says_what_the_rig_needs(
    served: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], order: list[str]
) -> None:
    words = [word.format(tmp_path, name=f"{ONE}:Q4") for word in order]
    assert main(["models", *words]) == ExitCode.OK
    first = tmp_path / "Model-GGUF/m-Q4/m-Q4-00001-of-00002.gguf"
    assert first.read_bytes() == b"first" * 1000
    told = capsys.readouterr()
    assert f'[model]\npath = "{first}"\n' in told.out
    assert "100 % of" in told.err
    served.ranges.clear()
    assert main(["models", *words]) == ExitCode.OK
    assert served.ranges == []


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        pytest.param("iq3-xx", ExitCode.USAGE, "did you mean iq3-xxs?", id="a name nearly right"),
        pytest.param(ONE, ExitCode.USAGE, "2 GGUF sets fit: Q4/m-Q4, Q8/m-Q8", id="which of several"),
        pytest.param(f"{ONE}:Q5", ExitCode.MODEL_FILE, "no GGUF set Q5", id="no such size"),
        pytest.param("office/None", ExitCode.MODEL_FILE, "no such repository", id="no such repository"),
    ],
)
@pytest.mark.usefixtures("served")
def test_what_cannot_be_had_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, code: ExitCode, says: str
) -> None:
    assert main(["models", "get", name, "--folder", str(tmp_path)]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("strata: ")
    assert says in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("terminal", "expected"),
    [
        (False, "download m: 0 % of 200 B\ndownload m: 50 % of 200 B\nchecksum m: 100 % of 200 B\n"),
        (
            True,
            "\rdownload m: 0 % of 200 B\rdownload m: 1 % of 200 B\rdownload m: 50 % of 200 B\rdownload m: 51 % of 200 B"
            "\rchecksum m: 100 % of 200 B\n",
        ),
    ],
    ids=["a log", "a terminal"],
)
def test_progress(terminal: bool, expected: str) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    stream = Stream()
    line = Line(stream)
    for stage, done in (("download", 0), ("download", 2), ("download", 101), ("download", 103), ("checksum", 200)):
        line.tell(Progress("m", stage, done, 200, done, 200))
    line.end()
    assert stream.getvalue().replace("  ", " ").replace(" \r", "\r") == expected
