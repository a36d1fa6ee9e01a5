------------------------------ MODULE TwoPhase ------------------------------
(* Tables that are published with checkpoints: batches are staged, a complete   *)
(* checkpoint is published in one commit, a restore brings every table to the   *)
(* rows of its cut and publishes what the cut had staged.                       *)
(* dagster_ckpt/spark/sink: phases.py, positions.py, versioned/engine.py and    *)
(* versioned/roll_back.py.  Rows are numbered; a stage reads 1, 2, 3 and so on, *)
(* one or two in a batch, so that a second attempt has other batches.           *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Sinks, Attempts, Checkpoints, Concurrent, Rows, Off

On(guard) == guard \notin Off
Ids == 1..Checkpoints
Epochs == 1..Attempts
Last(seq) == seq[Len(seq)]

VARIABLES epoch,     \* of the record
          next,      \* number of the next checkpoint
          status,    \* of each checkpoint: "none", "pending", "complete", "over"
          savepoint, \* checkpoints that nobody subsumes, and that publish nothing
          proc,      \* of each attempt: "none", "restoring", "running"
          origin,    \* checkpoint that an attempt restores; 0: it begins without state
          stage,     \* batches of each attempt, the same for all sinks: each <<number, rows through>>
          bar,       \* of each checkpoint: the batches before its barrier
          part,      \* of each checkpoint and sink: what the snapshot says of the table
          table,     \* of each sink: the versions of its table, newest last
          reading    \* of each attempt: the sink that it publishes, one at a time, the version it has read, the checkpoint
vars == <<epoch, next, status, savepoint, proc, origin, stage, bar, part, table, reading>>

NoPart == [taken |-> FALSE, head |-> 0, through |-> 0]
Idle == [sink |-> 0, version |-> 0, checkpoint |-> 0]
Empty == [epoch |-> 0, head |-> 0, through |-> 0, rows |-> <<>>]
Start == <<0, 0>>    \* no batch, no row

Init == /\ epoch = 0 /\ next = 1 /\ savepoint = {}
        /\ status = [c \in Ids |-> "none"]
        /\ proc = [a \in Epochs |-> "none"]
        /\ origin = [a \in Epochs |-> 0]
        /\ stage = [a \in Epochs |-> <<Start>>]
        /\ bar = [c \in Ids |-> <<Start>>]
        /\ part = [c \in Ids |-> [s \in Sinks |-> NoPart]]
        /\ table = [s \in Sinks |-> <<Empty>>]
        /\ reading = [a \in Epochs |-> Idle]

\* Batches are kept from the one that a table or a snapshot may still ask for: all, here.
Span(from, to) == [i \in 1..to - from |-> from + i]
RowsBetween(batches, after, through) ==          \* rows of the batches behind number `after`, up to `through`
    LET before == {b \in 1..Len(batches) : batches[b][1] <= after}
        upto == {b \in 1..Len(batches) : batches[b][1] <= through}
        end(set) == IF set = {} THEN 0 ELSE batches[CHOOSE b \in set : \A d \in set : d <= b][2]
    IN Span(end(before), end(upto))

-----------------------------------------------------------------------------
Batch(a) ==                                      \* phases.preparing
    /\ proc[a] = "running"
    /\ \E n \in 1..2 : LET now == Last(stage[a]) IN
        /\ now[2] + n <= Rows
        /\ stage' = [stage EXCEPT ![a] = Append(@, <<now[1] + 1, now[2] + n>>)]
    /\ UNCHANGED <<epoch, next, status, savepoint, proc, origin, bar, part, table, reading>>

Trigger(a) ==                                    \* the cut of all stages, as InstantCut has it
    /\ proc[a] = "running" /\ epoch = a /\ next \in Ids
    /\ Cardinality({c \in Ids : status[c] = "pending"}) < Concurrent
    /\ savepoint' \in {savepoint} \cup {{next} : one \in {1} \ {Cardinality(savepoint)}}   \* at most one
    /\ status' = [status EXCEPT ![next] = "pending"]
    /\ bar' = [bar EXCEPT ![next] = stage[a]]
    /\ next' = next + 1
    /\ UNCHANGED <<epoch, proc, origin, stage, part, table, reading>>

Snapshot(a, s, c) ==                             \* phases.cut_of_sink, in a thread of its own: it may come late
    LET t == Last(table[s]) IN
    /\ proc[a] = "running" /\ status[c] = "pending" /\ ~part[c][s].taken
    /\ IF On("SinkBehindCut") /\ t.through > Last(bar[c])[1]
       THEN status' = [status EXCEPT ![c] = "over"] /\ UNCHANGED part
       ELSE /\ part' = [part EXCEPT ![c][s] = [taken |-> TRUE, head |-> t.head, through |-> t.through]]
            /\ UNCHANGED status
    /\ UNCHANGED <<epoch, next, savepoint, proc, origin, stage, bar, table, reading>>

Complete(a, c) ==                                \* as Coordinator has it
    /\ proc[a] = "running" /\ epoch = a /\ status[c] = "pending"
    /\ \A s \in Sinks : part[c][s].taken
    /\ status' = [d \in Ids |-> IF d = c THEN "complete"
                                ELSE IF d < c /\ status[d] = "pending" /\ c \notin savepoint /\ d \notin savepoint
                                THEN "over" ELSE status[d]]
    /\ UNCHANGED <<epoch, next, savepoint, proc, origin, stage, bar, part, table, reading>>

-----------------------------------------------------------------------------
IsFenced(a, t) == On("FencedByTable") /\ t.epoch > a          \* refuse_fenced

Read(a, s, c) ==                                 \* Engine.publish: the version is read …
    /\ proc[a] = "running" /\ reading[a].sink = 0 /\ c \notin savepoint
    /\ status[c] = "complete" \/ (~On("OnlyComplete") /\ status[c] = "pending")
    /\ bar[c] # <<Start>> /\ Len(stage[a]) >= Len(bar[c])
    /\ SubSeq(stage[a], 1, Len(bar[c])) = bar[c]        \* a barrier of this attempt's log
    /\ ~IsFenced(a, Last(table[s]))
    /\ Last(bar[c])[1] > Last(table[s]).through
    /\ reading' = [reading EXCEPT ![a] = [sink |-> s, version |-> Len(table[s]), checkpoint |-> c]]
    /\ UNCHANGED <<epoch, next, status, savepoint, proc, origin, stage, bar, part, table>>

Publish(a, s) ==                                 \* … and the commit is made on exactly that one
    LET c == reading[a].checkpoint
        seen == table[s][reading[a].version]
        now == Last(table[s])
        through == Last(bar[c])[1]
        after == IF On("NotShown") THEN seen.through ELSE 0
        rows == RowsBetween(bar[c], after, through)
    IN /\ proc[a] = "running" /\ reading[a].sink = s
       /\ reading' = [reading EXCEPT ![a] = Idle]
       /\ IF On("OnTheVersionRead") /\ Len(table[s]) # reading[a].version THEN UNCHANGED table   \* Raced
          ELSE \E whole \in {TRUE, On("RowsWithPosition")} :
               table' = [table EXCEPT ![s] = Append(@,
                   IF whole THEN [epoch |-> a, head |-> c, through |-> through, rows |-> now.rows \o rows]
                            ELSE [now EXCEPT !.rows = @ \o rows])]
       /\ UNCHANGED <<epoch, next, status, savepoint, proc, origin, stage, bar, part>>

-----------------------------------------------------------------------------
Claim(a) ==                                      \* the attempt before may be dead, or go on and not know
    /\ proc[a] = "none" /\ epoch = a - 1
    /\ epoch' = a
    /\ proc' = [proc EXCEPT ![a] = "restoring"]
    /\ status' = [c \in Ids |-> IF status[c] = "pending" THEN "over" ELSE status[c]]
    /\ \E c \in {0} \cup {d \in Ids : status[d] = "complete"} :
        /\ origin' = [origin EXCEPT ![a] = c]
        /\ stage' = [stage EXCEPT ![a] = IF c = 0 THEN <<Start>> ELSE bar[c]]
    /\ UNCHANGED <<next, savepoint, bar, part, table, reading>>

Showing(s, head) ==                              \* Version.showing: the newest that shows a checkpoint
    LET found == {i \in 1..Len(table[s]) : table[s][i].head = head}
    IN IF found = {} THEN Empty ELSE table[s][CHOOSE i \in found : \A j \in found : j <= i]

ShownOf(s, c) ==                                 \* roll_back.way_to: rows that are brought back, and batches on top
    LET staged == On("StagedIsAdopted")
        is_whole == Showing(s, c).head = c
        from == IF is_whole THEN Showing(s, c) ELSE Showing(s, part[c][s].head)
        through == Last(bar[c])[1]
        rows == RowsBetween(bar[c], from.through, through)
    IN IF c = 0 THEN Empty
       ELSE IF is_whole \/ ~staged \/ rows = <<>> THEN from
       ELSE [from EXCEPT !.head = c, !.through = through, !.rows = @ \o rows]

RollBack(a, s) ==                                \* one commit, on the version that was read
    LET now == Last(table[s])
        shown == IF On("RollsBack") THEN ShownOf(s, origin[a]) ELSE now
    IN /\ proc[a] = "restoring" /\ now.epoch < a
       /\ table' = [table EXCEPT ![s] = Append(@, [shown EXCEPT !.epoch = a,
              !.through = IF On("ThroughGoesBack") THEN @ ELSE now.through])]
       /\ proc' = [proc EXCEPT ![a] = IF \A t \in Sinks \ {s} : Last(table[t]).epoch = a THEN "running" ELSE @]
       /\ UNCHANGED <<epoch, next, status, savepoint, origin, stage, bar, part, reading>>

Next == \E a \in Epochs :
    \/ Claim(a) \/ Trigger(a) \/ Batch(a)
    \/ \E c \in Ids : Complete(a, c)
    \/ \E s \in Sinks : \/ Publish(a, s) \/ RollBack(a, s)
                        \/ \E c \in Ids : Snapshot(a, s, c) \/ Read(a, s, c)

Spec == Init /\ [][Next]_vars
Symmetry == {f \in [Sinks -> Sinks] : \A s, t \in Sinks : f[s] = f[t] => s = t}

-----------------------------------------------------------------------------
Shown(s) == Last(table[s])

\* A table has every row once …
NoRowTwice == \A s \in Sinks : \A i, j \in 1..Len(Shown(s).rows) :
    Shown(s).rows[i] = Shown(s).rows[j] => i = j

\* … and none is missing before another.
NoRowMissing == \A s \in Sinks : \A i \in 1..Len(Shown(s).rows) :
    \E j \in 1..Len(Shown(s).rows) : Shown(s).rows[j] = i

\* A table shows no checkpoint that is not complete.
ShowsOnlyComplete == \A s \in Sinks : Shown(s).head # 0 => status[Shown(s).head] = "complete"

\* A restored table shows the rows of the cut, of which the state has seen every one and no other.
RestoredShowsTheCut == \A a \in Epochs, s \in Sinks :
    Shown(s).epoch = a /\ table[s][Len(table[s]) - 1].epoch < a =>
        Len(Shown(s).rows) = IF origin[a] = 0 THEN 0 ELSE Last(bar[origin[a]])[2]

\* What a newer attempt has taken over, no older one writes.
FencedPublishesNothing == \A s \in Sinks : \A i, j \in 1..Len(table[s]) :
    i < j => table[s][i].epoch <= table[s][j].epoch
=============================================================================
