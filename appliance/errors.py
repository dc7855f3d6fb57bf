"""The error tree: every refusal has one sentence, an exit code, an HTTP status and a hint."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the process tells its supervisor."""

    OK = 0
    USAGE = 2
    RIG = 3
    MODEL_FILE = 4
    DOES_NOT_FIT = 5
    MACHINE = 6
    ADDRESS = 7
    FAULT = 70


class ApplianceError(Exception):
    """A problem we can name: what, where, found, allowed, what to try, in one line.

    Attributes:
        exit_code: what the process exits with when this ends it.
        http_status: what a request that meets it is answered.
        code: stable machine-readable name for API clients and logs.
        param: the request field at fault, if any.
        hint: what to try, appended to the message where a person reads it.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAULT
    http_status: ClassVar[int] = 500
    default_code: ClassVar[str] = "internal_error"

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(ApplianceError):
    """The command line is wrong, or there is no terminal where one is needed."""

    exit_code = ExitCode.USAGE
    default_code = "usage"


class RigError(ApplianceError):
    """rig.toml, an environment variable or a flag cannot be accepted."""

    exit_code = ExitCode.RIG
    default_code = "rig"


class ModelFileError(ApplianceError):
    """The GGUF file or set cannot be loaded."""

    exit_code = ExitCode.MODEL_FILE
    default_code = "model_file"


class DoesNotFitError(ApplianceError):
    """The placement needs more memory than the machine has."""

    exit_code = ExitCode.DOES_NOT_FIT
    default_code = "does_not_fit"


class MachineError(ApplianceError):
    """A card, driver or runtime that the rig needs is absent or too old."""

    exit_code = ExitCode.MACHINE
    default_code = "machine"


class AddressError(ApplianceError):
    """The server cannot listen where the rig says."""

    exit_code = ExitCode.ADDRESS
    default_code = "address"


class EngineFault(ApplianceError):
    """The engine can no longer be trusted; the process must be restarted."""

    http_status = 503
    default_code = "engine_fault"


class NotReadyError(ApplianceError):
    """The model is still loading, or the process is draining. Answered with Retry-After."""

    http_status = 503
    default_code = "not_ready"

    def __init__(self, message: str, *, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFullError(ApplianceError):
    """Too many requests wait already. Answered with Retry-After."""

    http_status = 429
    default_code = "queue_full"

    def __init__(self, message: str, *, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestError(ApplianceError):
    """The request itself is wrong; trying it again unchanged cannot help."""

    exit_code = ExitCode.USAGE
    http_status = 400
    default_code = "invalid_request"


class ContextLengthError(RequestError):
    """The prompt, or prompt and max_tokens, do not fit in the context."""

    default_code = "context_length_exceeded"
