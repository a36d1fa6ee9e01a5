----------------------------- MODULE OneMoment -----------------------------
(* The pointer of readers: the newest checkpoint that every table shows, with   *)
(* the version of each.  Tables are published one after the other, and may     *)
(* refuse; the pointer moves behind all of them.  A checkpoint without rows     *)
(* for a table leaves it at an older head.                                      *)
(* dagster_ckpt/spark/attempt/sinks.py: publish, _all_shown, shown_in;          *)
(* dagster_ckpt/core/coordinator/completion.py: tables_shown, pointed_to.       *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Sinks, Attempts, Checkpoints, Off

On(guard) == guard \notin Off
Ids == 1..Checkpoints
Epochs == 1..Attempts
Newest(ids) == IF ids = {} THEN 0 ELSE CHOOSE c \in ids : \A d \in ids : d <= c
Nothing == [s \in Sinks |-> 0]

VARIABLES epoch,     \* of the record
          next,
          line,      \* of each attempt: complete checkpoints that its state comes from
          rows,      \* sinks for which each checkpoint has rows
          head,      \* checkpoint whose publish each table shows
          owner,     \* attempt that has written each table last
          proc,      \* of each attempt: "none", "restoring", "running"
          pass,      \* of each attempt, a checkpoint that is being published: sinks that were asked; <<>>: none is
          note,      \* of each attempt and sink: the head as its directory has noted it
          pointer,   \* of the record: [checkpoint, heads]; moment: what heads should be, for invariants
          back       \* an attempt that runs has moved the pointer back
vars == <<epoch, next, line, rows, head, owner, proc, pass, note, pointer, back>>

NoPass == [checkpoint |-> 0, asked |-> {}, late |-> FALSE, owes |-> <<>>]
Init == /\ epoch = 0 /\ next = 1 /\ back = FALSE
        /\ line = [a \in 0..Attempts |-> {}]
        /\ rows \in [Ids -> SUBSET Sinks] /\ rows[1] = Sinks
        /\ head = Nothing /\ owner = Nothing
        /\ proc = [a \in Epochs |-> "none"]
        /\ pass = [a \in Epochs |-> [t \in 1..2 |-> NoPass]]
        /\ note = [a \in Epochs |-> Nothing]
        /\ pointer = [checkpoint |-> 0, heads |-> Nothing, moment |-> Nothing]

\* Heads at which the tables show a checkpoint of an attempt's line.
HeadAt(a, s, c) == Newest({d \in line[a] : d <= c /\ s \in rows[d]})
Moment(a, c) == [s \in Sinks |-> HeadAt(a, s, c)]

-----------------------------------------------------------------------------
Complete(a) ==                       \* its tables are published by this thread or the other: two at most
    /\ proc[a] = "running" /\ epoch = a /\ next \in Ids
    /\ \E t \in {IF pass[a][1] = NoPass THEN 1 ELSE 2} :
        /\ pass[a][t] = NoPass
        /\ pass' = [pass EXCEPT ![a][t] = [NoPass EXCEPT !.checkpoint = next]]
    /\ line' = [line EXCEPT ![a] = @ \cup {next}]
    /\ next' = next + 1
    /\ UNCHANGED <<epoch, rows, head, owner, proc, note, pointer, back>>

Busy(a, t) == pass[a][t].asked # {} /\ (pass[a][t].asked # Sinks \/ pass[a][t].owes # <<>>)
HasTurn(a, t) == On("OneAtATime") => ~Busy(a, 3 - t)          \* the lock StageGateway.publishing

Ask(a, t, s) ==                      \* one table is published, or refuses
    LET c == pass[a][t].checkpoint
        due == HeadAt(a, s, c)
    IN /\ proc[a] = "running" /\ c # 0 /\ s \notin pass[a][t].asked /\ pass[a][t].owes = <<>> /\ HasTurn(a, t)
       /\ \/ /\ owner[s] = a
             /\ head' = [head EXCEPT ![s] = IF due > @ THEN due ELSE @]
             /\ pass' = [pass EXCEPT ![a][t].asked = @ \cup {s}, ![a][t].owes = <<s, head'[s]>>]
          \/ /\ pass' = [pass EXCEPT ![a][t].asked = @ \cup {s}, ![a][t].late = TRUE]
             /\ UNCHANGED head
       /\ UNCHANGED <<epoch, next, line, rows, owner, proc, note, pointer, back>>

Note(a, t) ==                        \* note_published, behind the commit
    LET owes == pass[a][t].owes IN
    /\ proc[a] = "running" /\ owes # <<>>
    /\ note' = [note EXCEPT ![a][owes[1]] = owes[2]]
    /\ pass' = [pass EXCEPT ![a][t].owes = <<>>]
    /\ UNCHANGED <<epoch, next, line, rows, head, owner, proc, pointer, back>>

Point(a, t) ==                       \* _all_shown, then tables_shown in one compare-and-set
    LET c == pass[a][t].checkpoint
        all == IF On("AllHavePublished") THEN pass[a][t].asked = Sinks /\ ~pass[a][t].late
                                         ELSE pass[a][t].asked # {}
        more == \E s \in Sinks : note[a][s] > c
        moves == /\ all /\ (On("ShowsNoMore") => ~more)
                 /\ (On("OnlyForward") => c > pointer.checkpoint)
                 /\ (On("CompareAndSet") => epoch = a)
    IN /\ proc[a] = "running" /\ c # 0 /\ pass[a][t].asked # {} /\ pass[a][t].owes = <<>>
       /\ pass[a][t].asked = Sinks \/ ~On("AllHavePublished")
       /\ pass' = [pass EXCEPT ![a][t] = NoPass]
       /\ pointer' = IF moves THEN [checkpoint |-> c, heads |-> note[a], moment |-> Moment(a, c)] ELSE pointer
       /\ back' = (back \/ (moves /\ c < pointer.checkpoint))
       /\ UNCHANGED <<epoch, next, line, rows, head, owner, proc, note>>

\* collect_garbage: heads that snapshots and readers need. All others are gone at once, here.
Kept(s) == {0, head[s], HeadAt(epoch, s, Newest(line[epoch]))}
           \cup IF On("PointedIsKept") THEN {pointer.heads[s]} ELSE {}

-----------------------------------------------------------------------------
Claim(a) ==                          \* restores a checkpoint that every table can still show, or begins without state
    /\ proc[a] = "none" /\ epoch = a - 1
    /\ epoch' = a
    /\ proc' = [proc EXCEPT ![a] = "restoring"]
    /\ \E c \in {0} \cup line[epoch] :
        /\ \A s \in Sinks : HeadAt(epoch, s, c) \in Kept(s)
        /\ line' = [line EXCEPT ![a] = {d \in line[epoch] : d <= c}]
    /\ UNCHANGED <<next, rows, head, owner, pass, note, pointer, back>>

RollBack(a, s) ==                    \* the rows of the cut; what it had staged is published
    /\ proc[a] = "restoring" /\ owner[s] < a
    /\ owner' = [owner EXCEPT ![s] = a]
    /\ head' = [head EXCEPT ![s] = HeadAt(a, s, Newest(line[a]))]
    /\ note' = [note EXCEPT ![a][s] = head'[s]]
    /\ UNCHANGED <<epoch, next, line, rows, proc, pass, pointer, back>>

Started(a) ==                        \* lifecycle.started: the pointer goes to what was restored, once all tables are there
    /\ proc[a] = "restoring" /\ epoch = a
    /\ On("AllAreBack") => \A s \in Sinks : owner[s] = a
    /\ proc' = [proc EXCEPT ![a] = "running"]
    /\ owner' = [s \in Sinks |-> IF owner[s] < a THEN a ELSE owner[s]]
    /\ pointer' = [checkpoint |-> Newest(line[a]), heads |-> note[a], moment |-> Moment(a, Newest(line[a]))]
    /\ UNCHANGED <<epoch, next, line, rows, head, pass, note, back>>

Next == \E a \in Epochs :
    \/ Complete(a) \/ Claim(a) \/ Started(a)
    \/ \E s \in Sinks : RollBack(a, s) \/ \E t \in 1..2 : Ask(a, t, s)
    \/ \E t \in 1..2 : Note(a, t) \/ Point(a, t)

Spec == Init /\ [][Next]_vars
Symmetry == {f \in [Sinks -> Sinks] : \A s, t \in Sinks : f[s] = f[t] => s = t}

-----------------------------------------------------------------------------
\* What the pointer names are the rows of one checkpoint, in every table.
PointerIsOneMoment == pointer.heads = pointer.moment

\* Every table can be read at it.
PointerIsReadable == \A s \in Sinks : pointer.heads[s] \in Kept(s)

\* Readers find no older moment than before, but where a restore goes back.
PointerGoesForward == ~back

\* An attempt that was replaced moves it no more: it names a checkpoint that the present state comes from.
PointerIsOfThePresent == (epoch # 0 /\ proc[epoch] = "running") => pointer.checkpoint \in line[epoch] \cup {0}
=============================================================================
