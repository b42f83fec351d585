"""The lane beside Pulsar measures with the pinned jars or not at all."""

from pathlib import Path

from tests.bench.pulsar import jars, lane


def test_jars_that_are_not_the_pinned_ones_are_not_measured_with(tmp_path, monkeypatch, capsys):
    (tmp_path / "pulsar-broker-4.2.4.jar").write_bytes(b"another")
    monkeypatch.setenv(jars.JARS_VARIABLE, str(tmp_path))
    assert lane.run() == []
    said = capsys.readouterr().err
    assert "nothing was measured" in said
    assert str(tmp_path) in said


def test_the_digest_of_jars_is_that_of_their_names_and_contents(tmp_path: Path):
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    first = jars.listing(tmp_path)
    assert [line.split()[1] for line in first.splitlines()] == ["a.jar", "b.jar"]
    (tmp_path / "a.jar").write_bytes(b"changed")
    assert jars.listing(tmp_path) != first
