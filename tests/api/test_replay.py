"""Every logged decision, read back from disk and decided again by the artifact that it names, comes out the same."""

import itertools
import json
import sqlite3

from app.calibrators.store import ArtifactStore
from app.core.artifact import Artifact
from app.core.effective_policy import resolve
from app.core.policy import Ask, Policy, Retrieval
from tests.fakes.walks import World, walk

from .conftest import Open
from .test_learning import eventually_kept

POLICIES = ("graded", "binary", "always", "never")
RETRIEVALS = ("auto", "required", "forbidden")
SURE = (0.05, 0.3, 0.55, 0.65, 0.9)


async def test_logged_decisions_decide_again_to_the_same_action(open_gateway: Open) -> None:
    """Over all policies, wishes and degrees of confidence: the same passages, the same action, the same confidence."""
    wishes = [
        (policy, retrieval, abstain)
        for policy, retrieval, abstain in itertools.product(POLICIES, RETRIEVALS, (True, False))
        if (policy, retrieval) not in {("always", "forbidden"), ("never", "required")}
    ]
    async with open_gateway(artifact={}) as gateway:
        for number, (wish, sure) in enumerate(itertools.product(wishes, SURE)):
            question = f"What is the secret of number {number}?"
            gateway.reader.says(question, "Nobody knows.", k=0, sure=sure)
            for k in (1, 5):
                gateway.reader.says(question, "It is out.", k=k, sure=1.0 - sure)
            policy, retrieval, abstain = wish
            await gateway.receipt(question, policy=policy, retrieval=retrieval, abstain=abstain)
        rows = await eventually_kept(gateway, "decisions", len(wishes) * len(SURE))
        store = ArtifactStore(gateway.settings.calibrators)
        artifacts = {version: store.load(version) for version in {row["calibrator"] for row in rows}}
    assert {row["action"] for row in rows} == {"k0", "k1", "k5", "abstain"}
    for row in rows:
        assert decided_again(row, artifacts[row["calibrator"]]) == (row["k"], row["action"], row["confidence"])


def decided_again(row: sqlite3.Row, artifact: Artifact) -> tuple[int, str, float | None]:
    """Passages, action and confidence from what the row holds, and nothing else."""
    ask = Ask(Policy(row["policy"]), Retrieval(row["retrieval"]), abstain=bool(row["abstain"]))
    answers = {0: json.loads(row["signals"]), row["k"]: json.loads(row["read_signals"] if row["k"] else row["signals"])}
    reply = walk(resolve(ask, artifact, ks=artifact.ks), World(answers)).reply
    return reply.k, "abstain" if reply.withheld else f"k{reply.k}", reply.confidence
