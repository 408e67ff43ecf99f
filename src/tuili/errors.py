"""Every error a user can meet, as one tree.

TuiliError
├── InvalidRequest            the request itself cannot be served as asked (HTTP 400)
│   ├── ContextTooLong        prompt and output do not fit the context
│   └── TemplateRefused       the chat template refused the conversation, or there is none
├── ModelNotFound             no such model here or at its source (HTTP 404)
├── Overloaded                the waiting queue is full; carries ``retry_after`` seconds (HTTP 429)
├── Unavailable               loading, draining or dead (HTTP 503)
├── ModelFileError            a model file is damaged, hostile or of an unknown kind
│   └── NotSupported          named, recognised, and not supported (yet): an architecture, tensor type, op, option
├── DownloadError             a source failed, a digest differs, the disk is full
├── LicenceRequired           the model's terms have to be accepted first
├── CacheError                packed weights cannot be kept: no room, or a folder that cannot be written
├── ConfigError               a setting has a bad value, or settings contradict each other
└── BackendError              the backend cannot run this program on this machine

A message says what was asked, what is possible and what to change. HTTP codes are chosen in ``server/errors.py`` only;
exit codes in ``cli/main.py`` only.
"""


class TuiliError(Exception):
    """Base of all errors that are meant for the user; shown without a traceback."""


class InvalidRequest(TuiliError):
    """The request cannot be served as asked; ``field`` names the offending field, if one does."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextTooLong(InvalidRequest):
    """The prompt does not fit the model's context or the KV cache."""


class TemplateRefused(InvalidRequest):
    """The chat template refused the conversation, failed, or does not exist."""


class ModelNotFound(TuiliError):
    """No model of that name is here, or at its source."""


class Overloaded(TuiliError):
    """The waiting queue is full; ``retry_after`` is in seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(TuiliError):
    """The server is loading, draining, or its engine has died."""

    def __init__(self, message: str, *, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelFileError(TuiliError):
    """A model file is damaged, hostile, truncated, or not a model file at all."""


class NotSupported(ModelFileError):
    """Recognised by name, and not supported (yet)."""


class DownloadError(TuiliError):
    """A source failed, a digest differs, or the disk is full."""


class LicenceRequired(TuiliError):
    """The model's terms have to be accepted before it is fetched."""


class CacheError(TuiliError):
    """Packed weights cannot be kept: there is no room, or the folder cannot be written."""


class ConfigError(TuiliError):
    """A setting has a bad value, or settings contradict each other."""


class BackendError(TuiliError):
    """The backend cannot run this program on this machine."""
