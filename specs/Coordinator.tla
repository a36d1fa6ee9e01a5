---------------------------- MODULE Coordinator ----------------------------
(* One pipeline, its record in the store, and two attempts that write it: who  *)
(* owns the pipeline, when a checkpoint is complete, when a run must fail.     *)
(* dagster_ckpt/core/coordinator decides, dagster_ckpt/runtime/engine.py       *)
(* stores.  A process decides on the record as it knows it (mem); the store    *)
(* takes the decision where nobody has written in between.                     *)
EXTENDS Naturals, FiniteSets

CONSTANTS Stages,       \* of the graph: a set of model values
          Attempts,     \* processes that take the pipeline, one after the other
          Checkpoints,  \* numbers of checkpoints there are
          Concurrent,   \* max_concurrent_checkpoints
          Tolerable,    \* tolerable_failed_checkpoints
          Off           \* guards that are switched off; {} is the code

On(guard) == guard \notin Off
Ids == 1..Checkpoints
Epochs == 1..Attempts
Newest(ids) == IF ids = {} THEN 0 ELSE CHOOSE c \in ids : \A d \in ids : d <= c

VARIABLES store,     \* the record
          mem,       \* the record as each attempt knows it
          proc,      \* process of each attempt
          metadata,  \* <<c, a>>: attempt a has written the _metadata of checkpoint c
          \* and what only invariants look at:
          folder,    \* attempts that have taken each number, and write into its folder
          replaced,  \* a process was replaced that was alive
          late,      \* a checkpoint completed after a newer one
          failed,    \* checkpoints that failed since the latest that completed
          early      \* a run was failed although no more had failed than is tolerable
ghosts == <<folder, replaced, late, failed, early>>
vars == <<store, mem, proc, metadata, ghosts>>

Record == [epoch : 0..Attempts, next : 1..Checkpoints + 1,
           pending : SUBSET Ids, completed : SUBSET Ids, over : SUBSET Ids,
           acked : [Ids -> SUBSET Stages],
           failures : 0..Tolerable]

Init == /\ store = [epoch |-> 0, next |-> 1, pending |-> {}, completed |-> {}, over |-> {},
                    acked |-> [c \in Ids |-> {}], failures |-> 0]
        /\ mem = [a \in Epochs |-> store]
        /\ proc = [a \in Epochs |-> "none"]
        /\ metadata = {} /\ failed = {}
        /\ folder = [c \in Ids |-> {}]
        /\ replaced = FALSE /\ late = FALSE /\ early = FALSE

-----------------------------------------------------------------------------
(* The one seam that writes (RecordStore.write).  Who finds another record     *)
(* than it knows reads it again, finds a newer epoch, and is fenced.           *)
Loses(a) == On("CompareAndSet") /\ store # mem[a]

Write(a, record) ==
    IF Loses(a) THEN proc' = [proc EXCEPT ![a] = "gone"] /\ UNCHANGED <<store, mem>>
    ELSE /\ store' = record
         /\ mem' = [mem EXCEPT ![a] = record]
         /\ UNCHANGED proc

Aborted(record, gone) ==             \* completion.abort
    [record EXCEPT !.pending = @ \ gone, !.over = @ \cup gone,
                   !.acked = [c \in Ids |-> IF c \in gone THEN {} ELSE @[c]]]

-----------------------------------------------------------------------------
IsLiving(a) == IF a = 0 THEN FALSE ELSE proc[a] = "alive"     \* it renews its lease

Claim(a) ==                          \* claim.open_attempt
    /\ proc[a] = "none" /\ store.epoch = a - 1
    /\ On("Lease") => ~IsLiving(a - 1)
    /\ LET next == IF On("NumbersGoOn") THEN store.next ELSE Newest(store.completed) + 1
           record == [Aborted(store, store.pending) EXCEPT !.epoch = a, !.next = next]
       IN store' = record /\ mem' = [mem EXCEPT ![a] = record]
    /\ proc' = [proc EXCEPT ![a] = "alive"]
    /\ replaced' = (replaced \/ IsLiving(a - 1))
    /\ UNCHANGED <<metadata, folder, late, failed, early>>

Stop(a) == /\ proc[a] = "alive"      \* SIGKILL; or SIGSTOP, from which it wakes one day
           /\ proc' = [proc EXCEPT ![a] = "stopped"]
           /\ UNCHANGED <<store, mem, metadata, ghosts>>

Wake(a) == /\ proc[a] = "stopped"
           /\ proc' = [proc EXCEPT ![a] = "alive"]
           /\ UNCHANGED <<store, mem, metadata, ghosts>>

Trigger(a) ==                        \* triggering._begun
    LET r == mem[a] IN
    /\ proc[a] = "alive" /\ r.next \in Ids /\ Cardinality(r.pending) < Concurrent
    /\ Write(a, [r EXCEPT !.next = @ + 1, !.pending = @ \cup {r.next}])
    /\ folder' = IF Loses(a) THEN folder ELSE [folder EXCEPT ![r.next] = @ \cup {a}]
    /\ UNCHANGED <<metadata, replaced, late, failed, early>>

Acknowledge(a, s, c) ==              \* acknowledgements.stage_acked
    /\ proc[a] = "alive" /\ c \in mem[a].pending /\ s \notin mem[a].acked[c]
    /\ Write(a, [mem[a] EXCEPT !.acked[c] = @ \cup {s}])
    /\ UNCHANGED <<metadata, ghosts>>

Fails(a, c) ==                       \* FailureCounter.failed: the run too, where that is more than tolerable
    LET r == Aborted(mem[a], {c} \cap mem[a].pending)
        count == mem[a].failures + 1
        all == failed \cup {c}
    IN /\ Write(a, [r EXCEPT !.failures = IF count > Tolerable THEN 0 ELSE count])
       /\ failed' = IF Loses(a) THEN failed ELSE IF count > Tolerable THEN {} ELSE all
       /\ early' = (early \/ (~Loses(a) /\ count > Tolerable /\ Cardinality(all) <= Tolerable))
       /\ UNCHANGED <<metadata, folder, replaced, late>>

Decline(a, c) ==                     \* a stage, or the timeout; the second stage's comes when the checkpoint is over
    /\ proc[a] = "alive"
    /\ IF On("OverIsOver") THEN c \in mem[a].pending ELSE c \in mem[a].pending \cup mem[a].over
    /\ Fails(a, c)

WriteMetadata(a, c) ==               \* acknowledgements.finalize_if_complete
    /\ proc[a] = "alive" /\ c \in mem[a].pending
    /\ On("AllAcknowledged") => mem[a].acked[c] = Stages
    /\ metadata' = metadata \cup {<<c, a>>}
    /\ UNCHANGED <<store, mem, proc, ghosts>>

Complete(a, c) ==                    \* completion.complete: the commit point
    LET r == mem[a]
        older == IF On("OlderSubsumed") THEN {d \in r.pending : d < c} ELSE {}
    IN /\ proc[a] = "alive" /\ c \in r.pending
       /\ IF On("MetadataFirst") THEN <<c, a>> \in metadata ELSE r.acked[c] = Stages
       /\ Write(a, [Aborted(r, older) EXCEPT !.pending = @ \ {c}, !.completed = @ \cup {c}, !.failures = 0])
       /\ late' = (late \/ (~Loses(a) /\ c < Newest(r.completed)))
       /\ failed' = IF Loses(a) THEN failed ELSE {}
       /\ UNCHANGED <<metadata, folder, replaced, early>>

Next == \E a \in Epochs :
    \/ Claim(a) \/ Stop(a) \/ Wake(a) \/ Trigger(a)
    \/ \E c \in Ids : \/ Decline(a, c) \/ WriteMetadata(a, c) \/ Complete(a, c)
                      \/ \E s \in Stages : Acknowledge(a, s, c)

Spec == Init /\ [][Next]_vars
Symmetry == {f \in [Stages -> Stages] : \A s, t \in Stages : f[s] = f[t] => s = t}

-----------------------------------------------------------------------------
TypeOK == store \in Record /\ proc \in [Epochs -> {"none", "alive", "stopped", "gone"}]

\* The newest attempt's epoch stands in the record for good.
FencedWritesNothing == \A a \in Epochs : proc[a] # "none" => store.epoch >= a

\* Only who has renewed no lease for its length is replaced.
LivingIsNotReplaced == ~replaced

\* Every stage's part is there, and the file that says where.
CompleteIsWhole == \A c \in store.completed : /\ store.acked[c] = Stages
                                              /\ \E a \in Epochs : <<c, a>> \in metadata

\* Of two attempts no one writes into a folder of the other.
NumbersAreUnique == \A c \in Ids : Cardinality(folder[c]) <= 1

\* What is published goes forward: no older checkpoint completes behind a newer one.
CompletedInOrder == ~late

\* A run fails by as many checkpoints as were allowed to fail, and one more.
FailsBeyondTolerable == ~early
=============================================================================
