"""Downloads against a stand-in hub on loopback: whole, continued, damaged, refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.errors import DoesNotFitError, ModelFileError, UsageError
from appliance.models import download as module
from appliance.models.catalogue import read_catalogue
from appliance.models.download import Progress, check_space, download, missing_bytes, target
from appliance.models.repository import RemoteFile, RemoteSet, Wanted, look_up, wanted
from appliance.rig.size import GIB, format_size
from tests.builders.hub import Hub, hub

ONE = "office/Model-GGUF"
MANY = "office/Many-GGUF"
FIRST, SECOND = os.urandom(3_000_000), os.urandom(50_000)
FILES = {
    ONE: {"README.md": b"read", "Q4/m-Q4-00001-of-00002.gguf": FIRST, "Q4/m-Q4-00002-of-00002.gguf": SECOND},
    MANY: {
        "a-Q4_0.gguf": b"four",
        "a-UD-Q8_0.gguf": b"eight",
        "MTP/mtp-a.gguf": b"draft",
        "mmproj-a.gguf": b"eyes",
        "Q2/a-Q2-00001-of-00002.gguf": b"half",
    },
}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1_000_000)
    with hub({name: dict(files) for name, files in FILES.items()}) as running:
        yield running


def bring(served: Hub, folder: Path, **options: object) -> Path:
    return download(look_up(Wanted(repository=ONE), endpoint=served.url), folder, endpoint=served.url, **options)  # type: ignore[arg-type]


def test_a_whole_set_with_progress(served: Hub, tmp_path: Path) -> None:
    told: list[Progress] = []
    first = bring(served, tmp_path, progress=told.append)
    assert first == tmp_path / "Model-GGUF" / "m-Q4" / "m-Q4-00001-of-00002.gguf"
    assert first.read_bytes() == FIRST
    assert first.with_name("m-Q4-00002-of-00002.gguf").read_bytes() == SECOND
    assert sorted(path.name for path in first.parent.iterdir()) == [
        "m-Q4-00001-of-00002.gguf",
        "m-Q4-00002-of-00002.gguf",
    ]
    assert [found.done_bytes for found in told if found.stage == "download"][:3] == [1_000_000, 2_000_000, 3_000_000]
    assert {found.stage for found in told} == {"download", "checksum"}
    assert told[-1].set_done_bytes == told[-1].set_total_bytes == len(FIRST) + len(SECOND)
    served.ranges.clear()
    assert bring(served, tmp_path) == first
    assert served.ranges == []


def test_it_goes_on_where_it_stopped(served: Hub, tmp_path: Path) -> None:
    """CFG-20: what was interrupted is a .part, never taken for a model, and only the rest is asked for."""

    class Stop(Exception):
        pass

    def stop(found: Progress) -> None:
        if found.done_bytes >= 2_000_000:
            raise Stop

    with pytest.raises(Stop):
        bring(served, tmp_path, progress=stop)
    (part,) = (tmp_path / "Model-GGUF" / "m-Q4").iterdir()
    assert part.name == "m-Q4-00001-of-00002.gguf.part"
    have = part.stat().st_size
    assert 0 < have < len(FIRST)
    left = look_up(Wanted(repository=ONE), endpoint=served.url)
    assert missing_bytes(left, tmp_path) == len(FIRST) + len(SECOND) - have
    served.ranges.clear()
    assert bring(served, tmp_path).read_bytes() == FIRST
    assert served.ranges == [f"bytes={have}-", ""]


def test_a_broken_connection_is_continued_within_the_same_run(served: Hub, tmp_path: Path) -> None:
    served.cut_after = [1_500_000]
    assert bring(served, tmp_path).read_bytes() == FIRST
    assert served.ranges[0] == ""
    assert served.ranges[1].startswith("bytes=")


def test_a_wrong_checksum_removes_the_file_and_says_so(served: Hub, tmp_path: Path) -> None:
    served.lies["Q4/m-Q4-00001-of-00002.gguf"] = "0" * 64
    with pytest.raises(ModelFileError, match=r"m-Q4-00001-of-00002\.gguf: its checksum is .* the file was deleted"):
        bring(served, tmp_path)
    assert list((tmp_path / "Model-GGUF" / "m-Q4").iterdir()) == []


def test_too_little_disk_is_refused_before_the_first_byte(served: Hub, tmp_path: Path) -> None:
    """CFG-20: 20 GB free for a model of 70 GB."""
    large = RemoteSet(
        repository=ONE,
        revision="main",
        title="big",
        files=(RemoteFile(path="b.gguf", size_bytes=70 * GIB, sha256=None),),
    )
    with pytest.raises(DoesNotFitError) as caught:
        check_space(large, tmp_path / "not" / "there", free_bytes=20 * GIB)
    for words in (format_size(70 * GIB), format_size(20 * GIB), "smaller size"):
        assert words in str(caught.value)
    assert served.ranges == []
    check_space(large, tmp_path, free_bytes=72 * GIB)


def test_the_token_goes_along(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.token = "hf_secret"
    with pytest.raises(ModelFileError, match="no such repository or file, or not for this token") as caught:
        bring(served, tmp_path)
    assert "hf_secret" not in str(caught.value)
    found = look_up(Wanted(repository=ONE), endpoint=served.url, token="hf_secret")
    assert download(found, tmp_path, endpoint=served.url, token="hf_secret").read_bytes() == FIRST
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert look_up(Wanted(repository=ONE), endpoint=served.url) == found


def test_the_endpoint_of_the_environment_counts(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    assert download(look_up(Wanted(repository=ONE)), tmp_path).read_bytes() == FIRST


@pytest.mark.parametrize(
    ("want", "error", "words"),
    [
        pytest.param(Wanted(repository="office/None"), ModelFileError, "no such repository", id="absent repository"),
        pytest.param(Wanted(repository=MANY), UsageError, "3 GGUF sets fit", id="several sets, none named"),
        pytest.param(Wanted(repository=MANY, tag="Q5"), ModelFileError, "no GGUF set Q5; it has: ", id="absent set"),
        pytest.param(Wanted(repository=MANY, tag="Q2"), ModelFileError, "has 1 of its 2 parts", id="CFG-20 half a set"),
        pytest.param(
            Wanted(repository=MANY, tag="Q4_0", draft_file="x.gguf"), ModelFileError, "the drafter x.gguf", id="drafter"
        ),
    ],
)
def test_what_the_hub_cannot_give(served: Hub, want: Wanted, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        look_up(want, endpoint=served.url)


def test_a_gated_repository_says_what_to_do(served: Hub, tmp_path: Path) -> None:
    served.gated.add(ONE)
    with pytest.raises(ModelFileError, match="accept the terms"):
        bring(served, tmp_path)


def test_no_hub_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be reached"):
        look_up(Wanted(repository=ONE), endpoint="http://127.0.0.1:9")


def test_the_one_that_is_named(served: Hub) -> None:
    found = look_up(Wanted(repository=MANY, tag="q8_0", draft_file="MTP/mtp-a.gguf"), endpoint=served.url)
    assert [file.path for file in found.files] == ["a-UD-Q8_0.gguf", "MTP/mtp-a.gguf"]
    assert found.size_bytes == 10


def test_files_beyond_the_plain_limit_go_through_the_clients_own_way(
    served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PLAIN_BYTES", 1_000_000)
    first = bring(served, tmp_path)
    assert first.read_bytes() == FIRST
    assert not (first.parent / ".download").exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("iq3-s", Wanted(repository="ISTA-DASLab/Qwen3.8-Flash-Next-GSQ-RCO-GGUF", tag="IQ3_S"), id="id"),
        pytest.param("office/M-GGUF", Wanted(repository="office/M-GGUF"), id="repository"),
        pytest.param("office/M-GGUF:Q4_K_M", Wanted(repository="office/M-GGUF", tag="Q4_K_M"), id="with a size"),
        pytest.param("https://huggingface.co/a/b", Wanted(repository="a/b"), id="address"),
    ],
)
def test_names(name: str, expected: Wanted) -> None:
    assert wanted(name, read_catalogue()) == expected


def test_a_misspelt_id_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"did you mean iq3-s\?"):
        wanted("iq3s", read_catalogue())


def test_the_place_of_a_set(tmp_path: Path) -> None:
    large = RemoteSet(repository="a/b", revision="", title="UD-Q4/x-UD-Q4", files=())
    assert target(large, tmp_path) == tmp_path / "b" / "x-UD-Q4"
