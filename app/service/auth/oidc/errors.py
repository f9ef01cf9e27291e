"""Errors of tokens; importing them loads no cryptography."""

from app.ledger.errors import AuthenticationError, LedgerUnavailableError


class ProviderUnavailableError(LedgerUnavailableError):
    """An identity provider or issuer does not answer, so that a credential can be neither accepted nor refused."""


class TokenRefusedError(AuthenticationError):
    """Refusal of a token that the provider signed; the audit log has the reason."""

    def __init__(self, why: str, detail: str) -> None:
        super().__init__(detail)
        self.why = why
