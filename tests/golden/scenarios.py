"""The scenarios as data: settings, failures, and the request."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.core.scope import Scope
from app.core.signals import TokenLogprobs
from tests.fakes.artifacts import (
    a_chat,
    a_chat_artifact,
    a_ladder,
    a_ladder_artifact,
    an_abstention,
    an_identity,
    an_uncertified_fit,
)

ASKED = "What is the capital of France?"
CHAT = "/v1/chat/completions"
# How sure the closed-book answer is: the default thresholds are 0.25 (abstain), 0.5 (five passages), 0.75 (one).
HOPELESS, UNCERTAIN, BORDERLINE, CONFIDENT = 0.125, 0.375, 0.625, 0.875
# Log-probabilities that no signal can be made of.
NO_TOKENS: tuple[TokenLogprobs, ...] = ()
NOT_A_NUMBER = (TokenLogprobs(-math.inf, (-math.inf,) * 20), TokenLogprobs(math.nan, (math.nan,) * 20))

_UNCERTIFIED = {"graded": an_uncertified_fit(), "binary": an_uncertified_fit(0.625, 0.625)}
_LADDER = {"heads": a_ladder_artifact().heads, "ladder": a_ladder()}
_CHAT = {"heads": a_chat_artifact().heads, "ladder": a_ladder(), "chat": a_chat()}
# No question reaches this floor.
_SCOPE = Scope(0.01, {"search.coverage_max": 1.5}, None, ("LATIN",), "questions of the tests")
# By name: how the published artifact differs from the certified one that matches; None: there is none.
CALIBRATORS: dict[str, dict[str, Any] | None] = {
    "certified": {},
    "uncertified": {"policies": _UNCERTIFIED},
    "uncertified-fallback-5": {"policies": _UNCERTIFIED, "fallback_k": 5},
    "uncertified-abstention": {"abstention": an_abstention(certificate=None, uncertified_reason="too few labels")},
    "ladder": _LADDER,
    "ladder-uncertified": _LADDER | {"ladder": a_ladder(certificate=None, uncertified_reason="too few labels")},
    "ladder-in-scope": _LADDER | {"scope": replace(_SCOPE, floors={"search.coverage_max": 0.0})},
    "ladder-out-of-scope": _LADDER | {"scope": _SCOPE},
    "ladder-other-script": _LADDER | {"scope": replace(_SCOPE, floors={}, scripts=("GREEK",))},
    "chat": _CHAT,
    "chat-out-of-scope": _CHAT | {"scope": _SCOPE},
    "mismatched": {"identity": an_identity()},
    # Also listed in the data directory's revoked.json.
    "revoked": {},
    "none": None,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One request: `p` is the confidence of the closed-book answer, `read` that of the answer from passages."""

    name: str
    body: Mapping[str, Any] = field(default_factory=dict)
    path: str = "/answer"
    p: float | tuple[TokenLogprobs, ...] = UNCERTAIN
    read: float | tuple[TokenLogprobs, ...] = 0.9
    # Of the answer from five passages, where it is not that from one.
    five: float | None = None
    calibrator: str = "certified"
    # What goes wrong, by stage: see `recording`.
    fails: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Words that make passages mandatory.
    mandatory: str = ""
    # Of every random draw.
    seed: int = 0
    # Whether another question already holds the only permit.
    full: bool = False


def chat(*earlier: tuple[str, str], model: str = "fetchwise", **more: Any) -> dict[str, Any]:
    """A body of the OpenAI API: earlier turns, then the question."""
    messages = [{"role": role, "content": text} for role, text in (*earlier, ("user", ASKED))]
    return {"model": model, "messages": messages} | more


EARLIER = (("system", "Be brief."), ("user", "Where is the Louvre?"), ("assistant", "In Paris."))


def tool_turn() -> dict[str, Any]:
    """A body that continues with the result of a tool."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "1"},
    ]
    body = chat(tools=[{"type": "function", "function": {"name": "f"}}])
    return body | {"messages": body["messages"] + turns}


GIVE = {"abstain": False}
STREAM: dict[str, Any] = {"stream": True}
FULL = {"style": "full"}
NOTHING = {"filter": {"lang": "tlh"}}
REQUIRED, FORBIDDEN = {"retrieval": "required"}, {"retrieval": "forbidden"}
BINARY, ALWAYS, NEVER = ({"policy": policy} for policy in ("binary", "always", "never"))
EXPLORING = {"explore_share": 1.0, "decision_log": None}
SURE = {"confident": CONFIDENT, "borderline": BORDERLINE, "uncertain": UNCERTAIN, "hopeless": HOPELESS}

SCENARIOS = (
    # The policies, with everything in order.
    *(Scenario(f"graded-{name}", p=p, read=p) for name, p in SURE.items()),
    *(Scenario(f"graded-required-{name}", REQUIRED, p=SURE[name]) for name in ("confident", "borderline", "uncertain")),
    *(Scenario(f"graded-forbidden-{name}", FORBIDDEN, p=SURE[name]) for name in ("uncertain", "hopeless")),
    Scenario("graded-must-answer", GIVE, p=HOPELESS, read=HOPELESS),
    Scenario("graded-forbidden-must-answer", FORBIDDEN | GIVE, p=HOPELESS),
    Scenario("graded-borderline-withheld", p=BORDERLINE, read=HOPELESS),
    Scenario("binary-confident", BINARY, p=0.6875),
    Scenario("binary-uncertain", BINARY, p=0.5625),
    Scenario("binary-withheld", BINARY, p=HOPELESS, read=HOPELESS),
    Scenario("binary-must-answer", BINARY | GIVE, p=CONFIDENT),
    Scenario("binary-required", BINARY | REQUIRED, p=CONFIDENT),
    Scenario("binary-forbidden", BINARY | FORBIDDEN),
    Scenario("always", ALWAYS, p=CONFIDENT),
    Scenario("always-required", ALWAYS | REQUIRED),
    Scenario("always-forbidden", ALWAYS | FORBIDDEN),
    Scenario("always-withheld", ALWAYS, read=HOPELESS),
    Scenario("always-must-answer", ALWAYS | GIVE, read=HOPELESS),
    Scenario("never", NEVER),
    Scenario("never-required", NEVER | REQUIRED),
    Scenario("never-forbidden", NEVER | FORBIDDEN),
    Scenario("never-withheld", NEVER, p=HOPELESS),
    Scenario("never-must-answer", NEVER | GIVE, p=HOPELESS),
    # The ladder: the probe is kept above 0.72, the answer from one passage above 0.6.
    *(
        Scenario(f"ladder-{name}", p=p, read=read, calibrator="ladder")
        for name, p, read in (
            ("keeps-probe", CONFIDENT, 0.9),
            ("keeps-one", UNCERTAIN, 0.9),
            ("back-to-one", UNCERTAIN, 0.55),
            ("withheld", HOPELESS, HOPELESS),
        )
    ),
    Scenario("ladder-reads-five", read=0.55, five=0.9, calibrator="ladder"),
    Scenario("ladder-must-answer", GIVE, p=HOPELESS, read=HOPELESS, calibrator="ladder"),
    Scenario("ladder-required", REQUIRED, p=CONFIDENT, calibrator="ladder"),
    Scenario("ladder-forbidden", FORBIDDEN, p=CONFIDENT, calibrator="ladder"),
    Scenario("ladder-filter", {"filter": {"lang": "en", "number": 2}}, calibrator="ladder"),
    Scenario("ladder-no-signal-probe", p=NO_TOKENS, calibrator="ladder"),
    Scenario("ladder-no-signal-read", read=NO_TOKENS, calibrator="ladder"),
    Scenario("ladder-mandatory", p=CONFIDENT, mandatory="capital of", calibrator="ladder"),
    Scenario("ladder-graded", {"policy": "graded"}, p=BORDERLINE, calibrator="ladder"),
    Scenario("ladder-always", ALWAYS, calibrator="ladder"),
    Scenario("ladder-uncertified", calibrator="ladder-uncertified"),
    Scenario("ladder-in-scope", p=CONFIDENT, calibrator="ladder-in-scope"),
    *(
        Scenario(f"ladder-{scope}-{name}", body, p=CONFIDENT, calibrator=f"ladder-{scope}")
        for scope in ("out-of-scope", "other-script")
        for name, body in (("withheld", {}), ("must-answer", GIVE), ("required", REQUIRED), ("forbidden", FORBIDDEN))
    ),
    *(
        Scenario(f"ladder-explored-k{k}", p=BORDERLINE, settings=EXPLORING, seed=seed, calibrator="ladder")
        for k, seed in ((0, 1), (1, 5), (5, 0))
    ),
    *(
        Scenario(f"ladder-fault-{stage}-{kind}", p=CONFIDENT, fails={stage: kind}, calibrator="ladder")
        for stage in ("probe", "embed", "search")
        for kind in ("unavailable", "deadline")
    ),
    *(
        Scenario(f"ladder-fault-{stage}", read=0.55, fails={stage: "unavailable"}, calibrator="ladder")
        for stage in ("read", "read5")
    ),
    Scenario("ladder-fault-embed-out-of-scope", p=CONFIDENT, fails={"embed": "timeout"}, calibrator="ladder-in-scope"),
    Scenario("ladder-nothing-found", NOTHING, p=CONFIDENT, calibrator="ladder"),
    Scenario("ladder-nothing-found-required", NOTHING | REQUIRED, calibrator="ladder"),
    *(
        Scenario(f"ladder-stream-{name}", STREAM | body, p=p, read=read, calibrator=calibrator)
        for name, body, p, read, calibrator in (
            ("keeps-probe", {}, CONFIDENT, 0.9, "ladder"),
            ("keeps-one", GIVE, UNCERTAIN, 0.9, "ladder"),
            ("back-to-one", {}, UNCERTAIN, 0.55, "ladder"),
            ("withheld", {}, HOPELESS, HOPELESS, "ladder"),
            ("required", REQUIRED, CONFIDENT, 0.9, "ladder"),
            ("out-of-scope", {}, CONFIDENT, 0.9, "ladder-out-of-scope"),
            ("out-of-scope-must-answer", GIVE, CONFIDENT, 0.9, "ladder-out-of-scope"),
        )
    ),
    *(
        Scenario(f"ladder-stream-fault-{stage}", STREAM, read=0.55, fails={stage: "unavailable"}, calibrator="ladder")
        for stage in ("probe", "search", "read", "read5")
    ),
    Scenario("full", FULL, calibrator="ladder"),
    Scenario("full-stream", FULL | STREAM, calibrator="ladder"),
    Scenario("full-closed-book", FULL, p=CONFIDENT, calibrator="ladder"),
    Scenario("full-withheld", FULL | STREAM, p=HOPELESS, read=HOPELESS, calibrator="ladder"),
    Scenario("full-fault-write", FULL, fails={"write": "unavailable"}, calibrator="ladder"),
    Scenario("ladder-openai", chat(), CHAT, p=CONFIDENT, calibrator="ladder"),
    Scenario("ladder-openai-out-of-scope", chat(), CHAT, calibrator="ladder-out-of-scope"),
    Scenario("ladder-stream-reads-five", STREAM, read=0.55, five=0.9, calibrator="ladder"),
    Scenario("ladder-openai-stream", chat(**STREAM), CHAT, read=0.55, calibrator="ladder"),
    # The calibrator.
    *(
        Scenario(f"{state}-{name}", body, calibrator=state, p=CONFIDENT, read=HOPELESS)
        for state in ("uncertified", "mismatched", "revoked", "none")
        for name, body in (("graded", {}), ("required", REQUIRED), ("forbidden", FORBIDDEN))
    ),
    Scenario("uncertified-fallback-5", calibrator="uncertified-fallback-5"),
    Scenario("uncertified-binary", BINARY, calibrator="uncertified"),
    Scenario("none-binary", BINARY, calibrator="none"),
    Scenario("none-always", ALWAYS, calibrator="none"),
    Scenario("none-never", NEVER, calibrator="none"),
    Scenario("revoked-always", ALWAYS, calibrator="revoked"),
    *(
        Scenario(f"uncertified-allowed-{name}", p=p, calibrator="uncertified", settings={"allow_uncertified": True})
        for name, p in (("confident", CONFIDENT), ("uncertain", UNCERTAIN))
    ),
    Scenario("uncertified-abstention", p=HOPELESS, read=HOPELESS, calibrator="uncertified-abstention"),
    # A part fails.
    *(
        Scenario(f"fault-{stage}-{kind}", fails={stage: kind})
        for stage in ("probe", "embed", "search", "read")
        for kind in ("unavailable", "timeout", "bad-reply", "deadline")
    ),
    Scenario("fault-read-too-long", fails={"read": "too-long"}),
    Scenario("fault-probe-error", fails={"probe": "error"}),
    Scenario("fault-probe-defect", fails={"probe": "defect"}),
    Scenario("fault-search-hopeless", p=HOPELESS, fails={"search": "unavailable"}),
    Scenario("fault-search-must-answer", GIVE, p=HOPELESS, fails={"search": "unavailable"}),
    Scenario("fault-search-required", REQUIRED, fails={"search": "unavailable"}),
    Scenario("fault-search-required-deadline", REQUIRED, fails={"search": "deadline"}),
    Scenario("fault-search-hopeless-deadline", p=HOPELESS, fails={"search": "deadline"}),
    Scenario("fault-search-always", ALWAYS, fails={"search": "unavailable"}),
    Scenario("fault-search-always-deadline", ALWAYS | {"timeout_ms": 5000}, fails={"search": "deadline"}),
    Scenario("fault-search-and-probe-always", ALWAYS, fails={"search": "unavailable", "probe": "timeout"}),
    Scenario("fault-search-uncertified", calibrator="uncertified", fails={"search": "unavailable"}),
    Scenario("fault-search-none", calibrator="none", fails={"search": "unavailable"}),
    Scenario("fault-probe-forbidden", FORBIDDEN, fails={"probe": "unavailable"}),
    Scenario("fault-read-borderline", p=BORDERLINE, fails={"read": "unavailable"}),
    # The search works and finds nothing.
    Scenario("nothing-found", NOTHING),
    Scenario("nothing-found-hopeless", NOTHING, p=HOPELESS),
    Scenario("nothing-found-must-answer", NOTHING | GIVE, p=HOPELESS),
    Scenario("nothing-found-required", NOTHING | REQUIRED),
    Scenario("nothing-found-required-must-answer", NOTHING | REQUIRED | GIVE),
    Scenario("nothing-found-always", NOTHING | ALWAYS),
    Scenario("nothing-found-none", NOTHING, calibrator="none"),
    # The reader reports no usable log-probabilities.
    Scenario("no-logprobs-probe", p=NO_TOKENS),
    Scenario("no-logprobs-probe-nan", p=NOT_A_NUMBER),
    Scenario("no-logprobs-read", read=NO_TOKENS),
    Scenario("no-logprobs-never", NEVER, p=NO_TOKENS),
    # What else a request or an operator can choose.
    Scenario("filter", {"filter": {"lang": "en", "number": 2}}),
    Scenario("filter-confident", {"filter": {"lang": "en"}}, p=CONFIDENT),
    Scenario("other-max-tokens", {"max_tokens": 2}, p=CONFIDENT),
    Scenario("unknown-collection", {"collection": "nowhere"}),
    Scenario("default-policy-always", settings={"policy": "always"}),
    Scenario("mandatory-confident", p=CONFIDENT, mandatory="capital of"),
    Scenario("mandatory-uncertain", mandatory="capital of"),
    Scenario("mandatory-forbidden", FORBIDDEN, mandatory="capital of"),
    Scenario("mandatory-never", NEVER, mandatory="capital of"),
    *(Scenario(f"explored-k{k}", p=BORDERLINE, settings=EXPLORING, seed=seed) for k, seed in ((0, 1), (1, 5), (5, 0))),
    Scenario("explored-required", REQUIRED, p=CONFIDENT, settings=EXPLORING),
    Scenario("explored-always", ALWAYS, settings=EXPLORING),
    Scenario("feedback-wanted", settings={"solicit_share": 1.0, "decision_log": None}),
    # Streamed.
    *(Scenario(f"stream-{name}", STREAM, p=p, read=p) for name, p in SURE.items()),
    Scenario("stream-must-answer", STREAM | GIVE, p=HOPELESS, read=HOPELESS),
    Scenario("stream-always", STREAM | ALWAYS),
    Scenario("stream-never", STREAM | NEVER),
    Scenario("stream-none", STREAM, calibrator="none"),
    Scenario("stream-nothing-found", STREAM | NOTHING),
    Scenario("stream-fault-probe", STREAM, fails={"probe": "unavailable"}),
    Scenario("stream-fault-probe-defect", STREAM, fails={"probe": "defect"}),
    Scenario("stream-fault-read-ended", STREAM | GIVE, fails={"read": "ended"}),
    Scenario("stream-fault-search", STREAM, fails={"search": "timeout"}),
    Scenario("stream-fault-search-required", STREAM | REQUIRED, fails={"search": "timeout"}),
    Scenario("stream-fault-read", STREAM, fails={"read": "bad-reply"}),
    Scenario("stream-fault-read-defect", STREAM, fails={"read": "defect"}),
    Scenario("stream-fault-read-deadline", STREAM | GIVE, fails={"read": "deadline"}),
    Scenario("stream-fault-read-broken-off", STREAM | GIVE, fails={"read": "broken-off"}),
    # The OpenAI API.
    *(
        Scenario(f"openai-{name}", chat(), CHAT, p=SURE[name], read=SURE[name])
        for name in ("confident", "uncertain", "hopeless")
    ),
    Scenario("openai-ignored", chat(temperature=0.7, max_tokens=513), CHAT, p=CONFIDENT),
    Scenario("openai-refusal", chat(fetchwise={"abstention": "refusal"}), CHAT, p=HOPELESS, read=HOPELESS),
    Scenario("openai-model-always", chat(model="fetchwise-always"), CHAT),
    Scenario("openai-cut-off", chat(), CHAT, settings={"max_tokens": 2}),
    Scenario("openai-nothing-found", chat(fetchwise=NOTHING), CHAT, p=HOPELESS),
    Scenario("openai-fault-search", chat(), CHAT, p=HOPELESS, fails={"search": "unavailable"}),
    Scenario("openai-fault-read", chat(), CHAT, fails={"read": "unavailable"}),
    Scenario("openai-fault-read-too-long", chat(), CHAT, fails={"read": "too-long"}),
    Scenario("openai-fault-read-defect", chat(), CHAT, fails={"read": "defect"}),
    Scenario("openai-contradiction", chat(model="fetchwise-always", fetchwise=NEVER), CHAT),
    Scenario("openai-stream-confident", chat(stream_options={"include_usage": True}, **STREAM), CHAT, p=CONFIDENT),
    Scenario("openai-stream-withheld", chat(**STREAM), CHAT, p=HOPELESS, read=HOPELESS),
    Scenario("openai-stream-must-answer", chat(fetchwise=GIVE, **STREAM), CHAT),
    Scenario("openai-stream-cut-off", chat(**STREAM), CHAT, settings={"max_tokens": 2}),
    Scenario("openai-stream-fault-probe", chat(**STREAM), CHAT, fails={"probe": "unavailable"}),
    Scenario("openai-stream-fault-read-defect", chat(**STREAM), CHAT, fails={"read": "defect"}),
    Scenario("openai-stream-fault-read", chat(**STREAM), CHAT, fails={"read": "unavailable"}),
    # Chat mode: no passage is added above about 0.69, five below about 0.56.
    *(
        Scenario(f"chat-{name}", chat(*EARLIER, temperature=0.7), CHAT, p=p, calibrator="chat")
        for name, p in SURE.items()
    ),
    *(
        Scenario(f"chat-{name}", chat(*EARLIER, fetchwise=chosen), CHAT, p=CONFIDENT, calibrator="chat")
        for name, chosen in {
            "required": REQUIRED,
            "forbidden": FORBIDDEN,
            "always": ALWAYS,
            "graded": {"policy": "graded"},
            "missing-note": NOTHING,
            "missing-withhold": NOTHING | {"missing": "withhold"},
            "missing-answer": NOTHING | {"missing": "answer"},
        }.items()
    ),
    Scenario("chat-tool-turn", tool_turn(), CHAT, calibrator="chat"),
    Scenario("chat-forced", chat(model="fetchwise-chat"), CHAT, calibrator="chat"),
    Scenario("chat-not-calibrated", chat(*EARLIER), CHAT, calibrator="none"),
    Scenario("chat-without-a-rule", chat(*EARLIER), CHAT, calibrator="ladder"),
    Scenario("chat-explored", chat(*EARLIER), CHAT, calibrator="chat", settings=EXPLORING),
    Scenario("chat-out-of-scope", chat(*EARLIER), CHAT, calibrator="chat-out-of-scope"),
    *(
        Scenario(f"chat-fault-{stage}", chat(*EARLIER), CHAT, calibrator="chat", fails={stage: "unavailable"})
        for stage in ("embed", "search", "probe", "write")
    ),
    Scenario("chat-fault-write-too-long", chat(*EARLIER), CHAT, calibrator="chat", fails={"write": "too-long"}),
    Scenario("chat-fault-write-deadline", chat(*EARLIER), CHAT, calibrator="chat", fails={"write": "deadline"}),
    Scenario("chat-stream", chat(*EARLIER, stream_options={"include_usage": True}, **STREAM), CHAT, calibrator="chat"),
    Scenario(
        "chat-stream-withheld", chat(*EARLIER, fetchwise=NOTHING | {"missing": "withhold"}, **STREAM), CHAT, p=CONFIDENT
    ),
    Scenario("chat-stream-fault-write", chat(*EARLIER, **STREAM), CHAT, fails={"write": "unavailable"}),
    Scenario("chat-stream-fault-write-broken-off", chat(*EARLIER, **STREAM), CHAT, fails={"write": "broken-off"}),
    # Refused.
    Scenario("overloaded", full=True),
    Scenario("overloaded-openai", chat(), CHAT, full=True),
    Scenario("invalid-field", {"polcy": "always"}),
    Scenario("invalid-openai", chat(temperature="hot", fetchwise={"strict": True}), CHAT),
)
