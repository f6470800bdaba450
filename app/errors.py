"""Every exception that Fetchwise raises on purpose.

FetchwiseError
├── BadRequest                the caller must change the request
│   ├── ContradictoryRequest  two fields contradict each other
│   ├── UnknownCollection     no such collection
│   ├── UnknownDecision       no such answer: never given, not stored, or pruned
│   ├── UnknownModel          no such model on the OpenAI API
│   ├── NothingToJudge        feedback on an abstention, or on a text that is not stored
│   ├── ReaderRefused         the reader does not accept the caller's own chat request
│   └── PromptTooLong         the question exceeds the reader's context
├── Denied                    the key, the host or the origin does not allow this
│   ├── Unauthorised          no key, or an unknown one
│   └── OverLimit             the key's own limit is reached; try again later
├── Overloaded                no permit left; try again later
├── UpstreamError             the reader, embedder or vector store failed
│   ├── UpstreamTimeout       it did not answer in time
│   │   └── DeadlinePassed    the question's deadline passed
│   ├── UpstreamUnavailable   it is unreachable, or reports that it cannot serve
│   └── UpstreamBadReply      its reply is malformed
├── LogUnavailable            the decision log cannot be written now
├── StorageError              stored documents or rates cannot be read or written
│   ├── StorageUnavailable    the database does not answer now; try again later
│   └── DocumentConflict      another writer changed it first
├── NoPassages                the search found nothing, and the request does not allow abstaining
├── ArtifactError             a calibrator that must not be served
│   ├── ArtifactSchemaError   it does not parse, or is of another schema version
│   └── ArtifactChecksumError its content differs from what was published
├── DataError                 an input file is invalid: names the line and the fix
├── StoreInUse                another process holds the embedded vector store
└── ConfigurationError        invalid settings; the gateway refuses to start
"""

from enum import StrEnum


class FetchwiseError(Exception):
    """The root of the tree: catches every error that Fetchwise raises on purpose."""


class BadRequest(FetchwiseError):
    """The caller must change the request."""


class ContradictoryRequest(BadRequest):
    """Two fields of a request contradict each other."""


class UnknownCollection(BadRequest):
    """The named collection does not exist."""


class UnknownDecision(BadRequest):
    """No answer with this id: it was never given, not stored, or has been pruned."""


class UnknownModel(BadRequest):
    """The OpenAI API was asked for an unknown model; `/v1/models` lists the known ones."""


class NothingToJudge(BadRequest):
    """Feedback that cannot apply: the answer was withheld, its text is not stored, or it was judged 100 times."""


class PromptTooLong(BadRequest):
    """The question exceeds the reader's context. Passages are dropped or shortened instead."""


class ReaderRefused(BadRequest):
    """The reader does not accept the caller's own chat request; `kind` and `param` are the reader's, where it says."""

    def __init__(self, message: str, *, kind: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.param = param


class Denial(StrEnum):
    """Why a request was denied; a closed set, so that it can label a metric."""

    NO_KEY = "no_key"
    BAD_KEY = "bad_key"
    SCOPE = "scope"
    COLLECTION = "collection"
    FILTER = "filter"
    RATE = "rate"
    CONCURRENCY = "concurrency"
    HOST = "host"
    ORIGIN = "origin"


class Denied(FetchwiseError):
    """The request is not allowed: by its key, or without keys by its host or its origin."""

    def __init__(self, message: str, *, why: Denial) -> None:
        super().__init__(message)
        self.why = why


class Unauthorised(Denied):
    """No key, or an unknown one; `challenge` is the WWW-Authenticate header."""

    def __init__(self, message: str, *, why: Denial, challenge: str = "Bearer") -> None:
        super().__init__(message, why=why)
        self.challenge = challenge


class OverLimit(Denied):
    """The key's own limit is reached."""

    def __init__(self, message: str, *, why: Denial, retry_after_s: int = 1) -> None:
        super().__init__(message, why=why)
        self.retry_after_s = retry_after_s


class Overloaded(FetchwiseError):
    """All permits are taken and the queue is full or too slow: the request is shed."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UpstreamError(FetchwiseError):
    """An upstream failed; `upstream` names it: reader, embedder or vectors.

    `retry_after_s` is how long to wait before the next call, if known.
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
    """The deadline of the question passed while it was working; the caller may have set a short one."""

    kind = "deadline"


class UpstreamUnavailable(UpstreamError):
    """It is unreachable, or reports that it cannot serve."""

    kind = "unavailable"


class UpstreamBadReply(UpstreamError):
    """Its reply is malformed."""

    kind = "bad_reply"


class LogUnavailable(FetchwiseError):
    """The decision log cannot be written now, so feedback is not acknowledged."""


class StorageError(FetchwiseError):
    """Stored documents or rates cannot be read or written; the message says where they are."""


class StorageUnavailable(StorageError):
    """The keys, or other documents, cannot be read now because their database is unreachable: try again."""


class DocumentConflict(StorageError):
    """The document has another revision than its writer expected: read it again."""


class NoPassages(FetchwiseError):
    """The search found nothing, and the request allows neither abstaining nor a closed-book answer."""

    kind = "no_passages"


class ArtifactError(FetchwiseError):
    """A calibrator that must not be served."""


class ArtifactSchemaError(ArtifactError):
    """It does not parse, or is of another schema version."""


class ArtifactChecksumError(ArtifactError):
    """Its content differs from what was published."""


class DataError(FetchwiseError):
    """An input file is invalid; the message names the line and the fix."""


class StoreInUse(FetchwiseError):
    """Another process has the embedded vector store open; the message names it."""


class ConfigurationError(FetchwiseError):
    """Invalid settings: the gateway refuses to start."""
