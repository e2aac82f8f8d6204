"""The queue between everybody who asks and the lifecycle: nothing is lost, whoever stops waiting and whenever."""

from __future__ import annotations

import asyncio

import pytest

from engine_host.engine.commands import Command, Commands, Interrupted
from engine_host.protocol.errors import OperatorError


async def test_a_wait_that_a_deadline_ends_takes_no_later_command_with_it() -> None:
    commands = Commands()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await commands.uninterrupted(asyncio.sleep(60), None, "busy")
    sent = asyncio.create_task(commands.send(Command("restart", 0.0, "ops")))
    command = await commands.within(1.0)
    assert command is not None and command.kind == "restart"
    command.done.set_result("restarted")
    assert await sent == "restarted"


async def test_commands_come_in_the_order_in_which_they_were_sent() -> None:
    commands = Commands()
    sent = [asyncio.create_task(commands.send(Command("restart", float(n), "ops"))) for n in range(3)]
    await asyncio.sleep(0)
    taken = [await commands.next(), await commands.within(1.0), await commands.within(1.0)]
    assert [command.drain_timeout_s for command in taken if command is not None] == [0.0, 1.0, 2.0]
    assert await commands.within(0.01) is None
    for task in sent:
        task.cancel()


async def test_work_under_way_gives_way_to_a_stop_and_refuses_the_rest() -> None:
    commands = Commands()
    restart = asyncio.create_task(commands.send(Command("restart", 0.0, "ops")))
    stop = asyncio.create_task(commands.send(Command("stop", 0.0, "ops")))
    await asyncio.sleep(0)
    with pytest.raises(Interrupted) as interrupted:
        await commands.uninterrupted(asyncio.sleep(60), None, "the engine is starting")
    assert interrupted.value.command.kind == "stop"
    with pytest.raises(OperatorError, match="the engine is starting"):
        await restart
    stop.cancel()


async def test_a_wait_ends_with_what_it_waits_beside() -> None:
    other = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(Commands().within(60.0, other))
    await asyncio.sleep(0)
    other.set_result(None)
    assert await asyncio.wait_for(waiting, 10.0) is None
