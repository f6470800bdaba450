"""`GET /audit` over HTTP: rates by tag from the decision log."""

from pydantic import TypeAdapter

from app.api.operators import AuditReport

from .conftest import Open
from .replies import check_shape
from .test_feedback import say

REPORT = TypeAdapter(AuditReport)


async def test_groups_are_distinguished_by_their_tags(open_gateway: Open) -> None:
    """Skips and abstentions count for every question, errors only for answers drawn for feedback."""
    async with open_gateway(artifact={}, solicit_share=1.0) as gateway:
        for team, policy, correct in (("day", "never", True), ("day", "never", False), ("night", "always", True)):
            receipt = await gateway.receipt(policy=policy, abstain=False, tags={"team": team})
            assert (await say(gateway, receipt["id"], correct=correct)).status_code == 200
        response = await gateway.client.get("/audit")
        assert response.status_code == 200, response.text
        found = TypeAdapter(AuditReport).validate_python(response.json())
        newest = TypeAdapter(AuditReport).validate_python(
            (await gateway.client.get("/audit", params={"limit": 1})).json()
        )
    assert found.answers == 3
    assert found.overall.skip.value == 2 / 3
    day, night = found.tags["team"]["day"], found.tags["team"]["night"]
    assert (day.skip.value, day.error.value, day.error.n) == (1.0, 0.5, 2)
    assert (night.skip.value, night.error.value, night.error.n) == (0.0, 0.0, 1)
    assert list(newest.tags["team"]) == ["night"]


async def test_without_a_log_there_is_nothing_to_audit(open_gateway: Open) -> None:
    """A 404 that names the setting; an invalid window is a 422."""
    async with open_gateway(decision_log="off") as gateway:
        response = await gateway.client.get("/audit")
        assert "FETCHWISE_DECISION_LOG" in check_shape(response, 404, "unknown_decision").error.message
        assert (await gateway.client.get("/audit", params={"days": 0})).status_code == 422
