"""``GET /v1/models`` and ``GET /v1/models/{model}``."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from starlette.responses import Response

from headway.gateway.gateway import Gateway
from headway.gateway.json_response import json_response
from headway.gateway.model_directory import Fleet, model_not_found


def model_routes(gateway: Gateway) -> APIRouter:
    """The model endpoints."""
    router = APIRouter(dependencies=[Depends(gateway.callers.identify)])

    @router.get("/v1/models")
    async def list_models() -> Response:
        """Every model that is or was served here."""
        fleet = await gateway.models.fleet()
        return json_response({"object": "list", "data": [model_object(fleet, name) for name in fleet.served]})

    # Hub names hold a slash, so the rest of the path is the name.
    @router.get("/v1/models/{model:path}")
    async def retrieve_model(model: str) -> Response:
        """One of them."""
        fleet = await gateway.models.fleet(fresh=True)
        if model not in fleet.served:
            raise model_not_found(model, fleet)
        return json_response(model_object(fleet, model))

    return router


def model_object(fleet: Fleet, model: str) -> dict[str, object]:
    """OpenAI's model object, with what its live workers can do."""
    cards = [card for card in fleet.workers if card.model == model]
    return {
        "id": model,
        "object": "model",
        "created": min((card.created_unix for card in cards), default=0),
        "owned_by": "headway",
        "max_model_len": max((card.max_model_len for card in cards), default=None),
        "workers": len(cards),
        "ready_workers": sum(card.state == "ready" for card in cards),
    }
