"""A gateway that reads other numbers of passages than by default."""

from tests.fakes.gateway import ASKED

from .conftest import Open

KS = (0, 2, 4)


async def test_in_doubt_the_largest_number_is_read(open_gateway: Open) -> None:
    """Without a calibrator, under `always`, and where passages are required."""
    async with open_gateway(ks=KS) as gateway:
        for body in ({}, {"policy": "always"}, {"retrieval": "required"}):
            receipt = await gateway.receipt(**body)
            assert (receipt["k"], receipt["action"], len(receipt["citations"])) == (4, "k4", 4)
        assert (await gateway.receipt(policy="never"))["action"] == "k0"
        assert await gateway.metric("requests_total", action="k4", k="4", reason="not_calibrated") == 2
        assert await gateway.metric("passages_read_total", k="4") == 12
        # Counters of every action start at zero.
        counted = {dict(labels)["action"] for name, labels in await gateway.metrics() if "fetchwise_requests" in name}
    assert counted == {"k0", "k2", "k4", "abstain"}


async def test_a_calibrator_for_other_numbers_does_not_serve(open_gateway: Open) -> None:
    """Its thresholds were chosen for what it was fitted on."""
    async with open_gateway(artifact={"ks": (0, 1, 5)}, ks=KS) as gateway:
        receipt = await gateway.receipt()
        standing = (await gateway.client.get("/readyz")).json()["calibrator"]["problem"]
    assert (receipt["k"], receipt["decision"]["reason"]) == (4, "not_calibrated")
    assert "ks: fitted on (0, 1, 5), running (0, 2, 4)" in standing


async def test_a_calibrator_for_these_numbers_chooses_among_them(open_gateway: Open) -> None:
    """None, few or many by the probability; pages and `/breakeven` name the same actions."""
    async with open_gateway(artifact={"fallback_k": 4}, ks=KS) as gateway:
        for sure, k in ((0.9, 0), (0.6, 2), (0.3, 4)):
            gateway.reader.says(ASKED, "Paris", k=0, sure=sure)
            for _ in range(3):
                receipt = await gateway.receipt()
                assert (receipt["k"], receipt["action"]) == (k, f"k{k}")
        await gateway.refresh()
        found = (await gateway.client.get("/breakeven")).json()
        shown = (await gateway.client.get("/dashboard/data?window=900")).json()
    assert list(found["shares"]) == list(shown["actions"]) == ["k0", "k2", "k4", "abstain"]
    assert found["reference"] == "k4"
    assert list(found["costs"]["latency"]["against"]) == ["k2", "k4"]
    assert list(found["costs"]["latency"]["stages"]) == [
        "probe",
        "retrieve_k2",
        "read_k2",
        "retrieve_k4",
        "read_k4",
    ]
    assert shown["actions"] == {"k0": 3, "k2": 3, "k4": 3, "abstain": 0}
