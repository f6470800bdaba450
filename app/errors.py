"""Every exception that Fetchwise raises on purpose.

FetchwiseError
├── BadRequest                the caller's to mend
│   ├── ContradictoryRequest  two fields that cannot both be meant
│   ├── UnknownCollection     no such collection
│   ├── UnknownDecision       no such answer: never given, not kept, or pruned
│   ├── UnknownModel          no such model on the OpenAI API
│   ├── NothingToJudge        feedback on an abstention, or on a text that is not kept
│   └── PromptTooLong         question and best passage exceed the reader's context
├── Denied                    the key does not allow this
│   ├── Unauthorised          no key, or none that is known
│   └── OverLimit             the key's own limit is reached; try again later
├── Overloaded                no permit left; try again later
├── UpstreamError             a part behind the gateway failed
│   ├── UpstreamTimeout       it did not answer in time
│   │   └── DeadlinePassed    the question's own time was up
│   ├── UpstreamUnavailable   it could not be reached, or said it is not there
│   └── UpstreamBadReply      it answered nonsense
├── LogUnavailable            the decision log cannot be written now
├── DocumentError             a stored document cannot be read or written
│   └── DocumentConflict      another writer changed it first
├── NoPassages                retrieval worked and found nothing, where an answer was insisted on
├── ArtifactError             a calibrator file that must not be served
│   ├── ArtifactSchemaError   it does not parse, or is of another schema version
│   └── ArtifactChecksumError its bytes are not those that were published
├── DataError                 an input file is wrong: names the line and the remedy
├── StoreInUse                another process holds the embedded vector store
└── ConfigurationError        the settings cannot be served; refuses to start
"""

from enum import StrEnum


class FetchwiseError(Exception):
    """The root of the tree: catch this to catch all that is raised on purpose."""


class BadRequest(FetchwiseError):
    """The caller's to mend."""


class ContradictoryRequest(BadRequest):
    """Two fields of a request that cannot both be meant."""


class UnknownCollection(BadRequest):
    """The named collection does not exist."""


class UnknownDecision(BadRequest):
    """No answer with this id is known: it was never given, its record was not kept, or it has been pruned."""


class UnknownModel(BadRequest):
    """The OpenAI API was asked for a model that is not there: there is one for each policy."""


class NothingToJudge(BadRequest):
    """Feedback that cannot apply: the answer was withheld, or its text is not kept."""


class PromptTooLong(BadRequest):
    """Question and best passage alone exceed the reader's context."""


class Denial(StrEnum):
    """Why a key did not do: the closed set that is counted."""

    NO_KEY = "no_key"
    BAD_KEY = "bad_key"
    SCOPE = "scope"
    COLLECTION = "collection"
    FILTER = "filter"
    RATE = "rate"
    CONCURRENCY = "concurrency"


class Denied(FetchwiseError):
    """The key is known, and does not allow this."""

    def __init__(self, message: str, *, why: Denial) -> None:
        super().__init__(message)
        self.why = why


class Unauthorised(Denied):
    """No key, or none that is known; `challenge` says how one could be given."""

    def __init__(self, message: str, *, why: Denial, challenge: str = "Bearer") -> None:
        super().__init__(message, why=why)
        self.challenge = challenge


class OverLimit(Denied):
    """The key's own limit is reached, whatever the gateway could still take on."""

    def __init__(self, message: str, *, why: Denial, retry_after_s: int = 1) -> None:
        super().__init__(message, why=why)
        self.retry_after_s = retry_after_s


class Overloaded(FetchwiseError):
    """Every permit is taken, and the line before them is full or too slow: the request was shed."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UpstreamError(FetchwiseError):
    """A part behind the gateway failed; `upstream` names it: reader, embedder or vectors.

    `retry_after_s` is how long to leave it alone, where that is known.
    """

    kind = "error"

    def __init__(self, upstream: str, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.upstream = upstream
        self.retry_after_s = retry_after_s


class UpstreamTimeout(UpstreamError):
    """It did not answer in time."""

    kind = "timeout"


class DeadlinePassed(UpstreamTimeout):
    """It was still at work when the time was up that the asker gave the question, which may have been short."""

    kind = "deadline"


class UpstreamUnavailable(UpstreamError):
    """It could not be reached, or said that it cannot serve."""

    kind = "unavailable"


class UpstreamBadReply(UpstreamError):
    """It answered, and the answer makes no sense."""

    kind = "bad_reply"


class LogUnavailable(FetchwiseError):
    """The decision log cannot be written now, so nothing may be acknowledged."""


class DocumentError(FetchwiseError):
    """A stored document cannot be read or written; the message says where it is."""


class DocumentConflict(DocumentError):
    """The document has another revision than its writer expected: read it again."""


class NoPassages(FetchwiseError):
    """Retrieval worked and found nothing, and the request forbids both abstaining and guessing."""


class ArtifactError(FetchwiseError):
    """A calibrator file that must not be served."""


class ArtifactSchemaError(ArtifactError):
    """It does not parse, or is of another schema version."""


class ArtifactChecksumError(ArtifactError):
    """Its bytes are not those that were published."""


class DataError(FetchwiseError):
    """An input file is wrong; the message names the line and the remedy."""


class StoreInUse(FetchwiseError):
    """Another process holds the embedded vector store; the message names it."""


class ConfigurationError(FetchwiseError):
    """The settings cannot be served as they are: the gateway refuses to start."""
