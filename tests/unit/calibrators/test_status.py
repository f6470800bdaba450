"""The live calibrator: a whole artifact that matches the running system, or none, and the reason."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.calibrators import status as module
from app.calibrators.status import LiveCalibrator, Revocations
from app.calibrators.store import ArtifactStore
from app.core.artifact import Artifact, CalibratorStatus, Identity
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.errors import DataError, StorageError, UpstreamUnavailable
from tests.fakes.artifacts import an_artifact, an_identity, an_uncertified_fit
from tests.fakes.documents import FakeDocuments
from tests.fakes.embedder import FakeEmbedder


class IdentifiedReader:
    """A reader that says what it is, or raises while it is `down`."""

    def __init__(self) -> None:
        self.identity = replace(an_identity(), embedder="", collection="", max_tokens=0, ks=())
        self.down = False
        self.asked = 0

    async def identify(self) -> Identity:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise UpstreamUnavailable("reader", "connection refused")
        return self.identity


class World:
    """A live calibrator with everything around it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.store = ArtifactStore(folder)
        self.reader = IdentifiedReader()
        particulars: dict[str, Any] = {
            "collection": "demo",
            "max_tokens": 24,
            "ks": (0, 1, 5),
            "allow_uncertified": False,
        }
        self.live_calibrator = LiveCalibrator(self.store, self.reader, FakeEmbedder(), **(particulars | changes))  # type: ignore[arg-type]

    def promote(self, **changes: Any) -> Artifact:
        artifact = an_artifact(**changes)
        self.store.publish(artifact)
        self.store.promote(artifact.version)
        return artifact

    def name(self, version: str) -> None:
        """Make CURRENT name a version, good or not."""
        Path(self.store.where).mkdir(parents=True, exist_ok=True)
        path = Path(self.store.where) / "CURRENT"
        before = path.read_text() if path.exists() else ""
        path.write_text(f"{version}\n{before}")

    async def look(self, *, identify: bool = False) -> CalibratorStatus:
        if identify:
            await self.live_calibrator.identify()
        await self.live_calibrator.refresh()
        return self.live_calibrator.status()

    def artifact(self, *, collection: str = "demo", max_tokens: int = 24) -> Artifact | None:
        return self.live_calibrator.matching(collection=collection, max_tokens=max_tokens)


def published(store: ArtifactStore, artifact: Artifact) -> Path:
    return Path(store.publish(artifact))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "calibrators")


async def test_no_calibrator(world: World) -> None:
    """An empty or missing folder is no error: nothing decides, and the status says so."""
    standing = await world.look(identify=True)
    folder = Path(world.store.where)
    assert standing == CalibratorStatus(
        None,
        certified=False,
        matches=False,
        problem=f"no calibrator in {folder}: every question reads five passages",
        fallback_k=5,
    )
    assert world.artifact() is None


async def test_before_the_first_look(world: World) -> None:
    """Before the first refresh nothing decides, and `matching` can be called."""
    world.promote()
    assert world.artifact() is None
    assert world.live_calibrator.status().version is None


async def test_a_match_serves(world: World) -> None:
    """An artifact fitted on the running system serves, without a problem."""
    artifact = world.promote()
    assert await world.look() == CalibratorStatus(
        artifact.version, certified=True, matches=True, problem="", fallback_k=1
    )
    assert world.artifact() == artifact
    assert world.live_calibrator.revoked(artifact.version) is None


@pytest.mark.parametrize(
    ("part", "fitted", "running"),
    [
        ("reader", "another", "fake-reader"),
        ("quantisation", "q8", "none"),
        ("chat_template", "x", "0123456789abcdef"),
        ("prompts", "x", "fedcba9876543210"),
        ("writing", "x", "0011223344556677"),
        ("max_tokens", 48, 24),
        ("stop", (), ("\n",)),
        ("logprobs", "top5", "top20"),
        ("embedder", "x", "fake-256"),
        ("collection", "x", "demo"),
        ("ks", (0, 1, 10), (0, 1, 5)),
    ],
)
async def test_a_mismatch_is_named(world: World, part: str, fitted: Any, running: Any) -> None:
    """An artifact that differs in any part decides nothing, and the status names the field and both values."""
    artifact = world.promote(identity=an_identity(**{part: fitted}))
    standing = await world.look()
    assert (standing.version, standing.certified, standing.matches) == (artifact.version, False, False)
    assert standing.problem == (
        f"{artifact.version} does not match the running system: {part}: fitted on {fitted!r}, running {running!r}"
    )
    assert world.artifact() is None


async def test_an_artifact_without_identity_never_matches(world: World) -> None:
    """What was fitted on a table without an identity can be evaluated, not served."""
    artifact = world.promote(identity=None)
    standing = await world.look()
    assert standing.problem == f"{artifact.version} was fitted on a table without an identity"
    assert not standing.matches
    assert world.artifact() is None


async def test_particulars_of_a_question(world: World) -> None:
    """A question with another collection or answer length than was fitted on finds no artifact; the next one does."""
    artifact = world.promote()
    await world.look()
    assert world.artifact(max_tokens=48) is None
    assert world.artifact(collection="other") is None
    assert world.artifact() == artifact


async def test_fitted_for_the_question_alone(world: World) -> None:
    """An artifact for another collection serves the questions that name it, though it is not the server's own."""
    artifact = world.promote(identity=an_identity(collection="other"))
    assert not (await world.look()).matches
    assert world.artifact() is None
    assert world.artifact(collection="other") == artifact


async def test_a_new_current_is_taken_up(world: World) -> None:
    """A promotion is served after the next refresh, and so is a rollback."""
    for version in ("one", "two", "one"):
        world.promote(version=version)
        assert (await world.look()).version == version
        served = world.artifact()
        assert served is not None
        assert served.version == version


async def test_a_bad_new_one_is_refused(world: World) -> None:
    """A corrupt file is rejected with the reason, and the previous artifact keeps serving."""
    good = world.promote(version="good")
    await world.look()
    path = published(world.store, an_artifact(version="bad"))
    path.write_bytes(path.read_bytes().replace(b'"tau0": 0.75', b'"tau0": 0.5'))
    world.name("bad")
    for _ in range(2):
        standing = await world.look()
        assert (standing.version, standing.certified, standing.matches) == ("good", True, True)
        assert standing.problem == (
            f"rejected a calibrator, the previous one keeps serving: {path} was changed after it was published: "
            "restore it or refit"
        )
        assert world.artifact() == good
    world.name("good")
    assert (await world.look()).problem == ""


@pytest.mark.parametrize("content", [b"../../x", b"", b"\xff\xfe", b"gone"], ids=repr)
async def test_a_bad_current_is_refused(world: World, content: bytes) -> None:
    """A CURRENT that cannot be served is rejected, and the previous artifact keeps serving."""
    good = world.promote()
    await world.look()
    (Path(world.store.where) / "CURRENT").write_bytes(content)
    assert (await world.look()).problem.startswith("rejected a calibrator, the previous one keeps serving: ")
    assert world.artifact() == good


async def test_a_bad_first_one_says_that_nothing_serves(world: World) -> None:
    """Without a previous artifact, the status does not claim that one keeps serving."""
    world.name("gone")
    standing = await world.look()
    assert standing.version is None
    assert standing.problem.startswith("rejected a calibrator, every question reads five passages: ")
    assert world.artifact() is None


async def test_a_file_that_arrives_after_current_is_taken_up(world: World) -> None:
    """A refused version is tried again: its file may be copied later than CURRENT, or be restored in place."""
    world.name("late")
    assert "late.json does not exist" in (await world.look()).problem
    artifact = an_artifact(version="late")
    path = published(world.store, artifact)
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert "late.json is not JSON" in (await world.look()).problem
    path.write_bytes(whole)
    assert (await world.look()).problem == ""
    assert world.artifact() == artifact


async def test_a_vanished_current_changes_nothing(world: World) -> None:
    """If CURRENT is deleted, the served artifact stays until another is named."""
    artifact = world.promote()
    await world.look()
    (Path(world.store.where) / "CURRENT").unlink()
    assert (await world.look()).problem == ""
    assert world.artifact() == artifact


async def test_a_new_one_that_does_not_match_is_refused(world: World) -> None:
    """A calibrator for something else does not replace one that matches; it serves once the system matches it."""
    good = world.promote(version="good")
    await world.look()
    other = world.promote(version="other", identity=an_identity(reader="swapped"))
    for _ in range(2):
        standing = await world.look()
        assert (standing.version, standing.certified, standing.matches) == ("good", True, True)
        assert standing.problem == (
            "rejected a calibrator, the previous one keeps serving: other does not match the running system: "
            "reader: fitted on 'swapped', running 'fake-reader'"
        )
        assert world.artifact() == good
    world.reader.identity = replace(world.reader.identity, reader="swapped")
    assert (await world.look(identify=True)).problem == ""
    assert world.artifact() == other


async def test_a_new_one_replaces_one_that_does_not_match_either(world: World) -> None:
    """If nothing matches, the status is that of CURRENT."""
    world.promote(version="one", identity=an_identity(reader="another"))
    await world.look()
    world.promote(version="two", identity=an_identity(reader="a third"))
    assert (await world.look()).version == "two"


@pytest.mark.parametrize("older", [b'"schema": 5', b'"schema": 7'])
async def test_another_schema_is_refused(world: World, older: bytes) -> None:
    """A file of an older or newer schema replaces nothing."""
    good = world.promote(version="good")
    await world.look()
    path = published(world.store, an_artifact(version="old"))
    path.write_bytes(path.read_bytes().replace(b'"schema": 6', older))
    world.name("old")
    assert "this gateway reads 6" in (await world.look()).problem
    assert world.artifact() == good


async def test_a_restarted_worker_serves_what_the_others_hold(tmp_path: Path) -> None:
    """Started while CURRENT names an invalid or mismatching file, it serves the previous version, like the others."""
    world = World(tmp_path)
    good = world.promote(version="good")
    world.promote(version="foreign", identity=an_identity(reader="another"))
    world.promote(version="broken")
    (tmp_path / "broken.json").write_text("{")
    standing = await world.look()
    assert (standing.version, standing.matches) == ("good", True)
    assert "rejected a calibrator, the previous one keeps serving: " in standing.problem
    assert "broken.json" in standing.problem
    assert world.artifact() == good


async def test_a_useless_history_is_no_obstacle(tmp_path: Path) -> None:
    """Where neither CURRENT nor anything before it can serve, nothing does, and the problem names the first file."""
    world = World(tmp_path)
    world.promote(version="one")
    world.promote(version="two")
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text("{")
    assert "two.json" in (await world.look()).problem
    (tmp_path / "CURRENT").unlink()
    (tmp_path / "CURRENT").mkdir()
    assert "CURRENT cannot be read" in (await world.look()).problem
    assert world.artifact() is None


async def test_a_revoked_version_decides_nothing(world: World) -> None:
    """The status says why; a new version is clean."""
    artifact = world.promote(version="one")
    await world.look()
    for _ in range(2):
        await world.live_calibrator.revoke("one", "confidences exceed what is right by 0.2")
    assert world.artifact() == artifact
    assert world.live_calibrator.revoked("one") is not None
    assert world.live_calibrator.status() == CalibratorStatus(
        "one",
        certified=False,
        matches=True,
        problem="one is revoked, its fallback k is read until another version serves: "
        "confidences exceed what is right by 0.2",
        fallback_k=1,
        revoked=True,
    )
    world.promote(version="two")
    assert not (await world.look()).revoked
    assert world.live_calibrator.revoked("two") is None
    world.promote(version="one")
    assert (await world.look()).revoked


async def test_a_revocation_reaches_other_gateways_and_outlives_a_restart(tmp_path: Path) -> None:
    """Every gateway that shares the documents applies it at the next refresh, also two that were added at once."""
    documents = FakeDocuments()
    first, second = (World(tmp_path, revocations=Revocations(documents)) for _ in range(2))
    first.promote(version="one")
    await first.look()
    await first.live_calibrator.revoke("one", "why")
    await second.live_calibrator.revoke("two", "why not")
    assert (await second.look()).revoked
    await first.look()
    assert first.live_calibrator.revoked("two") == "why not"
    again = World(tmp_path, revocations=Revocations(documents))
    assert (await again.look()).revoked


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"one": 1}'])
async def test_damaged_revocations_are_reported_and_replaced(tmp_path: Path, content: bytes) -> None:
    """The calibrator is still loaded, and the next revocation replaces the document."""
    documents = FakeDocuments()
    documents.stored["revoked.json"] = content
    world = World(tmp_path, revocations=Revocations(documents))
    artifact = world.promote(version="one")
    with pytest.raises(DataError, match="not a table of revocations"):
        await world.look()
    assert world.artifact() == artifact
    await world.live_calibrator.revoke("one", "why")
    assert (await World(tmp_path, revocations=Revocations(documents)).look()).revoked


async def test_no_calibrator_serves_before_the_revocations_are_read(tmp_path: Path) -> None:
    """After a restart it may be a revoked one; once they were read, a lost database changes nothing."""
    documents = FakeDocuments()
    world = World(tmp_path, revocations=Revocations(documents))
    world.promote(version="one")
    documents.fail_with = StorageError("no route to host")
    with pytest.raises(StorageError):
        await world.look()
    status = world.live_calibrator.status()
    assert status.revoked
    assert "the revocations cannot be read yet" in status.problem
    documents.fail_with = None
    assert not (await world.look()).revoked
    documents.fail_with = StorageError("no route to host")
    with pytest.raises(StorageError):
        await world.look()
    assert not world.live_calibrator.status().revoked


async def test_a_revocation_that_cannot_be_stored_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk or a lost database does not keep a calibrator serving, and stores it with the next one."""
    documents = FakeDocuments()
    world = World(tmp_path, revocations=Revocations(documents))
    documents.fail_with = StorageError("no space left")
    await world.live_calibrator.revoke("one", "why")
    assert world.live_calibrator.revoked("one") == "why"
    assert "no space left: after a restart, one may no longer be revoked" in caplog.text
    documents.fail_with = None
    await world.live_calibrator.revoke("two", "why")
    assert b"one" in documents.stored["revoked.json"]


async def test_a_revocation_and_a_refusal_are_both_reported(world: World) -> None:
    """A revoked artifact and a bad new one are reported together."""
    world.promote(version="one")
    await world.look()
    await world.live_calibrator.revoke("one", "why")
    world.name("gone")
    problem = (await world.look()).problem
    assert problem.startswith("one is revoked")
    assert "rejected a calibrator" in problem


async def test_both_problems_are_reported(world: World) -> None:
    """An artifact that does not match and a new one that is refused are both reported."""
    world.promote(identity=an_identity(reader="another"))
    await world.look()
    world.name("gone")
    problem = (await world.look()).problem
    assert "does not match the running system: reader" in problem
    assert "rejected a calibrator" in problem


async def test_a_reader_that_is_down_at_the_start(world: World) -> None:
    """While the reader has never been identified nothing decides; each refresh asks again, until it answers."""
    artifact = world.promote()
    world.reader.down = True
    for asked in (1, 2):
        standing = await world.look()
        assert (standing.version, standing.matches) == (artifact.version, False)
        assert standing.problem == "the reader could not be identified: connection refused"
        assert world.artifact() is None
        assert world.reader.asked == asked
    world.reader.down = False
    assert (await world.look()).problem == ""
    assert world.artifact() == artifact
    await world.look()
    assert world.reader.asked == 3


async def test_a_reader_that_goes_down_later(world: World) -> None:
    """The last known identity is kept while the reader is down."""
    artifact = world.promote()
    await world.look()
    world.reader.down = True
    assert (await world.look(identify=True)).problem == ""
    assert world.artifact() == artifact


async def test_a_model_swapped_behind_the_url(world: World) -> None:
    """Another model is noticed when the reader is next identified, and nothing decides any more."""
    world.promote()
    await world.look()
    world.reader.identity = Identity("swapped", "none", "x", "y", "z", stop=("\n",), logprobs="top20")
    assert (await world.look()).matches
    standing = await world.look(identify=True)
    assert not standing.matches
    assert "reader: fitted on 'fake-reader', running 'swapped'" in standing.problem
    assert world.artifact() is None


async def test_an_uncertified_artifact_says_so(tmp_path: Path) -> None:
    """An artifact without a certificate is reported as a problem, unless the operator allows it."""
    for allowed in (False, True):
        world = World(tmp_path, allow_uncertified=allowed)
        artifact = world.promote(policies={"graded": an_uncertified_fit()})
        standing = await world.look()
        assert (standing.certified, standing.matches) == (False, True)
        problem = f"{artifact.version} has no certificate: its fallback k is read"
        assert standing.problem == ("" if allowed else problem)
        assert world.artifact() == artifact


async def test_an_artifact_without_the_graded_policy_is_not_certified(world: World) -> None:
    """The status is about the default policy: if it was not fitted, nothing is certified."""
    world.promote(policies={})
    assert not (await world.look()).certified


async def test_each_change_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The log has one line for each new status: a warning if it is a problem."""
    caplog.set_level(logging.INFO, logger=module.__name__)
    for _ in range(2):
        await world.look()
    artifact = world.promote()
    for _ in range(2):
        await world.look()
    world.name("gone")
    for _ in range(2):
        await world.look()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    assert caplog.records[1].getMessage() == f"calibrator: serving {artifact.version}"


async def test_statistics_are_loaded_with_their_artifact(world: World) -> None:
    """A question that still uses the artifact before finds its statistics; without an artifact there are none."""
    assert world.live_calibrator.stats is NO_STATS
    found = [CorpusStats.of([("", word)] * 2) for word in ("one", "two")]
    for version, stats in zip("ab", found, strict=True):
        world.store.publish(an_artifact(version=version, stats=stats.digest), stats)
    world.store.promote("a")
    await world.look()
    before = world.artifact()
    assert before is not None
    world.store.promote("b")
    await world.look()
    assert world.live_calibrator.stats.digest == found[1].digest
    assert world.live_calibrator.stats_of(before).digest == found[0].digest


async def test_an_artifact_without_its_statistics_does_not_serve(world: World) -> None:
    """The one before keeps serving, and the status names the missing file."""
    world.promote(version="good")
    await world.look()
    stats = CorpusStats.of([("", "one")] * 2)
    world.store.publish(an_artifact(version="bare", stats=stats.digest), stats)
    (Path(world.store.where) / f"stats-{stats.digest}.json").unlink()
    world.name("bare")
    status = await world.look()
    assert status.version == "good"
    assert f"stats-{stats.digest}.json does not exist" in status.problem
