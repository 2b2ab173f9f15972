"""Any chat model that transformers knows, run by transformers and not by izwi's loop."""

from izwi.model.family import Family
from izwi_models.borrowed_chat.frontend import load_frontend

# No config.json has this `model_type`: an operator asks for the family by this name (--runner).
# Its prompts are those of `qwen3_chat`.
FAMILY = Family(
    "transformers", load_frontend, "izwi_models.borrowed_chat.engine", has_own_engine=True
)

__all__ = ["FAMILY"]
