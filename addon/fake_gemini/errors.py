"""The strict local Gemini's error answers, in the service's format. ``fields``, ``rules`` and ``history`` decide."""

import json
from typing import Any

Json = dict[str, Any]


STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class Refused(Exception):
    """The service would refuse this request. ``code``: the HTTP status; ``details``: as in ``google.rpc``."""

    def __init__(self, message: str, *, code: int = 400, details: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details = details

    def body(self) -> dict[str, Any]:
        """``{"error": {code, message, status[, details]}}``"""
        error: dict[str, Any] = {"code": self.code, "message": self.message, "status": STATUS[self.code]}
        if self.details:
            error["details"] = self.details
        return {"error": error}

    def plain(self) -> dict[str, Any]:
        """``{"error": {message, code}}`` with a word as the code, the form of the Interactions API."""
        code = "invalid_request" if self.code == 400 else STATUS[self.code].lower()
        return {"error": {"message": self.message, "code": code}}


def pretty(document: Any) -> str:
    """Indented JSON with a final line break, the format of the service's unary answers and errors."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def bad_fields(violations: list[tuple[str, str]]) -> Refused:
    """One refusal for all ``(field, description)`` violations. An empty field, the top level, is left out."""
    listed = [
        {"field": field, "description": description} if field else {"description": description}
        for field, description in violations
    ]
    return Refused(
        "\n".join(description for _, description in violations),
        details=[{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": listed}],
    )


_SIGN_IN = "See https://developers.google.com/identity/sign-in/web/devconsole-project."


def no_key(surface: str) -> Refused:
    """The refusal of a request without credentials."""
    if surface in ("developer", "interactions", "firebase", "firebase-developer"):
        return Refused(
            "Method doesn't allow unregistered callers (callers without established identity). Please use API Key "
            "or other form of API consumer identity to call this API.",
            code=403,
        )
    return Refused(
        "Request is missing required authentication credential. Expected OAuth 2 access token, login cookie or "
        f"other valid authentication credential. {_SIGN_IN}",
        code=401,
    )


def key_not_supported() -> Refused:
    """The refusal of an API key if only bearer tokens are accepted."""
    return Refused(
        "API keys are not supported by this API. Expected OAuth2 access token or other authentication credentials "
        "that assert a principal. See https://cloud.google.com/docs/authentication",
        code=401,
    )


def invalid_key(service: str) -> Refused:
    """The refusal of an unknown key."""
    message = "API key not valid. Please pass a valid API key."
    return Refused(
        message,
        details=[
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "API_KEY_INVALID",
                "domain": "googleapis.com",
                "metadata": {"service": service},
            },
            {"@type": "type.googleapis.com/google.rpc.LocalizedMessage", "locale": "en-US", "message": message},
        ],
    )


def no_model(model: str, version: str, method: str) -> Refused:
    """The refusal of an unknown model."""
    return Refused(
        f"models/{model} is not found for API version {version}, or is not supported for {method}. Call ListModels "
        "to see the list of available models and their supported methods.",
        code=404,
    )
