"""The body of POST /generate in SGLang's format, and its response. An unknown key is an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from izwi.errors import InvalidRequest
from izwi.inputs.chat import ChatInput
from izwi.request.request import Reason
from izwi_api.schemas.chat import INT32_MAX, INT64_MAX, MAX_CHOICES
from izwi_api.schemas.chat_messages import Strict
from izwi_api.services.chat.answer import ChatAnswer

MAX_PROMPTS = 64
# Of the sampling parameters, those that the whole text follows.
_GRAMMARS = ("json_schema", "regex", "ebnf")


def _listed(value: object) -> object:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


class SamplingOptions(Strict):
    """Sampling parameters, with SGLang's names."""

    max_new_tokens: int = Field(default=128, ge=1, le=INT32_MAX)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1, le=100_000)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100.0)
    sampling_seed: int | None = Field(default=None, ge=-INT64_MAX - 1, le=INT64_MAX)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=256)]],
        Field(max_length=16),
        BeforeValidator(_listed),
    ] = Field(default_factory=list)
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)

    # What the whole text follows: at most one of them.
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None

    # Taken with the value that changes nothing.
    min_new_tokens: Literal[0] | None = None
    ignore_eos: Literal[False] | None = None
    no_stop_trim: Literal[False] | None = None
    skip_special_tokens: Literal[True] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=0)] | None = None

    # It changes no text here.
    spaces_between_special_tokens: bool | None = None


_Text = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[int], Field(min_length=1)]


class GenerateBody(Strict):
    """Texts or token ids to continue."""

    model: str | None = None
    text: _Text | Annotated[list[_Text], Field(min_length=1, max_length=MAX_PROMPTS)] | None = None
    input_ids: _Ids | Annotated[list[_Ids], Field(min_length=1, max_length=MAX_PROMPTS)] | None = (
        None
    )
    sampling_params: SamplingOptions = SamplingOptions()
    stream: bool = False
    return_logprob: bool = False
    top_logprobs_num: int = Field(default=0, ge=0, le=20)

    # Taken with the value that changes nothing: tokens of the prompt have no log probabilities.
    logprob_start_len: Literal[-1] | None = None

    # It changes nothing: the text is always there.
    return_text_in_logprobs: bool | None = None

    @property
    def is_batch(self) -> bool:
        """Return whether the response is a list: several prompts, or several answers to one."""
        given = self.text if self.input_ids is None else self.input_ids[0]
        return isinstance(given, list) or self.sampling_params.n > 1


def generate_inputs(body: GenerateBody, seed: int) -> list[ChatInput]:
    """Convert a body to the model's inputs, one per prompt; `seed` is used if it has none.

    Raises:
        InvalidRequest: There is neither text nor ids, or both, or two grammars, or a schema that is
            not a JSON object.
    """
    _check_grammars(body.sampling_params)
    if (body.text is None) == (body.input_ids is None):
        raise InvalidRequest("give text or input_ids, and not both", param="text")
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        return [_input(body, seed, text=text) for text in texts]
    ids = body.input_ids or []
    several = [prompt for prompt in ids if isinstance(prompt, list)]
    one = [index for index in ids if isinstance(index, int)]
    return [_input(body, seed, ids=prompt) for prompt in several or [one]]


def _input(body: GenerateBody, seed: int, *, text: str = "", ids: Sequence[int] = ()) -> ChatInput:
    params = body.sampling_params
    written = [name for name in _GRAMMARS if getattr(params, name)]
    return ChatInput(
        (),
        temperature=params.temperature,
        top_k=max(0, params.top_k),
        top_p=params.top_p,
        seed=seed if params.sampling_seed is None else params.sampling_seed,
        max_new_tokens=params.max_new_tokens,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logprobs=body.return_logprob,
        top_logprobs=body.top_logprobs_num,
        text=text,
        token_ids=tuple(ids),
        response_schema=params.json_schema or "",
        regex=params.regex or "",
        ebnf=params.ebnf or "",
        grammar_param=_path(written[0]) if written else "sampling_params",
    )


def _check_grammars(params: SamplingOptions) -> None:
    names = [name for name in _GRAMMARS if getattr(params, name) is not None]
    if len(names) > 1:
        message = f"give {names[0]} or {names[1]}, and not both"
        raise InvalidRequest(message, param=_path(names[1]))
    for name in names:
        if not getattr(params, name):
            raise InvalidRequest(f"{name} is empty", param=_path(name))
    if params.json_schema is None:
        return
    try:
        is_object = isinstance(json.loads(params.json_schema), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        message = "json_schema must be a JSON object, as a string"
        raise InvalidRequest(message, param=_path("json_schema"))


def _path(name: str) -> str:
    """Return a sampling parameter's place in the body."""
    return f"sampling_params.{name}"


def generated(answer: ChatAnswer, request_id: str) -> dict[str, Any]:
    """Return the text generated so far, including thoughts."""
    meta: dict[str, Any] = {
        "id": request_id,
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_tokens,
        "finish_reason": _finish_reason(answer),
    }
    if answer.logprobs:
        meta["output_token_logprobs"] = [
            [token.logprob, token.token_id, token.spelled.decode(errors="replace")]
            for token in answer.logprobs
        ]
        meta["output_top_logprobs"] = [
            [[top.logprob, top.token_id, top.spelled.decode(errors="replace")] for top in token.top]
            for token in answer.logprobs
        ]
    return {"text": answer.reasoning + answer.content, "meta_info": meta}


def _finish_reason(answer: ChatAnswer) -> dict[str, Any] | None:
    """Return why an answer ended, or None while it is in progress."""
    if answer.reason is Reason.LENGTH:
        return {"type": "length", "length": answer.num_tokens}
    if answer.reason is not Reason.STOP:
        return None
    matched = {"matched": answer.stopped_by} if answer.stopped_by else {}
    return {"type": "stop", **matched}
