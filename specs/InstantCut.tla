----------------------------- MODULE InstantCut -----------------------------
(* Instant cuts of a stream: the barrier loop looks at the logs of all stages   *)
(* while their queries write, and chooses batches that belong together, from    *)
(* the last stages up to the sources.  For every connected graph of three.      *)
(* dagster_ckpt/spark/streaming/instant_cut.py: _ends, _end_behind, _begin.     *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Stages,    \* 1..3, in the order of the graph: inputs first
          Batches,   \* that each query writes at most
          Back,      \* most_batches_back
          Off

On(guard) == guard \notin Off
Pairs == {<<u, v>> \in Stages \X Stages : u < v}
Max(ns) == CHOOSE n \in ns : \A m \in ns : m <= n
Min(ns) == CHOOSE n \in ns : \A m \in ns : n <= m

VARIABLES edges,     \* channels: <<u, v>>, v reads u
          unaligned, \* rows in flight may be stored (stores_in_flight)
          begins,    \* entries that a restore has put into each log, before the stage's own
          log,       \* entries of each stage's log: TRUE where there are rows in it
          offsets,   \* of each batch of a stage: how far it has read each log
          committed, \* newest batch that Spark has noted; 0: none
          phase,     \* of the checkpoint: "running", "chosen", "cut"
          chosen,    \* the cut as it was chosen
          cut        \* the cut that was begun
vars == <<edges, unaligned, begins, log, offsets, committed, phase, chosen, cut>>

Readers(u) == {v \in Stages : <<u, v>> \in edges}
Inputs(v) == {u \in Stages : <<u, v>> \in edges}
Written(u) == Len(log[u]) - begins[u]
At(v, batch) == IF batch = 0 THEN [u \in Stages |-> 0] ELSE offsets[v][batch]
BatchBefore(u, position) == IF position < begins[u] THEN 0 ELSE position - begins[u]

Init == /\ edges \in {some \in SUBSET Pairs : Cardinality(some) >= 2}
        /\ unaligned \in BOOLEAN
        /\ begins \in [Stages -> 0..1] /\ begins[1] + begins[2] <= 1 /\ begins[3] = 0 /\ \A u \in Stages : Readers(u) = {} => begins[u] = 0
        /\ log = [u \in Stages |-> IF begins[u] = 1 THEN <<TRUE>> ELSE <<>>]
        /\ offsets = [u \in Stages |-> <<>>]
        /\ committed = [u \in Stages |-> 0]
        /\ phase = "running" /\ chosen = <<>> /\ cut = <<>>

-----------------------------------------------------------------------------
(* The queries: a batch reads on in its inputs and writes one entry; then      *)
(* Spark notes it as committed, and only then begins the next one.             *)
GoesOn(v) == phase = "running" \/ (phase = "chosen" /\ Readers(v) = {})   \* of others it would change nothing

WriteBatch(v) ==
    /\ GoesOn(v) /\ committed[v] = Written(v) /\ Written(v) < Batches
    /\ \E to \in [Inputs(v) -> 0..Batches + 1], rows \in BOOLEAN :
        /\ \A u \in Inputs(v) : At(v, Written(v))[u] <= to[u] /\ to[u] <= Len(log[u])
        /\ Inputs(v) # {} => \E u \in Inputs(v) : to[u] > At(v, Written(v))[u]
        /\ offsets' = [offsets EXCEPT ![v] = Append(@, [u \in Stages |-> IF u \in Inputs(v) THEN to[u] ELSE 0])]
        /\ rows \/ (Readers(v) # {} /\ \A u \in Stages : \A i \in 1..Len(log[u]) : log[u][i])   \* one without rows
        /\ log' = [log EXCEPT ![v] = Append(@, rows)]
    /\ UNCHANGED <<edges, unaligned, begins, committed, phase, chosen, cut>>

Commit(v) == /\ GoesOn(v) /\ committed[v] < Written(v)
             /\ committed' = [committed EXCEPT ![v] = @ + 1]
             /\ UNCHANGED <<edges, unaligned, begins, log, offsets, phase, chosen, cut>>

-----------------------------------------------------------------------------
(* The choice: where a log is cut, the batch before, and what was committed then *)
End(u, position, batch) == [position |-> position, batch |-> batch, newest |-> committed[u]]
Newest(u) == End(u, Len(log[u]), Written(u))

RECURSIVE BehindEmpty(_, _)
BehindEmpty(u, position) ==      \* _behind_empty: batches without rows do not count
    IF position < Len(log[u]) /\ ~log[u][position + 1] /\ position + 1 - begins[u] <= committed[u]
    THEN BehindEmpty(u, position + 1) ELSE position

IsKept(u, batch) ==              \* _is_kept: Spark still has what a restart behind the batch needs
    \/ ~On("BatchesKept")
    \/ committed[u] = 0
    \/ batch = 0 /\ Inputs(u) # {} /\ committed[u] <= Back
    \/ batch > 0 /\ (batch >= committed[u] \/ committed[u] - batch <= Back)

NoEnd == [position |-> 0, batch |-> Batches + 1, newest |-> 0]      \* NotAtOnce
EndBehind(u, read, stores) ==    \* _end_behind
    LET from == IF On("NeverCutInTwo") THEN Max({read, begins[u]}) ELSE read
        position == BehindEmpty(u, from)
        batch == BatchBefore(u, position)
    IN IF IsKept(u, batch) THEN End(u, position, batch)
       ELSE IF stores THEN End(u, begins[u] + committed[u], committed[u])
       ELSE NoEnd

RECURSIVE Ends(_, _, _, _)
Ends(u, ends, stores, last) ==   \* _ends, from the last stage to the first
    IF u = 0 THEN ends
    ELSE LET reads == {At(v, ends[v].batch)[u] : v \in {w \in Readers(u) : ends[w] # NoEnd}}
             end == IF Readers(u) = {} THEN last[u]
                    ELSE IF \E v \in Readers(u) : ends[v] = NoEnd THEN NoEnd
                    ELSE EndBehind(u, IF On("FurthestReader") THEN Max(reads) ELSE Min(reads), stores)
         IN Ends(u - 1, [ends EXCEPT ![u] = end], stores, last)

Choice(stores) == LET last == [u \in Stages |-> Newest(u)] IN Ends(Cardinality(Stages), last, stores, last)

\* Channels with rows that the reader has not read at its cut and the writer does not write again.
InFlight(ends) == {<<u, v>> \in edges :
    \E i \in At(v, ends[v].batch)[u] + 1..ends[u].position : log[u][i]}

Choose ==                        \* _take_part
    /\ phase = "running" /\ phase' = "chosen"
    /\ LET ends == Choice(unaligned)
       IN /\ \A u \in Stages : ends[u] # NoEnd
          /\ ~unaligned /\ On("NothingInFlight") => InFlight(ends) = {}
          /\ chosen' = ends
    /\ UNCHANGED <<edges, unaligned, begins, log, offsets, committed, cut>>

Begin ==                         \* _begin: the barriers are noted in the last logs, whose queries went on meanwhile
    /\ phase = "chosen" /\ phase' = "cut"
    /\ LET noted == [u \in Stages |-> Newest(u)]
           overtaken == On("OvertakenIsStored")
                        /\ \E u \in Stages : Readers(u) = {} /\ noted[u].batch # chosen[u].batch
           ends == IF overtaken THEN Choice(TRUE) ELSE chosen
       IN cut' = [ends |-> ends, noted |-> noted,
                  stored |-> IF unaligned \/ overtaken THEN InFlight(ends) ELSE {}]
    /\ chosen' = <<>>
    /\ UNCHANGED <<edges, unaligned, begins, log, offsets, committed>>

Next == Choose \/ Begin \/ \E v \in Stages : WriteBatch(v) \/ Commit(v)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
IsCut == phase = "cut"
CutOf(u) == cut.ends[u]
Read(u, v) == At(v, CutOf(v).batch)[u]
\* A restore writes the batches behind the cut again, and puts back what was stored.
WrittenAgain(u, i) == i > begins[u] /\ i - begins[u] > CutOf(u).batch
IsStored(u, v, i) == <<u, v>> \in cut.stored /\ i > Read(u, v) /\ i <= CutOf(u).position
Rows(u) == {i \in 1..Len(log[u]) : log[u][i]}

\* What the reader has not read at its cut is stored, or written again.
NoRowLost == IsCut => \A e \in edges : \A i \in Rows(e[1]) :
    i > Read(e[1], e[2]) => IsStored(e[1], e[2], i) \/ WrittenAgain(e[1], i)

\* What the reader has read, or what is stored, is not written again.
NoRowTwice == IsCut => \A e \in edges : \A i \in Rows(e[1]) :
    i <= Read(e[1], e[2]) \/ IsStored(e[1], e[2], i) => ~WrittenAgain(e[1], i)

\* Spark still has the batch behind which a stage is cut, with room to spare while it is stored.
CutCanBeRestored == IsCut => \A u \in Stages :
    IF CutOf(u).batch = 0 THEN CutOf(u).newest <= IF Inputs(u) = {} THEN 0 ELSE Back
                          ELSE CutOf(u).newest <= CutOf(u).batch + Back

\* A table is published up to the batch that the state of its stage has seen.
TableShowsTheCut == IsCut => \A u \in Stages : Readers(u) = {} => cut.noted[u].batch = CutOf(u).batch
=============================================================================
