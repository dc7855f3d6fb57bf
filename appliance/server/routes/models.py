"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from litestar import get
from msgspec import Struct

from appliance.server.backend import ModelCard
from appliance.server.context import AnyRequest, Context


class ModelEntry(Struct):
    """One model or alias. `root` is the served model."""

    id: str
    created: int
    root: str
    description: str
    context_length: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "strata"
    input_modalities: tuple[str, ...] = ("text",)
    output_modalities: tuple[str, ...] = ("text",)


class ModelList(Struct):
    """The list."""

    data: list[ModelEntry]
    object: str = "list"


def entry(card: ModelCard, name: str, *, context_tokens: int) -> ModelEntry:
    """One entry of the list."""
    return ModelEntry(name, card.created, card.id, card.description, context_tokens, context_tokens)


@get("/v1/models")
async def models(request: AnyRequest) -> ModelList:
    """The served model and its aliases."""
    context = Context.of(request)
    context.require_ready()
    card, engine = context.backend.model(), context.backend.engine()
    return ModelList([entry(card, name, context_tokens=engine.max_tokens) for name in (card.id, *card.aliases)])


@get("/v1/models/{name:path}")
async def model(request: AnyRequest) -> ModelEntry:
    """One of them; any other name is 404."""
    context = Context.of(request)
    context.require_ready()
    wanted = str(request.path_params["name"]).removeprefix("/")
    return entry(context.require_model(wanted), wanted, context_tokens=context.backend.engine().max_tokens)
