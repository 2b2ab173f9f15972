"""Forms with one clip, as clients send them for voices and consents."""

from __future__ import annotations

from starlette.requests import Request

from izwi.errors import InvalidRequest, TooLarge
from izwi_api.http.bodies import read_form, read_json
from izwi_api.schemas.form import Form
from izwi_api.settings import Settings


async def read_fields(request: Request, file_field: str, settings: Settings) -> Form:
    """Read a form, or a JSON object if no file is sent.

    Args:
        request: The request to read.
        file_field: Name of the file's field.
        settings: Has the limit of the file.

    Raises:
        TooLarge: The file is over the limit; the rest was not read.
        InvalidRequest: The body is neither.
    """
    if request.headers.get("content-type", "").lower().startswith("application/json"):
        body = await read_json(request, settings.max_json_bytes)
        texts = {key: [value] for key, value in body.items() if isinstance(value, str)}
        if len(texts) < len(body):
            param = next(key for key in body if key not in texts)[:64]
            raise InvalidRequest(f"{param!r} must be a string", param=param)
        return Form(texts, {})
    try:
        return await read_form(request, settings.max_reference_bytes, file_field)
    except TooLarge as error:
        raise TooLarge(str(error), param=file_field) from error
