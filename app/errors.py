"""Every exception that Fetchwise raises on purpose.

FetchwiseError
├── BadRequest                the caller's to mend
│   ├── ContradictoryRequest  two fields that cannot both be meant
│   ├── UnknownCollection     no such collection
│   └── PromptTooLong         question and best passage exceed the reader's context
├── Unauthorised              no key, or a key without the scope
├── Overloaded                no permit left; try again later
├── UpstreamError             a part behind the gateway failed
│   ├── UpstreamTimeout       it did not answer in time
│   ├── UpstreamUnavailable   it could not be reached, or said it is not there
│   └── UpstreamBadReply      it answered nonsense
├── NoPassages                retrieval worked and found nothing, where an answer was insisted on
├── ArtifactError             a calibrator file that must not be served
│   ├── ArtifactSchemaError   it does not parse, or is of another schema version
│   └── ArtifactChecksumError its bytes are not those that were published
├── DataError                 an input file is wrong: names the line and the remedy
├── StoreInUse                another process holds the embedded vector store
└── ConfigurationError        the settings cannot be served; refuses to start
"""


class FetchwiseError(Exception):
    """The root of the tree: catch this to catch all that is raised on purpose."""


class BadRequest(FetchwiseError):
    """The caller's to mend."""


class ContradictoryRequest(BadRequest):
    """Two fields of a request that cannot both be meant."""


class UnknownCollection(BadRequest):
    """The named collection does not exist."""


class PromptTooLong(BadRequest):
    """Question and best passage alone exceed the reader's context."""


class Unauthorised(FetchwiseError):
    """No key, or a key without the scope that the route needs."""


class Overloaded(FetchwiseError):
    """Every permit is taken: the request was shed, not queued."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UpstreamError(FetchwiseError):
    """A part behind the gateway failed; `upstream` names it: reader, embedder or vectors."""

    kind = "error"

    def __init__(self, upstream: str, message: str) -> None:
        super().__init__(message)
        self.upstream = upstream


class UpstreamTimeout(UpstreamError):
    """It did not answer in time."""

    kind = "timeout"


class UpstreamUnavailable(UpstreamError):
    """It could not be reached, or said that it cannot serve."""

    kind = "unavailable"


class UpstreamBadReply(UpstreamError):
    """It answered, and the answer makes no sense."""

    kind = "bad_reply"


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
