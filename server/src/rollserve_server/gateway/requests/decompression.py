"""Decompression of requests, within a bound on what they become.

gRPC itself would decompress a request before anybody sees it, up to `--max-request-bytes`: some hundred kilobytes that
a client sends would take 256 MiB and more.
"""

from __future__ import annotations

import zlib

from rollserve_server.errors import InvalidValueError, OverLimitError
from rollserve_wire.reasons import Reason

__all__ = ["decompressed"]

_GZIP = b"\x1f\x8b"
"""First bytes of gzip's format. No serialized message begins with them: the first would be a field of no wire type."""
_GZIP_WINDOW_BITS = zlib.MAX_WBITS | 16


def decompressed(data: bytes, max_bytes: int) -> bytes:
    """Return a request as it was before its client compressed it; any other request as it is.

    Raises:
        OverLimitError: a compressed request of more than `max_bytes` before its compression.
        InvalidValueError: bytes that begin as gzip's format and do not follow it.
    """
    if not data.startswith(_GZIP):
        return data
    decompressor = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        content = decompressor.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise _malformed(str(error)) from None
    if len(content) > max_bytes:
        expected, hint = f"a compressed request of at most {max_bytes} bytes before compression", "send it uncompressed"
        raise OverLimitError.of("", expected=expected, got="more", hint=hint, reason=Reason.REQUEST_TOO_LARGE)
    if not decompressor.eof or decompressor.unused_data:
        raise _malformed("bytes that end too early" if not decompressor.eof else "bytes behind the end")
    return content


def _malformed(got: str) -> InvalidValueError:
    return InvalidValueError.of("", expected="a request in gzip's format", got=got)
