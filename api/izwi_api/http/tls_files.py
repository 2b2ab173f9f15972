"""The server's TLS certificate, checked at startup."""

from __future__ import annotations

import ssl
from pathlib import Path

from izwi.errors import InvalidRequest
from izwi_api.settings import TlsFiles


def read_tls_files(cert: Path | None, key: Path | None) -> TlsFiles | None:
    """Check the files of `--tls-cert` and `--tls-key`; None if neither is given.

    Raises:
        InvalidRequest: A file cannot be read or used, the key does not match the certificate or has
            a password, or a key is given without a certificate.
    """
    if cert is None:
        if key is not None:
            raise InvalidRequest("--tls-key needs --tls-cert", param="tls_cert")
        return None
    for option, path in (("--tls-cert", cert), ("--tls-key", key)):
        if path is not None and not path.is_file():
            raise InvalidRequest(f"{option}: there is no file {str(path)!r}", param="tls_cert")
    try:
        # An empty password, so that OpenSSL does not prompt for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except OSError as error:  # includes ssl.SSLError
        names = str(cert) if key is None else f"{cert} and {key}"
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidRequest(
            f"{names} cannot be used for TLS ({reason or error}): they must be PEM, the key that "
            "of the certificate and without a password",
            param="tls_cert",
        ) from error
    return TlsFiles(cert, key)
