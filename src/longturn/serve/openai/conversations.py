"""/v1/conversations: items that requests of /v1/responses begin with and add to."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from longturn.dialects import responses
from longturn.dialects.responses import ConversationRequest
from longturn.serve.body import read_body
from longturn.serve.front import FrontOf, SaltOf
from longturn.serve.json_response import JsonResponse
from longturn.serve.openai.stored import StoredOf
from longturn.serve.openai.stored_conversations import Conversation, no_item
from longturn.serve.paging import PagingOf

Json = dict[str, Any]
router = APIRouter()


@router.post("/v1/conversations")
async def create_conversation(http: Request, front: FrontOf, stored: StoredOf, salt: SaltOf) -> Response:
    """Begin a conversation, perhaps with items."""
    items, request = await _sent(http, front.body_limit)
    return _shown(stored.conversations.create(salt, items, request.metadata or {}))


@router.get("/v1/conversations/{id}")
async def retrieve_conversation(id: str, stored: StoredOf, salt: SaltOf) -> Response:
    """A conversation, without its items."""
    return _shown(stored.conversations.get(id, salt))


@router.post("/v1/conversations/{id}")
async def update_conversation(http: Request, id: str, front: FrontOf, stored: StoredOf, salt: SaltOf) -> Response:
    """Replace a conversation's metadata."""
    _, request = await _sent(http, front.body_limit)
    return _shown(stored.conversations.name(id, salt, request.metadata or {}))


@router.delete("/v1/conversations/{id}")
async def delete_conversation(id: str, stored: StoredOf, salt: SaltOf) -> Response:
    """Forget a conversation."""
    stored.conversations.delete(id, salt)
    return JsonResponse({"id": id, "object": "conversation.deleted", "deleted": True})


@router.post("/v1/conversations/{id}/items")
async def create_items(http: Request, id: str, front: FrontOf, stored: StoredOf, salt: SaltOf) -> Response:
    """Add items to a conversation."""
    items, _ = await _sent(http, front.body_limit)
    stored.conversations.add(id, salt, items)
    return JsonResponse(responses.items(items, has_more=False))


@router.get("/v1/conversations/{id}/items")
async def list_items(id: str, stored: StoredOf, salt: SaltOf, paging: PagingOf) -> Response:
    """A conversation's items, latest first."""
    return JsonResponse(paging.of(stored.conversations.get(id, salt).items))


@router.get("/v1/conversations/{id}/items/{item}")
async def retrieve_item(id: str, item: str, stored: StoredOf, salt: SaltOf) -> Response:
    """One item."""
    for each in stored.conversations.get(id, salt).items:
        if each["id"] == item:
            return JsonResponse(each)
    raise no_item(item)


@router.delete("/v1/conversations/{id}/items/{item}")
async def delete_item(id: str, item: str, stored: StoredOf, salt: SaltOf) -> Response:
    """Take an item out of a conversation."""
    return _shown(stored.conversations.remove(id, salt, item))


async def _sent(http: Request, limit: int) -> tuple[list[Json], ConversationRequest]:
    """The items of a body as they are stored, and the body."""
    given, request = responses.parse_conversation(await read_body(http, limit))
    return responses.listed(given), request


def _shown(conversation: Conversation) -> Response:
    return JsonResponse(
        {
            "id": conversation.id,
            "object": "conversation",
            "created_at": conversation.created,
            "metadata": dict(conversation.metadata),
        }
    )
