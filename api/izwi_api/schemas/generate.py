"""The body of POST /generate in SGLang's shape, and its answer. An unknown key is an error."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from izwi.chat import ChatInput
from izwi.request import Reason
from izwi_api.schemas.chat import INT32_MAX, INT64_MAX
from izwi_api.schemas.chat_messages import Strict
from izwi_api.services.chat import Answer


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class SamplingOptions(Strict):
    """How tokens are drawn, by SGLang's names."""

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


class GenerateBody(Strict):
    """Text or ids that are gone on with."""

    model: str | None = None
    text: str | None = Field(default=None, min_length=1)
    input_ids: list[int] | None = Field(default=None, min_length=1)
    sampling_params: SamplingOptions = SamplingOptions()
    stream: bool = False
    return_logprob: bool = False
    top_logprobs_num: int = Field(default=0, ge=0, le=20)


def generate_input(body: GenerateBody, seed: int) -> ChatInput:
    """Return what a body asks of a model; `seed` is for one without."""
    params = body.sampling_params
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
        text=body.text or "",
        token_ids=tuple(body.input_ids or ()),
    )


def generated(answer: Answer, request_id: str) -> dict[str, Any]:
    """Return what was generated so far; thoughts are a part of the text."""
    reason = {Reason.LENGTH: "length", Reason.STOP: "stop"}.get(answer.reason or Reason.ERROR)
    meta: dict[str, Any] = {
        "id": request_id,
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_tokens,
        "finish_reason": None if reason is None else {"type": reason},
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
