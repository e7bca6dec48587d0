"""
A FastAPI application that adds a job in the same transaction as the rows that the job is about.

    pip install '.[cli]' 'fastapi[standard]' 'sqlalchemy[asyncio]' aiosqlite
    fastapi dev examples/fastapi_shop.py            the application, and a worker inside of it
    leasehold worker examples.fastapi_shop          more workers, in processes of their own

If the order is rolled back there is no job; if it is committed there is one. Nothing is sent in between.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from leasehold import Lease, Router

router = Router("sqlite:///shop.db")
engine = create_async_engine("sqlite+aiosqlite:///shop.db")
sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str]
    receipt: Mapped[str | None]


@router.task
async def send_receipt(lease: Lease, order_id: int) -> None:
    """Write the receipt. The row and the completion are one commit, and only the current owner can make it."""
    async with sessions.begin() as session:
        await lease.aio.fence(session)
        order = await session.get_one(Order, order_id)
        order.receipt = f"receipt for {order.sku}"
        await lease.aio.complete(connection=session)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have the tables, and a worker on this very event loop, as long as the application runs."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with router.worker(concurrency=4):
        yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


async def transaction() -> AsyncIterator[AsyncSession]:
    """The transaction of a request."""
    async with sessions.begin() as session:
        yield session


Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]


@app.post("/orders/{sku}")
async def place_order(sku: str, session: Transaction) -> dict[str, int]:
    """Keep the order and ask for its receipt, or neither."""
    order = Order(sku=sku)
    session.add(order)
    await session.flush()
    await send_receipt.options(id=f"receipt:{order.id}", connection=session).aio.add(order.id)
    if sku == "nothing":
        raise ValueError("there is no such thing, so there is no order, and no job either")
    return {"order": order.id}


@app.get("/orders/{order_id}")
async def show_order(order_id: int, session: Transaction) -> dict[str, str | None]:
    """Show an order; its receipt is there soon."""
    order = await session.get_one(Order, order_id)
    return {"sku": order.sku, "receipt": order.receipt}
