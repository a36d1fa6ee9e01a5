"""Streaming runs: all stages of a pipeline at once in one Spark session, barriers flowing while they run.

===================  ===========================================================================
file                 owns
===================  ===========================================================================
``service``          a run: attempt after attempt, as the restart strategy says
``run``              one attempt while it runs: start, supervise, stop
``running_stage``    a stage with its query: prepared, started, stopped between two batches
``loop``             the thread in which all barrier decisions of a run are taken
``stage_worker``     one stage: feeds the barrier handler and performs what it decides
``alignment_facts``  what an alignment said when it triggered a snapshot
``input_channel``    what lies ahead in an input's log, and what the reader has reached
``positions``        how far a stage has read its inputs, from Spark's commit log
``gate``             holds and stops a query exactly between two micro-batches
``induced``          barriers whose place a source decides itself
``snapshot_job``     the asynchronous part of a stage's snapshot
``in_flight``        the in-flight data of an unaligned checkpoint: stored, and put back
``gateway``          how the coordinator reaches the stages
``timer``            runs the coordinator's timers, even while storage hangs
``restart``          restart strategies
``end_of_data``      finds out when bounded sources and all behind them are worked off
``garbage``          removes table files that nothing restorable needs any more
``progress``         what is seen of a run while it runs
``watch``            looks at it now and then, writes it down, tells it
``background``       deletions that never keep the process alive
``retention``        removes log entries nobody needs any more
===================  ===========================================================================
"""
