"""Barriers at the inputs of a stage: when to hold a channel, when to snapshot, when to give up.

A handler is a value. Feed it what the channels deliver, with the time, and it answers with the handler to
go on with and the effects to perform, in order::

    handler = handler_for(config, channels={"flights", "weather"})
    turn = handler.on(Barrier(channel="flights", checkpoint_id=7, timestamp=…, options=…), now=…)
    handler, effects = turn.handler, turn.effects

What the host promises:

* Channels are any hashable names. A reader that reaches a barrier *stands* on it, delivers nothing more of
  that channel and reports ``Barrier`` once; it goes on when it is told ``Unblock``.
* Where barriers are seen ahead of the data before them (a look into the channel log), the host reports
  ``Announcement`` first. Asked to ``PullForward`` a channel, it reports that channel's barrier at once;
  what lies between the reader and the barrier is then in-flight data.
* ``ArmTimer`` asks for ``TimerFired`` not before that time; a late or superfluous one does no harm.
* Effects are performed in the order given: the snapshot is triggered (which puts the barrier into the
  stage's own output) before any input is released, and a cancel marker is forwarded before any input is
  released.
* Times are seconds on the clock that stamped the barriers.

A stage whose channels have all ended is triggered by the coordinator directly and needs no handler.

=================  ==============================================================================
file               owns
=================  ==============================================================================
``events``         what comes in, what goes out
``options``        what travels with a barrier, and which combinations are legal
``progress``       which checkpoint is current, which channels have delivered its barrier
``phases``         the four states of one alignment: first barrier or collecting, aligned or not
``single``         exactly-once: one checkpoint at a time, aligned or alternating
``tracker``        at-least-once: many at a time, nothing held; which handler a configuration needs
=================  ==============================================================================

Sources: flink-runtime streaming.runtime.io.checkpointing; AlignedCheckpointsTest,
AlternatingCheckpointsTest, UnalignedCheckpointsTest, CheckpointBarrierTrackerTest.
"""

from dagster_ckpt.core.alignment.events import (
    AlignmentEffect,
    Announcement,
    ArmTimer,
    Barrier,
    BarrierAnswer,
    BarrierEvent,
    BarrierHandler,
    Block,
    CancelMarker,
    CancelTimer,
    Channel,
    Close,
    Decline,
    EndOfPartition,
    ForwardCancel,
    InFlightComplete,
    PullForward,
    TimerFired,
    TriggerSnapshot,
    Unblock,
    options_for,
)
from dagster_ckpt.core.alignment.tracker import handler_for

__all__ = [
    "AlignmentEffect",
    "Announcement",
    "ArmTimer",
    "Barrier",
    "BarrierAnswer",
    "BarrierEvent",
    "BarrierHandler",
    "Block",
    "CancelMarker",
    "CancelTimer",
    "Channel",
    "Close",
    "Decline",
    "EndOfPartition",
    "ForwardCancel",
    "InFlightComplete",
    "PullForward",
    "TimerFired",
    "TriggerSnapshot",
    "Unblock",
    "handler_for",
    "options_for",
]
