"""Only the listed jars with the listed content are ever loaded, whoever fetched them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from statechannel.embedded import JarsUnavailableError, jars, prepare_jars
from statechannel.embedded.jars import KAFKA_JARS, Jar, PinnedJars

CONTENTS = {"org.one:one:1.0": b"first jar", "org.two:two:2.0": b"second jar"}


@pytest.fixture
def small_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A list of two jars and an empty cache folder, which is returned."""
    small = tuple(
        Jar(
            f"{coordinate.split(':')[1]}-{coordinate.split(':')[2]}.jar",
            coordinate,
            hashlib.sha256(content).hexdigest(),
        )
        for coordinate, content in CONTENTS.items()
    )
    monkeypatch.setattr(PinnedJars, "listed", lambda _: small)
    monkeypatch.delenv(jars.JARS_VARIABLE, raising=False)
    cache = tmp_path / "cache"
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(cache))
    return cache


def fill(folder: Path, **changed: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for coordinate, content in CONTENTS.items():
        _, artifact, version = coordinate.split(":")
        (folder / f"{artifact}-{version}.jar").write_bytes(changed.get(artifact, content))
    return folder


def fake_fetch(monkeypatch: pytest.MonkeyPatch, **changed: bytes) -> list[Sequence[str]]:
    calls: list[Sequence[str]] = []

    def fetched(coordinates: Sequence[str], scratch: Path, *, hint: str) -> dict[str, Path]:
        calls.append(coordinates)
        return {path.name: path for path in fill(scratch / "out", **changed).iterdir()}

    monkeypatch.setattr(jars, "fetch", fetched)
    return calls


def test_committed_list_is_whole() -> None:
    listed = KAFKA_JARS.listed()
    assert len(listed) == 46, "45 of Kafka and the binding of its log"
    assert len({jar.name for jar in listed}) == 46
    assert all(len(jar.sha256) == 64 for jar in listed)
    assert "org.apache.kafka:kafka_2.13:4.3.1" in {jar.coordinate for jar in listed}


def test_empty_cache_means_none(small_list: Path) -> None:
    assert jars.KAFKA_JARS.find() is None


def test_cache_is_filled_once(small_list: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_fetch(monkeypatch)
    said: list[str] = []
    first = prepare_jars(say=said.append)
    second = prepare_jars(say=said.append)
    assert [path.name for path in first] == ["one-1.0.jar", "two-2.0.jar"]
    assert second == first
    assert len(calls) == 1
    assert len(said) == 1
    assert [path.name for path in small_list.iterdir() if path.name.startswith("fetch-")] == []


def test_fetched_jar_with_other_content_never_enters_the_cache(small_list: Path, monkeypatch: pytest.MonkeyPatch):
    fake_fetch(monkeypatch, two=b"something else")
    with pytest.raises(JarsUnavailableError, match=r"two-2\.0\.jar is not the listed org\.two"):
        prepare_jars()
    assert jars.KAFKA_JARS.find() is None


def test_changed_jar_in_the_cache_is_refused(small_list: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_fetch(monkeypatch)
    prepare_jars()[1].write_bytes(b"second jaR")
    with pytest.raises(JarsUnavailableError, match="SHA-256 differs") as error:
        jars.KAFKA_JARS.find()
    assert error.value.hint.startswith("remove ")


def test_own_folder_is_taken_and_never_filled(small_list: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    calls = fake_fetch(monkeypatch)
    own = fill(tmp_path / "own")
    (own / "stranger-9.jar").write_bytes(b"not listed")
    monkeypatch.setenv(jars.JARS_VARIABLE, str(own))
    assert [path.name for path in prepare_jars()] == ["one-1.0.jar", "two-2.0.jar"]
    (own / "two-2.0.jar").unlink()
    with pytest.raises(JarsUnavailableError, match=r"lacks 1 of 2 .* first two-2\.0\.jar") as error:
        prepare_jars()
    assert jars.JARS_VARIABLE in error.value.hint
    assert calls == []


def test_no_client_works_is_one_clear_error(small_list: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Without mvn on PATH, and with a jgo that finds nothing.
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("jgo.maven.MavenContext.project", lambda *_: (_ for _ in ()).throw(OSError("no route")))
    with pytest.raises(JarsUnavailableError, match="mvn is not on PATH; jgo: no route") as error:
        prepare_jars()
    assert "statechannel/embedded/jars.sha256 to a folder and name it in STATECHANNEL_KAFKA_JARS" in error.value.hint


def test_failing_maven_falls_back_to_jgo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] unknown host'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    jar = fill(tmp_path / "jars") / "one-1.0.jar"
    monkeypatch.setattr("jgo.maven.Artifact.resolve", lambda _: jar)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert jars.fetch(["org.one:one:1.0"], scratch) == {"one-1.0.jar": jar}


def test_maven_is_asked_for_exactly_the_listed_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maven = tmp_path / "mvn"
    maven.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do case "$word" in -DoutputDirectory=*) out="${word#*=}";; esac; done\n'
        'mkdir -p "$out"; echo x > "$out/one-1.0.jar"\n'
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert set(jars.fetch(list(CONTENTS), tmp_path)) == {"one-1.0.jar"}
    pom = (tmp_path / "pom.xml").read_text()
    assert pom.count("<dependency>") == 2
    assert "<artifactId>two</artifactId><version>2.0</version>" in pom
