"""The yardstick of the front door: what anybody would write with FastAPI and SQLAlchemy, and nothing more.

One INSERT for a POST, one SELECT for a GET, a pydantic model of a document as large as a spec. No keys, no idempotency,
no checks between fields, no events, no place in a queue, no ETag.
"""

from __future__ import annotations

import sys
import uuid
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    """The one table."""


class Document(Base):
    """A stored document."""

    __tablename__ = "documents"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    body: Mapped[dict[str, Any]] = mapped_column(JSONB)
    create_time: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True))


class Given(BaseModel):
    """What is posted."""

    name: str = Field(max_length=128)
    model: dict[str, Any]
    prompts: dict[str, Any]
    rewards: list[dict[str, Any]]
    generation: dict[str, Any] = {}
    ppo: dict[str, Any] = {}
    checkpoint: dict[str, Any] = {}
    labels: dict[str, str] = {}


class View(BaseModel):
    """What is answered."""

    id: str
    name: str
    state: str
    body: dict[str, Any]
    create_time: datetime


def create_app(url: str) -> FastAPI:
    """The app on a database of its own."""
    engine = sa.create_engine(url, pool_size=10, max_overflow=40)
    Base.metadata.create_all(engine)
    app = FastAPI()

    @app.post("/v1/jobs", status_code=201)
    def submit(given: Given) -> View:
        document = Document(
            id=uuid.uuid4().hex,
            name=given.name,
            state="queued",
            body=given.model_dump(),
            create_time=datetime.now(UTC),
        )
        with Session(engine, expire_on_commit=False) as session:
            session.add(document)
            session.commit()
        return _view(document)

    @app.get("/v1/jobs/{document_id}")
    def get(document_id: str) -> View:
        with Session(engine) as session:
            document = session.get(Document, document_id)
            if document is None:
                raise HTTPException(404)
            return _view(document)

    return app


def _view(document: Document) -> View:
    return View(
        id=document.id,
        name=document.name,
        state=document.state,
        body=document.body,
        create_time=document.create_time,
    )


if __name__ == "__main__":
    database_url, port = sys.argv[1:]
    app = create_app(database_url)
    # As the service: the same HTTP implementation, no log line per request from uvicorn.
    uvicorn.run(app, port=int(port), http="h11", access_log=False, log_config=None, timeout_keep_alive=15)
