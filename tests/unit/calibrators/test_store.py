"""The calibrator folder: what is published is loaded unchanged, and nothing else is loaded."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.calibrators.store import ArtifactStore, parse, serialise
from app.core.artifact import FIXED, Abstention, Artifact, DataWindow, PolicyFit, Thresholds, checksum
from app.core.calibrator import Calibrator, Fused, Isotonic, Logistic, MinMax, Temperature
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.core.cost import Objective
from app.core.scope import Scope
from app.errors import ArtifactChecksumError, ArtifactError, ArtifactSchemaError
from tests.fakes.artifacts import (
    a_fit,
    a_ladder_artifact,
    a_line,
    an_abstention,
    an_artifact,
    an_uncertified_fit,
)

S = "seq_logprob"
SCOPE = Scope(0.05, {"search.cosine": 0.25}, 0.5, ("LATIN",), "questions in English")
STATS = CorpusStats.of([("Oslo", "The capital of Norway"), ("Bergen", "A city of Norway")])
METHODS: tuple[Calibrator, ...] = (
    Logistic(f"{S}@1", mean=-1.1, scale=0.3, slope=2.0, intercept=-0.1),
    Isotonic(S, x=(-3.0, -0.7, -0.1), y=(0.0, 0.1, 1.0)),
    Temperature("margin", temperature=0.3, bias=1.7),
    MinMax("neg_entropy", low=-3.3, high=0.0),
    Fused((S, "margin"), means=(-1.0, 2.2), scales=(0.5, 1.0), weights=(1.0, -0.5), intercept=0.0),
)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "calibrators" / "demo")


def rewrite(store: ArtifactStore, artifact: Artifact, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a published file as a person with an editor would."""
    path = Path(store.where) / f"{artifact.version}.json"
    body = json.loads(path.read_bytes())
    change(body)
    path.write_text(json.dumps(body))


# What comes back


@pytest.mark.parametrize("calibrator", METHODS, ids=lambda calibrator: calibrator.method)
def test_every_method_makes_the_round_trip(store: ArtifactStore, calibrator: Calibrator) -> None:
    """A published artifact is loaded equal to itself, with the same types, whichever method each calibrator has."""
    artifact = an_artifact(calibrators=dict.fromkeys((0, 1, 5), calibrator))
    path = Path(store.publish(artifact))
    assert path == Path(store.where) / f"{artifact.version}.json"
    loaded = store.load(artifact.version)
    assert loaded == artifact
    assert type(loaded.p0) is type(calibrator)
    signals = {S: -0.5, f"{S}@1": -0.5, "margin": 1.0, "neg_entropy": -1.0}
    assert loaded.p0.predict({f"k0.{name}": value for name, value in signals.items()}) is not None


@pytest.mark.parametrize(
    "artifact",
    [
        an_artifact(identity=None),
        an_artifact(calibrators={0: a_line()}),
        an_artifact(
            policies={"graded": an_uncertified_fit()},
            abstention=an_abstention(certificate=None, uncertified_reason="x"),
        ),
        an_artifact(policies={}, quantiles={}, report={}),
        a_ladder_artifact(scope=SCOPE),
        an_artifact(policies={"graded": PolicyFit(FIXED[2], Objective.CALLS)}),
        an_artifact(name="naïve \u2028 {x}", report={"notes": ["à", None, True, {"deep": [1, 2.5]}]}),
    ],
    ids=["no identity", "p0 alone", "uncertified", "bare", "ladder", "fixed", "unicode"],
)
def test_whatever_may_be_absent_makes_the_round_trip(store: ArtifactStore, artifact: Artifact) -> None:
    """Optional parts are None again, or empty again."""
    store.publish(artifact)
    assert store.load(artifact.version) == artifact


@pytest.mark.parametrize(
    "changes",
    [
        {"policies": {"graded": a_fit(1, 0)}},
        {"report": {"by_k": {2: "a", 10: "b"}}},
        {"report": {"curve": ((0, 1), (1, 1))}},
    ],
    ids=["whole thresholds", "integer keys", "tuples"],
)
def test_what_json_respells_is_not_a_change(store: ArtifactStore, changes: dict[str, Any]) -> None:
    """An artifact made with whole numbers, integer keys or tuples in its report is served after it is published."""
    artifact = an_artifact(**changes)
    store.publish(artifact)
    assert checksum(store.load(artifact.version)) == checksum(artifact)


@st.composite
def artifacts(draw: st.DrawFn) -> Artifact:
    unit = st.floats(0.0, 1.0)
    tau1, tau0 = sorted((draw(unit), draw(unit)))
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    return an_artifact(
        name=draw(text),
        calibrators={k: draw(st.sampled_from(METHODS)) for k in (0, 1, 5)},
        policies={"graded": replace(a_fit(), thresholds=Thresholds(tau0, tau1))},
        abstention=Abstention(draw(unit), risk_target=draw(unit), uncertified_reason=draw(st.none() | text)),
        quantiles=draw(st.dictionaries(text, st.lists(st.floats(-100, 100), max_size=3).map(tuple), max_size=3)),
    )


@given(artifacts())
def test_parse_is_the_reverse_of_serialise(artifact: Artifact) -> None:
    """Any artifact is the same after being written and read, to the last bit of every number."""
    assert parse(serialise(artifact), name="x") == artifact


def test_publishing_twice_changes_nothing(store: ArtifactStore) -> None:
    """A version is immutable: the second time its file is left as it is, and nothing else is left behind."""
    artifact = an_artifact()
    path = Path(store.publish(artifact))
    os.utime(path, (1, 1))
    assert Path(store.publish(replace(artifact, name="another"))) == path
    assert path.stat().st_mtime == 1
    assert store.load(artifact.version).name == artifact.name
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".lock", path.name]


def test_promote_names_the_served_version(store: ArtifactStore) -> None:
    """The first line of CURRENT follows each promotion, back as well as forward."""
    assert store.current() is None
    assert store.versions() == []
    for version in ("b", "a"):
        store.publish(an_artifact(version=version))
    assert store.current() is None
    for version in ("a", "b", "a"):
        store.promote(version)
        assert store.current() == version
        assert (Path(store.where) / "CURRENT").read_text().startswith(f"{version} 20")
    assert store.versions() == ["a", "b"]


# The way back


def served(store: ArtifactStore, *versions: str) -> None:
    """Publish and promote versions, one after the other."""
    for version in versions:
        store.publish(an_artifact(version=version))
        store.promote(version)


def test_rolling_back_goes_to_what_was_served_before(store: ArtifactStore) -> None:
    """Each rollback goes one further back, and a promotion after it starts from there."""
    served(store, "a", "b", "c")
    assert store.served_before() == ["b", "a"]
    assert store.rollback() == "b"
    assert store.rollback() == store.current() == "a"
    with pytest.raises(ArtifactError, match="has no earlier version: promote one"):
        store.rollback()
    assert store.current() == "a"
    store.promote("c")
    assert store.rollback() == "a"


@given(st.lists(st.sampled_from(["a", "b", "c", "back"]), max_size=20))
def test_rolling_back_undoes_promotions_in_reverse(steps: list[str]) -> None:
    """Whatever was promoted and rolled back so far, CURRENT is the top of a stack of what was served."""
    with TemporaryDirectory() as folder:
        store = ArtifactStore(Path(folder))
        stack: list[str] = []
        for version in ("a", "b", "c"):
            store.publish(an_artifact(version=version))
        for step in steps:
            if step != "back":
                store.promote(step)
                if stack[-1:] != [step]:
                    stack.append(step)
            elif len(stack) > 1:
                stack.pop()
                assert store.rollback() == stack[-1]
            assert store.current() == (stack[-1] if stack else None)
            assert store.served_before() == stack[-2::-1]


def test_history_lists_each_change(store: ArtifactStore) -> None:
    """Each change has its time, what was before and which command did it; the same version again is no change."""
    store.publish(an_artifact(version="a"))
    store.promote("a", by="refit")
    store.promote("a")
    served(store, "b")
    store.rollback()
    changes = store.history()
    assert [(change.version, change.before, change.by) for change in changes] == [
        ("a", None, "refit"),
        ("b", "a", "promote"),
        ("a", "b", "rollback"),
    ]
    assert all(datetime.fromisoformat(change.at).tzinfo for change in changes)
    assert store.versions() == ["a", "b"]


def test_what_was_written_by_hand_counts(store: ArtifactStore) -> None:
    """A version alone on a line names it; the lines below stay the history, even if one of them is invalid."""
    served(store, "a", "b")
    current = Path(store.where) / "CURRENT"
    current.write_text("a\n")
    assert (store.current(), store.served_before()) == ("a", [])
    served(store, "c")
    current.write_text(f"b\nno line of ours\n{current.read_text()}")
    assert store.current() == "b"
    assert [(change.version, change.by) for change in store.history()] == [
        ("a", "hand"),
        ("c", "promote"),
        ("b", "hand"),
    ]
    assert store.rollback() == "c"
    assert store.served_before() == ["a"]


def test_a_bad_version_does_not_become_current(store: ArtifactStore) -> None:
    """Promoting or rolling back to what does not load leaves CURRENT as it was."""
    served(store, "a", "b")
    before = (Path(store.where) / "CURRENT").read_bytes()
    (Path(store.where) / "a.json").write_text("{")
    for act in (store.rollback, lambda: store.promote("a")):
        with pytest.raises(ArtifactError, match=r"a\.json"):
            act()
    assert (Path(store.where) / "CURRENT").read_bytes() == before


def test_an_invalid_current_is_repaired(store: ArtifactStore) -> None:
    """A rollback or a promotion replaces a first line that names nothing, and keeps the others."""
    served(store, "a", "b")
    good = (Path(store.where) / "CURRENT").read_text()
    for repair, version in ((store.rollback, "b"), (lambda: store.promote("a"), "a")):
        (Path(store.where) / "CURRENT").write_text(f"../x\n{good}")
        repair()
        assert store.current() == version
        assert (Path(store.where) / "CURRENT").read_text().endswith(good)


def test_nothing_to_roll_back_to(store: ArtifactStore) -> None:
    """Where nothing was served before, or CURRENT cannot be read or written, an ArtifactError names it."""
    with pytest.raises(ArtifactError, match="CURRENT has no earlier version"):
        store.rollback()
    store.publish(an_artifact(version="a"))
    (Path(store.where) / "CURRENT").mkdir()
    for act in (lambda: store.promote("a"), store.rollback, store.history):
        with pytest.raises(ArtifactError, match="CURRENT cannot be read: Is a directory"):
            act()


def test_two_that_promote_at_once(store: ArtifactStore) -> None:
    """Promotions of several threads come one after the other: every line is whole, and follows from the one before."""
    versions = [f"v{number}" for number in range(8)]
    for version in versions:
        store.publish(an_artifact(version=version))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda version: ArtifactStore(store.where).promote(version), versions * 4))
    changes = store.history()
    assert {change.version for change in changes} == set(versions)
    assert [change.before for change in changes[1:]] == [change.version for change in changes[:-1]]
    assert store.current() == changes[-1].version


# What does not


def test_a_torn_file_is_refused(store: ArtifactStore) -> None:
    """Every proper beginning of a file is an ArtifactError, never half an artifact."""
    raw = serialise(an_artifact())
    for end in range(0, len(raw) - 2, 37):
        with pytest.raises(ArtifactError):
            parse(raw[:end], name="torn")


def test_a_changed_number_is_refused(store: ArtifactStore) -> None:
    """A file that is valid and says something else than was published fails its checksum."""
    artifact = an_artifact()
    path = Path(store.publish(artifact))
    path.write_bytes(path.read_bytes().replace(b'"tau0": 0.75', b'"tau0": 0.74'))
    with pytest.raises(ArtifactChecksumError, match="was changed after it was published"):
        store.load(artifact.version)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_any_changed_byte_is_refused_or_changes_nothing(at: int, byte: int) -> None:
    """One byte changed anywhere is an ArtifactError, unless the artifact is still the same, as with white space."""
    artifact = an_artifact()
    raw = bytearray(serialise(artifact))
    raw[at % len(raw)] = byte
    try:
        assert parse(bytes(raw), name="changed") == artifact
    except ArtifactError as error:
        assert "changed" in str(error)  # noqa: PT017 - either outcome is right, and this is what the second must say


def _set(*keys: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        for key in keys[:-1]:
            body = body[key]
        body[keys[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("schema", to=1), "has schema 1, this gateway reads 6: refit it"),
        (_set("schema", to="2"), "has schema '2'"),
        (lambda body: body.pop("schema"), "has schema None"),
        (lambda body: body.pop("checksum"), "it has no checksum"),
        (_set("surprise", to=1), "surprise: "),
        (_set("policies", "graded", "surprise", to=1), "surprise: "),
        (_set("heads", "k0", "0", "method", to="magic"), "not a valid artifact"),
        (_set("heads", "k0", "0", to=None), "not a valid artifact"),
        (_set("heads", "k0", "0", "x", to=[0.0, -1.0]), "increasing x"),
        (_set("policies", "graded", "thresholds", "tau1", to=0.9), "0 <= tau1 <= tau0"),
        (_set("policies", "graded", "thresholds", "tau0", to="0.75"), "valid number"),
        (_set("fallback_k", to=0), "fallback_k must be one of"),
        (_set("heads", to={"one": 1.0}), "heads"),
        (_set("policies", "graded", "objective", to="passages"), "objective"),
        (lambda body: body.pop("data_window"), "data_window: "),
    ],
)
def test_a_wrong_shape_is_refused(store: ArtifactStore, change: Callable[[dict[str, Any]], None], message: str) -> None:
    """Another schema, an unknown field, a missing one or an invalid number: refused, and the message says which."""
    artifact = an_artifact()
    store.publish(artifact)
    rewrite(store, artifact, change)
    with pytest.raises(ArtifactSchemaError, match=message):
        store.load(artifact.version)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe\x00",
        b"[]",
        b'"text"',
        b"null",
        b"[" * 100_000,
        b'{"checksum": "x", "schema": 4}',
    ],
    ids=["empty", "binary", "list", "string", "null", "deep", "bare"],
)
def test_what_is_no_artifact_is_refused(raw: bytes) -> None:
    """Any other bytes are a schema error that names the file."""
    with pytest.raises(ArtifactSchemaError, match="some-file"):
        parse(raw, name="some-file")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("where", [b'"accuracy": 0.75', b'"epsilon": 0.02', b'"tau0": 0.75'])
def test_what_is_not_a_number_is_refused(where: bytes, number: str) -> None:
    """Python reads NaN and infinities from JSON; an artifact that holds one is refused like any other bad file."""
    raw = serialise(an_artifact())
    assert where in raw
    with pytest.raises(ArtifactSchemaError, match="NaN or an infinity"):
        parse(raw.replace(where, where.split(b":")[0] + f": {number}".encode()), name="x")


def test_half_a_character_is_refused() -> None:
    """A lone surrogate, which JSON can spell and UTF-8 cannot, is refused wherever it occurs."""
    raw = serialise(an_artifact(name="half"))
    for text in (b'"half"', b'"outcomes.jsonl"', b'"accuracy"'):
        with pytest.raises(ArtifactError):
            parse(raw.replace(text, b'"\\ud800"'), name="x")


def test_a_renamed_file_is_refused(store: ArtifactStore) -> None:
    """A file under another name than its version is not that version."""
    artifact = an_artifact()
    Path(store.publish(artifact)).rename(Path(store.where) / "other.json")
    with pytest.raises(ArtifactSchemaError, match="files must not be renamed"):
        store.load("other")


def test_a_missing_file_is_named(store: ArtifactStore) -> None:
    """A version that is not there is an ArtifactError with its path."""
    with pytest.raises(ArtifactError, match=r"gone\.json does not exist"):
        store.load("gone")


def test_a_file_that_cannot_be_read_is_named(store: ArtifactStore) -> None:
    """A folder where a file should be is an ArtifactError, for a version and for CURRENT."""
    (Path(store.where) / "folder.json").mkdir(parents=True)
    (Path(store.where) / "CURRENT").mkdir()
    with pytest.raises(ArtifactError, match=r"folder\.json cannot be read: Is a directory"):
        store.load("folder")
    with pytest.raises(ArtifactError, match="CURRENT cannot be read: Is a directory"):
        store.current()


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"../../x", b"/etc/passwd", b"a/b", b".hidden", b"\ntwo", b"a b", b"\xff\xfe", b"\0", b"x" * 101],
    ids=repr,
)
def test_current_must_name_a_version(store: ArtifactStore, content: bytes) -> None:
    """CURRENT that holds garbage, or a way out of the folder, is refused before anything is opened."""
    Path(store.where).mkdir(parents=True)
    (Path(store.where) / "CURRENT").write_bytes(content)
    with pytest.raises(ArtifactSchemaError, match="does not name a version"):
        store.current()


@pytest.mark.parametrize("version", ["../../x", "", "a b", "a/b", "CURRENT/../x"])
def test_a_version_stays_in_the_folder(store: ArtifactStore, version: str) -> None:
    """What CURRENT may not name is neither loaded, nor published, nor promoted."""
    for act in (store.load, store.promote, lambda version: store.publish(an_artifact(version=version))):
        with pytest.raises(ArtifactSchemaError, match="is not a version"):
            act(version)
    assert not (Path(store.where) / "CURRENT").exists()


# Corpus statistics


def test_statistics_are_shared_and_are_not_versions(store: ArtifactStore) -> None:
    """Two versions name one file, which no list shows as a version."""
    one, other = (an_artifact(version=version, stats=STATS.digest) for version in ("a", "b"))
    store.publish(one, STATS)
    store.publish(other, STATS)
    assert sorted(path.name for path in Path(store.where).glob("*.json")) == [
        "a.json",
        "b.json",
        f"stats-{STATS.digest}.json",
    ]
    assert store.versions() == ["a", "b"]
    assert store.load_stats(store.load("b")).to_bytes() == STATS.to_bytes()
    assert store.load_stats(an_artifact()) is NO_STATS


def test_other_statistics_are_not_published(store: ArtifactStore) -> None:
    """An artifact is published with the statistics that it names, or not at all."""
    with pytest.raises(ArtifactError, match=f"names the corpus statistics {STATS.digest}, not these"):
        store.publish(an_artifact(stats=STATS.digest))
    assert store.versions() == []
    with pytest.raises(ArtifactSchemaError, match="not a digest of corpus statistics"):
        store.load_stats(an_artifact(stats="../x"))


def test_missing_or_changed_statistics_are_refused(store: ArtifactStore) -> None:
    """The message says which file, and what to do; the version cannot be promoted."""
    artifact = an_artifact(version="a", stats=STATS.digest)
    store.publish(artifact, STATS)
    path = Path(store.where) / f"stats-{STATS.digest}.json"
    path.write_bytes(STATS.to_bytes().replace(b'"norway":2', b'"norway":1'))
    with pytest.raises(ArtifactChecksumError, match="was changed after it was published"):
        store.promote("a")
    path.write_text("{")
    with pytest.raises(ArtifactSchemaError, match="not a file of corpus statistics"):
        store.promote("a")
    path.unlink()
    missing = "does not exist: copy the corpus statistics that a names beside it, or refit"
    with pytest.raises(ArtifactError, match=missing):
        store.promote("a")
    ((version, error),) = store.newest(1)
    assert version == "a"
    assert missing in str(error)
    assert store.current() is None


def test_every_published_refit_counts_once(store: ArtifactStore) -> None:
    """Promoted or not, readable or not; the same labels and options again have the same number."""
    assert store.refit_number("a") == 1
    for number, digest in enumerate("ab", 1):
        window = DataWindow(10, 10, "table", refit=number, digest=digest)
        store.publish(an_artifact(version=digest, data_window=window))
    assert [store.refit_number(digest) for digest in "abc"] == [1, 2, 3]
    path = Path(store.publish(an_artifact(version="c", data_window=DataWindow(10, 10, "table", refit=3, digest="c"))))
    path.write_text("torn")
    assert store.refit_number("d") == 4
    Path(store.where, "a.json").unlink()
    assert store.refit_number("d") == 3
