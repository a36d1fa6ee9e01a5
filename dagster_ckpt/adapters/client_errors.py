"""Meaning of a storage client's failure, which Amazon's, Microsoft's and Google's clients tell differently."""

from __future__ import annotations

_NO_CREDENTIALS = frozenset(
    {
        *("NoCredentialsError", "PartialCredentialsError"),  # Amazon
        "CredentialUnavailableError",  # Microsoft
        *("DefaultCredentialsError", "RefreshError"),  # Google
    }
)
_UNAUTHORIZED, _FORBIDDEN = 401, 403
_NO_ANSWER = (0, 429, 500, 502, 503, 504)


def status_of(error: BaseException) -> int:
    """Return the HTTP status of the answer that a client's error tells of; 0: there was none."""
    for one in (error.__cause__, error):
        answer = getattr(one, "response", None)
        if isinstance(answer, dict):  # botocore
            return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        for name in ("status_code", "code"):  # azure.core; gcsfs
            found = getattr(one, name, None)
            if isinstance(found, int) or (isinstance(found, str) and found.isdecimal()):
                return int(found)
    return 0


def has_no_answer(error: BaseException) -> bool:
    """Tell whether the storage was not reached, or is busy: what it can is not known then."""
    return status_of(error) in _NO_ANSWER


def lacks_credentials(error: BaseException) -> bool:
    """Tell whether a client has found no credentials to send."""
    return type(error).__name__ in _NO_CREDENTIALS


def is_refusal(error: BaseException) -> bool:
    """Tell whether the storage has refused who asks: wrong credentials, or no permission."""
    return (
        isinstance(error, PermissionError)
        or status_of(error) in (_UNAUTHORIZED, _FORBIDDEN)
        or str(error).startswith("Forbidden:")  # gcsfs, an OSError without a number
    )
