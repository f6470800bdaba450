"""Random policies and worlds, for properties that hold for every walk."""

import itertools
import math

from hypothesis import strategies as st

from app.core.artifact import Artifact
from app.core.effective_policy import Sampled, resolve
from app.core.evidence import COSINE, NEARNESS
from app.core.policy import AskOptions, Policy, Retrieval
from app.core.scope import Scope
from app.errors import NoPassages, UpstreamUnavailable
from tests.fakes.artifacts import (
    a_certificate,
    a_chat,
    a_chat_artifact,
    a_fit,
    a_ladder,
    a_ladder_artifact,
    a_line,
    an_abstention,
    an_artifact,
    an_uncertified_fit,
    closed_book,
)
from tests.fakes.walks import World

KS = (0, 1, 5)
ASKS = [
    AskOptions(policy, retrieval, abstain, filtered)
    for policy, retrieval, abstain, filtered in itertools.product(Policy, Retrieval, (True, False), (True, False))
    if (policy, retrieval) not in {(Policy.ALWAYS, Retrieval.FORBIDDEN), (Policy.NEVER, Retrieval.REQUIRED)}
]
SEARCH_DOWN = UpstreamUnavailable("vectors", "down")
NOTHING_FOUND = NoPassages("nothing")


# The passages of a walk have a cosine of 0: a floor above it puts a question out of scope after its search.
scopes = st.builds(
    Scope,
    st.just(0.05),
    st.dictionaries(st.sampled_from([NEARNESS, COSINE]), st.sampled_from([-0.5, 0.5])),
    st.none() | st.just(0.5),
    st.sampled_from([("LATIN",), ()]),
    st.just("questions in English"),
)


@st.composite
def artifacts(draw: st.DrawFn) -> Artifact:
    """Artifacts of every kind: with and without each head, policy and certificate."""
    tau1, tau0 = sorted((draw(st.floats(0.0, 2.0)), draw(st.floats(0.0, 2.0))))
    tau = draw(st.floats(0.0, 2.0))
    fits = {
        "graded": draw(st.sampled_from([None, a_fit(tau0, tau1), an_uncertified_fit(tau0, tau1)])),
        "binary": draw(st.sampled_from([None, a_fit(tau, tau), an_uncertified_fit(tau, tau)])),
    }
    if draw(st.booleans()):
        certificate = draw(st.sampled_from([a_certificate(), None]))
        chat = draw(st.sampled_from([None, a_chat(), a_chat(certificate=None)]))
        return (a_ladder_artifact if chat is None else a_chat_artifact)(
            chat=chat,
            ladder=a_ladder(t=draw(st.floats(0.0, 1.0)), certificate=certificate),
            scope=draw(st.none() | scopes),
            policies={name: fit for name, fit in fits.items() if fit is not None},
            abstention=draw(st.sampled_from([an_abstention(), an_abstention(certificate=None)])),
        )
    heads = {0: a_line()} | {k: a_line(0.25, 0.75) for k in KS[1:] if draw(st.booleans())}
    return an_artifact(
        calibrators=heads,
        policies={name: fit for name, fit in fits.items() if fit is not None},
        abstention=draw(st.sampled_from([an_abstention(), an_abstention(certificate=None)])),
        fallback_k=draw(st.sampled_from([1, 5])),
    )


signals: st.SearchStrategy[dict[str, float]] = st.one_of(
    st.floats(0.0, 1.0).map(closed_book), st.just({}), st.just({"seq_logprob": math.nan}), st.just({"margin": 1.0})
)
worlds = st.builds(
    World,
    st.fixed_dictionaries(dict.fromkeys(KS, signals)),
    st.sampled_from([None, None, None, SEARCH_DOWN, NOTHING_FOUND]),
    st.frozensets(st.sampled_from(KS), max_size=1),
)
sampled = st.builds(Sampled, st.just(0.1), st.none() | st.floats(0.0, 1.0, exclude_max=True))
policies = st.builds(
    lambda ask, artifact, sampled, **flags: resolve(ask, artifact, ks=KS, sampled=sampled, **flags),
    st.sampled_from(ASKS),
    st.none() | artifacts(),
    sampled,
    allow_uncertified=st.booleans(),
    revoked=st.booleans(),
    bypassed=st.booleans(),
    mandatory=st.booleans(),
    chat=st.booleans(),
)
