------------------------------- MODULE Files -------------------------------
(* Files of checkpoints in the storage: who may still write them, who uses     *)
(* them, and when they are deleted.  A checkpoint names again what the one it  *)
(* builds on had uploaded, so a folder outlives its checkpoint.  (Coordinator   *)
(* says who owns the record; here every write of it is the owner's.)           *)
EXTENDS Naturals, FiniteSets

CONSTANTS Stages, Checkpoints, Concurrent, Retained, Off

On(guard) == guard \notin Off
Ids == 1..Checkpoints
Newest(ids) == IF ids = {} THEN 0 ELSE CHOOSE c \in ids : \A d \in ids : d <= c
Oldest(ids) == CHOOSE c \in ids : \A d \in ids : c <= d

VARIABLES next, pending, completed,
          cleanup,   \* folders that are to go
          writers,   \* stages that may still write into such a folder
          uses,      \* folder in which a stage's part of a checkpoint is; 0: not acknowledged
          base,      \* builds_on
          files      \* <<c, s>>: what stage s has in the folder of c
vars == <<next, pending, completed, cleanup, writers, uses, base, files>>

Init == /\ next = 1 /\ pending = {} /\ completed = {} /\ cleanup = {} /\ files = {}
        /\ writers = [c \in Ids |-> {}]
        /\ base = [c \in Ids |-> 0]
        /\ uses = [c \in Ids |-> [s \in Stages |-> 0]]

Missing(c) == {s \in Stages : uses[c][s] = 0}

Trigger ==                           \* triggering._begun
    /\ next \in Ids /\ Cardinality(pending) < Concurrent
    /\ next' = next + 1
    /\ pending' = pending \cup {next}
    /\ base' = [base EXCEPT ![next] = Newest(completed)]
    /\ UNCHANGED <<completed, cleanup, writers, uses, files>>

Acknowledge(s, c) ==                 \* with a file that it has written, or with one of the checkpoint it builds on
    /\ c \in pending /\ uses[c][s] = 0
    /\ \/ /\ files' = files \cup {<<c, s>>}
          /\ uses' = [uses EXCEPT ![c][s] = c]
       \/ /\ base[c] # 0 /\ UNCHANGED files
          /\ uses' = [uses EXCEPT ![c][s] = uses[base[c]][s]]
    /\ UNCHANGED <<next, pending, completed, cleanup, writers, base>>

Upload(s, c) ==                      \* a stage that does not know yet that its checkpoint is over
    /\ s \in writers[c]
    /\ files' = files \cup {<<c, s>>}
    /\ UNCHANGED <<next, pending, completed, cleanup, writers, uses, base>>

Forget(gone) ==                      \* no part of what is over is asked for again
    /\ uses' = [c \in Ids |-> IF c \in gone THEN [s \in Stages |-> 0] ELSE uses[c]]
    /\ base' = [c \in Ids |-> IF c \in gone THEN 0 ELSE base[c]]

Abort(gone, ended) ==                \* completion.abort
    /\ cleanup' = cleanup \cup gone
    /\ writers' = [c \in Ids |-> IF c \in gone THEN Missing(c) \ ended ELSE writers[c]]
    /\ Forget(gone)

Decline(s, c) ==
    /\ c \in pending /\ uses[c][s] = 0
    /\ pending' = pending \ {c}
    /\ Abort({c}, {s})
    /\ UNCHANGED <<next, completed, files>>

Complete(c) ==                       \* completion.complete, with retention
    LET older == {d \in pending : d < c}
        all == completed \cup {c}
        out == IF Cardinality(all) > Retained THEN {Oldest(all)} ELSE {}
    IN /\ c \in pending /\ Missing(c) = {}
       /\ pending' = pending \ ({c} \cup older)
       /\ completed' = all \ out
       /\ cleanup' = cleanup \cup older \cup out
       /\ writers' = [d \in Ids |-> IF d \in older THEN Missing(d) ELSE writers[d]]
       /\ Forget(older \cup (out \ {base[d] : d \in pending \ older}))
       /\ UNCHANGED <<next, files>>

Confirm(s, c) ==                     \* acknowledgements.abort_confirmed
    /\ s \in writers[c]
    /\ writers' = [writers EXCEPT ![c] = @ \ {s}]
    /\ UNCHANGED <<next, pending, completed, cleanup, uses, base, files>>

Takeover ==                          \* claim._claim: the stages of the attempt before are gone
    /\ pending' = {}
    /\ cleanup' = cleanup \cup pending
    /\ writers' = [c \in Ids |-> {}]
    /\ Forget(pending)
    /\ UNCHANGED <<next, completed, files>>

Building == pending \cup IF On("BaseKept") THEN {base[c] : c \in pending} \ {0} ELSE {}
Used == {<<uses[c][s], s>> : c \in completed \cup Building, s \in Stages}   \* shared_state

Clean(c) ==                          \* loop.clean: what is to go and the record says so
    /\ c \in cleanup \cup (IF On("StoredFirst") \/ Cardinality(completed) < Retained THEN {}
                           ELSE {Oldest(completed) : d \in {e \in pending : Missing(e) = {}}})
    /\ On("WritersEnded") => writers[c] = {}
    /\ LET kept == IF On("SharedKept") /\ c \in cleanup THEN Used ELSE {}
       IN files' = {f \in files : f[1] # c \/ f \in kept}
    /\ cleanup' = IF \E f \in files' : f[1] = c THEN cleanup ELSE cleanup \ {c}
    /\ UNCHANGED <<next, pending, completed, writers, uses, base>>

Next == \/ Trigger \/ Takeover
        \/ \E c \in Ids : \/ Complete(c) \/ Clean(c)
                          \/ \E s \in Stages : Upload(s, c) \/ Acknowledge(s, c) \/ Decline(s, c) \/ Confirm(s, c)

Spec == Init /\ [][Next]_vars
Symmetry == {f \in [Stages -> Stages] : \A s, t \in Stages : f[s] = f[t] => s = t}

-----------------------------------------------------------------------------
TypeOK == /\ pending \cup completed \cup cleanup \subseteq Ids /\ files \subseteq Ids \X Stages
          /\ pending \cap completed = {}

\* Every file of a retained checkpoint is there.
RetainedIsRestorable == \A c \in completed, s \in Stages : <<uses[c][s], s>> \in files

\* So is every file that an acknowledged part of a pending one names.
PendingCanComplete == \A c \in pending, s \in Stages : uses[c][s] # 0 => <<uses[c][s], s>> \in files

\* No file stays that nobody uses and nobody is going to delete.
NothingLeftBehind == \A f \in files : f[1] \in pending \cup completed \cup cleanup
=============================================================================
